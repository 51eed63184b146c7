package toolparse

import (
	"bytes"
	"slices"
	"strings"
)

// tags are how a dialect with one tag per parameter writes its calls.
type tags struct {
	call      string // the beginning of the tag that opens a call
	callName  string // the attribute with its name; empty: the name follows at once
	end       string // what ends a tag: > as a rule
	callEnd   string // the tag that closes a call
	parameter string // the beginning of the tag that opens a parameter; empty: any tag behind nested
	key       string // the attribute with its name; empty: the name follows at once
	close     string // the tag that closes a parameter
	lines     bool   // a value stands on lines of its own: one newline on each side belongs to the markup
	nested    string // stands before each tag where values are made of tags themselves
	whole     string // the beginning of a tag whose text is all the arguments, in JSON
	open      bool   // values without a declared type are JSON if they can be
}

// element is a call under construction, and the parameter being read. The arguments are written as a JSON object, one
// member for each parameter, as they come.
type element struct {
	function string
	seen     []string // parameters that were read
	name     string
	close    string // closes this parameter
	slip     string // the same without its slash, as models write it at times
	kinds    kinds  // what the value may be
	quoted   bool   // it is a string, which is passed on as it comes
	begun    bool   // the string's opening quote is out
	fresh    bool   // nothing of the value was looked at
	scanned  int    // so much of the value that is held back doesn't end it
}

// attributes reads name="value" pairs, also with single quotes. What isn't one ends them.
func attributes(b []byte) map[string]string {
	found := make(map[string]string, 2)
	for {
		b = bytes.TrimLeft(b, " \t\r\n")
		eq := bytes.IndexByte(b, '=')
		if eq < 0 || len(b) < eq+2 {
			return found
		}
		name, rest := string(bytes.TrimSpace(b[:eq])), bytes.TrimLeft(b[eq+1:], " ")
		if len(rest) == 0 || rest[0] != '"' && rest[0] != '\'' {
			return found
		}
		stop := bytes.IndexByte(rest[1:], rest[0])
		if stop < 0 {
			return found
		}
		found[name] = string(rest[1 : 1+stop])
		b = rest[stop+2:]
	}
}

// tag reads a tag that begins with open at the beginning of b, and returns its name, its attributes and its length.
func (t *tags) tag(b []byte, open, attribute string, final bool) (name string, a map[string]string, n int, v verdict) {
	if v := prefix(b, open); v != yes {
		if v == more && final {
			v = no
		}
		return "", nil, 0, v
	}
	inner := b[len(open):]
	stop := bytes.Index(inner, []byte(t.end))
	// Tags don't span lines. This keeps text that begins like one from being held back.
	if stop < 0 {
		if final || len(inner) >= maxName+len(t.end) || bytes.IndexByte(inner, '\n') >= 0 {
			return "", nil, 0, no
		}
		return "", nil, 0, more
	}
	if stop > maxName || bytes.IndexByte(inner[:stop], '\n') >= 0 {
		return "", nil, 0, no
	}
	if attribute == "" {
		name = string(bytes.Trim(inner[:stop], " \"'"))
	} else {
		a = attributes(inner[:stop])
		name = a[attribute]
	}
	if name == "" || strings.ContainsAny(name, "<>") {
		return "", nil, 0, no
	}
	return name, a, len(open) + stop + len(t.end), yes
}

// callTag is the look of markers that open a call.
func callTag(p *Parser, b []byte, final bool) (int, verdict) {
	_, _, n, v := p.d.tags.tag(b, p.d.tags.call, p.d.tags.callName, final)
	return n, v
}

// argTag is the look of GLM's opening marker: the name follows it, up to the first key or the end.
func argTag(_ *Parser, b []byte, final bool) (int, verdict) {
	_, n, v := glmName(b, final)
	return n, v
}

const (
	glmOpen  = "<tool_call>"
	glmClose = "</tool_call>"
	glmKey   = "<arg_key>"
	glmValue = "<arg_value>"
)

// glmName reads a call's name behind its marker.
func glmName(b []byte, final bool) (name string, n int, v verdict) {
	rest := b[len(glmOpen):]
	text := bytes.TrimLeft(rest, " \t\r\n")
	stop := bytes.IndexAny(text, "<\n")
	if stop < 0 {
		if final || len(text) > maxName || !isName(bytes.TrimSpace(text)) {
			return "", 0, no
		}
		return "", 0, more
	}
	name = string(bytes.TrimSpace(text[:stop]))
	if name == "" || stop > maxName || !isName([]byte(name)) {
		return "", 0, no
	}
	tail := bytes.TrimLeft(text[stop:], " \t\r\n")
	for _, mark := range []string{glmKey, glmClose} {
		switch prefix(tail, mark) {
		case yes:
			return name, len(b) - len(tail), yes
		case more:
			if !final {
				v = more
			}
		}
	}
	if v == more {
		return "", 0, more
	}
	return "", 0, no
}

