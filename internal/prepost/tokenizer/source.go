package tokenizer

import (
	"errors"

	"github.com/portico-llm/portico/internal/native"
	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/prepost/executor"
)

// source is the native memory of one tokenizer. It never refers to the Tokenizer.
type source struct {
	reference *native.Tokenizer // nil when fast encodes and a table decodes
	fast      *native.Fast      // nil: the reference encodes
	parse     bool              // addSpecial is always on: a tiktoken encoder sees special tokens in text only then
}

// backend names what encodes.
func (s *source) backend() string {
	if s.fast != nil {
		return FastBPE
	}
	return Tokenizers
}

// ThreadBound asks for threads of their own for workers of the reference, which allocates for every word it meets. The
// fast encoder has its memory from the start.
func (s *source) ThreadBound() bool { return s.fast == nil }

// NewEncoder returns an encoder for one worker.
func (s *source) NewEncoder() (executor.Encoder, error) {
	if s.fast != nil {
		return s.fast.NewEncoder()
	}
	return referenceEncoder{s.reference, s.parse}, nil
}

// closeReference frees the reference, which is most of the memory. Only before encoders of it exist, or after.
func (s *source) closeReference() error {
	if s.reference == nil {
		return nil
	}
	err := s.reference.Close()
	s.reference = nil
	return err
}

// Close frees the native memory.
func (s *source) Close() error {
	err := s.closeReference()
	if s.fast != nil {
		err = errors.Join(err, s.fast.Close())
	}
	return err
}

// referenceEncoder is the reference, which all workers share.
type referenceEncoder struct {
	*native.Tokenizer
	parse bool
}

// Encode returns the ids of text.
func (e referenceEncoder) Encode(text string, addSpecial bool) ([]prepost.TokenID, error) {
	return e.Tokenizer.Encode(text, addSpecial || e.parse)
}

// Close leaves the shared handle alone: the source closes it.
func (referenceEncoder) Close() error { return nil }
