package detok

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"github.com/portico-llm/portico/internal/prepost"
)

// kind is one of the ways to decode that the package comment tells of.
type kind uint8

const (
	native       kind = iota // by the reference
	byteLevel                // table
	byteFallback             // table
)

// Flags of a token.
const (
	known   uint8 = 1 << iota // the id stands for a token
	special                   // skipped when special tokens are
	whole                     // its bytes are whole UTF-8 characters
	isByte                    // byteFallback: a <0xNN> token
)

// NativeDecode decodes ids as the reference does.
type NativeDecode func(ids []prepost.TokenID, skipSpecial bool) (string, error)

// Model is a vocabulary, seen from its decoding side.
type Model struct {
	kind   kind         // never changed after construction, like all of it
	decode NativeDecode // nil in the table kinds, perhaps

	// Token i is text[off[i]:off[i+1]]: the bytes it decodes to in the table kinds, its name otherwise.
	text  []byte
	off   []uint32                   // one more than there are ids
	flags []uint8                    // by id
	added map[string]prepost.TokenID // by name
	strip bool                       // byteFallback: the answer's very first space goes away

	asked      sync.Map     // name → found: what TokenID was asked for and isn't an added token
	askedCount atomic.Int64 // entries of asked, and a few more
}

// NewModel reads a tokenizer.json. decode is called only when the decoder named there isn't one of the table kinds, and
// may be nil otherwise (Table tells); a Model without either is an error.
func NewModel(tokenizerJSON []byte, decode NativeDecode) (*Model, error) {
	v, err := readVocab(tokenizerJSON)
	if err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	m := &Model{decode: decode, added: v.added}
	m.kind, m.strip = v.decoder.kind()
	if m.kind == native && decode == nil {
		return nil, errors.New("tokenizer.json: its decoder needs the native tokenizer")
	}
	m.fill(v)
	return m, nil
}

// NewNative returns a Model for a tokenizer that isn't described by a tokenizer.json: everything is decoded by decode.
// Its tokens have neither names nor bytes. specials are its special tokens; those that are no ids of the vocabulary are
// left out.
func NewNative(vocabSize int, specials iter.Seq[prepost.TokenID], decode NativeDecode) *Model {
	m := &Model{kind: native, decode: decode, flags: make([]uint8, vocabSize), off: make([]uint32, vocabSize+1)}
	for id := range specials {
		if int(id) < vocabSize {
			m.flags[id] = special
		}
	}
	return m
}

// fill lays the vocabulary out as one block of bytes: a slice per token would cost the garbage collector a pointer each.
func (m *Model) fill(v *vocab) {
	m.off = make([]uint32, 1, len(v.tokens)+1)
	m.flags = make([]uint8, len(v.tokens))
	for i, t := range v.tokens {
		start := len(m.text)
		m.flags[i] = t.flags
		if t.flags&known != 0 {
			m.text = m.appendToken(m.text, t.name, &m.flags[i])
		}
		if utf8.Valid(m.text[start:]) {
			m.flags[i] |= whole
		}
		m.off = append(m.off, uint32(len(m.text)))
	}
	m.text = bytes.Clone(m.text) // the growth of append is not kept
}

// appendToken appends what a token of this name decodes to, and notes what kind of token it is.
func (m *Model) appendToken(dst []byte, name string, flags *uint8) []byte {
	switch m.kind {
	case byteLevel:
		return appendByteLevel(dst, name)
	case byteFallback:
		if b, ok := byteToken(name); ok {
			*flags |= isByte
			return append(dst, b)
		}
		// SentencePiece writes a space as U+2581.
		return append(dst, bytes.ReplaceAll([]byte(name), []byte("▁"), []byte(" "))...)
	}
	return append(dst, name...)
}

// Table reports whether ids are decoded by table, without native calls.
func (m *Model) Table() bool { return m.kind != native }

// VocabSize is one more than the largest token id.
func (m *Model) VocabSize() int { return len(m.flags) }

// maxAsked bounds the names whose lookup is remembered. Callers ask for markup they know, a few hundred at most.
const maxAsked = 4096

// found is the outcome of a lookup by name.
type found struct {
	id prepost.TokenID
	ok bool
}

