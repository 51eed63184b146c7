package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/portico-llm/portico/internal/fault"
)

// reader walks a body once. It knows where it is, so that a failure can name its field.
type reader struct {
	dec     *jsontext.Decoder // the library's, lent for one reading
	body    []byte            // for values kept as they stand
	opts    DecodeOptions     // with defaults
	unknown *Unknown          // where names nobody knows are noted

	path  []step  // from the root to the current value
	steps [8]step // path's first memory
}

// step is one part of a JSON path: a name, or an index when the name is empty.
type step struct {
	name  string
	index int // from 0; only without a name
}

// start makes the reader ready for body; unknown is where unknown fields are noted.
func (r *reader) start(body []byte, unknown *Unknown) {
	r.body, r.unknown, r.path = body, unknown, r.steps[:0]
}

// enter, enterIndex and leave keep the path. A failure leaves it as it is: the path then tells where.
func (r *reader) enter(name string)    { r.path = append(r.path, step{name: name}) }
func (r *reader) enterIndex(index int) { r.path = append(r.path, step{index: index}) }
func (r *reader) leave()               { r.path = r.path[:len(r.path)-1] }

// where returns the JSON path of the current field.
func (r *reader) where() string {
	var b []byte
	for i, s := range r.path {
		if s.name == "" {
			b = append(strconv.AppendInt(append(b, '['), int64(s.index), 10), ']')
			continue
		}
		// The first name stands alone; an index never has a dot ahead of it.
		if i > 0 {
			b = append(b, '.')
		}
		b = append(b, s.name...)
	}
	return string(b)
}

// bad is a failure at the current field: "`path` must be …".
func (r *reader) bad(allowed string) error {
	// Only the root has no path, and its failure speaks of the body.
	path := r.where()
	if path == "" {
		return fault.Bad("", "The body must be %s", allowed)
	}
	return fault.Bad(path, "`%s` must be %s", path, allowed).WithCode("invalid_type")
}

// wrong is the failure of a value of another type. When there is no value at all it is the reader's syntax error. It
// reads at most one token, and only when nothing more can be read anyway.
func (r *reader) wrong(allowed string) error {
	kind := r.dec.PeekKind()
	if _, ok := kindNames[kind]; !ok {
		if _, err := r.dec.ReadToken(); err != nil {
			return err
		}
	}
	return r.bad(allowed + ", not " + kindNames[kind])
}

// kindNames are the kinds of value as failures name them; a kind that isn't here begins no value.
var kindNames = map[jsontext.Kind]string{
	'n': "null", 't': "a boolean", 'f': "a boolean", '"': "a string", '0': "a number", '{': "an object", '[': "an array",
}

// begin reads the token that opens an object or an array.
func (r *reader) begin(kind jsontext.Kind, allowed string) error {
	if r.dec.PeekKind() != kind {
		return r.wrong(allowed)
	}
	_, err := r.dec.ReadToken()
	return err
}

// more reports whether the current object or array goes on. At a syntax error it does, and the next read returns it.
func (r *reader) more(end jsontext.Kind) bool { return r.dec.PeekKind() != end }

// end reads the token that closes the current object or array.
func (r *reader) end() error {
	_, err := r.dec.ReadToken()
	return err
}

// name reads an object's next name. The result is valid until the next read.
func (r *reader) name() ([]byte, error) {
	v, err := r.dec.ReadValue()
	if err != nil {
		return nil, err
	}
	if bytes.IndexByte(v, '\\') < 0 {
		return v[1 : len(v)-1], nil
	}
	return jsontext.AppendUnquote(nil, v)
}

// null reads a null if one comes.
func (r *reader) null() (bool, error) {
	if r.dec.PeekKind() != 'n' {
		return false, nil
	}
	_, err := r.dec.ReadToken()
	return true, err
}

// text reads a string.
func (r *reader) text(allowed string) (string, error) {
	v, err := r.quoted(allowed)
	if err != nil {
		return "", err
	}
	return unquote(v)
}

