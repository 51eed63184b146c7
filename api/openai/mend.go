package openai

import (
	"encoding/hex"
	"unicode/utf8"
)

// mend returns body with what clients are known to get wrong inside strings made right, and whether anything was:
// raw control characters become escapes, invalid UTF-8 and unpaired surrogate escapes become U+FFFD. A byte order mark
// in front is dropped.
func mend(body []byte) ([]byte, bool) {
	// An escape is longer than what it stands for; an eighth covers all but bodies of nothing else.
	out := make([]byte, 0, len(body)+len(body)/8)
	changed := false
	if len(body) >= 3 && string(body[:3]) == "\uFEFF" {
		body, changed = body[3:], true
	}
	// Outside strings nothing is touched: what is wrong there is wrong JSON.
	inString := false
	for i := 0; i < len(body); {
		c := body[i]
		switch {
		case c == '"':
			inString = !inString
			out = append(out, c)
			i++
		case !inString || (c >= ' ' && c < utf8.RuneSelf && c != '\\'):
			out = append(out, c)
			i++
		// Escapes are copied as they are, so that a quote behind a backslash doesn't end the string.
		case c == '\\':
			n, ok := escapeLen(body[i:])
			if ok {
				out = append(out, body[i:i+n]...)
			} else {
				out, changed = append(out, `\ufffd`...), true
			}
			i += n
		// RFC 8259 forbids raw control characters in strings; a line break pasted into a prompt is the usual one.
		case c < ' ':
			const digits = "0123456789abcdef"
			out, changed = append(out, '\\', 'u', '0', '0', digits[c>>4], digits[c&15]), true
			i++
		default:
			r, n := utf8.DecodeRune(body[i:]) // RuneError of width 1 is a byte that begins nothing
			if r == utf8.RuneError && n == 1 {
				out, changed = append(out, "\uFFFD"...), true
			} else {
				out = append(out, body[i:i+n]...)
			}
			i += n
		}
	}
	return out, changed
}

// escapeLen returns the length of the escape b begins with (a surrogate pair is one) and false for half a pair.
func escapeLen(b []byte) (int, bool) {
	if len(b) < 2 {
		return len(b), true // cut off: the second reading says so
	}
	r, ok := hex4(b)
	if !ok {
		return 2, true // another escape, or a bad one: not for mending
	}
	switch {
	// UTF-16: a high half (D800–DBFF) and a low half (DC00–DFFF) make one character, neither means anything alone.
	case r >= 0xDC00 && r < 0xE000:
		return 6, false
	case r < 0xD800 || r >= 0xE000:
		return 6, true
	}
	// A high half needs its low half right behind it.
	if low, ok := hex4(b[6:]); ok && low >= 0xDC00 && low < 0xE000 {
		return 12, true
	}
	return 6, false
}

// hex4 reads an escape of four hexadecimal digits at the start of b.
func hex4(b []byte) (uint16, bool) {
	// Also for what follows a high half, which may be anything.
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	var two [2]byte
	if _, err := hex.Decode(two[:], b[2:6]); err != nil {
		return 0, false
	}
	return uint16(two[0])<<8 | uint16(two[1]), true
}
