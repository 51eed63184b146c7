package simworker

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"
)

// Vocabulary writes text in a model's tokens, without the model's tokenizer: it takes the longest token that matches.
// The ids need not be those the tokenizer would choose, but decode to the same text, which is all an answer needs. It
// is never changed once read, and so is safe for concurrent use.
type Vocabulary struct {
	ids     map[string]uint32 // by the bytes a token stands for
	longest int               // bytes of the longest token
	plain   []uint32          // see Plain; in ascending order
}

// ParseVocabulary reads the vocabulary of a tokenizer.json with a byte-level BPE model: it is an error if any printable
// ASCII character has no token of its own. Special tokens are left out: no text shall turn into one.
func ParseVocabulary(tokenizerJSON []byte) (*Vocabulary, error) {
	var file struct {
		Model struct {
			Vocab map[string]uint32 `json:"vocab"`
		} `json:"model"`
		Added []struct {
			ID uint32 `json:"id"`
		} `json:"added_tokens"`
	}
	if err := json.Unmarshal(tokenizerJSON, &file); err != nil {
		return nil, fmt.Errorf("simworker: vocabulary: %w", err)
	}
	special := map[uint32]bool{}
	for _, a := range file.Added {
		special[a.ID] = true
	}
	toByte := byteLevel()
	v := &Vocabulary{ids: make(map[string]uint32, len(file.Model.Vocab))}
	for token, id := range file.Model.Vocab {
		b, ok := unmap(token, toByte)
		if !ok || special[id] {
			continue
		}
		v.ids[string(b)] = id
		v.longest = max(v.longest, len(b))
		if utf8.Valid(b) && len(b) > 1 && b[0] == ' ' {
			v.plain = append(v.plain, id)
		}
	}
	// What the other bytes lack is found out by Encode, when a text needs them.
	for c := range 256 {
		if _, ok := v.ids[string([]byte{byte(c)})]; !ok && c >= ' ' && c < 0x7f {
			return nil, errors.New("simworker: vocabulary: not byte-level")
		}
	}
	// Maps have no order; what is drawn from this by a seed shall be the same in every run.
	slices.Sort(v.plain)
	return v, nil
}

// Encode returns tokens whose concatenation is text. A byte that no token begins with is an error.
func (v *Vocabulary) Encode(text string) ([]uint32, error) {
	var out []uint32
	for at := 0; at < len(text); {
		n := min(v.longest, len(text)-at)
		for ; n > 0; n-- {
			if id, ok := v.ids[text[at:at+n]]; ok {
				out = append(out, id)
				break
			}
		}
		if n == 0 {
			return nil, fmt.Errorf("simworker: no token for byte %#x", text[at])
		}
		at += n
	}
	return out, nil
}

// Plain returns the ids of tokens that are whole text and begin a word: material for answers drawn at random. The
// caller must not change it.
func (v *Vocabulary) Plain() []uint32 { return v.plain }

// byteLevel is the inverse of byte-level BPE's alphabet: printable bytes stand for themselves, the others for
// characters from U+0100 on, in order.
func byteLevel() map[rune]byte {
	m := make(map[rune]byte, 256)
	next := rune(0x100)
	for b := range 256 {
		printable := b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae
		if printable {
			m[rune(b)] = byte(b)
		} else {
			m[next] = byte(b)
			next++
		}
	}
	return m
}

// unmap returns the bytes a token of the byte-level alphabet stands for; false for other tokens.
func unmap(token string, toByte map[rune]byte) ([]byte, bool) {
	b := make([]byte, 0, len(token))
	for _, r := range token {
		c, ok := toByte[r]
		if !ok {
			return nil, false
		}
		b = append(b, c)
	}
	return b, true
}