// element reads what is between the parameters of a call; first its opening tag.
func (p *Parser) element(final bool) bool {
	if !p.open {
		return p.openElement(final)
	}
	space := len(p.buf) - len(bytes.TrimLeft(p.buf, " \t\r\n"))
	rest := p.buf[space:]
	if len(rest) == 0 {
		return false
	}
	name, attributes, n, v := p.parameterTag(rest, final)
	switch {
	case v == more:
		return false
	case v == yes:
		p.consume(space + n)
		p.openParameter(name, attributes)
		return p.to(inParameter)
	}
	if !p.wrote {
		if n, v := p.wholeArguments(rest, final); v == more {
			return false
		} else if v == yes {
			p.consume(space + n)
			return p.to(inHeadValue)
		}
	}
	return p.endElement(space, rest, final)
}

// endElement looks for the end of the call at the beginning of rest, which stands behind so much white space.
func (p *Parser) endElement(space int, rest []byte, final bool) bool {
	v := prefix(rest, p.d.tags.callEnd)
	if v == yes {
		p.consume(space + len(p.d.tags.callEnd))
		return p.closeElement()
	}
	_, _, other := p.at(rest, final)
	switch {
	case v == more && !final || other == more:
		return false
	case other == yes: // the markers of a block end a call whose own end is missing
		p.consume(space)
		return p.closeElement()
	}
	// Nothing that belongs between parameters. It can't be content any more: the call has begun.
	p.consume(space + 1)
	return true
}

// wholeArguments tells whether all arguments follow as JSON: behind a tag for it, or plainly, as models do that mix
// their dialect with another. n is how long the tag is.
func (p *Parser) wholeArguments(b []byte, final bool) (n int, v verdict) {
	if b[0] == '{' {
		return 0, yes
	}
	if p.d.tags.whole == "" {
		return 0, no
	}
	_, _, n, v = p.d.tags.tag(b, p.d.tags.whole, "type", final)
	return n, v
}

// openParameter readies the reader of a value.
func (p *Parser) openParameter(name string, attributes map[string]string) {
	t, x := p.d.tags, &p.x
	x.name, x.fresh, x.begun, x.scanned = name, true, false, 0
	x.seen = append(x.seen, name)
	x.kinds = p.parameterKinds(name, attributes)
	x.quoted = x.kinds == kindString
	x.close, x.slip = t.close, ""
	if t.nested != "" {
		x.close = t.nested + "</" + name + ">"
	}
	if strings.Contains(x.close, "</") && (t.nested == "" || x.quoted) { // where tags may be nested, it opens another
		x.slip = strings.Replace(x.close, "</", "<", 1)
	}
}

// openElement reads the opening tag, which the look of its marker has found whole.
func (p *Parser) openElement(final bool) bool {
	var name string
	var n int
	if p.d.tags.call == glmOpen {
		name, n, _ = glmName(p.buf, final)
	} else {
		name, _, n, _ = p.d.tags.tag(p.buf, p.d.tags.call, p.d.tags.callName, final)
	}
	p.consume(n)
	p.begin(name, "")
	p.x = element{function: name, seen: p.x.seen[:0]}
	return true
}

// closeElement ends the call. Its arguments were opened with the first parameter.
func (p *Parser) closeElement() bool {
	if p.wrote {
		p.arguments([]byte("}"))
	}
	p.end()
	return p.to(inAfter)
}

// parameterTag reads the tag or tags that open a parameter.
func (p *Parser) parameterTag(b []byte, final bool) (name string, a map[string]string, n int, v verdict) {
	t := p.d.tags
	if t.nested != "" {
		if _, _, v := p.at(b, final); v == yes || prefix(b, t.nested+"</") == yes {
			return "", nil, 0, no
		}
		name, a, n, v = t.tag(b, t.nested+"<", "", final)
		if v == yes && !isName([]byte(name)) {
			v = no
		}
		return name, a, n, v
	}
	if t.parameter != glmKey {
		return t.tag(b, t.parameter, t.key, final)
	}
	if v := prefix(b, glmKey); v != yes {
		if v == more && final {
			v = no
		}
		return "", nil, 0, v
	}
	stop := bytes.Index(b, []byte(glmValue))
	if stop < 0 {
		if final || bytes.Contains(b, []byte(glmClose)) {
			return "", nil, 0, no
		}
		return "", nil, 0, more
	}
	key := bytes.TrimSpace(bytes.TrimPrefix(b[:stop], []byte(glmKey)))
	key = bytes.TrimSpace(bytes.TrimSuffix(key, []byte("</arg_key>")))
	key = bytes.TrimSpace(bytes.TrimSuffix(key, []byte(glmKey))) // a key closed by its opening tag
	if len(key) == 0 || bytes.IndexByte(key, '<') >= 0 {
		return "", nil, 0, no
	}
	return string(key), nil, stop + len(glmValue), yes
}

