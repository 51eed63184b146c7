package openai

import (
	"encoding/json"
	"math"

	"github.com/go-json-experiment/json/jsontext"
)

// field is one field of an object: its name, what JSON it takes, and how it is read into T. Readers never see null:
// null is the same as absent.
type field[T any] struct {
	name  string // in the body
	of    string // an alias: the field it is another name of
	kind  string // for tests and messages: the JSON types it takes, joined by "|"
	extra bool   // Dynamo doesn't know it: refused by DecodeOptions.Strict
	read  func(r *reader, to *T) error
	index int // bit in readObject's set; aliases have the same
}

// beyond marks a field that Dynamo doesn't know.
func beyond[T any](f field[T]) field[T] {
	f.extra = true
	return f
}

// table finds fields by name. It is immutable.
type table[T any] struct {
	byName map[string]*field[T] // aliases included
	prefix string               // of unknown names, such as nvext.
	quiet  bool                 // unknown names aren't worth noting
}

// maxFields is how many fields an object may have for duplicates to be told apart.
const maxFields = 128

// newTable makes a table of all fields in lists.
func newTable[T any](prefix string, lists ...[]field[T]) *table[T] {
	t := &table[T]{byName: map[string]*field[T]{}, prefix: prefix}
	for _, list := range lists {
		for i := range list {
			f := list[i]
			// Aliases come later, so the map's size numbers the fields without gaps.
			f.index = len(t.byName)
			t.byName[f.name] = &f
		}
	}
	return t
}

// quietly makes unknown fields of the object go unnoticed.
func (t *table[T]) quietly() *table[T] {
	t.quiet = true
	return t
}

// alias makes name another name of an existing field. Only one of them may be given.
func (t *table[T]) alias(name, of string) *table[T] {
	f := *t.byName[of]
	f.name = name
	return t.also(of, f)
}

// also adds fields that stand for an existing one, each read in its own way. Only one of them may be given.
func (t *table[T]) also(of string, fields ...field[T]) *table[T] {
	for i := range fields {
		f := fields[i]
		f.of, f.index = of, t.byName[of].index
		t.byName[f.name] = &f
	}
	return t
}

// readObject reads an object into to, field by field. A field may be given once, unknown ones are noted.
func readObject[T any](r *reader, fields *table[T], to *T) error {
	if err := r.begin('{', "a JSON object"); err != nil {
		return err
	}
	// One bit for each known field; names that alias each other share one.
	var seen [maxFields / 64]uint64
	for r.more('}') {
		name, err := r.name()
		if err != nil {
			return err
		}
		f, ok := fields.byName[string(name)]
		// A field beyond Dynamo is read and noted: only the end of the reading knows whether to refuse.
		if !fields.quiet && (!ok || f.extra && r.opts.Strict) {
			r.unknown.add(fields.prefix + string(name))
		}
		if !ok {
			if err := r.dec.SkipValue(); err != nil {
				return err
			}
			continue
		}
		r.enter(f.name)
		// A second value for one field has no right answer: proxies and workers differ in which they take.
		word, bit := f.index/64, uint64(1)<<(f.index%64)
		if seen[word]&bit != 0 {
			return r.bad("given only once")
		}
		seen[word] |= bit
		if err := readField(r, f, to); err != nil {
			return err
		}
		r.leave()
	}
	return r.end()
}

// readField reads a field's value, unless it is null.
func readField[T any](r *reader, f *field[T], to *T) error {
	if null, err := r.null(); null || err != nil {
		return err
	}
	return f.read(r, to)
}

// The constructors below make fields of the common types; get returns where the value goes.

// boolField is true or false.
func boolField[T any](name string, get func(*T) **bool) field[T] {
	return field[T]{name: name, kind: "boolean", read: func(r *reader, to *T) error {
		v, err := r.boolean()
		*get(to) = &v
		return err
	}}
}

// intField is any integer; what is allowed of it is for package validate to say.
func intField[T any](name string, get func(*T) **int64) field[T] {
	return field[T]{name: name, kind: "integer", read: func(r *reader, to *T) error {
		v, err := r.integer(math.MinInt64, math.MaxInt64)
		*get(to) = &v
		return err
	}}
}

// uint32Field, int32Field and uint64Field are integers whose size the worker protocol fixes.
func uint32Field[T any](name string, get func(*T) **uint32) field[T] {
	return field[T]{name: name, kind: "integer", read: func(r *reader, to *T) error {
		v, err := r.integer(0, math.MaxUint32)
		u := uint32(v)
		*get(to) = &u
		return err
	}}
}

