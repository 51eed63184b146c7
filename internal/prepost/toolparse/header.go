package toolparse

import (
	"bytes"
	"strings"
)

// header returns the text up to the first of the marks, if it comes before any other marker and isn't long. With more,
// text is missing.
func (p *Parser) header(mark string, final bool) ([]byte, verdict) {
	i := bytes.Index(p.buf, []byte(mark))
	area := p.buf
	if i >= 0 {
		area = area[:i]
	}
	// Another marker before it means that the header was never finished, and what follows it may well be a call.
	for j, c := range area {
		if !p.d.first[c] || prefix(p.buf[j:], mark) != no {
			continue
		}
		if m, _, v := p.at(p.buf[j:], true); v == yes && m.text != mark {
			return nil, no
		}
	}
	switch {
	case i > maxName || i < 0 && len(area) >= maxName+len(mark):
		return nil, no
	case i >= 0:
		return area, yes
	case final:
		return nil, no
	}
	return nil, more
}

// giveUp goes back to text: the header isn't one. A length limit's remains are dropped.
func (p *Parser) giveUp(final bool) bool {
	if final && p.truncated {
		p.consume(len(p.buf))
	}
	return p.to(inText) // where all further markers are taken out
}

const deepseekSeparator = "<｜tool▁sep｜>"

// deepseek reads what is between a call's marker and its arguments: the name, or "function" and the name on the same
// line, with a fence below it.
func (p *Parser) deepseek(final bool) bool {
	h, v := p.header(deepseekSeparator, final)
	if v == more {
		return false
	}
	if v == no {
		return p.giveUp(final)
	}
	name := string(bytes.TrimSpace(h))
	from := len(h) + len(deepseekSeparator)
	rest := p.buf[from:]
	text := bytes.TrimLeft(rest, " \t\r\n")
	if len(text) == 0 && !final {
		return false
	}
	if len(text) > 0 && text[0] != '{' && name == "function" {
		stop := bytes.IndexAny(text, "\n{`")
		if stop < 0 {
			if !final && len(text) <= maxName {
				return false
			}
			return p.giveUp(final)
		}
		if stop > maxName {
			return p.giveUp(final)
		}
		name, text = string(bytes.TrimSpace(text[:stop])), text[stop:]
	}
	if name == "" {
		return p.giveUp(final)
	}
	text = bytes.TrimLeft(text, " \t\r\n")
	if v := prefix(text, "```json"); v == more && !final {
		return false
	} else if v == yes {
		text = text[len("```json"):]
	}
	p.begin(name, "")
	p.consume(len(p.buf) - len(text))
	return p.to(inHeadValue)
}

const kimiSeparator = "<|tool_call_argument_begin|>"

// kimi reads a call's id, functions.NAME:INDEX, which tells its name.
func (p *Parser) kimi(final bool) bool {
	h, v := p.header(kimiSeparator, final)
	if v == more {
		return false
	}
	id := strings.TrimSpace(string(h))
	name := strings.TrimPrefix(id, "functions.")
	if v == no || name == "" {
		return p.giveUp(final)
	}
	// Without an index the whole id is taken for the name: better an unknown function than a lost call.
	if colon := strings.LastIndexByte(name, ':'); colon > 0 {
		name = name[:colon]
	}
	p.begin(name, id)
	p.consume(len(h) + len(kimiSeparator))
	return p.to(inHeadValue)
}

// message is where a message's header ends, in harmony's format and muse's. Both make an answer of several messages, to
// the reader, to a function, or to the model itself; the header says to whom.
const message = "<|message|>"

// harmony reads the header of a message: <|start|>role, <|channel|>name, to=recipient and <|constrain|>type, in any
// order, up to <|message|>. The recipient makes it a call.
func (p *Parser) harmony(final bool) bool {
	for i, c := range p.buf[:min(len(p.buf), maxName)] {
		if c != '<' {
			continue
		}
		m, n, v := p.at(p.buf[i:], final)
		if v == more {
			return false
		}
		if v == no || m.text == "<|channel|>" || m.text == "<|constrain|>" {
			continue
		}
		if m.text != message { // a header without a message
			p.consume(i)
			return p.to(inText)
		}
		fields := strings.Fields(headerWords.Replace(string(p.buf[:i])))
		p.consume(i + n)
		return p.harmonyMessage(fields)
	}
	if !final && len(p.buf) < maxName {
		return false
	}
	if len(p.buf) < maxName && (p.truncated || isHeader(strings.Fields(headerWords.Replace(string(p.buf))))) {
		p.consume(len(p.buf))
	}
	return p.to(inText)
}

