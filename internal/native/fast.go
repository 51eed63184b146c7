package native

/*
#include "tokens.h"
#cgo noescape portico_fast_encode
#cgo nocallback portico_fast_encode
*/
import "C"

import (
	"fmt"
	"runtime"
	"unsafe"
)

// RefusedError says why the fast encoder doesn't cover a tokenizer.
type RefusedError struct{ Reason string }

// Error returns the reason.
func (e *RefusedError) Error() string { return "fast tokenizer: not covered: " + e.Reason }

// Fast is exact byte-level BPE: the same ids as Tokenizer, an order of magnitude sooner. It encodes through encoders.
// NewEncoder is safe for concurrent use; encoders stay usable after Close.
type Fast struct{ p unsafe.Pointer }

// NewFast reads a tokenizer.json. A *RefusedError says that it uses something the fast encoder doesn't know.
func NewFast(json []byte) (*Fast, error) {
	var failure C.portico_bytes
	p := C.portico_fast_load(bytesPtr(json), C.size_t(len(json)), &failure)
	runtime.KeepAlive(json)
	if p == nil {
		return nil, &RefusedError{Reason: takeError(failure).Error()}
	}
	TrimHeap()
	return &Fast{p: p}, nil
}

// NewEncoder returns an encoder with its own cache and scratch memory of 2 to 4 MB.
func (f *Fast) NewEncoder() (*FastEncoder, error) {
	var failure C.portico_bytes
	p := C.portico_fast_encoder(f.p, &failure)
	if p == nil {
		return nil, fmt.Errorf("new encoder: %w", takeError(failure))
	}
	return &FastEncoder{p: p}, nil
}

// Close gives up the vocabulary; its memory goes with the last encoder. A second Close does nothing.
func (f *Fast) Close() error {
	C.portico_fast_free(f.p)
	f.p = nil
	TrimHeap()
	return nil
}

// FastEncoder encodes one text at a time. For one goroutine.
type FastEncoder struct{ p unsafe.Pointer }

// Encode returns the ids of text, as Tokenizer.Encode does.
func (e *FastEncoder) Encode(text string, addSpecial bool) ([]uint32, error) {
	var (
		ids     *C.uint32_t
		count   C.size_t
		failure C.portico_bytes
	)
	if !C.portico_fast_encode(e.p, stringPtr(text), C.size_t(len(text)), C.bool(addSpecial), &ids, &count, &failure) {
		return nil, fmt.Errorf("encode: %w", takeError(failure))
	}
	// ids belong to the encoder, and are null when there are none.
	return copyIDs(unsafe.Slice((*uint32)(ids), int(count))), nil
}

// Close frees the encoder. A second Close does nothing.
func (e *FastEncoder) Close() error {
	C.portico_fast_encoder_free(e.p)
	e.p = nil
	return nil
}
