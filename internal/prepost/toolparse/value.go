package toolparse

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf8"
)

// syntax is a way to write down a value. All are read into JSON.
type syntax uint8

const (
	jsonText   syntax = iota // JSON; its bytes are kept, but for what makes it invalid in strings
	pythonText               // Python literals
	gemmaText                // bare keys, strings between <|"|>
)

// verdict is what a reader says about the text it was given.
type verdict uint8

// Functions that look at a text which may go on, and which isn't final, say more as long as text could still change
// their answer.
const (
	more  verdict = iota // so far so good: the end isn't there yet
	yes                  // it is what was looked for
	no                   // it isn't
	ended                // an end marker came before the value's end
)

// maxDepth bounds the nesting of a value. Deeper ones count as malformed.
const maxDepth = 256

// gemmaQuote stands around strings in gemma's syntax.
const gemmaQuote = `<|"|>`

// expect is the place in the grammar of a value: what the next token has to be.
type expect uint8

const (
	expectValue expect = iota
	expectFirstValue
	expectFirstKey
	expectKey
	expectColon
	expectComma
)

// reader reads one value piece by piece and appends it to out as JSON. The caller takes out whenever it likes. The
// three syntaxes differ in their strings, keys and words; brackets, colons and commas they share.
type reader struct {
	syntax  syntax
	compact bool // leave out the white space between tokens
	unquote bool // the value is a string, of which the text is wanted

	out    []byte
	stack  []byte // the open brackets, as they were written
	expect expect
	quote  string // what closes the open string; empty outside strings
	key    bool   // the open string is a key
	comma  bool   // a comma was read and not written yet
}

// start readies the reader for another value; buffers are kept.
func (r *reader) start(s syntax, compact bool) {
	*r = reader{syntax: s, compact: compact, out: r.out[:0], stack: r.stack[:0]}
}

// inString reports whether the text so far ends within a string.
func (r *reader) inString() bool { return r.quote != "" }

// feed reads from b, of which nothing more follows when last is set, and returns how much it has read. What it leaves
// has to be given again with more behind it.
func (r *reader) feed(b []byte, last bool) (int, verdict) {
	i := 0
	for i < len(b) {
		var n int
		var v verdict
		if r.quote != "" {
			n, v = r.inner(b[i:], last)
		} else {
			n, v = r.token(b[i:], last)
		}
		i += n
		if v != more || n == 0 {
			return i, v
		}
	}
	return i, more
}

// token reads what is between strings. It returns 0 and more when b is too short to tell.
func (r *reader) token(b []byte, last bool) (int, verdict) {
	c := b[0]
	if isSpace(c) {
		if r.syntax == jsonText && !r.compact && len(r.stack) > 0 {
			r.out = append(r.out, c)
		}
		return 1, more
	}
	switch r.expect {
	case expectColon:
		if c != ':' {
			return 0, no
		}
		r.out = append(r.out, ':')
		r.expect = expectValue
		return 1, more
	case expectComma:
		return r.separator(c)
	case expectKey, expectFirstKey:
		if c == '}' && (r.expect == expectFirstKey || r.syntax != jsonText) {
			return r.close(c)
		}
		return r.openKey(b, last)
	}
	if (c == ']' || c == ')') && (r.comma || r.expect == expectFirstValue) {
		return r.close(c)
	}
	return r.value(b, last)
}

// separator reads what stands behind a value.
func (r *reader) separator(c byte) (int, verdict) {
	switch {
	case c == '}' || c == ']' || c == ')':
		return r.close(c)
	case c != ',':
		return 0, no
	case r.syntax == jsonText:
		r.out = append(r.out, ',')
	default:
		r.comma = true // Python allows one before the closing bracket, JSON doesn't
	}
	r.expect = expectValue
	if r.stack[len(r.stack)-1] == '{' {
		r.expect = expectKey
	}
	return 1, more
}

// writeComma writes the comma that was put off.
func (r *reader) writeComma() {
	if r.comma {
		r.out = append(r.out, ',')
		r.comma = false
	}
}