// headerWords takes the markers out of a header.
var headerWords = strings.NewReplacer("<|channel|>", " ", "<|constrain|>", " ")

// isHeader reports whether all of the words are such as headers have.
func isHeader(fields []string) bool {
	for _, f := range fields {
		switch f {
		case "assistant", "analysis", "commentary", "final", "json":
		default:
			if !strings.HasPrefix(f, "to=") {
				return false
			}
		}
	}
	return true
}

// harmonyMessage goes on by what a header says: to a call's arguments, to a thought, or to text.
func (p *Parser) harmonyMessage(fields []string) bool {
	analysis := false
	for _, f := range fields {
		to, _ := strings.CutPrefix(f, "to=")
		name := strings.TrimPrefix(to, "functions.")
		if to != f && name != "" && name != "assistant" && name != "user" && name != "all" {
			p.begin(name, "")
			return p.to(inHeadValue)
		}
		analysis = analysis || f == "analysis"
	}
	if analysis {
		return p.to(inAside)
	}
	return p.to(inText)
}

// inkling reads the name of the function, or nothing, between <|message_model|> and the marker that says what the message holds.
func (p *Parser) inkling(final bool) bool {
	n, v := p.nextMarker(final)
	named := n <= maxName && isName(p.buf[:n])
	switch {
	case named && v == yes:
		p.consume(n)
	case named && !final:
		return false
	}
	return p.to(inText)
}

// muse reads the header of a message up to <|message|>. A message to the model itself is a thought; one to a function
// has its call behind the header.
func (p *Parser) muse(final bool) bool {
	h, v := p.header(message, final)
	switch {
	case v == more && museHeader(p.buf):
		return false
	case v != yes || !isMuseHeader(h):
		return p.to(inText)
	}
	p.consume(len(h) + len(message))
	if bytes.HasSuffix(bytes.TrimSpace(h), []byte("to=self")) {
		return p.to(inAside)
	}
	return p.to(inText)
}

// isMuseHeader reports whether b is a header: a role, a recipient, or both.
func isMuseHeader(b []byte) bool {
	rest := bytes.TrimSpace(bytes.TrimPrefix(bytes.TrimSpace(b), []byte("assistant")))
	to, ok := bytes.CutPrefix(rest, []byte("to="))
	return len(rest) == 0 || ok && isName(to)
}

// museHeader reports whether b may become a header.
func museHeader(b []byte) bool {
	rest := bytes.TrimLeft(b, " \t\r\n")
	if i := bytes.IndexByte(rest, '<'); i >= 0 {
		return prefix(rest[i:], message) == more && isMuseHeader(rest[:i])
	}
	if prefix(rest, "assistant") == more {
		return true
	}
	rest = bytes.TrimLeft(bytes.TrimPrefix(rest, []byte("assistant")), " \t\r\n")
	return prefix(rest, "to=") == more || isMuseHeader(rest)
}

// gemma reads call:NAME before the arguments.
func (p *Parser) gemma(final bool) bool {
	const word = "call:"
	rest := bytes.TrimLeft(p.buf, " \t\r\n")
	v := prefix(rest, word)
	if v == more && !final {
		return false
	}
	if v != yes {
		return p.giveUp(final)
	}
	rest = rest[len(word):]
	brace := bytes.IndexByte(rest, '{')
	name := rest
	if brace >= 0 {
		name = rest[:brace]
	}
	name = bytes.TrimSpace(name)
	if !isName(name) || brace >= 0 && len(name) == 0 || len(name) > maxName || brace < 0 && final {
		return p.giveUp(final)
	}
	if brace < 0 {
		return false
	}
	p.begin(string(name), "")
	p.consume(len(p.buf) - len(rest) + brace)
	p.value.start(gemmaText, true) // at the brace
	p.after = inAfter
	return p.to(inValue)
}
