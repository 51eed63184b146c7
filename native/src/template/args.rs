//! A template's variables: JSON read straight into the engine's values, as Python's `json.loads` reads it.
//!
//! Numbers stay what they are (integers of any size, floats), the order of keys is kept, and of two equal keys the
//! last value counts. The text comes from clients, so nesting is limited.
use minijinja::value::{DynObject, Enumerator, Object, ObjectRepr, Value};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// How deep arrays and objects may nest.
pub const MAX_DEPTH: usize = 200;

/// Objects with more members than this get a hash index.
const INDEXED_FROM: usize = 12;

/// A JSON object. Most have a handful of members, which are found faster by looking at each than by hashing.
#[derive(Debug)]
pub struct Dict {
    entries: Vec<(Value, Value)>,
    index: Option<HashMap<Box<str>, usize>>,
}

impl Dict {
    fn find(&self, key: &str) -> Option<usize> {
        match &self.index {
            Some(index) => index.get(key).copied(),
            None => self.entries.iter().position(|(k, _)| k.as_str() == Some(key)),
        }
    }

    fn insert(&mut self, key: &str, value: Value) {
        if let Some(at) = self.find(key) {
            self.entries[at].1 = value;
            return;
        }
        if let Some(index) = &mut self.index {
            index.insert(key.into(), self.entries.len());
        }
        self.entries.push((Value::from(key), value));
        if self.index.is_none() && self.entries.len() > INDEXED_FROM {
            let keys = self.entries.iter().enumerate();
            self.index = Some(keys.map(|(at, (k, _))| (k.as_str().unwrap_or_default().into(), at)).collect());
        }
    }

    /// The members in their order.
    pub fn entries(&self) -> &[(Value, Value)] {
        &self.entries
    }
}

impl Object for Dict {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Map
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get_value_by_str(key.as_str()?)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        self.find(key).map(|at| self.entries[at].1.clone())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let dict = self.clone();
        Enumerator::RevKeyValueIter(Box::new((0..self.entries.len()).map(move |at| dict.entries[at].clone())))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.entries.len())
    }
}

/// An integer too large for the engine: kept as its digits, good for printing and comparing.
#[derive(Debug)]
pub struct Digits(pub Box<str>);

impl Object for Digits {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn custom_cmp(self: &Arc<Self>, other: &DynObject) -> Option<std::cmp::Ordering> {
        other.downcast_ref::<Digits>().map(|other| self.0.cmp(&other.0))
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Reads one JSON document.
pub fn parse(json: &[u8]) -> Result<Value, String> {
    let text = std::str::from_utf8(json).map_err(|e| format!("the arguments aren't UTF-8: {e}"))?;
    let mut reader = Reader { text, at: 0, depth: 0, scratch: String::new() };
    reader.space();
    let value = reader.value()?;
    reader.space();
    if reader.at != text.len() {
        return Err(reader.unexpected("the end"));
    }
    Ok(value)
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    scratch: String, // strings with escapes are built here
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\t' | b'\r')) {
            self.at += 1;
        }
    }

    fn unexpected(&self, wanted: &str) -> String {
        format!("invalid JSON at byte {}: expected {wanted}", self.at)
    }

    fn expect(&mut self, c: u8, wanted: &str) -> Result<(), String> {
        if self.peek() != Some(c) {
            return Err(self.unexpected(wanted));
        }
        self.at += 1;
        Ok(())
    }

    fn value(&mut self) -> Result<Value, String> {
        match self.peek() {
            Some(b'{') => self.nested(Self::object),
            Some(b'[') => self.nested(Self::array),
            Some(b'"') => Ok(Value::from(self.string()?)),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.word("true", Value::from(true)),
            Some(b'f') => self.word("false", Value::from(false)),
            Some(b'n') => self.word("null", Value::from(())),
            _ => Err(self.unexpected("a value")),
        }
    }

    fn word(&mut self, word: &str, value: Value) -> Result<Value, String> {
        if !self.text.as_bytes()[self.at..].starts_with(word.as_bytes()) {
            return Err(self.unexpected(word));
        }
        self.at += word.len();
        Ok(value)
    }

    fn nested(&mut self, read: fn(&mut Self) -> Result<Value, String>) -> Result<Value, String> {
        if self.depth == MAX_DEPTH {
            return Err(format!("nested deeper than {MAX_DEPTH} levels"));
        }
        self.depth += 1;
        self.at += 1;
        let value = read(self);
        self.depth -= 1;
        value
    }

