// Package executor runs encodes of text on bounded pools of workers: one Executor per tokenizer, kept in a Registry by
// the tokenizer's identity.
//
// Two equal but distinct tokenizers have separate executors. The Registry holds tokenizers weakly: when the last user
// drops a tokenizer without closing it, the garbage collector evicts its executor, and only its own. Tokenizers that are
// no pointers to a known type are pinned instead: held strongly, in a bounded table, until they are unpinned.
//
//	e, err := executor.Bind(registry, tokenizer, source) // the tokenizer keeps e; e never keeps the tokenizer
//	ids, err := e.Encode(ctx, text, true)
//	e.Close()                                            // at once; without it, the collector does it some day
//
// # What is bounded
//
// An Executor has Workers workers, started when there is work for them, each with an encoder of its own, and a queue of
// Queue jobs; a full queue refuses with fault.Overloaded. Over all executors, and other native code of the process,
// Options.Gate bounds the encodes that run at the same time.
//
// # Ends
//
// Native code can't be interrupted: when a caller's context ends, the caller leaves, and the worker drops the result. A
// job nobody waits for any more is not begun. After Close, Encode returns ErrClosed; queued and running jobs finish. The
// native memory is counted (Handle): the tokenizer's owner, every worker and every job hold a reference, and the last
// one to let go frees it, once. Registry.Close shuts down all executors and waits for their workers.
package executor
