package toolparse

import (
	"bytes"
	"strings"
)

// byteSet is a set of bytes.
type byteSet [256]bool

// any reports whether one of text's bytes is in the set.
func (s *byteSet) any(text []byte) bool {
	for _, c := range text {
		if s[c] {
			return true
		}
	}
	return false
}

// role says what a marker is for.
type role uint8

const (
	opens role = iota // something begins that may be a call
	shuts             // something ends: nothing follows from it
)

// marker is text of a dialect that is never content.
type marker struct {
	text string
	role role
	next state // where it leads; inText: it is only taken out
	// look, where set, decides by the text from the marker on whether it is one, and how much of the text belongs to
	// it. What it refuses is content.
	look func(p *Parser, b []byte, final bool) (int, verdict)
}

// maxName bounds names, keys and headers: longer ones aren't any.
const maxName = 512

// at tells whether a marker begins at the beginning of b. Of several, the longest counts.
func (p *Parser) at(b []byte, final bool) (found *marker, n int, v verdict) {
	v = no
	for i := range p.d.markers {
		m := &p.d.markers[i]
		size, is := len(m.text), prefix(b, m.text)
		if is == yes && m.look != nil {
			size, is = m.look(p, b, final)
		}
		if is == more && final {
			is = no
		}
		switch {
		case is == more: // the longest counts, so that nothing is certain yet
			found, n, v = nil, 0, more
		case is == yes && v != more && size > n:
			found, n, v = m, size, yes
		}
	}
	return found, n, v
}

// text passes on content up to the next marker.
func (p *Parser) text(final bool) bool {
	for i, c := range p.buf {
		if !p.d.first[c] || p.plain {
			continue
		}
		rest := p.buf[i:]
		m, n, v := p.at(rest, final)
		if v == no && p.d.bare != nil && p.o.Choice != None && !p.o.Marked && (p.d.anywhere || p.lead && isBlank(p.buf[:i])) {
			v = p.d.bare(p, rest, final)
			if v == yes {
				m = &marker{next: p.d.bareState}
			}
		}
		switch {
		case v == no && final && p.truncated && p.d.half(rest):
			// A length limit cut the text within a marker.
			p.content(p.buf[:i])
			p.consume(len(p.buf))
			return false
		case v == no:
			continue
		}
		p.content(p.buf[:i])
		p.consume(i)
		if v == more {
			return false
		}
		if m.next != inElement { // which reads its tag itself
			p.consume(n)
		}
		if n > 0 {
			p.marked = true
			p.lead = p.lead || m.role == opens // white space behind the marker goes with it when a call follows
		}
		return p.to(m.next)
	}
	p.content(p.buf)
	p.consume(len(p.buf))
	return false
}

// isBlank reports whether b is white space alone.
func isBlank(b []byte) bool { return len(bytes.TrimLeft(b, " \t\r\n")) == 0 }

// half reports whether b, the end of a text, is at least half of a marker, or a tag without its end.
func (d *dialect) half(b []byte) bool {
	for _, m := range d.markers {
		v := prefix(b, m.text)
		if v == more && 2*len(b) >= len(m.text) || v == yes && m.next == inElement && bytes.IndexByte(b, '\n') < 0 {
			return true
		}
	}
	return false
}

// nextMarker returns where in the text that is held back the next marker begins, or how much of it certainly comes
// before one.
func (p *Parser) nextMarker(final bool) (int, verdict) {
	for i, c := range p.buf {
		if p.d.first[c] {
			if _, _, v := p.at(p.buf[i:], final); v != no {
				return i, v
			}
		}
	}
	return len(p.buf), no
}

// aside takes out text up to the next marker that isn't for the reader: the thoughts of dialects that mark them.
func (p *Parser) aside(final bool) bool {
	n, v := p.nextMarker(final)
	p.reasoning(p.buf[:n])
	p.consume(n)
	if v == yes {
		return p.to(inText)
	}
	return false
}

// Values are read up to the first of several markers. The search is a plain one: values come in small pieces, and the
// markers of a dialect are few.

// firstOf returns where the first of the ends is in b and how long it is, or -1 and how much of b's end may be the
// beginning of one.
func firstOf(b []byte, ends []string) (at, size int) {
	at = -1
	for _, end := range ends {
		area := b
		if at >= 0 {
			area = b[:min(len(b), at+len(end))]
		}
		if i := bytes.Index(area, []byte(end)); i >= 0 && (at < 0 || i < at) {
			at, size = i, len(end)
		}
	}
	if at >= 0 {
		return at, size
	}
	for _, end := range ends {
		for n := min(len(end)-1, len(b)); n > size; n-- {
			if string(b[len(b)-n:]) == end[:n] {
				size = n
			}
		}
	}
	return -1, size
}

// Models close more than they opened, and separate calls by all sorts of things. None of that is content; text behind
// the call is, with the white space before it.

// afterCall skips what belongs to a call behind it: white space, brackets too many, the end marker.
func (p *Parser) afterCall(final bool) bool {
	b, j, eaten := p.buf, 0, 0
	brackets := p.d.brackets
	if p.plain {
		if !p.list {
			return p.to(inText)
		}
		brackets = "}]"
	}
	for ; j < len(b); j++ {
		switch c := b[j]; {
		case isSpace(c), (c == ',' || c == ';') && p.list:
			continue
		case strings.IndexByte(brackets, c) >= 0:
			eaten = j + 1
			continue
		}
		break
	}
	if j == len(b) {
		if final {
			p.consume(j)
		}
		return false
	}
	if m, n, v := p.at(b[j:], final); v != no && !p.plain {
		switch {
		case v == more:
			return false
		case m.role == shuts:
			p.consume(j + n)
		default:
			p.consume(j)
		}
		return p.to(inText)
	}
	if b[j] == '{' && p.list {
		h, v := scanHead(b[j:], final)
		if v == ended {
			return false
		}
		if v == yes {
			p.consume(j)
			p.call(h)
			return true
		}
	}
	p.consume(eaten)
	return p.to(inText)
}