// close reads a closing bracket. A tuple becomes an array.
func (r *reader) close(c byte) (int, verdict) {
	opened := r.stack[len(r.stack)-1]
	if opened == '{' && c != '}' || opened == '[' && c != ']' || opened == '(' && c != ')' {
		return 0, no
	}
	r.comma = false
	r.stack = r.stack[:len(r.stack)-1]
	if c == ')' {
		c = ']'
	}
	r.out = append(r.out, c)
	return 1, r.afterValue()
}

// afterValue is the verdict after a value: the reader is done if it was the outermost.
func (r *reader) afterValue() verdict {
	r.expect = expectComma
	if len(r.stack) == 0 {
		return yes
	}
	return more
}

// value reads the beginning of a value, or all of one that is a single word.
func (r *reader) value(b []byte, last bool) (int, verdict) {
	c := b[0]
	if c == '{' || c == '[' || c == '(' && r.syntax == pythonText {
		if len(r.stack) >= maxDepth {
			return 0, no
		}
		r.writeComma()
		r.stack = append(r.stack, c)
		r.expect = expectFirstValue
		if c == '{' {
			r.expect = expectFirstKey
		} else {
			c = '['
		}
		r.out = append(r.out, c)
		return 1, more
	}
	if n, v := r.openString(b, last); v != no {
		return n, v
	}
	return r.word(b, last)
}

// openString reads an opening quote, if b begins with one.
func (r *reader) openString(b []byte, last bool) (int, verdict) {
	quote := ""
	switch c := b[0]; {
	case c == '"' && r.syntax == gemmaText:
		quote = `"`
	case r.syntax == gemmaText:
		v := prefix(b, gemmaQuote)
		if v != yes {
			if v == more && last {
				v = no
			}
			return 0, v
		}
		quote = gemmaQuote
	case c == '"' && r.syntax == jsonText:
		quote = `"`
	case (c == '"' || c == '\'') && r.syntax == pythonText:
		quote = string(c)
		triple := strings.Repeat(quote, 3)
		switch v := prefix(b, triple); {
		case v == yes:
			quote = triple
		case v == more && !last:
			return 0, more
		}
	default:
		return 0, no
	}
	r.writeComma()
	r.quote, r.key = quote, false
	if !r.unquote || len(r.stack) > 0 {
		r.out = append(r.out, '"')
	}
	return len(quote), more
}

// openKey reads the beginning of a key, or all of a bare one.
func (r *reader) openKey(b []byte, last bool) (int, verdict) {
	n, v := r.openString(b, last)
	if v == yes || v == more {
		r.key = r.quote != ""
		return n, v
	}
	if r.syntax != gemmaText {
		return 0, no
	}
	colon := bytes.IndexByte(b, ':')
	if colon < 0 || colon > maxName {
		if last || len(b) > maxName {
			return 0, no
		}
		return 0, more
	}
	name := bytes.TrimSpace(b[:colon])
	if len(name) == 0 || bytes.ContainsAny(name, "{}[],\"<>") {
		return 0, no
	}
	r.writeComma()
	r.out = appendQuoted(r.out, name)
	r.expect = expectColon
	return colon, more
}

// word reads a number or a named constant. Its end is what follows it.
func (r *reader) word(b []byte, last bool) (int, verdict) {
	end := bytes.IndexFunc(b, func(c rune) bool {
		if r.syntax == gemmaText {
			return strings.ContainsRune(",}]", c)
		}
		return strings.ContainsRune(",:}]) \t\r\n\"'{[(<;", c)
	})
	if end > maxName || end < 0 && len(b) > maxName {
		return 0, no
	}
	if end < 0 {
		if !last {
			if r.syntax == jsonText && !wordBegins(b) {
				return 0, no
			}
			return 0, more
		}
		if len(r.stack) > 0 { // cut off: a constant may have been meant to go on
			if r.syntax != jsonText {
				return len(b), more
			}
			r.out = append(r.out, b...)
			return len(b), more
		}
		end = len(b)
	}
	word := b[:end]
	if r.syntax == gemmaText {
		word = bytes.TrimRight(word, " \t\r\n") // elsewhere white space ends a word
	}
	text, ok := constant(string(word), r.syntax)
	if !ok {
		return 0, no
	}
	r.writeComma()
	r.out = append(r.out, text...)
	return end, r.afterValue()
}

