package tokenizer

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/portico-llm/portico/internal/prepost"
)

// cuts are the places where a text can be cut into blocks that are encoded by themselves: in front of certain added
// tokens. A tokenizer looks for added tokens before it does anything else, and what lies between two of them is
// normalised, split and merged without regard to the rest. So the ids of a text are those of its blocks, one behind the
// other, as long as the token in front of which it is cut is found there whatever stands around it.
//
// For that a token may have no flag that makes its match depend on, or take in, what is next to it; it is no part of
// another added token; and no other ends with what it begins with. Every block but the first begins with such a token,
// also when it is encoded alone, so that marks which some tokenizers put ahead of a text's first word stay away.
type cuts struct {
	first byte      // what all of the tokens begin with
	nodes []cutNode // a trie; the root is the first
}

// cutNode is one byte of the tokens that begin with the bytes above it.
type cutNode struct {
	b              byte
	child, sibling int32           // 0: none
	id             prepost.TokenID // with end
	end, unsafe    bool            // a token ends here; text must not be cut in front of it
}

// addedToken is one of a tokenizer.json's added_tokens.
type addedToken struct {
	ID         prepost.TokenID `json:"id"`
	Content    string          `json:"content"`
	SingleWord bool            `json:"single_word"`
	LStrip     bool            `json:"lstrip"`
	RStrip     bool            `json:"rstrip"`
	Normalized bool            `json:"normalized"`
}

// tokenizerFile is what a tokenizer.json says that decides about cuts.
type tokenizerFile struct {
	whole      bool // the text is looked at as a whole: truncated or padded, or encoded otherwise each time
	normalizes bool
	added      []addedToken
	told       int // members of the above that were there
}

