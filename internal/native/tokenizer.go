package native

/*
#include "tokens.h"
#cgo noescape portico_tok_encode
#cgo nocallback portico_tok_encode
#cgo noescape portico_words_encode
#cgo nocallback portico_words_encode
#cgo noescape portico_tok_decode
#cgo nocallback portico_tok_decode
#cgo noescape portico_tok_token_id
#cgo nocallback portico_tok_token_id
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/daulet/tokenizers"
)

// Tokenizer is the reference: a handle of github.com/daulet/tokenizers, which is Hugging Face's tokenizers library or a
// tiktoken encoder. Its calls take lengths, so that text may hold NULs, and tell a failure from an empty answer.
//
// All methods but Close are safe for concurrent use. Close must not run during another call.
type Tokenizer struct {
	handle *tokenizers.Tokenizer
	words  unsafe.Pointer // remembers the ids of words; nil: the tokenizer isn't one that can be encoded word by word
}

// NewTokenizer reads a tokenizer.json.
func NewTokenizer(json []byte) (*Tokenizer, error) {
	var failure C.portico_bytes
	p := C.portico_tok_load(bytesPtr(json), C.size_t(len(json)), &failure)
	runtime.KeepAlive(json)
	if p == nil {
		return nil, fmt.Errorf("load tokenizer.json: %w", takeError(failure))
	}
	TrimHeap()
	return adopt(p), nil
}

// NewTiktoken reads a tiktoken model file and the tokenizer_config.json beside it, which names the special tokens.
// pattern is the regular expression that cuts text into words.
func NewTiktoken(model, config, pattern string) (*Tokenizer, error) {
	var failure C.portico_bytes
	p := C.portico_tok_tiktoken(stringPtr(model), C.size_t(len(model)), stringPtr(config), C.size_t(len(config)),
		stringPtr(pattern), C.size_t(len(pattern)), &failure)
	if p == nil {
		return nil, fmt.Errorf("load tiktoken model: %w", takeError(failure))
	}
	TrimHeap()
	return adopt(p), nil
}

// The module's handle is one pointer. It is made here, not by the module, because a panic inside the module's own
// constructors would end the process.
var _ = [1]struct{}{}[unsafe.Sizeof(tokenizers.Tokenizer{})-unsafe.Sizeof(unsafe.Pointer(nil))]

func adopt(p unsafe.Pointer) *Tokenizer {
	h := new(tokenizers.Tokenizer)
	*(*unsafe.Pointer)(unsafe.Pointer(h)) = p
	return &Tokenizer{handle: h, words: C.portico_words_new(p)}
}

func (t *Tokenizer) pointer() unsafe.Pointer {
	if t.handle == nil {
		return nil
	}
	return *(*unsafe.Pointer)(unsafe.Pointer(t.handle))
}

// Encode returns the ids of text. addSpecial adds what the post-processor puts around it. Invalid UTF-8 becomes U+FFFD.
// The library is asked word by word where that gives the same ids, and remembers what it said: byte-level models only.
func (t *Tokenizer) Encode(text string, addSpecial bool) ([]uint32, error) {
	if t.words == nil {
		return t.EncodeWhole(text, addSpecial)
	}
	var out C.portico_ids
	var failure C.portico_bytes
	if !C.portico_words_encode(t.words, t.pointer(), stringPtr(text), C.size_t(len(text)), C.bool(addSpecial), &out, &failure) {
		return nil, fmt.Errorf("encode: %w", takeError(failure))
	}
	return takeIDs(out), nil
}

// EncodeWhole is Encode by one call of the library. It is what the ids are measured against.
func (t *Tokenizer) EncodeWhole(text string, addSpecial bool) ([]uint32, error) {
	var out C.portico_ids
	var failure C.portico_bytes
	if !C.portico_tok_encode(t.pointer(), stringPtr(text), C.size_t(len(text)), C.bool(addSpecial), &out, &failure) {
		return nil, fmt.Errorf("encode: %w", takeError(failure))
	}
	return takeIDs(out), nil
}

// takeIDs copies ids from the library and frees them.
func takeIDs(out C.portico_ids) []uint32 {
	ids := copyIDs(unsafe.Slice((*uint32)(out.ptr), int(out.len)))
	C.portico_ids_free(out)
	return ids
}

// copyIDs copies ids out of native memory. Behind those of a long text there is room: if the text comes back with more at
// its end, what is more can be written there in place of a copy of all.
func copyIDs(native []uint32) []uint32 {
	room := 0
	if len(native) >= 4096 {
		room = len(native) / 8
	}
	ids := make([]uint32, len(native), len(native)+room)
	copy(ids, native)
	return ids
}

// Decode returns the text of ids.
func (t *Tokenizer) Decode(ids []uint32, skipSpecial bool) (string, error) {
	var out, failure C.portico_bytes
	if !C.portico_tok_decode(t.pointer(), (*C.uint32_t)(unsafe.SliceData(ids)), C.size_t(len(ids)), C.bool(skipSpecial),
		&out, &failure) {
		return "", fmt.Errorf("decode: %w", takeError(failure))
	}
	text := string(unsafe.Slice((*byte)(out.ptr), int(out.len)))
	C.portico_bytes_free(out)
	return text, nil
}

// TokenID returns the id of the token with exactly this text. A tiktoken encoder has no such look-up and finds none.
func (t *Tokenizer) TokenID(token string) (uint32, bool) {
	id := C.portico_tok_token_id(t.pointer(), stringPtr(token), C.size_t(len(token)))
	return uint32(max(id, 0)), id >= 0
}

// VocabSize is one more than the largest token id. It walks the vocabulary: for load time, not for requests.
func (t *Tokenizer) VocabSize() int { return int(C.portico_tok_vocab_size(t.pointer())) }

// Close frees the handle and gives its memory back to the system. Later calls fail; a second Close does nothing.
func (t *Tokenizer) Close() error {
	if t.handle == nil {
		return nil
	}
	C.portico_words_free(t.words)
	t.words = nil
	err := t.handle.Close()
	t.handle = nil
	TrimHeap()
	return err
}

func stringPtr(s string) *C.uint8_t { return (*C.uint8_t)(unsafe.StringData(s)) }
func bytesPtr(b []byte) *C.uint8_t  { return (*C.uint8_t)(unsafe.SliceData(b)) }

// takeError turns a message from the library into an error and frees it.
func takeError(b C.portico_bytes) error {
	text := string(unsafe.Slice((*byte)(b.ptr), int(b.len)))
	C.portico_bytes_free(b)
	return errors.New(text)
}
