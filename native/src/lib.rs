//! The native half of Portico: one static library for the Go module `internal/native`.
//!
//! The first part is the C ABI of the Go module github.com/daulet/tokenizers, compiled straight from the
//! Go module cache (`DAULET_DIR`, set by `native/build.sh`). The modules after it are ours:
//! - `tok`: length-delimited (NUL-safe) encode and decode for the same handles;
//! - `words`: the reference word by word, for byte-level models;
//! - `fast`: exact byte-level BPE for the tokenizers it fully understands;
//! - `heap`: the allocator and its figures;
//! - `image`: image files to what engines take;
//! - `template`: chat templates with the semantics of transformers' Jinja environment.
//!
//! Every function that crosses the C boundary catches panics and reports them as errors.
#![allow(clippy::missing_safety_doc, clippy::not_unsafe_ptr_arg_deref)]

include!(concat!(env!("DAULET_DIR"), "/src/lib.rs"));

pub mod fast;
pub mod heap;
pub mod image;
pub mod template;
pub mod tok;
pub mod words;
