// Package messages is what stands between Anthropic's Messages API and the rest of the server: it writes a request as
// the chat request that means the same (chat.go), and an answer as Anthropic's events or, folded, as one message
// (stream.go, fold.go). Both forms come from the same blocks (blocks.go): a thought, text, or the use of a tool, one
// after the other in the order in which the model wrote them.
//
// Nothing here is shared between requests; a Stream or Fold belongs to one, and deltas reach it from one goroutine at a
// time.
package messages
