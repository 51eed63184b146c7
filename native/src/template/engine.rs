//! The environment: minijinja made to behave as transformers' `ImmutableSandboxedEnvironment`.
use super::{args, pyfilters, pymethods, pytext, source};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Value, ValueKind};
use minijinja::{escape_formatter, Environment, Error, ErrorKind, State, UndefinedBehavior};
use std::cell::RefCell;
use std::io;
use std::time::Instant;

/// How deep macros and includes may call each other.
const RECURSION_LIMIT: usize = 200;

/// Writes between two looks at the clock.
const WRITES_PER_LOOK: u32 = 64;

/// Why a render gave no prompt.
pub enum Failure {
    /// The template called `raise_exception` with this message.
    Raised(String),
    /// The template can't be rendered with these arguments.
    Template(String),
    /// The arguments aren't a JSON object, or nest too deeply.
    Arguments(String),
    Fuel,
    Time,
}

/// What the functions of a template need to know of the render that runs on this thread.
#[derive(Default)]
struct Call {
    now: String,
    raised: Option<String>,
    late: bool,
}

thread_local! { static CALL: RefCell<Call> = RefCell::new(Call::default()); }

/// A compiled template.
pub struct Template {
    env: Environment<'static>,
}

const NAME: &str = "chat";

impl Template {
    /// Compiles a template; the error is its reason.
    pub fn new(src: &str, fuel: u64) -> Result<Template, String> {
        let mut env = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        env.set_syntax(syntax.map_err(|e| explain(&e))?);
        env.set_undefined_behavior(UndefinedBehavior::Lenient);
        env.set_unknown_method_callback(pymethods::call);
        env.set_fuel(Some(fuel));
        env.set_recursion_limit(RECURSION_LIMIT);
        env.set_debug(false);
        env.set_formatter(|out, state, v| {
            if pytext::differs(v) {
                let text = pytext::str(state, v)?;
                return out.write_str(&text).map_err(Error::from);
            }
            escape_formatter(out, state, v)
        });
        minijinja_contrib::add_to_environment(&mut env);
        pyfilters::add(&mut env);
        add_tests(&mut env);
        add_functions(&mut env);
        env.add_template_owned(NAME, source::prepare(src)).map_err(|e| explain(&e))?;
        Ok(Template { env })
    }

    /// Renders with the members of a JSON object as variables.
    pub fn render(&self, args: &[u8], now: &[u8], deadline: Option<Instant>) -> Result<String, Failure> {
        let context = args::parse(args).map_err(Failure::Arguments)?;
        if context.kind() != ValueKind::Map {
            return Err(Failure::Arguments("the arguments aren't an object".to_string()));
        }
        CALL.with_borrow_mut(|call| {
            *call = Call { now: String::from_utf8_lossy(now).into_owned(), ..Call::default() };
        });
        let mut sink = Sink { text: Vec::with_capacity(args.len()), deadline, writes: 0 };
        let template = self.env.get_template(NAME).map_err(|e| Failure::Template(explain(&e)))?;
        match template.render_captured_to(context, &mut sink) {
            Ok(_) => String::from_utf8(sink.text).map_err(|e| Failure::Template(e.to_string())),
            Err(e) => Err(failure(&e)),
        }
    }
}

/// Collects the output and stops it at the deadline.
struct Sink {
    text: Vec<u8>,
    deadline: Option<Instant>,
    writes: u32,
}

impl io::Write for Sink {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.writes += 1;
        if self.writes % WRITES_PER_LOOK == 0 && self.deadline.is_some_and(|d| Instant::now() > d) {
            CALL.with_borrow_mut(|call| call.late = true);
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.text.extend_from_slice(buf);
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn failure(e: &Error) -> Failure {
    let (raised, late) = CALL.with_borrow_mut(|call| (call.raised.take(), call.late));
    if let Some(message) = raised {
        return Failure::Raised(message);
    }
    if late {
        return Failure::Time;
    }
    if chain(e).any(|e| e.downcast_ref::<Error>().is_some_and(|e| e.kind() == ErrorKind::OutOfFuel)) {
        return Failure::Fuel;
    }
    Failure::Template(explain(e))
}

fn chain(e: &Error) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
    std::iter::successors(Some(e as &(dyn std::error::Error + 'static)), |e| e.source())
}

/// The reasons in a chain of errors, outermost first, with the line of the template.
fn explain(e: &Error) -> String {
    let mut parts: Vec<String> = chain(e).map(ToString::to_string).collect();
    parts.dedup();
    parts.join(": ")
}

fn add_tests(env: &mut Environment<'static>) {
    // None can't be iterated over in Python; here it can, as nothing.
    env.add_test("iterable", |v: &Value| !v.is_none() && v.try_iter().is_ok());
    // Python asks for a length and item access, which strings, dicts and undefined values have too.
    env.add_test("sequence", |v: &Value| {
        v.is_undefined() || matches!(v.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String)
    });
}

fn add_functions(env: &mut Environment<'static>) {
    env.add_function("raise_exception", |state: &State, message: &Value| -> Result<Value, Error> {
        let message = pytext::str(state, message)?;
        CALL.with_borrow_mut(|call| call.raised = Some(message));
        Err(Error::new(ErrorKind::InvalidOperation, "raise_exception"))
    });
    env.add_function("strftime_now", |format: String| -> Result<String, Error> {
        let failed = |e: jiff::Error| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {e}"));
        let now = CALL.with_borrow(|call| call.now.parse::<jiff::civil::DateTime>()).map_err(failed)?;
        let config = jiff::fmt::strtime::Config::new().lenient(true);
        let time = jiff::fmt::strtime::BrokenDownTime::from(now);
        time.to_string_with_config(&config, python_directives(&format)).map_err(failed)
    });
}

/// Spells out the directives that Python's `strftime` writes in its own way: local time carries no zone, and the
/// locale is C.
fn python_directives(format: &str) -> String {
    let mut out = String::with_capacity(format.len());
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('z' | 'Z') => {}
            Some('c') => out.push_str("%a %b %e %H:%M:%S %Y"),
            Some('x') => out.push_str("%m/%d/%y"),
            Some('X') => out.push_str("%H:%M:%S"),
            Some('f') => out.push_str("000000"),
            Some(directive) => out.extend(['%', directive]),
            None => out.push_str("%%"),
        }
    }
    out
}
