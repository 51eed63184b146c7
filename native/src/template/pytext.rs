//! Python's text of values: `str()` and `repr()`.
use super::args::{Dict, Digits, MAX_DEPTH};
use minijinja::value::{Value, ValueKind};
use minijinja::{Error, State};
use std::fmt::{self, Write};

/// `repr` of a float: the shortest digits that read back as the same number, with an exponent from 1e16 up and below
/// 1e-4.
pub fn float(v: f64) -> String {
    if v.is_nan() {
        return "nan".into();
    }
    if v.is_infinite() {
        return if v > 0.0 { "inf" } else { "-inf" }.into();
    }
    let scientific = format!("{v:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if v != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{v}");
    if plain.contains('.') {
        plain
    } else {
        plain + ".0"
    }
}

/// The value as a float, when it is one (an integer isn't).
pub fn as_float(v: &Value) -> Option<f64> {
    if v.kind() == ValueKind::Number && !v.is_integer() {
        f64::try_from(v.clone()).ok()
    } else {
        None
    }
}

/// Reports whether the engine's own text of the value may differ from Python's.
pub fn differs(v: &Value) -> bool {
    match v.kind() {
        ValueKind::Number => !v.is_integer(),
        ValueKind::Seq | ValueKind::Map => true,
        _ => false,
    }
}

/// `str` of a value, paid for with fuel as it grows: a small value that holds another one many times over can have an
/// endless text.
pub fn str(state: &State, v: &Value) -> Result<String, Error> {
    match v.as_str() {
        Some(s) => Ok(s.to_string()),
        None if differs(v) => {
            let mut out = Paid { state, text: String::new(), failed: None };
            match repr(&mut out, v, 0) {
                Ok(()) => Ok(out.text),
                Err(e) => Err(out.failed.unwrap_or_else(|| Error::from(e))),
            }
        }
        None => Ok(v.to_string()),
    }
}

/// Text that fuel is paid for with every write.
struct Paid<'a, 'b, 'c> {
    state: &'a State<'b, 'c>,
    text: String,
    failed: Option<Error>,
}

impl Write for Paid<'_, '_, '_> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        // Every write costs something, or a value of many empty lists would be free.
        if let Err(e) = self.state.consume_fuel(1 + (s.len() / 64) as u64) {
            self.failed = Some(e);
            return Err(fmt::Error);
        }
        self.text.push_str(s);
        Ok(())
    }
}

/// Writes `repr` of a value. Past the nesting limit it writes `...`, as Python does for a list inside itself.
pub fn repr(out: &mut impl Write, v: &Value, depth: usize) -> fmt::Result {
    if let Some(f) = as_float(v) {
        return out.write_str(&float(f));
    }
    if depth > MAX_DEPTH {
        return out.write_str("...");
    }
    match v.kind() {
        ValueKind::Map => map(out, v, depth),
        ValueKind::Seq if v.is_tuple() => items(out, v, depth, "(", if v.len() == Some(1) { ",)" } else { ")" }),
        ValueKind::Seq => items(out, v, depth, "[", "]"),
        ValueKind::Undefined => out.write_str("Undefined"),
        ValueKind::Plain => match v.downcast_object_ref::<Digits>() {
            Some(digits) => out.write_str(&digits.0),
            None => write!(out, "{v}"),
        },
        ValueKind::String => quoted(out, v.as_str().unwrap_or_default()),
        _ => write!(out, "{v:?}"),
    }
}

/// Writes a string as Python's `repr` does: in single quotes unless it holds those and no double ones.
fn quoted(out: &mut impl Write, s: &str) -> fmt::Result {
    let quote = if s.contains('\'') && !s.contains('"') { '"' } else { '\'' };
    out.write_char(quote)?;
    let mut from = 0;
    for (at, c) in s.char_indices() {
        if is_printable(c) && c != quote && c != '\\' {
            continue;
        }
        out.write_str(&s[from..at])?;
        from = at + c.len_utf8();
        match c {
            '\n' => out.write_str("\\n")?,
            '\r' => out.write_str("\\r")?,
            '\t' => out.write_str("\\t")?,
            c if c == quote || c == '\\' => write!(out, "\\{c}")?,
            c if c <= '\u{ff}' => write!(out, "\\x{:02x}", c as u32)?,
            c if c <= '\u{ffff}' => write!(out, "\\u{:04x}", c as u32)?,
            c => write!(out, "\\U{:08x}", c as u32)?,
        }
    }
    out.write_str(&s[from..])?;
    out.write_char(quote)
}

/// `str.isprintable` for assigned characters: no control or format character, no separator but the space, nothing for
/// private use.
fn is_printable(c: char) -> bool {
    c == ' '
        || !(c.is_control()
            || c.is_whitespace()
            || matches!(c,
                '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}' | '\u{891}' | '\u{8e2}'
                | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2064}'
                | '\u{2066}'..='\u{206f}' | '\u{e000}'..='\u{f8ff}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
                | '\u{110bd}' | '\u{110cd}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
                | '\u{e0001}' | '\u{e0020}'..='\u{e007f}' | '\u{f0000}'..='\u{10ffff}'))
}

fn map(out: &mut impl Write, v: &Value, depth: usize) -> fmt::Result {
    out.write_char('{')?;
    let mut pair = |n: usize, key: &Value, value: &Value| -> fmt::Result {
        if n > 0 {
            out.write_str(", ")?;
        }
        repr(out, key, depth + 1)?;
        out.write_str(": ")?;
        repr(out, value, depth + 1)
    };
    if let Some(dict) = v.downcast_object_ref::<Dict>() {
        for (n, (key, value)) in dict.entries().iter().enumerate() {
            pair(n, key, value)?;
        }
    } else {
        for (n, (key, value)) in v.as_object().and_then(|o| o.try_iter_pairs()).into_iter().flatten().enumerate() {
            pair(n, &key, &value)?;
        }
    }
    out.write_char('}')
}

fn items(out: &mut impl Write, v: &Value, depth: usize, open: &str, close: &str) -> fmt::Result {
    out.write_str(open)?;
    for (n, item) in v.try_iter().into_iter().flatten().enumerate() {
        if n > 0 {
            out.write_str(", ")?;
        }
        repr(out, &item, depth + 1)?;
    }
    out.write_str(close)
}

/// Python's white space: Unicode's, and the four ASCII separators that Unicode leaves out.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}
