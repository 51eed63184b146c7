//! Length-delimited calls on the handles of github.com/daulet/tokenizers.
//!
//! The module's own calls pass C strings, which end at the first NUL, and report failures as empty results. These take
//! lengths, tell an error from an empty answer, and turn panics into errors. A handle made here is the module's own
//! type and is freed by the module (`tokenizers_free_tokenizer`).
use crate::{create_tiktoken_encoder, UnifiedTokenizer};
use std::any::Any;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr;
use tokenizers::tokenizer::Tokenizer;

/// An owned array handed to the caller, who gives it back to `portico_bytes_free` or `portico_ids_free`.
#[repr(C)]
pub struct Array<T> {
    pub ptr: *mut T,
    pub len: usize,
    pub cap: usize,
}

impl<T> Array<T> {
    /// An array without memory is null: the address that stands for it in Rust is none that a Go pointer may hold.
    pub(crate) fn give(values: Vec<T>) -> Self {
        if values.capacity() == 0 {
            return Array { ptr: std::ptr::null_mut(), len: 0, cap: 0 };
        }
        let mut values = std::mem::ManuallyDrop::new(values);
        Array { ptr: values.as_mut_ptr(), len: values.len(), cap: values.capacity() }
    }

    /// Safety: `self` came from `give` and is taken once.
    unsafe fn take(self) -> Vec<T> {
        if self.ptr.is_null() {
            Vec::new()
        } else {
            Vec::from_raw_parts(self.ptr, self.len, self.cap)
        }
    }
}

/// A slice over memory of the caller; a null pointer is an empty slice.
///
/// Safety: `data` is null or points at `len` values that outlive `'a`.
pub(crate) unsafe fn borrow<'a, T>(data: *const T, len: usize) -> &'a [T] {
    if data.is_null() || len == 0 {
        &[]
    } else {
        std::slice::from_raw_parts(data, len)
    }
}

/// Runs `f`; an error or a panic becomes a message in `error` and None.
///
/// Safety: `error` may be written to.
pub(crate) unsafe fn guard<R>(error: *mut Array<u8>, f: impl FnOnce() -> Result<R, String>) -> Option<R> {
    let message = match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(value)) => return Some(value),
        Ok(Err(message)) => message,
        Err(panic) => format!("panic: {}", panic_text(&*panic)),
    };
    error.write(Array::give(message.into_bytes()));
    None
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text,
        _ => "of unknown kind",
    }
}

/// Safety: `handle` is null or a live handle.
pub(crate) unsafe fn unified<'a>(handle: *mut libc::c_void) -> Result<&'a UnifiedTokenizer, String> {
    handle.cast::<UnifiedTokenizer>().as_ref().ok_or_else(|| "no tokenizer".to_string())
}

fn boxed(tokenizer: UnifiedTokenizer) -> *mut libc::c_void {
    Box::into_raw(Box::new(tokenizer)).cast()
}

/// Makes a handle from the bytes of a tokenizer.json. Null: `error` says why.
#[no_mangle]
pub unsafe extern "C" fn portico_tok_load(json: *const u8, len: usize, error: *mut Array<u8>) -> *mut libc::c_void {
    guard(error, || {
        let tokenizer = Tokenizer::from_bytes(borrow(json, len)).map_err(|e| e.to_string())?;
        Ok(boxed(UnifiedTokenizer::HuggingFace(tokenizer)))
    })
    .unwrap_or(ptr::null_mut())
}

/// Makes a handle from a tiktoken model file, the tokenizer_config.json beside it and the split pattern, all three as
/// UTF-8. Null: `error` says why.
#[no_mangle]
pub unsafe extern "C" fn portico_tok_tiktoken(
    model: *const u8,
    model_len: usize,
    config: *const u8,
    config_len: usize,
    pattern: *const u8,
    pattern_len: usize,
    error: *mut Array<u8>,
) -> *mut libc::c_void {
    guard(error, || {
        let text = |data, len| std::str::from_utf8(borrow(data, len)).map_err(|e| e.to_string());
        let (model, config) = (text(model, model_len)?, text(config, config_len)?);
        let (bpe, size, special, special_ids) =
            create_tiktoken_encoder(model, config, text(pattern, pattern_len)?).map_err(|e| e.to_string())?;
        Ok(boxed(UnifiedTokenizer::Tiktoken(bpe, size, special, special_ids)))
    })
    .unwrap_or(ptr::null_mut())
}

/// Writes the ids of `text` to `out`. Invalid UTF-8 is replaced by U+FFFD, as upstream does. False: `error` says why.
#[no_mangle]
pub unsafe extern "C" fn portico_tok_encode(
    handle: *mut libc::c_void,
    text: *const u8,
    len: usize,
    add_special: bool,
    out: *mut Array<u32>,
    error: *mut Array<u8>,
) -> bool {
    let ids = guard(error, || {
        let text = String::from_utf8_lossy(borrow(text, len));
        match unified(handle)? {
            // encode_fast leaves out the offsets; the ids are the same.
            UnifiedTokenizer::HuggingFace(t) => {
                t.encode_fast(&*text, add_special).map(|e| e.get_ids().to_vec()).map_err(|e| e.to_string())
            }
            other => other.encode(&text, add_special).map_err(|e| e.to_string()),
        }
    });
    match ids {
        Some(ids) => out.write(Array::give(ids)),
        None => return false,
    }
    true
}

/// Writes the UTF-8 text of `ids` to `out`. False: `error` says why.
#[no_mangle]
pub unsafe extern "C" fn portico_tok_decode(
    handle: *mut libc::c_void,
    ids: *const u32,
    len: usize,
    skip_special: bool,
    out: *mut Array<u8>,
    error: *mut Array<u8>,
) -> bool {
    let text = guard(error, || unified(handle)?.decode(borrow(ids, len), skip_special).map_err(|e| e.to_string()));
    match text {
        Some(text) => out.write(Array::give(text.into_bytes())),
        None => return false,
    }
    true
}

/// The id of the token with exactly this text, or -1. A tiktoken handle knows no such look-up and says -1.
#[no_mangle]
pub unsafe extern "C" fn portico_tok_token_id(handle: *mut libc::c_void, text: *const u8, len: usize) -> i64 {
    let find = || match (unified(handle), std::str::from_utf8(borrow(text, len))) {
        (Ok(UnifiedTokenizer::HuggingFace(t)), Ok(text)) => t.token_to_id(text).map_or(-1, i64::from),
        _ => -1,
    };
    catch_unwind(AssertUnwindSafe(find)).unwrap_or(-1)
}

/// One more than the largest token id, or 0 for no tokenizer. Walks the vocabulary: for load time only.
#[no_mangle]
pub unsafe extern "C" fn portico_tok_vocab_size(handle: *mut libc::c_void) -> u32 {
    let size = || match unified(handle) {
        Ok(UnifiedTokenizer::HuggingFace(t)) => t.get_vocab(true).into_values().max().map_or(0, |id| id + 1),
        Ok(UnifiedTokenizer::Tiktoken(_, size, _, _)) => *size,
        Err(_) => 0,
    };
    catch_unwind(AssertUnwindSafe(size)).unwrap_or(0)
}

/// Frees an array of ids.
#[no_mangle]
pub unsafe extern "C" fn portico_ids_free(ids: Array<u32>) {
    drop(ids.take());
}

/// Frees an array of bytes.
#[no_mangle]
pub unsafe extern "C" fn portico_bytes_free(bytes: Array<u8>) {
    drop(bytes.take());
}
