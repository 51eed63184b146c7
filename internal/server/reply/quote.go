package reply

import (
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/portico-llm/portico/api/worker"
)

// hex are the digits of \u escapes.
const hex = "0123456789abcdef"

// plain marks the bytes that stand for themselves in a JSON string and need no look at their neighbours.
var plain = func() (t [256]bool) {
	for c := 0x20; c < utf8.RuneSelf; c++ {
		t[c] = c != '"' && c != '\\'
	}
	return t
}()

// appendString appends s as a JSON string.
func appendString[S []byte | string](dst []byte, s S) []byte {
	return append(appendEscaped(append(dst, '"'), s), '"')
}

// appendEscaped appends what stands for s between the quotes of a JSON string. Invalid UTF-8 becomes U+FFFD. The line
// separators U+0085, U+2028 and U+2029 are escaped: JSON allows them, but there are event-stream readers that split lines
// at them.
func appendEscaped[S []byte | string](dst []byte, s S) []byte {
	// s[:start] has been copied; what needs no escape is copied in runs, not byte by byte.
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if plain[c] {
			i++
			continue
		}
		// A quote, a backslash or a control character: one byte, no neighbours.
		if c < utf8.RuneSelf {
			dst = append(dst, s[start:i]...)
			dst = appendEscape(dst, c)
			i++
			start = i
			continue
		}
		r, size := decodeRune(s, i)
		switch {
		case r == utf8.RuneError && size == 1:
			dst = append(append(dst, s[start:i]...), `\ufffd`...)
		case r == 0x85:
			dst = append(append(dst, s[start:i]...), `\u0085`...)
		case r == '\u2028' || r == '\u2029':
			dst = append(append(dst, s[start:i]...), `\u202`...)
			dst = append(dst, hex[r&0xf])
		default:
			i += size
			continue
		}
		i += size
		start = i
	}
	return append(dst, s[start:]...)
}

// decodeRune decodes the character at s[i:], without turning one type into the other.
func decodeRune[S []byte | string](s S, i int) (rune, int) {
	switch v := any(s).(type) {
	case []byte:
		return utf8.DecodeRune(v[i:])
	case string:
		return utf8.DecodeRuneInString(v[i:])
	}
	return utf8.RuneError, 1
}

// appendEscape appends the short escape of c where RFC 8259 has one, and \u00XX otherwise.
func appendEscape(dst []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\n':
		return append(dst, `\n`...)
	case '\r':
		return append(dst, `\r`...)
	case '\t':
		return append(dst, `\t`...)
	case '\b':
		return append(dst, `\b`...)
	case '\f':
		return append(dst, `\f`...)
	}
	return append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&0xf])
}

// appendLogProb appends a log probability. JSON has no NaN and no infinities; what a 32-bit float can't hold counts as
// infinite, since that is what engines compute in.
func appendLogProb(dst []byte, v float64) []byte {
	if math.IsNaN(v) || math.Abs(v) > math.MaxFloat32 {
		return append(dst, "null"...)
	}
	// The shortest digits that read back as the same number.
	return strconv.AppendFloat(dst, v, 'g', -1, 64)
}

// appendBytes appends the bytes of a token as an array of numbers; a token without text has none.
func appendBytes[S []byte | string](dst []byte, s S) []byte {
	if len(s) == 0 {
		return append(dst, "null"...)
	}
	return worker.AppendJSONNumbers(dst, []byte(s))
}