// TokenID returns the id of the token with exactly this name, added tokens first. The first lookup of a name scans the
// vocabulary, a fraction of a millisecond; its outcome is remembered.
func (m *Model) TokenID(name string) (prepost.TokenID, bool) {
	if id, ok := m.added[name]; ok {
		return id, true
	}
	if f, ok := m.asked.Load(name); ok {
		return f.(found).id, f.(found).ok
	}
	id, ok := m.scan(name)
	if m.askedCount.Add(1) <= maxAsked {
		m.asked.Store(strings.Clone(name), found{id, ok})
	}
	return id, ok
}

// scan looks for a name among all tokens. Tables hold what tokens decode to, so the name is decoded first.
func (m *Model) scan(name string) (prepost.TokenID, bool) {
	var fl uint8
	want := m.appendToken(nil, name, &fl)
	for i, f := range m.flags {
		if f&known != 0 && f&isByte == fl&isByte && bytes.Equal(m.token(prepost.TokenID(i)), want) {
			return prepost.TokenID(i), true
		}
	}
	return 0, false
}

// TokenBytes returns the bytes that one token adds to an answer, which may be a part of a character; false for unknown
// ids, and for vocabularies without a table, whose tokens have no bytes of their own. The caller must not change them.
func (m *Model) TokenBytes(id prepost.TokenID) ([]byte, bool) {
	if m.kind == native || m.skipped(id, skipping{}) {
		return nil, false
	}
	return m.token(id), true
}

// IsSpecial reports whether id is a special token.
func (m *Model) IsSpecial(id prepost.TokenID) bool {
	return int(id) < len(m.flags) && m.flags[id]&special != 0
}

// token returns the bytes of an id below VocabSize.
func (m *Model) token(id prepost.TokenID) []byte { return m.text[m.off[id]:m.off[id+1]] }

// skipping says which special tokens a decoder skips: none, or all but some.
type skipping struct {
	on  bool
	but []prepost.TokenID
}

// skipped reports whether an id adds nothing: it is unknown, or a special token that is skipped.
func (m *Model) skipped(id prepost.TokenID, s skipping) bool {
	return int(id) >= len(m.flags) || m.flags[id]&known == 0 || m.skips(id, s)
}

// skips reports whether an id is a special token that is skipped.
func (m *Model) skips(id prepost.TokenID, s skipping) bool {
	return s.on && m.IsSpecial(id) && !slices.Contains(s.but, id)
}

// Decode returns the text of ids. Unknown ids add nothing. Only a native Model can fail.
func (m *Model) Decode(ids []prepost.TokenID, skipSpecial bool) (string, error) {
	if m.kind == native {
		return m.decode(ids, skipSpecial)
	}
	d := m.NewDecoder(nil, skipSpecial)
	var err error
	out := make([]byte, 0, 4*len(ids))
	for _, id := range ids {
		if out, err = d.Push(out, id); err != nil {
			return "", err
		}
	}
	if out, err = d.Flush(out); err != nil {
		return "", err
	}
	return string(out), nil
}

// promptContext is how many of the prompt's last ids a decoder looks at: what an answer's first token decodes to may
// depend on there being text before it.
const promptContext = 5

// NewDecoder returns a decoder for an answer to prompt. The prompt isn't kept. Decoders of one Model are independent of
// each other.
func (m *Model) NewDecoder(prompt []prepost.TokenID, skipSpecial bool) prepost.Decoder {
	if m.kind == native {
		return newWindow(m.decode, lastOf(prompt), skipSpecial)
	}
	return m.newTable(prompt, skipping{on: skipSpecial})
}

// NewMarkupDecoder is NewDecoder, but that special tokens are skipped unless they are in markup, which is kept.
func (m *Model) NewMarkupDecoder(prompt, markup []prepost.TokenID) prepost.Decoder {
	s := skipping{on: true, but: markup}
	if m.kind == native {
		return newMarkupWindow(m, lastOf(prompt), s)
	}
	return m.newTable(prompt, s)
}

// lastOf returns what a decoder looks at of a prompt.
func lastOf(prompt []prepost.TokenID) []prepost.TokenID {
	return prompt[max(0, len(prompt)-promptContext):]
}

// newTable returns a decoder by table.
func (m *Model) newTable(prompt []prepost.TokenID, s skipping) prepost.Decoder {
	if m.kind == byteLevel {
		return &levelDecoder{m: m, skip: s}
	}
	d := &fallbackDecoder{m: m, skip: s, strip: m.strip}
	for _, id := range lastOf(prompt) {
		if !m.skipped(id, s) {
			d.strip = false // there is text before the answer
		}
	}
	return d
}
