//! NUL-safe calls.
