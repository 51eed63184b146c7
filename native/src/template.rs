//! Chat templates with the semantics of transformers' Jinja environment, behind a small C ABI.
//!
//! A template is compiled once and rendered from many threads; a render takes its variables as JSON. Whatever a
//! template or its arguments do, a call ends: instructions and data are paid for with fuel, nesting is limited, output
//! stops at the deadline, and a panic becomes an error code.
mod args;
mod engine;
mod pyfilters;
mod pyjson;
mod pymethods;
mod pytext;
mod source;

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::{Duration, Instant};

pub use engine::{Failure, Template};

/// What a template may spend on one render when the caller doesn't say.
pub const DEFAULT_FUEL: u64 = 1_000_000;

const OK: i32 = 0;
const RAISED: i32 = 1;
const FAILED: i32 = 2;
const OUT_OF_FUEL: i32 = 3;
const OUT_OF_TIME: i32 = 4;
const BAD_ARGUMENTS: i32 = 5;
const PANICKED: i32 = 6;

/// Bytes that the caller gives back with `portico_template_free_text`.
#[repr(C)]
pub struct Text {
    data: *mut u8,
    len: usize,
    cap: usize,
}

/// Gives a text away. One without memory is null: the address that stands for it in Rust is none that a Go pointer may
/// hold.
fn put(out: *mut Text, text: String) {
    if text.capacity() == 0 {
        unsafe { *out = Text { data: std::ptr::null_mut(), len: 0, cap: 0 } }
        return;
    }
    let mut bytes = std::mem::ManuallyDrop::new(text.into_bytes());
    unsafe { *out = Text { data: bytes.as_mut_ptr(), len: bytes.len(), cap: bytes.capacity() } }
}

unsafe fn bytes<'a>(data: *const u8, len: usize) -> &'a [u8] {
    if len == 0 {
        &[]
    } else {
        std::slice::from_raw_parts(data, len)
    }
}

fn panic_text(cause: Box<dyn std::any::Any + Send>) -> String {
    let text = cause.downcast_ref::<String>().map(String::as_str).or(cause.downcast_ref::<&str>().copied());
    text.unwrap_or("panic in the template engine").to_string()
}

/// Compiles a template. Returns null and the reason in `out` when it can't be compiled. `fuel` 0 is the default.
#[no_mangle]
pub unsafe extern "C" fn portico_template_new(src: *const u8, len: usize, fuel: u64, out: *mut Text) -> *mut Template {
    let fuel = if fuel == 0 { DEFAULT_FUEL } else { fuel };
    let built = catch_unwind(AssertUnwindSafe(|| match std::str::from_utf8(bytes(src, len)) {
        Ok(src) => Template::new(src, fuel),
        Err(e) => Err(format!("the template isn't UTF-8: {e}")),
    }));
    let reason = match built {
        Ok(Ok(template)) => return Box::into_raw(Box::new(template)),
        Ok(Err(reason)) => reason,
        Err(cause) => panic_text(cause),
    };
    put(out, reason);
    std::ptr::null_mut()
}

/// Renders a template with the members of a JSON object as its variables. `now` is the local time as
/// `2025-07-26T12:00:00`, `timeout_ms` 0 sets no deadline. The prompt, or the reason of a failure, goes to `out`;
/// the result is one of the codes above.
#[no_mangle]
pub unsafe extern "C" fn portico_template_render(
    template: *const Template,
    args: *const u8,
    args_len: usize,
    now: *const u8,
    now_len: usize,
    timeout_ms: u64,
    out: *mut Text,
) -> i32 {
    let deadline = (timeout_ms > 0).then(|| Instant::now() + Duration::from_millis(timeout_ms));
    let rendered =
        catch_unwind(AssertUnwindSafe(|| (*template).render(bytes(args, args_len), bytes(now, now_len), deadline)));
    let (code, text) = match rendered {
        Ok(Ok(prompt)) => (OK, prompt),
        Ok(Err(Failure::Raised(message))) => (RAISED, message),
        Ok(Err(Failure::Template(reason))) => (FAILED, reason),
        Ok(Err(Failure::Fuel)) => (OUT_OF_FUEL, "out of fuel".to_string()),
        Ok(Err(Failure::Time)) => (OUT_OF_TIME, "out of time".to_string()),
        Ok(Err(Failure::Arguments(reason))) => (BAD_ARGUMENTS, reason),
        Err(cause) => (PANICKED, panic_text(cause)),
    };
    put(out, text);
    code
}

/// Frees a template. No render may be running on it.
#[no_mangle]
pub unsafe extern "C" fn portico_template_free(template: *mut Template) {
    if !template.is_null() {
        drop(Box::from_raw(template));
    }
}

/// Frees what a call put into its `out`.
#[no_mangle]
pub unsafe extern "C" fn portico_template_free_text(text: Text) {
    if !text.data.is_null() {
        drop(Vec::from_raw_parts(text.data, text.len, text.cap));
    }
}
