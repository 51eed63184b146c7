package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"strconv"

	"github.com/portico-llm/portico/internal/native"
	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/prepost/detok"
)

// kimiPattern cuts text for Kimi K2, the family of models that come as a tiktoken file.
const kimiPattern = `[\p{Han}]+` +
	`|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?` +
	`|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?` +
	`|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`

// loadTiktoken makes a tokenizer of a tiktoken model. Only the reference knows those.
func loadTiktoken(o Options) (*Tokenizer, error) {
	if o.Backend == FastBPE {
		return nil, &native.RefusedError{Reason: "a tiktoken model"}
	}
	config := filepath.Join(filepath.Dir(o.Tiktoken), "tokenizer_config.json")
	names, err := specialNames(config)
	if err != nil {
		return nil, err
	}
	reference, err := native.NewTiktoken(o.Tiktoken, config, o.Pattern)
	if err != nil {
		return nil, err
	}
	size := reference.VocabSize()
	src := &source{reference: reference, parse: true}
	dec := &decodeCall{reference: reference, below: prepost.TokenID(size)}
	t, err := bind(o, src, dec, &Tokenizer{
		model: detok.NewNative(size, skipped(names, reference), dec.decode), names: names, backend: Tokenizers,
	})
	if err != nil {
		return nil, errors.Join(err, src.Close())
	}
	return t, nil
}

// skipped returns those of the named tokens that the reference skips: a few dozen calls, when the model is loaded.
func skipped(names map[string]prepost.TokenID, reference *native.Tokenizer) iter.Seq[prepost.TokenID] {
	return func(yield func(prepost.TokenID) bool) {
		for _, id := range names {
			if text, err := reference.Decode([]prepost.TokenID{id}, true); err == nil && text == "" && !yield(id) {
				return
			}
		}
	}
}

// specialNames reads the special tokens from a tokenizer_config.json.
func specialNames(path string) (map[string]prepost.TokenID, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("load tiktoken model: %w", err)
	}
	var config struct {
		Added map[string]struct {
			Content string `json:"content"`
		} `json:"added_tokens_decoder"`
	}
	if err := json.Unmarshal(b, &config); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	names := make(map[string]prepost.TokenID, len(config.Added))
	for key, token := range config.Added {
		id, err := strconv.ParseUint(key, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%s: token %q: %w", path, token.Content, err)
		}
		names[token.Content] = prepost.TokenID(id)
	}
	return names, nil
}
