//! Exact byte-level BPE: the ids of the `tokenizers` crate, an order of magnitude sooner.
//!
//! The crate's time goes into normalized-string bookkeeping and small allocations, not into BPE. This module covers only
//! what byte-level models use in practice and does it without either: hand-written scanners for the known split
//! patterns, a flat table of merges and a cache of words. It refuses, with a reason, every tokenizer of which it doesn't
//! know each part; there is no approximation.
//!
//! | part | accepted |
//! | --- | --- |
//! | model | BPE over the byte alphabet, with or without `ignore_merges`; no dropout, prefix or suffix; an unknown token or byte fallback only where the alphabet is complete, so that they can't occur |
//! | normalizer | none, an empty sequence, NFC |
//! | pre-tokenizer | the patterns of [`split::Pattern`], then ByteLevel |
//! | added tokens | without `lstrip`, `rstrip`, `single_word` |
//! | post-processor | none, ByteLevel, one TemplateProcessing, a sequence of these |
//! | truncation, padding | none |
//!
//! - [`config`] reads a tokenizer.json and refuses; [`classes`] and [`split`] cut text into words; [`merges`] turns a
//!   word into ids; [`cache`] remembers words; [`encoder`] puts them together.
//!
//! A [`Tokenizer`] is immutable and shared; an [`Encoder`] belongs to one thread at a time and holds all scratch memory,
//! so that memory is bounded by the number of encoders, not of threads.
pub mod cache;
pub mod classes;
pub mod config;
pub mod encoder;
pub mod merges;
pub mod split;
pub mod words;

pub use encoder::{Encoder, Tokenizer};

use crate::tok::{borrow, guard, Array};
use std::ptr;
use std::sync::Arc;

/// Makes a tokenizer from the bytes of a tokenizer.json. Null: `error` says what isn't covered.
#[no_mangle]
pub unsafe extern "C" fn portico_fast_load(json: *const u8, len: usize, error: *mut Array<u8>) -> *const Tokenizer {
    guard(error, || Ok(Arc::into_raw(Arc::new(Tokenizer::from_json(borrow(json, len))?)))).unwrap_or(ptr::null())
}

/// Gives up the caller's share; encoders keep theirs.
#[no_mangle]
pub unsafe extern "C" fn portico_fast_free(tokenizer: *const Tokenizer) {
    if !tokenizer.is_null() {
        drop(Arc::from_raw(tokenizer));
    }
}

/// Makes an encoder. Null: `error` says why.
#[no_mangle]
pub unsafe extern "C" fn portico_fast_encoder(tokenizer: *const Tokenizer, error: *mut Array<u8>) -> *mut Encoder {
    guard(error, || {
        if tokenizer.is_null() {
            return Err("no tokenizer".to_string());
        }
        Arc::increment_strong_count(tokenizer);
        Ok(Box::into_raw(Box::new(Encoder::new(Arc::from_raw(tokenizer)))))
    })
    .unwrap_or(ptr::null_mut())
}

/// Frees an encoder.
#[no_mangle]
pub unsafe extern "C" fn portico_fast_encoder_free(encoder: *mut Encoder) {
    if !encoder.is_null() {
        drop(Box::from_raw(encoder));
    }
}

/// Sets `ids` and `count` to the ids of `text`, which belong to the encoder and are good until its next call. Invalid
/// UTF-8 is replaced by U+FFFD. False: `error` says why.
#[no_mangle]
pub unsafe extern "C" fn portico_fast_encode(
    encoder: *mut Encoder,
    text: *const u8,
    len: usize,
    add_special: bool,
    ids: *mut *const u32,
    count: *mut usize,
    error: *mut Array<u8>,
) -> bool {
    let found = guard(error, || {
        let encoder = encoder.as_mut().ok_or_else(|| "no encoder".to_string())?;
        Ok(encoder.encode(&String::from_utf8_lossy(borrow(text, len)), add_special))
    });
    match found {
        Some(found) => {
            // No ids have no address that a Go pointer may hold.
            ids.write(if found.is_empty() { ptr::null() } else { found.as_ptr() });
            count.write(found.len());
            true
        }
        None => false,
    }
}
