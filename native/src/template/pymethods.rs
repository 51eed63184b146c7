//! Python's methods of str, dict and list, as far as chat templates may use them. What changes a value in place is
//! missing on purpose: transformers' sandbox refuses it.
use super::pytext::is_space;
use minijinja::value::{from_args, Kwargs, Tuple, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

/// Bytes of text that one unit of fuel pays for.
const BYTES_PER_FUEL: usize = 64;

/// Calls a method. Those not named here are minijinja-contrib's.
pub fn call(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let own = match value.kind() {
        ValueKind::String => string(state, value.as_str().unwrap_or_default(), method, args)?,
        ValueKind::Map if method == "copy" => Some(value.clone()),
        ValueKind::Seq => list(state, value, method, args)?,
        _ => None,
    };
    match own {
        Some(value) => Ok(value),
        None => minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args),
    }
}

fn string(state: &State, s: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    state.consume_fuel((s.len() / BYTES_PER_FUEL) as u64)?;
    Ok(Some(match method {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            Value::from(strip(s, chars, method != "rstrip", method != "lstrip"))
        }
        "split" | "rsplit" => split(s, args, method == "rsplit")?,
        "splitlines" => splitlines(s, args)?,
        "partition" | "rpartition" => partition(s, args, method == "rpartition")?,
        "removeprefix" | "removesuffix" => {
            let (part,): (&str,) = from_args(args)?;
            let rest = if method == "removeprefix" { s.strip_prefix(part) } else { s.strip_suffix(part) };
            Value::from(rest.unwrap_or(s))
        }
        "find" | "rfind" | "index" | "rindex" | "count" => search(s, method, args)?,
        "startswith" | "endswith" => return affix(s, method == "startswith", args),
        "title" | "swapcase" | "casefold" | "capitalize" => {
            let () = from_args(args)?;
            Value::from(recase(s, method))
        }
        "isspace" => {
            let () = from_args(args)?;
            Value::from(!s.is_empty() && s.chars().all(is_space))
        }
        "isdecimal" => {
            let () = from_args(args)?;
            Value::from(!s.is_empty() && s.chars().all(|c| c.is_ascii_digit()))
        }
        "ljust" | "rjust" | "center" | "zfill" => pad(state, s, method, args)?,
        "join" => join(state, s, args)?,
        "format" => {
            // Fields are padded to widths that stand in the text.
            let widths = s.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
            let width = widths.map(|digits| digits.parse::<u64>().unwrap_or(u64::MAX)).fold(0, u64::saturating_add);
            state.consume_fuel(width / 16)?;
            return Ok(None);
        }
        _ => return Ok(None),
    }))
}

/// `str.strip` and its one-sided forms.
pub fn strip<'a>(s: &'a str, chars: Option<&str>, left: bool, right: bool) -> &'a str {
    let drop = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let s = if left { s.trim_start_matches(drop) } else { s };
    if right {
        s.trim_end_matches(drop)
    } else {
        s
    }
}

fn split(s: &str, args: &[Value], from_right: bool) -> Result<Value, Error> {
    let (sep, limit, kwargs): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
    let sep = sep.or(kwargs.get::<Option<Value>>("sep")?).filter(|v| !v.is_none());
    let limit = limit.or(kwargs.get::<Option<i64>>("maxsplit")?).unwrap_or(-1);
    kwargs.assert_all_used()?;
    let limit = usize::try_from(limit).map_or(usize::MAX, |n| n.saturating_add(1));
    let Some(sep) = sep else {
        return Ok(words(s, limit, from_right).into_iter().map(Value::from).collect());
    };
    let sep = sep.as_str().ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "the separator must be a string"))?;
    if sep.is_empty() {
        return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
    }
    if !from_right {
        return Ok(s.splitn(limit, sep).map(Value::from).collect());
    }
    let mut parts: Vec<Value> = s.rsplitn(limit, sep).map(Value::from).collect();
    parts.reverse();
    Ok(Value::from(parts))
}

/// Splits at runs of white space into at most `limit` parts; the last one keeps its white space.
fn words(s: &str, limit: usize, from_right: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = strip(s, None, !from_right, from_right);
    while !rest.is_empty() {
        if parts.len() + 1 >= limit {
            parts.push(rest);
            break;
        }
        let cut = if from_right { rest.rfind(is_space) } else { rest.find(is_space) };
        let Some(at) = cut else {
            parts.push(rest);
            break;
        };
        if from_right {
            let after = at + rest[at..].chars().next().map_or(0, char::len_utf8);
            parts.push(&rest[after..]);
            rest = strip(&rest[..at], None, false, true);
        } else {
            parts.push(&rest[..at]);
            rest = strip(&rest[at..], None, true, false);
        }
    }
    if from_right {
        parts.reverse();
    }
    parts
}

fn splitlines(s: &str, args: &[Value]) -> Result<Value, Error> {
    let (keep, kwargs): (Option<bool>, Kwargs) = from_args(args)?;
    let keep = keep.or(kwargs.get::<Option<bool>>("keepends")?).unwrap_or(false);
    kwargs.assert_all_used()?;
    let ends = |c| matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let mut lines = Vec::new();
    let mut rest = s;
    while let Some(at) = rest.find(ends) {
        let mut after = at + rest[at..].chars().next().map_or(1, char::len_utf8);
        if rest[at..].starts_with("\r\n") {
            after += 1;
        }
        lines.push(Value::from(&rest[..if keep { after } else { at }]));
        rest = &rest[after..];
    }
    if !rest.is_empty() {
        lines.push(Value::from(rest));
    }
    Ok(Value::from(lines))
}