// newCuts reads a tokenizer.json. Nil without an error: texts of this tokenizer can't be cut.
func newCuts(file []byte) (*cuts, error) {
	f, err := readTokenizerFile(file)
	if err != nil && !errors.Is(err, errNotRead) {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	// Reading ends in the model; members that stand behind it would have been missed.
	if f.whole || err != nil && f.told < 4 {
		return nil, nil
	}
	var safe []addedToken
	for _, t := range f.added {
		if t.SingleWord { // found or not by what is next to it
			return nil, nil
		}
		// Normalized tokens are looked for in the normalised text; where nothing is normalised that is the same text.
		if (!f.normalizes || !t.Normalized) && !t.LStrip && !t.RStrip && closed(t.Content) {
			safe = append(safe, t)
		}
	}
	c := &cuts{first: commonest(safe), nodes: make([]cutNode, 1)}
	for _, t := range safe {
		if t.Content[0] == c.first {
			c.add(t)
		}
	}
	for i := range f.added {
		c.exclude(f.added[i].Content)
	}
	for i := range c.nodes {
		if c.nodes[i].end && !c.nodes[i].unsafe {
			return c, nil
		}
	}
	return nil, nil
}

// readTokenizerFile reads the members that matter. The vocabulary, nearly all of a file, is not gone through.
func readTokenizerFile(file []byte) (f tokenizerFile, err error) {
	dec := jsontext.NewDecoder(bytes.NewBuffer(file), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	err = members(dec, func(name string) (done bool, err error) {
		switch name {
		case "truncation", "padding", "added_tokens", "normalizer":
			f.told++
		}
		switch name {
		case "truncation", "padding":
			f.whole = f.whole || dec.PeekKind() != 'n'
		case "added_tokens":
			err := json.UnmarshalDecode(dec, &f.added)
			return false, err
		case "normalizer":
			var n *struct {
				Type  string           `json:"type"`
				Parts []jsontext.Value `json:"normalizers"`
			}
			err := json.UnmarshalDecode(dec, &n)
			f.normalizes = n != nil && (n.Type != "Sequence" || len(n.Parts) > 0)
			return false, err
		case "model": // the last member wherever files come from a library
			return false, readModel(dec, &f)
		}
		return false, dec.SkipValue()
	})
	return f, err
}

// readModel looks for the dropout of a BPE model, which is written ahead of its vocabulary.
func readModel(dec *jsontext.Decoder, f *tokenizerFile) error {
	return members(dec, func(name string) (done bool, err error) {
		value, err := dec.ReadValue()
		switch {
		case err != nil:
			return false, err
		case name == "type":
			return string(value) != `"BPE"`, nil
		case name == "dropout":
			f.whole = f.whole || value.Kind() != 'n' && string(value) != "0.0" && string(value) != "0"
			return true, nil
		}
		return false, nil
	})
}

// errNotRead ends the reading of a file whose rest doesn't matter.
var errNotRead = errors.New("not read")

// members calls read for each member of an object, to take its value. Once that says that it is done, nothing more is
// read, of whatever the object is in.
func members(dec *jsontext.Decoder, read func(name string) (done bool, err error)) error {
	t, err := dec.ReadToken()
	if err != nil {
		return err
	}
	if t.Kind() != '{' {
		return errors.New("not an object")
	}
	for dec.PeekKind() == '"' {
		name, err := dec.ReadToken()
		if err != nil {
			return err
		}
		done, err := read(name.String())
		if err != nil {
			return err
		}
		if done {
			return errNotRead
		}
	}
	_, err = dec.ReadToken()
	return err
}

// closed reports whether a token is long enough to be a mark, and has no white space at its ends, which flags of its
// neighbours could take away.
func closed(token string) bool {
	first, _ := utf8.DecodeRuneInString(token)
	last, _ := utf8.DecodeLastRuneInString(token)
	return len(token) >= 3 && utf8.ValidString(token) && !unicode.IsSpace(first) && !unicode.IsSpace(last)
}

// commonest is the byte that most of the tokens begin with.
func commonest(tokens []addedToken) (best byte) {
	var counts [256]int
	for _, t := range tokens {
		if counts[t.Content[0]]++; counts[t.Content[0]] > counts[best] {
			best = t.Content[0]
		}
	}
	return best
}

// add adds a token to the trie.
func (c *cuts) add(t addedToken) {
	at := int32(0)
	for i := range len(t.Content) {
		next := c.step(at, t.Content[i])
		if next == 0 {
			next = int32(len(c.nodes))
			c.nodes = append(c.nodes, cutNode{b: t.Content[i], sibling: c.nodes[at].child})
			c.nodes[at].child = next
		}
		at = next
	}
	c.nodes[at].end, c.nodes[at].id = true, t.ID
}

// step returns the node of b under a node, 0 for none.
func (c *cuts) step(at int32, b byte) int32 {
	next := c.nodes[at].child
	for next != 0 && c.nodes[next].b != b {
		next = c.nodes[next].sibling
	}
	return next
}

// exclude marks the tokens that other, an added token, gets in the way of: those inside it, and those that begin with
// what it ends with.
func (c *cuts) exclude(other string) {
	for from := range len(other) {
		if other[from] != c.first {
			continue
		}
		at := int32(0)
		for i := from; ; i++ {
			if i == len(other) { // all of the tokens that go on from here, but not other itself
				if from > 0 {
					c.excludeUnder(at)
				}
				break
			}
			if at = c.step(at, other[i]); at == 0 {
				break
			}
			if c.nodes[at].end && (from > 0 || i < len(other)-1) {
				c.nodes[at].unsafe = true
			}
		}
	}
}

// excludeUnder marks all tokens that begin with the bytes up to a node.
func (c *cuts) excludeUnder(at int32) {
	for next := c.nodes[at].child; next != 0; next = c.nodes[next].sibling {
		c.nodes[next].unsafe = true
		c.excludeUnder(next)
	}
}

// place is where a text can be cut.
type place struct {
	at int             // byte
	id prepost.TokenID // of the token that begins here
}

// next returns the first place of text at or behind from. It doesn't matter what from is the middle of: a token that text
// can be cut in front of is found wherever it stands.
func (c *cuts) next(text string, from int) (place, bool) {
	for from < len(text) {
		n := strings.IndexByte(text[from:], c.first)
		if n < 0 {
			break
		}
		from += n
		if id, length := c.match(text[from:]); length > 0 {
			return place{from, id}, true
		}
		from++
	}
	return place{}, false
}

// find returns all places of text, in order.
func (c *cuts) find(text string) (all []place) {
	for from := 0; ; {
		p, ok := c.next(text, from)
		if !ok {
			return all
		}
		all, from = append(all, p), p.at+1
	}
}

// match returns the token that text begins with, and its length; 0: none. None is the beginning of another.
func (c *cuts) match(text string) (prepost.TokenID, int) {
	at := int32(0)
	for i := range len(text) {
		if at = c.step(at, text[i]); at == 0 {
			return 0, 0
		}
		if n := &c.nodes[at]; n.end && !n.unsafe {
			return n.id, i + 1
		}
	}
	return 0, 0
}
