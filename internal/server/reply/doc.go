// Package reply writes answers in OpenAI's form. A Stream turns the deltas of a request into chunks as they come, a
// Fold gathers the same deltas into one body: both are sinks of the pipeline, and both modes of a request take the same
// path.
//
// Chunks are appended to a buffer field by field; what is the same in every chunk of an answer (id, model, creation
// time) is encoded once. No reflection and, beyond the buffers, no allocation takes place per token.
//
//   - reply.go: what both share: options, choices, usage;
//   - stream.go, fold.go: the two sinks;
//   - pieces.go: answers that come in pieces: thoughts, content, tool calls;
//   - responses.go, responses_events.go, shell.go: answers as items; replay.go: the same once more, from what is kept;
//   - logprobs.go: log probabilities in the chat and in the completions form;
//   - nvext.go: the extra fields a client may ask for;
//   - raw.go: answers of workers that speak the client's format themselves;
//   - quote.go: JSON strings and numbers.
//
// A Stream or Fold belongs to one request; deltas reach it from one goroutine at a time.
package reply