fn partition(s: &str, args: &[Value], last: bool) -> Result<Value, Error> {
    let (sep,): (&str,) = from_args(args)?;
    if sep.is_empty() {
        return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
    }
    let found = if last { s.rsplit_once(sep) } else { s.split_once(sep) };
    let parts = match found {
        Some((before, after)) => [before, sep, after],
        None if last => ["", "", s],
        None => [s, "", ""],
    };
    Ok(Value::from_object(Tuple::new(parts.into_iter().map(Value::from).collect())))
}

/// Byte range of Python's `s[start:end]`.
fn range(s: &str, start: Option<i64>, end: Option<i64>) -> std::ops::Range<usize> {
    if start.is_none() && end.is_none() {
        return 0..s.len();
    }
    let count = s.chars().count() as i64;
    let clamp = |n: i64| if n < 0 { (n + count).max(0) } else { n.min(count) };
    let byte = |n: i64| s.char_indices().nth(n as usize).map_or(s.len(), |(at, _)| at);
    let (start, end) = (clamp(start.unwrap_or(0)), clamp(end.unwrap_or(count)));
    byte(start)..byte(end.max(start))
}

fn search(s: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (what, start, end): (&str, Option<i64>, Option<i64>) = from_args(args)?;
    let range = range(s, start, end);
    let part = &s[range.clone()];
    if method == "count" {
        return Ok(Value::from(part.matches(what).count()));
    }
    let found = if method.starts_with('r') { part.rfind(what) } else { part.find(what) };
    match found {
        Some(at) => Ok(Value::from(s[..range.start + at].chars().count())),
        None if method.ends_with("index") => Err(Error::new(ErrorKind::InvalidOperation, "substring not found")),
        None => Ok(Value::from(-1)),
    }
}

fn affix(s: &str, prefix: bool, args: &[Value]) -> Result<Option<Value>, Error> {
    let (what, start, end): (&Value, Option<i64>, Option<i64>) = from_args(args)?;
    if start.is_none() && end.is_none() && what.as_str().is_none() {
        return Ok(None); // a tuple of strings
    }
    let part = &s[range(s, start, end)];
    let what = what.as_str().ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "the argument must be a string"))?;
    Ok(Some(Value::from(if prefix { part.starts_with(what) } else { part.ends_with(what) })))
}

/// `str.title`, `swapcase`, `casefold` and `capitalize`.
pub fn recase(s: &str, method: &str) -> String {
    let mut out = String::with_capacity(s.len());
    let mut in_word = false;
    for c in s.chars() {
        let upper = match method {
            "title" => !in_word,
            "swapcase" => c.is_lowercase(),
            "capitalize" => out.is_empty(),
            _ => false,
        };
        in_word = c.is_alphabetic();
        if upper {
            out.extend(c.to_uppercase());
        } else {
            out.extend(c.to_lowercase());
        }
    }
    out
}

fn pad(state: &State, s: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (width, fill): (i64, Option<&str>) = from_args(args)?;
    let have = s.chars().count();
    let Some(missing) = usize::try_from(width).ok().and_then(|w| w.checked_sub(have)).filter(|&n| n > 0) else {
        return Ok(Value::from(s));
    };
    state.consume_fuel((missing / 16) as u64)?;
    let fill = if method == "zfill" { "0" } else { fill.unwrap_or(" ") };
    let (sign, s) = match s.as_bytes().first() {
        Some(b'+' | b'-') if method == "zfill" => s.split_at(1),
        _ => ("", s),
    };
    let left = match method {
        "ljust" => 0,
        // Python puts the odd one to the left when the width is odd.
        "center" => missing / 2 + (missing & (width as usize) & 1),
        _ => missing,
    };
    Ok(Value::from(format!("{sign}{}{s}{}", fill.repeat(left), fill.repeat(missing - left))))
}

fn join(state: &State, s: &str, args: &[Value]) -> Result<Value, Error> {
    let (items,): (&Value,) = from_args(args)?;
    let mut out = String::new();
    for (n, item) in items.try_iter()?.enumerate() {
        let before = out.len();
        if n > 0 {
            out.push_str(s);
        }
        match item.as_str() {
            Some(text) => out.push_str(text),
            None => {
                let text = format!("sequence item {n}: expected str instance, {} found", item.kind());
                return Err(Error::new(ErrorKind::InvalidOperation, text));
            }
        }
        state.consume_fuel(((out.len() - before) / BYTES_PER_FUEL) as u64 + 1)?;
    }
    Ok(Value::from(out))
}

fn list(state: &State, value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    match method {
        "copy" => {
            let () = from_args(args)?;
            Ok(Some(value.clone()))
        }
        "index" => {
            let (what,): (&Value,) = from_args(args)?;
            state.consume_fuel(value.len().unwrap_or(0) as u64)?;
            let found = value.try_iter()?.position(|item| item == *what);
            let missing = || Error::new(ErrorKind::InvalidOperation, "the value is not in the list");
            found.map(|at| Some(Value::from(at))).ok_or_else(missing)
        }
        _ => Ok(None),
    }
}
