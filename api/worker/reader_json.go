package worker

import (
	"bytes"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// jsonPeek tells the kind of the next value by its first byte. A number needs a look at all of it: whether it is an
// integer decides how it is read, and no reader may read it otherwise.
func (r *reader) jsonPeek() kind {
	r.space()
	if r.i >= len(r.b) {
		return kindBad
	}
	switch c := r.b[r.i]; {
	case c == '"':
		return kindString
	case c == '{':
		return kindMap
	case c == '[':
		return kindArray
	case c == 'n':
		return kindNull
	case c == 't', c == 'f':
		return kindBool
	case c == '-', c >= '0' && c <= '9':
		// Looking costs a second pass over the digits, which are few.
		if _, integral := r.jsonNumber(); integral {
			return kindInt
		}
		return kindFloat
	}
	return kindBad
}

// jsonNext moves to the next entry of a container that ends with the byte end. It consumes the comma ahead of an entry,
// or the end.
func (r *reader) jsonNext(s *seq, end byte) bool {
	r.space()
	if r.i >= len(r.b) {
		r.failf("unexpected end")
		return false
	}
	if r.b[r.i] == end {
		r.i++
		r.depth--
		return false
	}
	// A comma stands ahead of every entry but the first. One before the end shows as a missing value.
	if s.begun {
		if r.b[r.i] != ',' {
			r.failf("no comma between entries")
			return false
		}
		r.i++
	}
	s.begun = true
	return true
}

// jsonRawString passes over a string and returns what stands between its quotes. It checks what RFC 8259 asks of
// strings, UTF-8 excepted. raw aliases the body.
func (r *reader) jsonRawString() (raw []byte, escaped bool) {
	for i := r.i + 1; i < len(r.b); i++ {
		switch c := r.b[i]; {
		case c == '"':
			raw = r.b[r.i+1 : i]
			r.i = i + 1
			return raw, escaped
		case c == '\\':
			n := escapeLen(r.b[i:])
			if n == 0 {
				r.i = i
				r.failf("malformed escape")
				return nil, false
			}
			escaped = true
			i += n - 1
		// RFC 8259 wants these escaped.
		case c < 0x20:
			r.i = i
			r.failf("control character in a string")
			return nil, false
		}
	}
	r.failf("unterminated string")
	return nil, false
}

// escapeLen returns the length of the escape that b begins with, 0 when it is none.
func escapeLen(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	// A letter that stands for one character, or \u and four digits.
	if b[1] != 'u' {
		if strings.IndexByte(`"\/bfnrt`, b[1]) < 0 {
			return 0
		}
		return 2
	}
	if _, ok := hex4(b[2:]); !ok {
		return 0
	}
	return 6
}

// hex4 reads the four hexadecimal digits of an escape.
func hex4(b []byte) (v rune, ok bool) {
	if len(b) < 4 {
		return 0, false
	}
	for _, c := range b[:4] {
		switch {
		case c >= '0' && c <= '9':
			v = v<<4 | rune(c-'0')
		case c >= 'a' && c <= 'f':
			v = v<<4 | rune(c-'a'+10)
		case c >= 'A' && c <= 'F':
			v = v<<4 | rune(c-'A'+10)
		default:
			return 0, false
		}
	}
	return v, true
}

// jsonString reads a string. Without escapes, which is the rule, the result aliases the body.
func (r *reader) jsonString() []byte {
	raw, escaped := r.jsonRawString()
	if !escaped {
		return raw
	}
	r.scratch = appendUnescaped(r.scratch[:0], raw)
	return r.scratch
}

// appendUnescaped appends a string whose escapes are known to be well formed. A lone surrogate becomes U+FFFD.
func appendUnescaped(dst, raw []byte) []byte {
	for len(raw) > 0 {
		// What lies between two escapes is copied in one piece.
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			return append(dst, raw...)
		}
		dst = append(dst, raw[:i]...)
		raw = raw[i:]
		c := raw[1]
		if c != 'u' {
			dst = append(dst, unescaped(c))
			raw = raw[2:]
			continue
		}
		v, _ := hex4(raw[2:])
		raw = raw[6:]
		// Characters beyond U+FFFF are written as two halves; the second is only taken when it fits the first.
		if utf16.IsSurrogate(v) {
			pair := rune(utf8.RuneError)
			if len(raw) >= 6 && raw[0] == '\\' && raw[1] == 'u' {
				if low, ok := hex4(raw[2:]); ok {
					pair = utf16.DecodeRune(v, low)
				}
			}
			if v = pair; pair != utf8.RuneError {
				raw = raw[6:]
			}
		}
		dst = utf8.AppendRune(dst, v)
	}
	return dst
}

// unescaped returns the character that a one-letter escape stands for.
func unescaped(c byte) byte {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return c
}

// jsonNumber returns the length of the number at the reader, 0 when it is malformed, and whether it is an integer of at
// most 64 bits. Everything else is a float; so is "-0", whose sign an integer would lose. It consumes nothing.
func (r *reader) jsonNumber() (n int, integral bool) {
	b := r.rest()
	i := 0
	if i < len(b) && b[i] == '-' {
		i++
	}
	start := i
	i += digits(b[i:])
	// RFC 8259 has no number without digits, and none with a leading zero.
	if i == start || (b[start] == '0' && i-start > 1) {
		return 0, false
	}
	whole := i
	if i < len(b) && b[i] == '.' {
		k := digits(b[i+1:])
		if k == 0 {
			return 0, false
		}
		i += 1 + k
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		k := digits(b[i:])
		if k == 0 {
			return 0, false
		}
		i += k
	}
	// A fraction or an exponent makes it a float, whatever its value.
	if i != whole {
		return i, false
	}
	// -0.
	if start == 1 && b[1] == '0' {
		return i, false
	}
	_, fits := parseMagnitude(b[start:whole], start == 1)
	return i, fits
}

// digits counts the decimal digits that b begins with.
func digits(b []byte) (n int) {
	for n < len(b) && b[n] >= '0' && b[n] <= '9' {
		n++
	}
	return n
}

// parseMagnitude parses decimal digits; ok is false when the signed value doesn't fit 64 bits.
func parseMagnitude(b []byte, neg bool) (v uint64, ok bool) {
	// 2^64 has twenty digits.
	if len(b) > 20 {
		return 0, false
	}
	for _, c := range b {
		d := uint64(c - '0')
		// v*10+d would overflow.
		if v > (1<<64-1-d)/10 {
			return 0, false
		}
		v = v*10 + d
	}
	// Negative numbers go down to -2^63, whose magnitude is one more than the largest positive one's.
	return v, !neg || v <= 1<<63
}

// jsonInteger reads a number that jsonPeek has found to be an integer of 64 bits.
func (r *reader) jsonInteger() (n integer) {
	size, _ := r.jsonNumber()
	b := r.b[r.i : r.i+size]
	if n.neg = b[0] == '-'; n.neg {
		b = b[1:]
	}
	n.mag, _ = parseMagnitude(b, n.neg)
	r.i += size
	return n
}

// jsonFloat reads any number.
func (r *reader) jsonFloat() float64 {
	size, _ := r.jsonNumber()
	if size == 0 {
		r.failf("malformed number")
		return 0
	}
	// A number beyond the range of float64 becomes an infinity, which ParseFloat returns with its error.
	f, _ := strconv.ParseFloat(string(r.b[r.i:r.i+size]), 64)
	r.i += size
	return f
}
