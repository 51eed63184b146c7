package pipeline

import (
	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/fault"
)

// longest is what tokenizers can tell that know their vocabulary byte by byte.
type longest interface {
	// LongestToken is the number of bytes that one token stands for at most; 0: unknown.
	LongestToken() int
}

// fitText refuses a text that can't possibly fit, before it occupies a tokenizer: one with more bytes than the tokens of
// the context stand for at most, or than this server takes at all. path is where it stands in the request.
func (p *Pipeline) fitText(set *catalog.Set, text, path string) error {
	size := int64(len(text))
	if tokens := int64(set.Card.EffectiveContextLength()); tokens > 0 {
		if l, ok := set.Tokenizer.(longest); ok {
			if each := int64(l.LongestToken()); each > 0 && size > tokens*each {
				e := fault.Bad(path, "The model's context holds %d tokens, fewer than %d bytes of text can make", tokens, size).
					WithCode("context_length_exceeded")
				e.Details = map[string]any{"type": "context_length", "limit": tokens, "prompt_bytes": size}
				return e
			}
		}
	}
	return p.capText(text, path)
}

// capText refuses a text with more bytes than this server tokenises.
func (p *Pipeline) capText(text, path string) error {
	if size := int64(len(text)); p.maxPrompt > 0 && size > p.maxPrompt {
		return fault.Bad(path, "The prompt has %d bytes of text; this server tokenizes up to %d", size, p.maxPrompt).
			WithCode("string_above_max_length")
	}
	return nil
}
