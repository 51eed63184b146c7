// Package prepost names the nouns of text: what turns a conversation into tokens before a worker sees it (Renderer,
// Tokenizer) and tokens into text afterwards (Decoder). Its children implement them:
//
//   - modelcard: the files of a model, checked, and what they say;
//   - chattmpl: chat templates;
//   - tokenizer, executor: encoding on bounded pools, one per tokenizer;
//   - detok, stopjail, chain: tokens of an answer back into text that a client may see;
//   - reasonparse, toolparse, msgparse: that text taken apart into thoughts, content and tool calls.
package prepost

import (
	"context"
	"encoding/json"
	"time"
)

// TokenID is an index into a model's vocabulary.
type TokenID = uint32

// ChatInput is what a chat template sees.
type ChatInput struct {
	Messages  json.RawMessage // array of message objects, as the client sent them
	Tools     json.RawMessage // array, or empty: none
	Documents json.RawMessage // array, or empty: none
	Kwargs    json.RawMessage // object of further template variables (chat_template_kwargs), or empty

	AddGenerationPrompt  bool
	ContinueFinalMessage bool // leave the last message open: the answer continues it

	Now time.Time // what strftime_now sees
}

// Renderer turns a conversation into a prompt. Safe for concurrent use. Failures that the client can mend are
// *fault.Error of kind BadRequest.
type Renderer interface {
	Render(ctx context.Context, in *ChatInput) (string, error)
}

// Tokenizer turns text into token ids and back. Safe for concurrent use. A Tokenizer is identified by its address:
// two equal tokenizers have separate executors.
type Tokenizer interface {
	// Encode runs on the tokenizer's executor. When ctx ends first the result is abandoned and ctx's error returned.
	// A full queue is a *fault.Error of kind Overloaded. The ids may be shared: nobody may change them. Appending copies.
	Encode(ctx context.Context, text string, addSpecial bool) ([]TokenID, error)
	// Decode returns the text of ids; ids outside the vocabulary are skipped.
	Decode(ids []TokenID, skipSpecial bool) (string, error)
	// NewDecoder returns a decoder for an answer to prompt (of which the last few ids are used, and only during the
	// call).
	NewDecoder(prompt []TokenID, skipSpecial bool) Decoder
	// NewMarkupDecoder is NewDecoder for answers whose markup has special tokens: it skips all others. markup is kept.
	NewMarkupDecoder(prompt, markup []TokenID) Decoder
	// TokenID returns the id of a token given by its exact text.
	TokenID(token string) (TokenID, bool)
	// VocabSize is one more than the largest token id.
	VocabSize() int
	Close() error
}

// Decoder turns the token ids of one answer into text, piece by piece. For one goroutine. The concatenation of all it
// returns equals Decode of all ids, and every piece is whole UTF-8.
type Decoder interface {
	// Push appends to dst the text that became whole with id.
	Push(dst []byte, id TokenID) ([]byte, error)
	// Flush appends what is still held back; unfinished characters become U+FFFD.
	Flush(dst []byte) ([]byte, error)
}
