package toolparse

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
)

// head is the beginning of a JSON call up to its name.
type head struct {
	n         int // how much of the text it is
	name, id  string
	arguments []byte // when they come before the name
}

// isArgumentsKey: OpenAI and most models write arguments, Llama parameters, and inkling args.
func isArgumentsKey(key string) bool {
	return key == "arguments" || key == "parameters" || key == "args"
}

// scanHead reads a JSON object up to its name. Without a name it isn't a call. v is ended as long as the text is too
// short to tell, and no if it stays so to the end. Nothing of the object is taken before its name is known, so that it
// can still be text.
func scanHead(b []byte, final bool) (h head, v verdict) {
	s := scan{b: b, i: 1, final: final}
	for {
		s.space()
		key := s.string()
		s.space()
		s.byte(':')
		s.space()
		switch {
		case s.v != more:
			return head{}, s.v
		case key == "name":
			h.name = s.string()
			h.n = s.i
			if s.v == more && h.name == "" {
				s.v = no
			}
			if s.v == more {
				return h, yes
			}
			return head{}, s.v
		case key == "function" && s.i < len(b) && b[s.i] == '{':
			inner, v := scanHead(b[s.i:], final) // OpenAI's own form of a call
			inner.n += s.i
			return inner, v
		case isArgumentsKey(key):
			from := s.i
			s.value()
			h.arguments = b[from:s.i]
		case key == "id" && s.i < len(b) && b[s.i] == '"':
			h.id = s.string()
		default:
			s.value()
		}
		s.space()
		s.byte(',')
		if s.v != more {
			return head{}, s.v
		}
	}
}

// scan reads JSON that is there in full. v is more while all is well, ended when the text is too short, and no when it
// isn't what was looked for, or too short for good.
type scan struct {
	b     []byte
	i     int
	final bool
	v     verdict
	short bool // stopped for want of text
}

// starve stops the scan at the end of the text. scanHead hands its verdict on: more, or no at the very end.
func (s *scan) starve() {
	s.v, s.short = ended, true
	if s.final {
		s.v = no
	}
}

// space skips white space. The text has to go on behind it.
func (s *scan) space() {
	for s.v == more && s.i < len(s.b) && isSpace(s.b[s.i]) {
		s.i++
	}
	if s.v == more && s.i == len(s.b) {
		s.starve()
	}
}

// byte reads one certain byte.
func (s *scan) byte(c byte) {
	switch {
	case s.v != more:
	case s.i >= len(s.b):
		s.starve()
	case s.b[s.i] != c:
		s.v = no
	default:
		s.i++
	}
}

// string reads a string of JSON, a key or a name: not a long one.
func (s *scan) string() (text string) {
	from := s.i
	s.byte('"')
	for s.v == more {
		if s.i >= len(s.b) {
			if len(s.b)-from >= maxName {
				s.v = no
				return ""
			}
			s.starve()
			return ""
		}
		switch s.b[s.i] {
		case '\\':
			s.i++
		case '"':
			s.i++
			if s.i-from > maxName || json.Unmarshal(s.b[from:s.i], &text) != nil {
				s.v = no
			}
			return text
		}
		s.i++
	}
	return ""
}

// value skips a value of any kind and length.
func (s *scan) value() {
	if s.v != more {
		return
	}
	var r reader
	n, v := r.feed(s.b[s.i:], false)
	s.i += n
	switch v {
	case more:
		s.starve()
	case no:
		s.v = no
	}
}

// bareObject recognises a JSON object that is a call though no marker says so: its name comes first and is that of a
// declared tool, and arguments follow.
func bareObject(p *Parser, b []byte, final bool) verdict {
	if b[0] == '[' && p.d.bareArray {
		rest := bytes.TrimLeft(b[1:], " \t\r\n")
		if len(rest) == 0 {
			return unless(final)
		}
		b = rest
	}
	if b[0] != '{' || !mayName(b) {
		return no
	}
	h, v := scanHead(b, final)
	if v == ended {
		return more
	}
	if v != yes || !p.declared(h.name) {
		return no
	}
	s := scan{b: b, i: h.n, final: final}
	if h.arguments == nil {
		s.space()
		s.byte(',')
		s.space()
		key := s.string()
		s.space()
		s.byte(':')
		s.space()
		s.byte('{')
		if s.v == more && !isArgumentsKey(key) {
			s.v = no
		}
	}
	switch s.v {
	case more:
		return yes
	case ended:
		return more
	}
	return no
}

// mayName reports whether an object, of which this is the beginning, may still begin with a name: other JSON needn't
// be held back.
func mayName(b []byte) bool {
	rest := bytes.TrimLeft(b[1:], " \t\r\n")
	for _, key := range []string{`"name"`, `"type"`, `"function"`, `"id"`, `"arguments"`, `"parameters"`} {
		if prefix(rest, key) != no {
			return true
		}
	}
	return false
}