    fn array(&mut self) -> Result<Value, String> {
        let mut items = Vec::new();
        self.space();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(Value::from(items));
        }
        loop {
            self.space();
            items.push(self.value()?);
            self.space();
            if self.peek() == Some(b',') {
                self.at += 1;
                continue;
            }
            self.expect(b']', "',' or ']'")?;
            return Ok(Value::from(items));
        }
    }

    fn object(&mut self) -> Result<Value, String> {
        let mut dict = Dict { entries: Vec::new(), index: None };
        self.space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(Value::from_object(dict));
        }
        loop {
            self.space();
            if self.peek() != Some(b'"') {
                return Err(self.unexpected("a key"));
            }
            let key = self.string()?.to_string();
            self.space();
            self.expect(b':', "':'")?;
            self.space();
            let value = self.value()?;
            dict.insert(&key, value);
            self.space();
            if self.peek() == Some(b',') {
                self.at += 1;
                continue;
            }
            self.expect(b'}', "',' or '}'")?;
            return Ok(Value::from_object(dict));
        }
    }

    /// Reads a string; one without escapes is a slice of the input.
    fn string(&mut self) -> Result<&str, String> {
        self.at += 1;
        let start = self.at;
        let end = self.plain_run()?;
        if self.text.as_bytes()[end] == b'"' {
            self.at = end + 1;
            return Ok(&self.text[start..end]);
        }
        self.scratch.clear();
        let mut from = start;
        loop {
            let end = self.plain_run()?;
            self.scratch.push_str(&self.text[from..end]);
            self.at = end + 1;
            if self.text.as_bytes()[end] == b'"' {
                return Ok(&self.scratch);
            }
            let c = self.escape()?;
            self.scratch.push(c);
            from = self.at;
        }
    }

    /// Index of the next quote or backslash.
    fn plain_run(&self) -> Result<usize, String> {
        let bytes = self.text.as_bytes();
        let stop = bytes[self.at..].iter().position(|&c| c == b'"' || c == b'\\' || c < 0x20);
        match stop.map(|n| self.at + n) {
            Some(end) if bytes[end] >= 0x20 => Ok(end),
            Some(end) => Err(format!("invalid JSON at byte {end}: control character in a string")),
            None => Err("invalid JSON: unfinished string".to_string()),
        }
    }

    fn escape(&mut self) -> Result<char, String> {
        let c = self.peek().ok_or_else(|| self.unexpected("an escape"))?;
        self.at += 1;
        Ok(match c {
            b'"' | b'\\' | b'/' => c as char,
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => return self.unicode(),
            _ => return Err(self.unexpected("an escape")),
        })
    }

    fn unicode(&mut self) -> Result<char, String> {
        let first = self.hex4()?;
        if (0xd800..0xdc00).contains(&first) && self.text.as_bytes()[self.at..].starts_with(b"\\u") {
            let back = self.at;
            self.at += 2;
            let second = self.hex4()?;
            if (0xdc00..0xe000).contains(&second) {
                let c = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
                return Ok(char::from_u32(c).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            self.at = back;
        }
        // A lone surrogate has no UTF-8, so no tokenizer could take it.
        Ok(char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    fn hex4(&mut self) -> Result<u32, String> {
        let digits = self.text.as_bytes().get(self.at..self.at + 4);
        let digits = digits.filter(|d| d.iter().all(u8::is_ascii_hexdigit));
        let digits = digits.ok_or_else(|| self.unexpected("four hexadecimal digits"))?;
        let code = digits.iter().fold(0, |n, &d| n * 16 + (d as char).to_digit(16).unwrap_or(0));
        self.at += 4;
        Ok(code)
    }

    fn number(&mut self) -> Result<Value, String> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        let whole = self.digits()?;
        if whole > 1 && self.text.as_bytes()[self.at - whole] == b'0' {
            return Err(format!("invalid JSON at byte {start}: leading zero"));
        }
        let mut float = false;
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
            float = true;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
            float = true;
        }
        let text = &self.text[start..self.at];
        if float {
            return Ok(Value::from(text.parse::<f64>().unwrap_or(f64::NAN)));
        }
        if let Ok(n) = text.parse::<i64>() {
            return Ok(Value::from(n));
        }
        match text.parse::<i128>() {
            Ok(n) => Ok(Value::from(n)),
            Err(_) => Ok(Value::from_object(Digits(text.into()))),
        }
    }

    fn digits(&mut self) -> Result<usize, String> {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == start {
            return Err(self.unexpected("a digit"));
        }
        Ok(self.at - start)
    }
}
