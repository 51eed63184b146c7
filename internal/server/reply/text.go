package reply

import "math/rand/v2"

// AppendString appends s as a JSON string that is safe in an event stream: invalid UTF-8 becomes U+FFFD, and what some
// readers take for the end of a line is escaped.
func AppendString[S []byte | string](dst []byte, s S) []byte { return appendString(dst, s) }

// AppendEscaped appends what stands for s between the quotes of such a string, so that a text can be written piece by
// piece.
func AppendEscaped[S []byte | string](dst []byte, s S) []byte { return appendEscaped(dst, s) }

// AppendID appends the random part of an id, 24 hexadecimal digits: no two calls of a conversation have the same.
func AppendID(b []byte) []byte {
	for range 3 {
		for word, i := rand.Uint32(), 0; i < 8; i++ {
			b = append(b, hex[word&0xf])
			word >>= 4
		}
	}
	return b
}
