package worker

import (
	"bytes"
	"errors"
	"fmt"
	"math"
)

// maxDepth bounds the nesting of values. Guided-decoding schemas may be 500 deep; nothing needs more than twice that.
const maxDepth = 1000

// errValue is the root of all decoding errors.
var errValue = errors.New("malformed value")

// kind is what the next value is.
type kind uint8

const (
	kindNull   kind = iota // JSON null, msgpack nil
	kindBool               // true or false
	kindInt                // an integer of at most 64 bits, with or without sign
	kindFloat              // any other number
	kindString             // text, not checked to be UTF-8
	kindBytes              // msgpack only
	kindArray              // entered with openArray
	kindMap                // entered with openMap
	kindExt                // msgpack only
	kindBad                // no value: the end, an error, or a byte that begins none
)

// kindNames are indexed by kind.
var kindNames = [...]string{
	"null", "bool", "integer", "float", "string", "bytes", "array", "map", "extension", "no value",
}

// String names the kind in error messages.
func (k kind) String() string { return kindNames[k] }

// reader pulls values out of a JSON or msgpack body, without reflection. One decoder on top of it serves both codecs,
// so the two agree by construction. The first error sticks: afterwards every method returns zero values and every
// sequence is at its end, so callers look at err once.
type reader struct {
	b       []byte // the whole body
	i       int    // index of the next byte
	codec   Codec  // of the body
	depth   int    // containers entered and not left
	err     error  // the first failure
	scratch []byte // unescaped JSON strings; valid until the next string
}

// seq is the state of one map or array being read.
type seq struct {
	left  uint64 // msgpack: entries still to come
	begun bool   // JSON: an entry has been read
	key   []byte // maps: the current entry's, valid until the next string is read
}

// failf records an error with the place where it was found. Only the first counts: what follows it is noise. The place
// is a byte offset: bodies are for machines, and have no lines.
func (r *reader) failf(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%w at byte %d: "+format, append([]any{errValue, r.i}, args...)...)
	}
}

// mismatch fails because the next value is of another kind than the protocol has there.
func (r *reader) mismatch(want string) { r.failf("%s where %s is expected", r.peek(), want) }

// finish reports the first error, or what follows the one value that a body holds.
func (r *reader) finish() error {
	// White space may follow the value in JSON; in msgpack every byte counts.
	if r.err == nil && r.codec == JSON {
		r.space()
	}
	if r.err == nil && r.i != len(r.b) {
		r.failf("%d bytes after the value", len(r.b)-r.i)
	}
	return r.err
}

// peek tells the kind of the next value without consuming it; kindBad at the end and after an error.
func (r *reader) peek() kind {
	if r.err != nil {
		return kindBad
	}
	if r.codec == JSON {
		return r.jsonPeek()
	}
	if r.i >= len(r.b) {
		return kindBad
	}
	return mpKind(r.b[r.i])
}

// null consumes a null and reports whether there was one.
func (r *reader) null() bool {
	if r.peek() != kindNull {
		return false
	}
	if r.codec == JSON {
		return r.literal("null")
	}
	r.i++
	return true
}

// openMap enters a map. Its entries are announced by entry, which also leaves it. After an error there is nothing to
// enter, and entry ends at once.
func (r *reader) openMap() (s seq) {
	if r.peek() != kindMap {
		r.mismatch("a map")
		return s
	}
	r.enter()
	if r.codec == JSON {
		r.i++
		return s
	}
	// msgpack announces the number of entries, JSON shows the end.
	s.left = r.mpMapLen()
	return s
}

// openArray enters an array. Its elements are announced by elem, which also leaves it.
func (r *reader) openArray() (s seq) {
	if r.peek() != kindArray {
		r.mismatch("an array")
		return s
	}
	r.enter()
	if r.codec == JSON {
		r.i++
		return s
	}
	s.left = r.mpArrayLen()
	return s
}

// enter counts a level of nesting. The bound keeps recursion from running out of stack on hostile bodies.
func (r *reader) enter() {
	if r.depth++; r.depth > maxDepth {
		r.failf("nested deeper than %d", maxDepth)
	}
}

// entry reports whether another entry of a map follows, whose key it leaves in s. Its value has to be read, or skipped,
// before the next call.
func (r *reader) entry(s *seq) bool {
	if r.err != nil {
		return false
	}
	if r.codec == JSON {
		if !r.jsonNext(s, '}') {
			return false
		}
		s.key = r.str()
		r.space()
		if r.err == nil && (r.i >= len(r.b) || r.b[r.i] != ':') {
			r.failf("no colon after a key")
		}
		r.i++
		return r.err == nil
	}
	if s.left == 0 {
		r.depth--
		return false
	}
	s.left--
	s.key = r.mpKey()
	return r.err == nil
}