// parameterKinds returns what a parameter's value may be: by its tag, or else by the tool's schema.
func (p *Parser) parameterKinds(name string, a map[string]string) kinds {
	if s, ok := a["string"]; ok {
		if s == "false" {
			return kindAny
		}
		return kindString
	}
	if s, ok := a["type"]; ok && p.d.tags.whole != "" {
		if s == "string" {
			return kindString
		}
		return kindAny
	}
	k := p.schemas.kinds(p.x.function, name)
	if k != 0 {
		return k
	}
	if p.d.tags.open {
		return kindAny | kindString
	}
	if p.d.tags.nested != "" {
		return kindNested // an object when it is made of tags
	}
	return kindString
}

// parameter reads a value. A string is passed on as it comes, other values when they are whole.
func (p *Parser) parameter(final bool) bool {
	if p.x.fresh && p.d.tags.lines {
		if len(p.buf) == 0 {
			return false
		}
		if p.buf[0] == '\n' {
			p.consume(1)
		}
	}
	p.x.fresh = false
	end, next, v := p.valueEnd(final)
	if v != yes && final { // cut off, maybe within the closing tag
		_, tail := firstOf(p.buf, []string{p.x.close})
		end -= tail
	}
	if p.x.quoted {
		p.stringValue(p.buf[:end], v == yes)
	}
	if v != yes {
		if p.x.quoted {
			p.consume(end)
			p.x.scanned = 0
		}
		return false
	}
	if !p.x.quoted {
		p.member(convert(p.buf[:end], p.x.kinds, p.d.tags.nested))
	}
	p.consume(next)
	return p.to(inElement)
}

// member writes one whole member of the arguments.
func (p *Parser) member(value []byte) {
	p.value.out = append(p.memberKey(), value...)
	p.flush()
}

// memberKey writes what comes before a member's value.
func (p *Parser) memberKey() []byte {
	separator := byte(',')
	if !p.wrote {
		separator = '{'
	}
	return append(appendQuoted(append(p.value.out[:0], separator), []byte(p.x.name)), ':')
}

// stringValue passes on the next part of a string, with its key and quote before the first part. whole says that it is
// the last.
func (p *Parser) stringValue(b []byte, whole bool) {
	if !p.x.begun {
		if len(b) == 0 && !whole { // a value that never begins leaves no key behind
			return
		}
		p.x.begun = true
		p.value.out = append(p.memberKey(), '"')
	}
	p.value.out = appendEscaped(p.value.out, b)
	if whole {
		p.value.out = append(p.value.out, '"')
	}
	p.flush()
}

// Values can't be told from markup by quotes or escapes, so that their end is a matter of what stands around it: the
// functions below decide it as a careful reader would, with as little text ahead as that takes.

// valueEnd looks for the value's end in the text that is held back. With yes, the value ends at end and its markup at
// next; else end is how much of the text certainly belongs to the value.
func (p *Parser) valueEnd(final bool) (end, next int, v verdict) {
	t, b := p.d.tags, p.buf
	first := p.x.close[0]
	for i := p.x.scanned; i < len(b); i++ {
		c := b[i]
		if c != first && c != t.callEnd[0] && !(t.lines && c == '\n') {
			continue
		}
		at := i
		if t.lines && c == '\n' { // belongs to the markup if that follows
			at = i + 1
		}
		next, v := p.endsValue(b[at:], at > i, final)
		switch v {
		case yes:
			return i, at + next, yes
		case more:
			p.x.scanned = i
			return i, 0, more
		}
	}
	p.x.scanned = len(b)
	return len(b), 0, more
}