// int32Field may be negative; see uint32Field.
func int32Field[T any](name string, get func(*T) **int32) field[T] {
	return field[T]{name: name, kind: "integer", read: func(r *reader, to *T) error {
		v, err := r.integer(math.MinInt32, math.MaxInt32)
		i := int32(v)
		*get(to) = &i
		return err
	}}
}

// uint64Field is exact over the whole range; see uint32Field.
func uint64Field[T any](name string, get func(*T) **uint64) field[T] {
	return field[T]{name: name, kind: "integer", read: func(r *reader, to *T) error {
		v, err := r.unsigned()
		*get(to) = &v
		return err
	}}
}

// floatField is a number.
func floatField[T any](name string, get func(*T) **float64) field[T] {
	return field[T]{name: name, kind: "number", read: func(r *reader, to *T) error {
		v, err := r.float()
		*get(to) = &v
		return err
	}}
}

// textField is a string that may be absent.
func textField[T any](name string, get func(*T) **string) field[T] {
	return field[T]{name: name, kind: "string", read: func(r *reader, to *T) error {
		v, err := r.text("a string")
		*get(to) = &v
		return err
	}}
}

// requiredText is a string field whose absence is the empty string.
func requiredText[T any](name string, get func(*T) *string) field[T] {
	return field[T]{name: name, kind: "string", read: func(r *reader, to *T) (err error) {
		*get(to), err = r.text("a string")
		return err
	}}
}

// textsField is an array of strings; given but empty, it isn't nil.
func textsField[T any](name string, get func(*T) *[]string) field[T] {
	return field[T]{name: name, kind: "array", read: func(r *reader, to *T) error {
		out := []string{}
		err := readArray(r, "an array of strings", func(int) error {
			s, err := r.text("a string")
			out = append(out, s)
			return err
		})
		*get(to) = out
		return err
	}}
}

// tokensField is an array of token ids; given but empty, it isn't nil.
func tokensField[T any](name string, get func(*T) *[]uint32) field[T] {
	return field[T]{name: name, kind: "array", read: func(r *reader, to *T) error {
		out := []uint32{}
		err := readArray(r, "an array of token ids", func(int) error {
			id, err := r.tokenID()
			out = append(out, id)
			return err
		})
		*get(to) = out
		return err
	}}
}

// rawTokensField is an array of token ids that is passed on as it stands; deep is the nesting of the array.
func rawTokensField[T any](name string, deep int, get func(*T) *json.RawMessage) field[T] {
	return field[T]{name: name, kind: "array", read: func(r *reader, to *T) (err error) {
		*get(to), err = rawArray(r, "an array of token ids", func(int) error { return skipTokens(r, deep-1) })
		return err
	}}
}

// skipTokens checks token ids, or arrays of them, without keeping any.
func skipTokens(r *reader, deep int) error {
	if deep > 0 {
		return readArray(r, "an array of token ids", func(int) error { return skipTokens(r, deep-1) })
	}
	_, err := r.tokenID()
	return err
}

// objectField is an object that is passed on as it stands.
func objectField[T any](name string, get func(*T) *json.RawMessage) field[T] {
	return rawField(name, "object", "an object", get, '{')
}

// anyField is any value; it counts only whether it was given.
func anyField[T any](name string, get func(*T) *json.RawMessage) field[T] {
	return field[T]{name: name, kind: "any", read: func(r *reader, to *T) (err error) {
		*get(to), err = r.raw()
		return err
	}}
}

// rawField is a value of certain kinds that is passed on as it stands.
func rawField[T any](name, kind, allowed string, get func(*T) *json.RawMessage, kinds ...jsontext.Kind) field[T] {
	return field[T]{name: name, kind: kind, read: func(r *reader, to *T) (err error) {
		*get(to), err = r.rawOf(allowed, kinds...)
		return err
	}}
}

// structField is an object with a table of its own.
func structField[T, S any](name string, fields *table[S], get func(*T) **S) field[T] {
	return field[T]{name: name, kind: "object", read: func(r *reader, to *T) error {
		v := new(S)
		if r.dec.PeekKind() != '{' {
			return r.wrong("an object")
		}
		*get(to) = v
		return readObject(r, fields, v)
	}}
}
