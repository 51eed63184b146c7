// Package native is the only package that calls into the static library of native/: tokenizers (the handles of
// github.com/daulet/tokenizers with NUL-safe calls), exact byte-level BPE, chat templates, and images. It adds no policy:
// concurrency bounds, lifetimes and fallbacks are its callers'.
//
// Handles are explicit: whoever makes one closes it, exactly once, when no call is running on it.
package native
