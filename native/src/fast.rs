//! Exact byte-level BPE.
