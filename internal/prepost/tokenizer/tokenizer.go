// Package tokenizer loads tokenizers and encodes with them. Two backends stand behind one type:
//
//   - tokenizers: Hugging Face's library, or a tiktoken encoder, through github.com/daulet/tokenizers. It is the
//     reference and serves every model.
//   - fast: exact byte-level BPE, for the tokenizers it fully understands. It gives the reference's ids an order of
//     magnitude sooner.
//
// "auto" takes fast when it covers a tokenizer and agrees with the reference on a fixed corpus at load, and tokenizers
// otherwise. Encoding runs on the tokenizer's executor; decoding on the caller's goroutine, by table where the vocabulary
// allows.
//
// With Options.Caches a tokenizer remembers what long texts were made of, block by block: conversations come back with
// each turn, longer by a message. Its answers are the same with and without.
//
// A Tokenizer's native memory isn't visible to Go's garbage collector, so it has to be closed; one that is dropped
// without Close is found by the collector some day, which Load and Close nudge.
package tokenizer

import (
	"context"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/prepost/detok"
	"github.com/portico-llm/portico/internal/prepost/executor"
)

// The backends, as Options.Backend names them.
const (
	Auto       = "auto"
	Tokenizers = "tokenizers"
	FastBPE    = "fast"
)

// Tokenizer turns text into token ids and back. It is safe for concurrent use and identified by its address.
type Tokenizer struct {
	exec    *executor.Executor
	model   *detok.Model
	names   map[string]prepost.TokenID // special tokens of a tiktoken model, whose vocabulary has no names
	backend string
	cache   *cache // nil: texts are encoded as they come
	closed  atomic.Bool

	longest      sync.Once
	longestBytes int // set by longest
}

var _ prepost.Tokenizer = (*Tokenizer)(nil)

// Backend is the backend in use: "tokenizers" or "fast".
func (t *Tokenizer) Backend() string { return t.backend }

// Encode returns the ids of text. addSpecial adds what the tokenizer puts around a text, such as a begin token. When ctx
// ends first its error is returned and the result dropped. A full queue is a fault of kind Overloaded; after Close the
// error is executor.ErrClosed. Texts that have a beginning in common may share the memory of their ids: nobody may change
// them. Appending to them copies.
func (t *Tokenizer) Encode(ctx context.Context, text string, addSpecial bool) ([]prepost.TokenID, error) {
	if t.cache == nil || addSpecial || t.closed.Load() {
		ids, err := t.exec.Encode(ctx, text, addSpecial)
		runtime.KeepAlive(t)
		return ids, err
	}
	if err := ctx.Err(); err != nil { // nobody may ask the executor
		return nil, err
	}
	ids, err := t.cache.encode(ctx, text, t.exec.Encode)
	runtime.KeepAlive(t) // a tokenizer in use isn't collected, which would close the executor
	return ids, err
}

// Decode returns the text of ids; ids outside the vocabulary are skipped.
func (t *Tokenizer) Decode(ids []prepost.TokenID, skipSpecial bool) (string, error) {
	text, err := t.model.Decode(ids, skipSpecial)
	runtime.KeepAlive(t)
	return text, err
}

// NewDecoder returns a decoder for an answer to prompt. It outlives Close only where the vocabulary decodes by table.
func (t *Tokenizer) NewDecoder(prompt []prepost.TokenID, skipSpecial bool) prepost.Decoder {
	return t.model.NewDecoder(prompt, skipSpecial)
}

// NewMarkupDecoder returns a decoder that skips all special tokens but those of markup, which it keeps. It outlives Close
// as that of NewDecoder does.
func (t *Tokenizer) NewMarkupDecoder(prompt, markup []prepost.TokenID) prepost.Decoder {
	return t.model.NewMarkupDecoder(prompt, markup)
}

// TokenID returns the id of the token with exactly this text.
func (t *Tokenizer) TokenID(token string) (prepost.TokenID, bool) {
	if id, ok := t.names[token]; ok {
		return id, true
	}
	return t.model.TokenID(token)
}

// TokenBytes returns the bytes that one token adds to an answer, which may be a part of a character. It is false for
// unknown ids and for vocabularies whose tokens have no bytes of their own. The caller must not change them.
func (t *Tokenizer) TokenBytes(id prepost.TokenID) ([]byte, bool) { return t.model.TokenBytes(id) }

// VocabSize is one more than the largest token id.
func (t *Tokenizer) VocabSize() int { return t.model.VocabSize() }

// Close evicts the executor and frees the native memory when the last running encode has finished. It doesn't wait for
// them, and is idempotent.
func (t *Tokenizer) Close() error {
	if t.closed.Swap(true) {
		return nil
	}
	err := t.exec.Close()
	if t.cache != nil {
		t.cache.drop()
	}
	runtime.KeepAlive(t)
	debug.FreeOSMemory() // finds dropped tokenizers as well
	return err
}