// elem is entry for the elements of an array.
func (r *reader) elem(s *seq) bool {
	if r.err != nil {
		return false
	}
	if r.codec == JSON {
		return r.jsonNext(s, ']')
	}
	if s.left == 0 {
		r.depth--
		return false
	}
	s.left--
	return true
}

// str reads a string. The bytes are valid until the next string is read.
func (r *reader) str() []byte {
	if r.peek() != kindString {
		r.mismatch("a string")
		return nil
	}
	if r.codec == JSON {
		return r.jsonString()
	}
	return r.mpString()
}

// boolean reads true or false; a null is a mismatch, for the caller to rule out first.
func (r *reader) boolean() bool {
	if r.peek() != kindBool {
		r.mismatch("a bool")
		return false
	}
	if r.codec == JSON {
		if r.b[r.i] == 't' {
			return r.literal("true")
		}
		r.literal("false")
		return false
	}
	r.i++
	// 0xc2 is false, 0xc3 true.
	return r.b[r.i-1] == 0xc3
}

// integer is a number of up to 64 bits and its sign: neg with mag 0 doesn't occur.
type integer struct {
	mag uint64 // absolute value
	neg bool   // below zero
}

// integer reads a number that both codecs write without a fraction. A float is refused, even a whole one.
func (r *reader) integer() (n integer) {
	if r.peek() != kindInt {
		r.mismatch("an integer")
		return n
	}
	if r.codec == JSON {
		return r.jsonInteger()
	}
	return r.mpInteger()
}

// uint reads an integer from 0 to limit.
func (r *reader) uint(limit uint64) uint64 {
	n := r.integer()
	if n.neg || n.mag > limit {
		r.failf("integer out of range: 0 to %d", limit)
		return 0
	}
	return n.mag
}

// uint32 and uint64 read unsigned integers of these widths.
func (r *reader) uint32() uint32 { return uint32(r.uint(math.MaxUint32)) }
func (r *reader) uint64() uint64 { return r.uint(math.MaxUint64) }

// int64 reads a signed integer, down to the one whose magnitude has no positive counterpart.
func (r *reader) int64() int64 {
	n := r.integer()
	switch {
	case n.neg && n.mag <= 1<<63:
		return -int64(n.mag)
	case !n.neg && n.mag <= math.MaxInt64:
		return int64(n.mag)
	}
	r.failf("integer out of range of 64 bits")
	return 0
}

// float reads any number. A null is NaN: encoders without NaN and infinities write null for them. Values too large for
// a double become infinities.
func (r *reader) float() float64 {
	switch r.peek() {
	case kindInt, kindFloat:
		if r.codec == JSON {
			return r.jsonFloat()
		}
		return r.mpFloat()
	case kindNull:
		r.null()
		return math.NaN()
	}
	r.mismatch("a number")
	return 0
}

// skip passes over one value of any kind, checking that it is well formed. Unknown fields may hold anything, so it
// recurses; enter bounds how deep.
func (r *reader) skip() {
	switch r.peek() {
	case kindNull:
		r.null()
	case kindBool:
		r.boolean()
	case kindInt, kindFloat:
		r.float()
	case kindString:
		r.skipString()
	case kindBytes, kindExt:
		r.mpOpaque()
	case kindArray:
		for s := r.openArray(); r.elem(&s); {
			r.skip()
		}
	case kindMap:
		for s := r.openMap(); r.entry(&s); {
			r.skip()
		}
	default:
		r.failf("no value")
	}
}

// skipString passes over a string without unescaping it.
func (r *reader) skipString() {
	if r.codec == JSON {
		r.jsonRawString()
		return
	}
	r.mpString()
}

// raw returns the next value as JSON, nil for null. From a JSON body the result aliases the body. It is for values that
// only pass through: whoever they are for decodes them.
func (r *reader) raw() []byte {
	if r.null() || r.err != nil {
		return nil
	}
	if r.codec == JSON {
		r.space()
		start := r.i
		if r.skip(); r.err != nil {
			return nil
		}
		// As it stands, its numbers and key order included, and without room to grow.
		return r.b[start:r.i:r.i]
	}
	// Otherwise it is transcoded into memory of its own.
	out := r.appendJSON(nil)
	if r.err != nil {
		return nil
	}
	return out
}

// text reads a nullable string as a new string.
func (r *reader) text() string {
	if r.null() {
		return ""
	}
	return string(r.str())
}

// space passes over JSON's white space.
func (r *reader) space() {
	for r.i < len(r.b) {
		switch r.b[r.i] {
		case ' ', '\t', '\n', '\r':
			r.i++
		default:
			return
		}
	}
}

// rest returns what has not been read yet.
func (r *reader) rest() []byte { return r.b[min(r.i, len(r.b)):] }

// literal consumes one of JSON's three words.
func (r *reader) literal(want string) bool {
	if !bytes.HasPrefix(r.rest(), []byte(want)) {
		r.failf("malformed literal")
		return false
	}
	r.i += len(want)
	return true
}
