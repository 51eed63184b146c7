//! The `tojson` filter: transformers' wrapper around Python's `json.dumps`.
use super::args::{parse, Dict, Digits, MAX_DEPTH};
use super::pytext;
use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

/// Bytes of output that one unit of fuel pays for.
const BYTES_PER_FUEL: usize = 32;

/// `tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub fn tojson(state: &State, value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
    if args.len() > names.len() {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let argument = |at: usize| -> Result<Option<Value>, Error> {
        let named: Option<Value> = if kwargs.has(names[at]) { Some(kwargs.get(names[at])?) } else { None };
        Ok(named.or_else(|| args.get(at).cloned()).filter(|v| !v.is_none()))
    };
    let indent = argument(1)?.map(|v| indent_text(state, &v)).transpose()?;
    let (item, key) = match argument(2)? {
        Some(pair) => separators(&pair)?,
        None if indent.is_some() => (",".to_string(), ": ".to_string()),
        None => (", ".to_string(), ": ".to_string()),
    };
    let mut out = Writer {
        state,
        out: String::new(),
        paid: 0,
        ascii: argument(0)?.is_some_and(|v| v.is_true()),
        sort: argument(3)?.is_some_and(|v| v.is_true()),
        indent,
        item,
        key,
    };
    kwargs.assert_all_used()?;
    out.value(value, 0)?;
    Ok(Value::from(out.out))
}

/// The `fromjson` filter: JSON text as a value; anything else as it is.
pub fn fromjson(value: &Value) -> Result<Value, Error> {
    match value.as_str() {
        Some(text) => parse(text.as_bytes()).map_err(|e| Error::new(ErrorKind::InvalidOperation, e)),
        None => Ok(value.clone()),
    }
}

fn indent_text(state: &State, v: &Value) -> Result<String, Error> {
    if let Some(text) = v.as_str() {
        return Ok(text.to_string());
    }
    let n = usize::try_from(i64::try_from(v.clone())?.max(0)).unwrap_or(usize::MAX);
    state.consume_fuel((n / BYTES_PER_FUEL) as u64)?;
    Ok(" ".repeat(n))
}

fn separators(v: &Value) -> Result<(String, String), Error> {
    let parts: Vec<Value> = v.try_iter()?.take(3).collect();
    match parts.as_slice() {
        [item, key] if item.as_str().is_some() && key.as_str().is_some() => {
            Ok((item.to_string(), key.to_string()))
        }
        _ => Err(Error::new(ErrorKind::InvalidOperation, "separators must be two strings")),
    }
}

struct Writer<'a, 'b, 'c> {
    state: &'a State<'b, 'c>,
    out: String,
    paid: usize, // bytes of out that fuel has been paid for
    ascii: bool,
    sort: bool,
    indent: Option<String>,
    item: String,
    key: String,
}

impl Writer<'_, '_, '_> {
    fn pay(&mut self) -> Result<(), Error> {
        let due = (self.out.len() - self.paid) / BYTES_PER_FUEL;
        self.paid += due * BYTES_PER_FUEL;
        // Every value costs something, or one that holds another many times over would be cheap.
        self.state.consume_fuel(1 + due as u64)
    }

    fn value(&mut self, v: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(Error::new(ErrorKind::InvalidOperation, "tojson: nested too deeply"));
        }
        match v.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if v.is_true() { "true" } else { "false" }),
            ValueKind::String => self.string(v.as_str().unwrap_or_default()),
            ValueKind::Number => self.number(v),
            ValueKind::Seq | ValueKind::Iterable => self.array(v, depth)?,
            ValueKind::Map => self.object(v, depth)?,
            ValueKind::Plain if v.downcast_object_ref::<Digits>().is_some() => self.out.push_str(&v.to_string()),
            kind => {
                let kind = if kind == ValueKind::Undefined { "Undefined".to_string() } else { kind.to_string() };
                let text = format!("Object of type {kind} is not JSON serializable");
                return Err(Error::new(ErrorKind::InvalidOperation, text));
            }
        }
        self.pay()
    }

    fn number(&mut self, v: &Value) {
        match pytext::as_float(v) {
            Some(f) if f.is_nan() => self.out.push_str("NaN"),
            Some(f) if f.is_infinite() => self.out.push_str(if f > 0.0 { "Infinity" } else { "-Infinity" }),
            Some(f) => self.out.push_str(&pytext::float(f)),
            None => self.out.push_str(&v.to_string()),
        }
    }

    fn array(&mut self, v: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[');
        let mut any = false;
        for item in v.try_iter()? {
            self.separate(any, depth + 1);
            self.value(&item, depth + 1)?;
            any = true;
        }
        self.close(any, depth, ']');
        Ok(())
    }

    fn object(&mut self, v: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('{');
        let mut any = false;
        match v.downcast_object_ref::<Dict>() {
            Some(dict) if !self.sort => {
                for (key, value) in dict.entries() {
                    self.member(any, key, value, depth + 1)?;
                    any = true;
                }
            }
            _ => {
                let pairs = v.as_object().and_then(|o| o.try_iter_pairs());
                let mut pairs: Vec<(Value, Value)> = pairs.into_iter().flatten().collect();
                if self.sort {
                    pairs.sort_by(|a, b| a.0.cmp(&b.0));
                }
                for (key, value) in &pairs {
                    self.member(any, key, value, depth + 1)?;
                    any = true;
                }
            }
        }
        self.close(any, depth, '}');
        Ok(())
    }

    fn member(&mut self, any: bool, key: &Value, value: &Value, depth: usize) -> Result<(), Error> {
        self.separate(any, depth);
        match key.kind() {
            ValueKind::String => self.string(key.as_str().unwrap_or_default()),
            ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                self.out.push('"');
                self.value(key, depth)?;
                self.out.push('"');
            }
            kind => {
                let text = format!("keys must be str, int, float, bool or None, not {kind}");
                return Err(Error::new(ErrorKind::InvalidOperation, text));
            }
        }
        self.out.push_str(&self.key);
        self.value(value, depth)
    }

    fn separate(&mut self, any: bool, depth: usize) {
        if any {
            self.out.push_str(&self.item);
        }
        self.line(depth);
    }

    fn close(&mut self, any: bool, depth: usize, bracket: char) {
        if any {
            self.line(depth);
        }
        self.out.push(bracket);
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
    }

    fn string(&mut self, s: &str) {
        self.out.push('"');
        let mut from = 0;
        for (at, c) in s.char_indices() {
            let escaped = match c {
                '"' => "\\\"",
                '\\' => "\\\\",
                '\n' => "\\n",
                '\r' => "\\r",
                '\t' => "\\t",
                '\u{8}' => "\\b",
                '\u{c}' => "\\f",
                c if c < ' ' || (self.ascii && c > '\u{7e}') => "",
                _ => continue,
            };
            self.out.push_str(&s[from..at]);
            from = at + c.len_utf8();
            if !escaped.is_empty() {
                self.out.push_str(escaped);
                continue;
            }
            for unit in c.encode_utf16(&mut [0; 2]) {
                self.out.push_str(&format!("\\u{unit:04x}"));
            }
        }
        self.out.push_str(&s[from..]);
        self.out.push('"');
    }
}