// endsValue tells whether the value ends where b begins, and how much of b belongs to it: at its closing tag, with
// something behind it that may follow one; at the next parameter or the call's end, where the tag is missing.
func (p *Parser) endsValue(b []byte, line, final bool) (next int, v verdict) {
	t := p.d.tags
	missing := no
	// A tag that nothing fitting follows was part of the value: files are written about markup too.
	for i, tag := range [...]string{p.x.close, p.x.slip} {
		v := prefix(b, tag)
		if v == yes && tag != "" {
			if v := p.follows(b[len(tag):], final); v != no || i == 0 {
				return len(tag), v
			}
		} else if v == more {
			missing = unless(final)
		}
	}
	switch prefix(b, t.callEnd) {
	case yes:
		return 0, p.closedByCall(b, final)
	case more:
		missing = unless(final)
	}
	// The next parameter ends this one only if it is sure to be one: on a line of its own, declared, and not read yet.
	if line && t.parameter != "" {
		name, _, _, v := t.tag(b, t.parameter, t.key, final)
		if v == yes && p.schemas.kinds(p.x.function, name) != 0 && !slices.Contains(p.x.seen, name) {
			return 0, yes
		}
		if v == more {
			missing = more
		}
	}
	if missing == no && !final && line && len(b) == 0 {
		missing = more
	}
	return 0, missing
}

// follows tells whether b may stand behind a closing tag. If not, the tag was part of the value.
func (p *Parser) follows(b []byte, final bool) verdict {
	rest := bytes.TrimLeft(b, " \t\r\n")
	if len(rest) == 0 {
		if final {
			return yes
		}
		return more
	}
	t := p.d.tags
	result := no
	opening := t.parameter
	if t.nested != "" {
		opening = t.nested
	}
	for _, tag := range []string{opening, t.callEnd} {
		switch prefix(rest, tag) {
		case yes:
			return yes
		case more:
			if !final {
				result = more
			}
		}
	}
	if _, _, v := p.at(rest, final); v != no {
		return v
	}
	return result
}

// closedByCall tells whether a value whose closing tag is missing ends with the call, whose closing tag begins b. It
// doesn't if more of the value comes, with its closing tag, before another call.
func (p *Parser) closedByCall(b []byte, final bool) verdict {
	t := p.d.tags
	rest := bytes.TrimLeft(b[len(t.callEnd):], " \t\r\n")
	if len(rest) > 0 {
		m, _, v := p.at(rest, final)
		switch {
		case v != yes:
			return v
		case m.role == opens:
			return yes
		}
	}
	// The block seems to end here. If the parameter is closed after all, before another call begins, it doesn't.
	for i, c := range b {
		if c != p.x.close[0] && c != t.call[0] {
			continue
		}
		if prefix(b[i:], t.call) == yes {
			return yes
		}
		if prefix(b[i:], p.x.close) != yes {
			continue
		}
		switch p.follows(b[i+len(p.x.close):], final) {
		case yes:
			return no
		case more:
			return more
		}
	}
	if final {
		return yes
	}
	return more
}

// nestedValue makes JSON of a value that is made of tags: an object, where a tag that comes again makes an array. v is
// no when b isn't such a value.
func nestedValue(b []byte, mark string, depth int) (out []byte, v verdict) {
	type field struct {
		name   string
		values [][]byte
	}
	var fields []field
	b = bytes.TrimSpace(b)
	if depth > 32 {
		return nil, no
	}
	for len(b) > 0 {
		inner, ok := bytes.CutPrefix(b, []byte(mark+"<"))
		stop := bytes.IndexByte(inner, '>')
		if !ok || stop <= 0 || inner[0] == '/' {
			return nil, no
		}
		name := string(inner[:stop])
		text, rest, ok := cutElement(inner[stop+1:], mark, name)
		if !ok {
			return nil, no
		}
		value, v := nestedValue(text, mark, depth+1)
		if v != yes {
			value = appendQuoted(nil, text)
		}
		at := slices.IndexFunc(fields, func(f field) bool { return f.name == name })
		if at < 0 {
			at = len(fields)
			fields = append(fields, field{name: name})
		}
		fields[at].values = append(fields[at].values, value)
		b = bytes.TrimSpace(rest)
	}
	if len(fields) == 0 {
		return nil, no
	}
	for i, f := range fields {
		out = append(out, "{,"[min(i, 1)])
		out = append(appendQuoted(out, []byte(f.name)), ':')
		if len(f.values) == 1 {
			out = append(out, f.values[0]...)
			continue
		}
		out = append(append(out, '['), bytes.Join(f.values, []byte{','})...)
		out = append(out, ']')
	}
	return append(out, '}'), yes
}

// cutElement cuts b at the closing tag of name, counting tags of the same name within.
func cutElement(b []byte, mark, name string) (inner, rest []byte, ok bool) {
	open, shut := []byte(mark+"<"+name+">"), []byte(mark+"</"+name+">")
	depth := 1
	for i := range b {
		switch {
		case bytes.HasPrefix(b[i:], open):
			depth++
		case bytes.HasPrefix(b[i:], shut):
			if depth--; depth == 0 {
				return b[:i], b[i+len(shut):], true
			}
		}
	}
	return nil, nil, false
}