// wordBegins reports whether b may become a number or constant of JSON, so that other text is refused at once.
func wordBegins(b []byte) bool {
	for _, w := range []string{"true", "false", "null"} {
		if prefix(b, w) != no {
			return true
		}
	}
	return len(bytes.Trim(b, "0123456789+-.eE")) == 0 && (b[0] == '-' || isDigit(b[0]))
}

// constant returns the JSON of a word.
func constant(word string, s syntax) (string, bool) {
	switch {
	case word == "true" || word == "false" || word == "null" || isNumber(word):
		return word, true
	case s == jsonText:
		return "", false
	case word == "True" || word == "False":
		return strings.ToLower(word), true
	case word == "None":
		return "null", true
	case s == gemmaText && word != "":
		return string(appendQuoted(nil, []byte(word))), true
	}
	// Python's numbers are a little wider than JSON's: 1_000, +5, .5 and 5. are among them.
	plain := strings.TrimPrefix(strings.ReplaceAll(word, "_", ""), "+")
	if strings.HasPrefix(plain, ".") {
		plain = "0" + plain
	}
	if strings.HasSuffix(plain, ".") {
		plain += "0"
	}
	return plain, isNumber(plain)
}

// isNumber reports whether s is a number in JSON's grammar.
func isNumber(s string) bool {
	return s != "" && (s[0] == '-' || isDigit(s[0])) && json.Valid([]byte(s))
}

// inner reads from within a string.
func (r *reader) inner(b []byte, last bool) (int, verdict) {
	c := b[0]
	if c == r.quote[0] {
		switch v := prefix(b, r.quote); {
		case v == yes:
			return len(r.quote), r.closeString()
		case v == more && !last:
			return 0, more
		}
	}
	if c == '\\' && r.quote != gemmaQuote {
		return r.escape(b, last)
	}
	end := 1
	for end < len(b) && b[end] != r.quote[0] && b[end] != '\\' {
		end++
	}
	if r.quote == gemmaQuote { // a backslash is a letter there
		end = 1
		for end < len(b) && b[end] != '<' {
			end++
		}
	}
	r.text(b[:end])
	return end, more
}

// text adds the text of the open string.
func (r *reader) text(b []byte) {
	if r.unquote && len(r.stack) == 0 {
		r.out = append(r.out, b...)
		return
	}
	r.out = appendEscaped(r.out, b)
}

// closeString ends the open string, which was a key or a value.
func (r *reader) closeString() verdict {
	r.quote = ""
	bare := r.unquote && len(r.stack) == 0
	if !bare {
		r.out = append(r.out, '"')
	}
	if r.key {
		r.key = false
		r.expect = expectColon
		return more
	}
	return r.afterValue()
}

// escape reads a backslash and what belongs to it.
func (r *reader) escape(b []byte, last bool) (int, verdict) {
	n := 2 // the escape's length
	if len(b) > 1 {
		switch {
		case b[1] == 'u':
			n = 6
		case b[1] == 'x' && r.syntax == pythonText:
			n = 4
		case b[1] == 'U' && r.syntax == pythonText:
			n = 10
		}
	}
	if n == 6 && r.unquote && len(r.stack) == 0 && len(b) >= 6 && isHighSurrogate(b) {
		n = 12
	}
	if len(b) < n {
		if last { // cut within it
			return len(b), more
		}
		return 0, more
	}
	if r.unquote && len(r.stack) == 0 {
		return n, r.unescape(b[:n])
	}
	if r.syntax == pythonText {
		return r.pythonEscape(b[:n])
	}
	if strings.IndexByte(`"\/bfnrt`, b[1]) >= 0 || n == 6 && isHex(b[2:6]) {
		r.out = append(r.out, b[:n]...)
		return n, more
	}
	// JSON has no such escape: the backslash was meant as one, as in a regular expression.
	r.out = append(r.out, `\\`...)
	return 1, more
}

