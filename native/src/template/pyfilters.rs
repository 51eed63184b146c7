//! Filters whose results or arguments differ from Jinja2's in minijinja.
use super::{pyjson, pymethods, pytext};
use minijinja::value::{Kwargs, Rest, StringInput, Value, ValueKind};
use minijinja::{filters, Environment, Error, ErrorKind, State};

/// Puts the filters into an environment.
pub fn add(env: &mut Environment<'static>) {
    env.add_filter("tojson", |state: &State, v: &Value, args: Rest<Value>, kwargs: Kwargs| {
        pyjson::tojson(state, v, args, kwargs)
    });
    // Not transformers', but templates of DeepSeek's models use it where they know their engine has it.
    env.add_filter("fromjson", pyjson::fromjson);
    env.add_filter("from_json", pyjson::fromjson);
    env.add_filter("string", |state: &State, v: &Value| -> Result<Value, Error> {
        match v.kind() {
            ValueKind::String => Ok(v.clone()),
            _ => Ok(Value::from(pytext::str(state, v)?)),
        }
    });
    env.add_filter("trim", |s: StringInput<'_>, chars: Option<String>| -> Value {
        s.preserve_safety(pymethods::strip(s.as_str(), chars.as_deref(), true, true).to_string())
    });
    env.add_filter("capitalize", |s: StringInput<'_>| -> Value {
        s.preserve_safety(pymethods::recase(s.as_str(), "capitalize"))
    });
    env.add_filter("default", default);
    env.add_filter("d", default);
    env.add_filter("dictsort", dictsort);
    env.add_filter("int", int);
    env.add_filter("float", float);
    env.add_filter("round", round);
}

/// The arguments of a call in the order of `names`, whether given by position or by name.
fn arguments<const N: usize>(names: [&str; N], args: &[Value], kwargs: &Kwargs) -> Result<[Option<Value>; N], Error> {
    if args.len() > N {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let mut out = [const { None }; N];
    for (at, name) in names.into_iter().enumerate() {
        out[at] = match args.get(at) {
            Some(v) => Some(v.clone()),
            None if kwargs.has(name) => Some(kwargs.get(name)?),
            None => None,
        };
    }
    kwargs.assert_all_used()?;
    Ok(out)
}

fn default(v: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let [instead, boolean] = arguments(["default_value", "boolean"], &args, &kwargs)?;
    if v.is_undefined() || (boolean.is_some_and(|b| b.is_true()) && !v.is_true()) {
        return Ok(instead.unwrap_or_else(|| Value::from("")));
    }
    Ok(v.clone())
}

fn dictsort(state: &State, v: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let names = ["case_sensitive", "by", "reverse"];
    let values = arguments(names, &args, &kwargs)?;
    state.consume_fuel(v.len().unwrap_or(0) as u64)?;
    let given = names.into_iter().zip(values).filter_map(|(name, v)| Some((name, v?)));
    filters::dictsort(v, Kwargs::from_iter(given))
}

fn int(v: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let [default, base] = arguments(["default", "base"], &args, &kwargs)?;
    let default = default.unwrap_or_else(|| Value::from(0));
    let base = base.map(|b| i64::try_from(b.clone())).transpose()?.unwrap_or(10);
    let Some(text) = v.as_str() else {
        return Ok(match v.kind() {
            ValueKind::Bool => Value::from(i64::from(v.is_true())),
            ValueKind::Number => whole(v).unwrap_or(default),
            _ => default,
        });
    };
    let text = text.trim().replace('_', "");
    let base = u32::try_from(base).ok().filter(|b| (2..=36).contains(b)).unwrap_or(10);
    if let Ok(n) = i128::from_str_radix(&text, base) {
        return Ok(Value::from(n));
    }
    Ok(text.parse::<f64>().ok().and_then(|f| whole(&Value::from(f))).unwrap_or(default))
}

/// A number without its fraction; nothing for one that has no integer.
fn whole(v: &Value) -> Option<Value> {
    match pytext::as_float(v) {
        None => Some(v.clone()),
        Some(f) if f.is_finite() && f.abs() < 1e38 => Some(Value::from(f.trunc() as i128)),
        Some(_) => None,
    }
}

fn float(v: &Value, default: Option<Value>) -> Value {
    let parsed = match v.kind() {
        ValueKind::String => v.as_str().and_then(|s| s.trim().replace('_', "").parse::<f64>().ok()),
        ValueKind::Bool => Some(f64::from(u8::from(v.is_true()))),
        ValueKind::Number => f64::try_from(v.clone()).ok(),
        _ => None,
    };
    parsed.map(Value::from).or(default).unwrap_or_else(|| Value::from(0.0))
}

/// `round(precision=0, method="common")`; common is Python's: halves go to the even digit.
fn round(v: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let [precision, method] = arguments(["precision", "method"], &args, &kwargs)?;
    let precision = precision.map(i32::try_from).transpose()?.unwrap_or(0).clamp(-300, 300);
    let method = method.unwrap_or_else(|| Value::from("common"));
    let method = method.as_str().unwrap_or_default();
    if v.kind() != ValueKind::Number {
        return Err(Error::new(ErrorKind::InvalidOperation, format!("round: {} isn't a number", v.kind())));
    }
    if v.is_integer() && precision >= 0 && method == "common" {
        return Ok(v.clone());
    }
    let f = f64::try_from(v.clone())?;
    let scale = 10f64.powi(precision);
    let rounded = match method {
        "ceil" => (f * scale).ceil() / scale,
        "floor" => (f * scale).floor() / scale,
        // Decimal digits of a float are cut exactly, so this rounds as Python does.
        "common" if precision >= 0 => format!("{f:.*}", precision as usize).parse().unwrap_or(f),
        "common" => (f * scale).round_ties_even() / scale,
        _ => return Err(Error::new(ErrorKind::InvalidOperation, "round: the method must be common, ceil or floor")),
    };
    Ok(Value::from(rounded))
}