// quoted reads a string and returns it as it stands in the body, quotes included.
func (r *reader) quoted(allowed string) (jsontext.Value, error) {
	if r.dec.PeekKind() != '"' {
		return nil, r.wrong(allowed)
	}
	return r.dec.ReadValue()
}

// unquote returns the text of a JSON string.
func unquote(v []byte) (string, error) {
	if bytes.IndexByte(v, '\\') < 0 {
		return string(v[1 : len(v)-1]), nil
	}
	b, err := jsontext.AppendUnquote(nil, v)
	return string(b), err
}

// boolean reads true or false.
func (r *reader) boolean() (bool, error) {
	kind := r.dec.PeekKind()
	if kind != 't' && kind != 'f' {
		return false, r.wrong("true or false")
	}
	_, err := r.dec.ReadToken()
	return kind == 't', err
}

// number reads the digits of a number.
func (r *reader) number(allowed string) (jsontext.Value, error) {
	if r.dec.PeekKind() != '0' {
		return nil, r.wrong(allowed)
	}
	return r.dec.ReadValue()
}

// float reads a number that fits a double.
func (r *reader) float() (float64, error) {
	v, err := r.number("a number")
	if err != nil {
		return 0, err
	}
	f, err := strconv.ParseFloat(string(v), 64)
	if err != nil || math.IsInf(f, 0) {
		return 0, r.bad("a finite number")
	}
	return f, nil
}

// integer reads a whole number within bounds, both allowed. 1.0 and 1e3 are no integers, as for Dynamo.
func (r *reader) integer(lowest, highest int64) (int64, error) {
	v, err := r.number("an integer")
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0, r.bad("an integer, without fraction or exponent")
	}
	if err != nil || n < lowest || n > highest {
		return 0, r.bad("an integer from " + strconv.FormatInt(lowest, 10) + " to " + strconv.FormatInt(highest, 10))
	}
	return n, nil
}

// unsigned reads a number of 64 bits, such as an instance id.
func (r *reader) unsigned() (uint64, error) {
	v, err := r.number("an unsigned integer")
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(string(v), 10, 64)
	if err != nil {
		return 0, r.bad("an integer from 0 to 18446744073709551615")
	}
	return n, nil
}

// tokenID reads an index into some vocabulary; how large that is, is not known here.
func (r *reader) tokenID() (uint32, error) {
	n, err := r.integer(0, math.MaxUint32)
	return uint32(n), err
}

// raw reads any value and returns it as it stands in the body.
func (r *reader) raw() (json.RawMessage, error) {
	v, err := r.dec.ReadValue()
	return json.RawMessage(v), err
}

// rawOf reads a value that begins with one of the kinds.
func (r *reader) rawOf(allowed string, kinds ...jsontext.Kind) (json.RawMessage, error) {
	kind := r.dec.PeekKind()
	if slices.Contains(kinds, kind) {
		return r.raw()
	}
	return nil, r.wrong(allowed)
}

// readArray calls read for each element of an array.
func readArray(r *reader, allowed string, read func(i int) error) error {
	if err := r.begin('[', allowed); err != nil {
		return err
	}
	for i := 0; r.more(']'); i++ {
		r.enterIndex(i)
		if err := read(i); err != nil {
			return err
		}
		r.leave()
	}
	return r.end()
}

// rawArray calls read for each element of an array and returns the array as it stands in the body.
func rawArray(r *reader, allowed string, read func(i int) error) (json.RawMessage, error) {
	if r.dec.PeekKind() != '[' {
		return nil, r.wrong(allowed)
	}
	if _, err := r.dec.ReadToken(); err != nil {
		return nil, err
	}
	// The decoder has just read the bracket, which is one byte.
	from := r.dec.InputOffset() - 1
	for i := 0; r.more(']'); i++ {
		r.enterIndex(i)
		if err := read(i); err != nil {
			return nil, err
		}
		r.leave()
	}
	if err := r.end(); err != nil {
		return nil, err
	}
	return json.RawMessage(r.body[from:r.dec.InputOffset()]), nil
}