// isHighSurrogate reports whether the escape at the beginning of b is the first half of a pair, which has to be decoded
// together with the second.
func isHighSurrogate(b []byte) bool {
	v, err := strconv.ParseUint(string(b[2:6]), 16, 32)
	return err == nil && v >= 0xD800 && v < 0xDC00
}

// unescape appends the text that an escape stands for. A broken one stands for itself.
func (r *reader) unescape(b []byte) verdict {
	var s string
	if json.Unmarshal([]byte(`"`+string(b)+`"`), &s) != nil {
		s = string(b)
	}
	r.out = append(r.out, s...)
	return more
}

// pythonEscape writes one of Python's escapes in JSON's way.
func (r *reader) pythonEscape(b []byte) (int, verdict) {
	switch c := b[1]; c {
	case '\n': // the line goes on
	case '\'':
		r.out = append(r.out, '\'')
	case '"', '\\', 'b', 'f', 'n', 'r', 't':
		r.out = append(r.out, '\\', c)
	case 'a', 'v', '0':
		r.out = appendEscaped(r.out, []byte{map[byte]byte{'a': 7, 'v': 11, '0': 0}[c]})
	case 'u', 'x', 'U':
		v, err := strconv.ParseUint(string(b[2:]), 16, 32)
		if err != nil || v > utf8.MaxRune {
			r.out = append(r.out, `\\`...)
			return 1, more
		}
		if c == 'u' {
			r.out = append(r.out, b...) // maybe half of a pair: JSON takes it as it is
		} else {
			r.out = appendEscaped(r.out, utf8.AppendRune(nil, rune(v)))
		}
	default:
		r.out = append(r.out, `\\`...)
		return 1, more
	}
	return len(b), more
}

// closes looks at the text behind something that looks like an end marker within the open string, and tells whether
// the string goes on: whether it is closed later, with something behind it that continues the value.
func (r *reader) closes(b []byte, final bool) verdict {
	for i := 0; i < len(b); i++ {
		if b[i] == '\\' && r.quote != gemmaQuote {
			i++
			continue
		}
		if b[i] != r.quote[0] || prefix(b[i:], r.quote) == no {
			continue
		}
		if prefix(b[i:], r.quote) == yes {
			rest := bytes.TrimLeft(b[i+len(r.quote):], " \t\r\n")
			if len(rest) > 0 {
				if strings.IndexByte(",:}])", rest[0]) >= 0 {
					return yes
				}
				return no
			}
		}
		break
	}
	if final {
		return no
	}
	return more
}

// prefix tells whether b begins with s (yes), may begin with it once there is more of b (more), or doesn't (no).
func prefix(b []byte, s string) verdict {
	if len(b) >= len(s) {
		if string(b[:len(s)]) == s {
			return yes
		}
		return no
	}
	if string(b) == s[:len(b)] {
		return more
	}
	return no
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func isHex(b []byte) bool {
	_, err := strconv.ParseUint(string(b), 16, 32)
	return err == nil && b[0] != '+' && b[0] != '-'
}

const hexDigits = "0123456789abcdef"

// appendEscaped appends b as the inside of a JSON string.
func appendEscaped(dst, b []byte) []byte {
	from := 0
	for i, c := range b {
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, b[from:i]...)
		from = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\t':
			dst = append(dst, '\\', 't')
		case '\r':
			dst = append(dst, '\\', 'r')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	return append(dst, b[from:]...)
}

// appendQuoted appends b as a JSON string.
func appendQuoted(dst, b []byte) []byte {
	return append(appendEscaped(append(dst, '"'), b), '"')
}