// unless is what to say of text that is too short to tell: more, unless it is all there is.
func unless(final bool) verdict {
	if final {
		return no
	}
	return more
}

// body reads the calls behind a marker: an object, an array of objects, or objects one behind the other. Anything else
// is text.
func (p *Parser) body(final bool) bool {
	b, j := p.buf, 0
	for j < len(b) && (isSpace(b[j]) || b[j] == '[') { // an array's brackets don't matter: objects do
		j++
	}
	if j == len(b) {
		if !final {
			return false
		}
		if p.truncated {
			p.consume(j)
		}
		return p.to(inText)
	}
	if b[j] == '{' {
		h, v := scanHead(b[j:], final)
		switch {
		case v == ended:
			return false
		case v == yes:
			p.consume(j)
			p.call(h)
			return true
		case final && p.truncated && !json.Valid(bytes.TrimSpace(b[j:])):
			p.consume(len(b)) // a call that a length limit cut before its name
			return false
		}
		return p.to(inText)
	}
	if p.d.named && !p.plain {
		return p.namedCall(j, final)
	}
	return p.to(inText)
}

// call begins the call of h.
func (p *Parser) call(h head) {
	p.begin(h.name, h.id)
	p.list = true
	if h.arguments != nil && string(h.arguments) != "null" {
		p.startValue(h.arguments, p.d.compact)
		p.value.feed(h.arguments, true)
		p.flush()
	}
	p.consume(h.n)
	p.state = inMembers
}

// members reads what follows the name in a JSON call, up to the arguments and behind them.
func (p *Parser) members(final bool) bool {
	s := scan{b: p.buf, final: final}
	s.space()
	if s.v == more && s.b[s.i] == ',' {
		s.i++
		s.space()
	}
	if s.v == more && s.b[s.i] == '}' {
		p.consume(s.i + 1)
		p.end()
		return p.to(inAfter)
	}
	key := s.string()
	s.space()
	s.byte(':')
	s.space()
	if s.v == more && isArgumentsKey(key) && !p.wrote {
		rest := p.buf[s.i:]
		switch prefix(rest, "null") {
		case yes:
			p.consume(s.i + len("null"))
			return true
		case more:
			if !final {
				return false
			}
		}
		p.startValue(rest, p.d.compact)
		p.consume(s.i)
		p.after = inMembers
		return p.to(inValue)
	}
	s.value()
	switch {
	case s.v == more:
		p.consume(s.i)
		return true
	case s.v == ended:
		return false
	case final && s.short:
		if p.wrote {
			p.end() // the arguments are whole, only brackets are missing
		}
		p.consume(len(p.buf))
		return false
	}
	// What follows isn't JSON. Whole arguments, or none at all, still make a call.
	if _, _, v := p.at(bytes.TrimLeft(p.buf, " \t\r\n"), final); v == more {
		return false
	} else if v == no && !p.wrote {
		p.spoil()
		p.depth = 1
		return p.to(inRaw)
	}
	p.end()
	return p.to(inAfter)
}

// startValue readies the value reader for arguments that begin as b does. A string holds the arguments' text.
func (p *Parser) startValue(b []byte, compact bool) {
	p.value.start(jsonText, compact)
	p.value.unquote = len(b) > 0 && b[0] == '"'
}

// inValue reads arguments, and passes them on as they come.
func (p *Parser) inValue(final bool) bool {
	switch p.readValue(final) {
	case yes:
		if p.after == inAfter {
			p.end()
		}
		return p.to(p.after)
	case no:
		// What comes is passed on as it is. In a JSON call the arguments end with their bracket, since others follow;
		// elsewhere the end marker is the safer sign.
		p.spoil()
		p.depth = 0
		if p.after == inMembers || len(p.d.ends) == 0 {
			p.depth = len(p.value.stack)
		}
		return p.to(inRaw)
	case ended:
		// The model itself broke off. The end marker is the text's next.
		p.spoil()
		p.finishCall()
		return p.to(inAfter)
	}
	return false
}

// readValue feeds the value reader. It returns ended when an end marker comes before the value's end; more when text
// is missing.
func (p *Parser) readValue(final bool) verdict {
	ends := p.d.ends
	if p.plain {
		ends = nil
	}
	for {
		at, size := firstOf(p.buf, ends)
		limit := at
		if at < 0 {
			limit = len(p.buf)
			if !final {
				limit -= size
			}
		}
		python := p.value.syntax == pythonText
		n, v := p.value.feed(p.buf[:limit], at >= 0 && !python || at < 0 && final)
		p.flush()
		p.consume(n)
		if v != more || at < 0 {
			return v
		}
		if python && !p.value.inString() {
			// A list's end is one of the value's own brackets there.
			n, v := p.value.feed(p.buf[:limit-n+1], false)
			p.flush()
			p.consume(n)
			if v != more {
				return v
			}
			if n == 0 {
				return no
			}
			continue
		}
		if n < limit {
			return no
		}
		if !p.value.inString() {
			return ended
		}
		// A marker within a string: part of it, or the string was never closed.
		switch p.value.closes(p.buf[size:], final) {
		case no:
			return ended
		case more:
			return more
		}
		p.value.text(p.buf[:size])
		p.consume(size)
	}
}

