package chattmpl

import (
	"bytes"
	"errors"
	"strings"
)

// The functions of this file walk over raw JSON without decoding it, to find the few places of a request that a
// template can't take as they are. They trust the text to be JSON: on other input they stop early or report
// errMalformed, and the engine, which reads every byte strictly, refuses the request.

// errMalformed says that a walk met something else than it was looking for.
var errMalformed = errors.New("malformed JSON")

// span is a piece of raw JSON.
type span struct{ from, to int }

// in returns the piece itself, which aliases b.
func (s span) in(b []byte) []byte { return b[s.from:s.to] }

// skipSpace returns the index of the first byte from at on that is no white space of JSON's, or len(b).
func skipSpace(b []byte, at int) int {
	for at < len(b) && (b[at] == ' ' || b[at] == '\n' || b[at] == '\t' || b[at] == '\r') {
		at++
	}
	return at
}

// skipString returns the index after the string that starts at b[at], or -1.
func skipString(b []byte, at int) int {
	from := at + 1
	for {
		n := bytes.IndexByte(b[from:], '"')
		if n < 0 {
			return -1
		}
		quote := from + n
		// A quote behind an odd number of backslashes is escaped.
		slashes := 0
		for quote-slashes-1 > at && b[quote-slashes-1] == '\\' {
			slashes++
		}
		from = quote + 1
		if slashes%2 == 0 {
			return from
		}
	}
}

// skipValue returns the index after the value that starts at b[at], or -1. Literals aren't checked: whatever begins
// like one passes here, and is refused by the engine.
func skipValue(b []byte, at int) int {
	if at >= len(b) {
		return -1
	}
	switch b[at] {
	case '"':
		return skipString(b, at)
	case '{', '[':
		return skipNested(b, at)
	}
	// Numbers and literals end at the next delimiter, whatever they hold.
	from := at
	for at < len(b) && strings.IndexByte(delimiters, b[at]) < 0 {
		at++
	}
	if at == from {
		return -1
	}
	return at
}

// delimiters end a number or a literal.
const delimiters = ",:]} \n\t\r"

// skipNested counts brackets instead of recursing: nesting comes from clients.
func skipNested(b []byte, at int) int {
	// Brackets inside strings don't count; whether they match is the engine's to check.
	depth := 0
	for at < len(b) {
		switch b[at] {
		case '"':
			if at = skipString(b, at); at < 0 {
				return -1
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return at + 1
			}
		}
		at++
	}
	return -1
}

// eachItem calls f with the place of every item of the array b[arr.from:arr.to]. It stops at f's first error and
// returns it. Spans count from the start of b, not of the array.
func eachItem(b []byte, arr span, f func(n int, item span) error) error {
	at := skipSpace(b, arr.from)
	if at >= arr.to || b[at] != '[' {
		return errMalformed
	}
	at = skipSpace(b, at+1)
	for n := 0; at < arr.to && b[at] != ']'; n++ {
		// At a stray comma or bracket there is no value, which ends the walk.
		end := skipValue(b, at)
		if end < 0 {
			return errMalformed
		}
		if err := f(n, span{at, end}); err != nil {
			return err
		}
		// A missing comma, or one too many, is the engine's to find.
		if at = skipSpace(b, end); at < arr.to && b[at] == ',' {
			at = skipSpace(b, at+1)
		}
	}
	// Nothing but white space may follow the array in its span.
	if at >= arr.to || skipSpace(b, at+1) < arr.to {
		return errMalformed
	}
	return nil
}

// eachMember calls f with the place of every key, quotes included, and value of the object b[obj.from:obj.to]. Equal
// keys are all reported, in order. It stops at f's first error and returns it.
func eachMember(b []byte, obj span, f func(key, value span) error) error {
	at := skipSpace(b, obj.from)
	if at >= obj.to || b[at] != '{' {
		return errMalformed
	}
	at = skipSpace(b, at+1)
	for at < obj.to && b[at] == '"' {
		// A broken key leaves -1 as its end.
		key := span{at, skipString(b, at)}
		if key.to < 0 {
			return errMalformed
		}
		if at = skipSpace(b, key.to); at >= obj.to || b[at] != ':' {
			return errMalformed
		}
		at = skipSpace(b, at+1)
		value := span{at, skipValue(b, at)}
		if value.to < 0 {
			return errMalformed
		}
		if err := f(key, value); err != nil {
			return err
		}
		if at = skipSpace(b, value.to); at < obj.to && b[at] == ',' {
			at = skipSpace(b, at+1)
		}
	}
	return nil
}

// member returns the place of the last value of an object under a key; ok is false when there is none.
func member(b []byte, obj span, name string) (value span, ok bool) {
	_ = eachMember(b, obj, func(k, v span) error {
		if isKey(b, k, name) {
			value, ok = v, true
		}
		return nil
	})
	return value, ok
}

// isKey compares a key with a name. One with escapes is none that is looked for.
func isKey(b []byte, key span, name string) bool {
	return key.to-key.from == len(name)+2 && string(b[key.from+1:key.to-1]) == name
}

// isObject and isArray look at the first byte: enough for text that is known to be a JSON value.
func isObject(b []byte) bool { return len(b) > 0 && b[0] == '{' }
func isArray(b []byte) bool  { return len(b) > 0 && b[0] == '[' }
func isString(b []byte) bool { return len(b) > 0 && b[0] == '"' }
func isNull(b []byte) bool   { return string(b) == "null" }

// inner returns what stands between the brackets of raw, which must be exactly one array or object. White space around
// it doesn't count; what is returned aliases raw.
func inner(raw []byte, open byte) ([]byte, error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) < 2 || raw[0] != open || skipValue(raw, 0) != len(raw) {
		return nil, errMalformed
	}
	return bytes.TrimSpace(raw[1 : len(raw)-1]), nil
}
