package detok

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/portico-llm/portico/internal/prepost"
)

// maxVocab bounds token ids: a tokenizer.json with a huge id must not ask for gigabytes.
const maxVocab = 8 << 20

// token is one entry; the zero value stands for an id that isn't used.
type token struct {
	name  string // as the file has it
	flags uint8  // known, and special for added tokens that are
}

// vocab is what a tokenizer.json says of decoding.
type vocab struct {
	tokens  []token                    // by id
	added   map[string]prepost.TokenID // by name
	decoder decoderSpec                // the zero value when there is none
}

// put notes a token; a later one of the same id replaces it. Gaps are filled with unused ids.
func (v *vocab) put(id uint64, name string, flags uint8) error {
	if id >= maxVocab {
		return fmt.Errorf("token %q has id %d; at most %d is allowed", name, id, maxVocab-1)
	}
	for uint64(len(v.tokens)) <= id {
		v.tokens = append(v.tokens, token{})
	}
	v.tokens[id] = token{name, flags | known}
	return nil
}

// addedToken is one entry of added_tokens, as far as decoding goes.
type addedToken struct {
	ID      uint64 `json:"id"`
	Content string `json:"content"`
	Special bool   `json:"special"`
}

// readVocab walks a tokenizer.json as a stream: the file has hundreds of thousands of entries, and decoding it into
// maps would leave ten times its size to the garbage collector.
func readVocab(b []byte) (*vocab, error) {
	v := &vocab{added: map[string]prepost.TokenID{}}
	d := jsontext.NewDecoder(bytes.NewBuffer(b), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	var added []addedToken
	err := eachMember(d, func(key string) error {
		switch key {
		case "added_tokens":
			return readInto(d, &added)
		case "decoder":
			return readInto(d, &v.decoder)
		case "model":
			return v.readModel(d)
		}
		return d.SkipValue()
	})
	if err != nil {
		return nil, err
	}
	for _, t := range added { // after the vocabulary: an added token's id and flags win
		var fl uint8
		if t.Special {
			fl = special
		}
		if err := v.put(t.ID, t.Content, fl); err != nil {
			return nil, err
		}
		v.added[t.Content] = prepost.TokenID(t.ID)
	}
	if len(v.tokens) == 0 {
		return nil, errors.New("no vocabulary")
	}
	return v, nil
}

// readModel reads the vocabulary of a model of any type: BPE, WordPiece and WordLevel have an object, Unigram a list.
func (v *vocab) readModel(d *jsontext.Decoder) error {
	return eachMember(d, func(key string) error {
		if key != "vocab" {
			return d.SkipValue()
		}
		switch d.PeekKind() {
		case '{': // name → id
			return eachMember(d, func(name string) error {
				t, err := d.ReadToken()
				if err != nil {
					return err
				}
				if t.Kind() != '0' {
					return fmt.Errorf("id of token %q is not a number", name)
				}
				id, err := t.Uint()
				if err != nil {
					return fmt.Errorf("id of token %q: %w", name, err)
				}
				return v.put(id, name, 0)
			})
		case '[': // Unigram: [name, score] in the order of ids
			return v.readUnigram(d)
		}
		return d.SkipValue()
	})
}

// readUnigram reads a list of pairs. The scores are for encoding.
func (v *vocab) readUnigram(d *jsontext.Decoder) error {
	if _, err := d.ReadToken(); err != nil {
		return err
	}
	for id := uint64(0); d.PeekKind() == '['; id++ {
		var pair []json.RawMessage
		if err := readInto(d, &pair); err != nil {
			return err
		}
		var name string
		if len(pair) == 0 || json.Unmarshal(pair[0], &name) != nil {
			return fmt.Errorf("entry %d of the vocabulary is not [token, score]", id)
		}
		if err := v.put(id, name, 0); err != nil {
			return err
		}
	}
	_, err := d.ReadToken()
	return err
}

// eachMember reads an object and calls f after each name; f reads the value.
func eachMember(d *jsontext.Decoder, f func(key string) error) error {
	// null, mostly: the member is there and empty.
	if d.PeekKind() != '{' {
		return d.SkipValue()
	}
	if _, err := d.ReadToken(); err != nil {
		return err
	}
	for {
		t, err := d.ReadToken()
		if err != nil {
			return err
		}
		if t.Kind() != '"' {
			return nil
		}
		if err := f(t.String()); err != nil {
			return err
		}
	}
}

// readInto decodes a small value.
func readInto(d *jsontext.Decoder, v any) error {
	raw, err := d.ReadValue()
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, v)
}

// decoderSpec is the decoder part of a tokenizer.json.
type decoderSpec struct {
	Type     string        `json:"type"`     // ByteLevel, Sequence, Replace and so on
	Decoders []decoderSpec `json:"decoders"` // Sequence

	Pattern struct{ String string } `json:"pattern"` // Replace
	Content string                  `json:"content"` // Replace, Strip
	Start   int                     `json:"start"`   // Strip
	Stop    int                     `json:"stop"`
}

// kind recognises the decoders that a table covers exactly; strip tells that the first space goes.
func (s *decoderSpec) kind() (k kind, strip bool) {
	// Anything that isn't recognised to the letter is left to the reference: a wrong guess would garble answers.
	steps := []decoderSpec{*s}
	if s.Type == "Sequence" {
		steps = s.Decoders
	}
	if len(steps) == 1 && steps[0].Type == "ByteLevel" {
		return byteLevel, false
	}
	// Replace ▁ by a space, ByteFallback, Fuse, and perhaps Strip one space at the start.
	if len(steps) < 3 || len(steps) > 4 || steps[1].Type != "ByteFallback" || steps[2].Type != "Fuse" {
		return native, false
	}
	if r := steps[0]; r.Type != "Replace" || r.Pattern.String != "▁" || r.Content != " " {
		return native, false
	}
	if len(steps) == 3 {
		return byteFallback, false
	}
	if t := steps[3]; t.Type != "Strip" || t.Content != " " || t.Start != 1 || t.Stop != 0 {
		return native, false
	}
	return byteFallback, true
}

// byteToken returns the byte that a token of the form <0xNN> stands for.
func byteToken(name string) (byte, bool) {
	if len(name) != 6 || name[:3] != "<0x" || name[5] != '>' {
		return 0, false
	}
	b, err := strconv.ParseUint(name[3:5], 16, 8)
	return byte(b), err == nil
}

// appendByteLevel appends the bytes that a byte-level token stands for. GPT-2's alphabet shows printable bytes as
// themselves and the others as the characters from U+0100 on. A token with any other character stands for its own
// UTF-8, as in the reference.
func appendByteLevel(dst []byte, name string) []byte {
	start := len(dst)
	for _, r := range name {
		b, ok := levelByte(r)
		if !ok {
			return append(dst[:start], name...)
		}
		dst = append(dst, b)
	}
	return dst
}

// levelByte inverts GPT-2's bytes_to_unicode: 68 bytes aren't printable in Latin-1 (0–32, 127–160 and 173) and are
// shifted, in order, to U+0100–U+0143.
func levelByte(r rune) (byte, bool) {
	switch {
	case r >= '!' && r <= '~', r >= 0xA1 && r <= 0xAC, r >= 0xAE && r <= 0xFF:
		return byte(r), true
	case r < 0x100 || r > 0x143:
		return 0, false
	}
	switch n := r - 0x100; {
	case n <= 32:
		return byte(n), true
	case n <= 32+34: // 127–160
		return byte(n - 33 + 127), true
	default:
		return 173, true
	}
}