// raw passes malformed arguments on as they are, up to an end marker or the bracket that closes them: a client sees all
// that the model wrote.
func (p *Parser) raw(final bool) bool {
	ends := p.d.ends
	if p.plain {
		ends = nil
	}
	at, size := firstOf(p.buf, ends)
	limit := at
	if at < 0 {
		limit = len(p.buf)
		if !final {
			limit -= size
		}
	}
	done := at >= 0
	if p.depth > 0 {
		for i, c := range p.buf[:limit] {
			if c == '{' || c == '[' {
				p.depth++
			}
			if c == '}' || c == ']' {
				p.depth--
			}
			if p.depth == 0 {
				limit, done = i+1, true
				break
			}
		}
	}
	p.arguments(p.buf[:limit])
	p.consume(limit)
	if !done {
		return false
	}
	p.end()
	return p.to(inAfter)
}

// headValue reads the arguments of a call whose name stands before them.
func (p *Parser) headValue(final bool) bool {
	s := scan{b: p.buf, final: final}
	s.space()
	if s.v != more {
		return false
	}
	if _, _, v := p.at(p.buf[s.i:], final); v == more {
		return false
	} else if v == yes {
		p.consume(s.i)
		p.end()
		return p.to(inAfter)
	}
	p.consume(s.i)
	p.startValue(nil, p.d.compact && !p.plain)
	p.after = inAfter
	return p.to(inValue)
}

// What Mistral's newer form has within calls.
const (
	callID        = "[CALL_ID]"
	callArguments = "[ARGS]"
)

// namedCall begins a call in Mistral's newer form, name[ARGS]{…}, which may have a [CALL_ID] in between. j is where it begins.
func (p *Parser) namedCall(j int, final bool) bool {
	b := p.buf[j:]
	i := bytes.IndexAny(b, "[{")
	name := b
	if i >= 0 {
		name = b[:i]
	}
	name = bytes.TrimSpace(name)
	if len(name) == 0 || len(name) > maxName || !isName(name) || i < 0 && final {
		return p.giveUp(final)
	}
	if i < 0 {
		return false
	}
	id, rest := "", b[i:]
	v := yes
	if rest[0] == '[' {
		v = prefix(rest, callArguments)
	}
	if prefix(rest, callID) == more {
		v = more
	}
	if prefix(rest, callID) == yes {
		stop := bytes.Index(rest, []byte(callArguments))
		switch {
		case stop >= 0 && stop+len(callArguments) <= maxName:
			id, rest, v = string(rest[len(callID):stop]), rest[stop:], yes
		case stop < 0 && len(rest) < maxName:
			v = more
		}
	}
	if v == more && !final {
		return false
	}
	if v != yes {
		return p.giveUp(final)
	}
	rest = bytes.TrimPrefix(rest, []byte(callArguments))
	p.begin(string(name), strings.TrimSpace(id))
	p.consume(len(p.buf) - len(rest))
	return p.to(inHeadValue)
}

// isName reports whether b may be a function's name, as far as it goes.
func isName(b []byte) bool {
	return !slices.ContainsFunc(b, func(c byte) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || isDigit(c) || c == '_' || c == '-' || c == '.' || c >= 0x80)
	})
}

// guided is where answers to the choices Required and Named begin. The engine may have held them to a schema: a JSON
// array of calls, or the arguments of the one function. Other answers are in the dialect, which goes on from here.
func (p *Parser) guided(final bool) bool {
	rest := bytes.TrimLeft(p.buf, " \t\r\n")
	if len(rest) == 0 {
		if final {
			return p.to(p.d.start)
		}
		return false
	}
	space := len(p.buf) - len(rest)
	switch {
	case p.o.Choice == Named && rest[0] == '{':
		p.plain = true
		p.consume(space)
		p.begin(p.o.Function, "")
		return p.to(inHeadValue)
	case p.o.Choice == Required && (rest[0] == '{' || rest[0] == '['):
		object := bytes.TrimLeft(rest, "[ \t\r\n")
		if len(object) == 0 && !final {
			return false
		}
		if len(object) == 0 || object[0] != '{' {
			break // such as an empty array, or a list of calls in Python
		}
		h, v := scanHead(object, final)
		if v == ended {
			return false
		}
		if v != yes {
			break
		}
		p.plain = true
		p.consume(len(p.buf) - len(object))
		p.call(h)
		return true
	}
	return p.to(p.d.start)
}
