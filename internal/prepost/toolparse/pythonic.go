package toolparse

import "bytes"

// pythonList tells whether a list of calls begins with b: [name(key=…. A list whose first function isn't declared has
// to be whole, since brackets and parentheses are frequent in text that isn't a call.
func pythonList(p *Parser, b []byte, final bool) verdict {
	if b[0] != '[' {
		return no
	}
	name, n, v := pythonName(b[1:])
	if v == yes { // with a first keyword argument or none it isn't an index or a link
		_, _, v = pythonKey(b[1+n:])
	}
	switch {
	case v == more:
		return unless(final)
	case v == no:
		return no
	case len(p.o.Tools) > 0 && p.declared(name):
		return yes
	}
	return wholeList(b, final)
}

// wholeList tells whether b begins with a whole list of calls.
func wholeList(b []byte, final bool) verdict {
	i := 1
	for {
		_, n, v := pythonName(b[i:])
		if v != yes {
			return soFar(v, final)
		}
		i += n
		for {
			_, n, v := pythonKey(b[i:])
			if v != yes {
				return soFar(v, final)
			}
			i += n
			if b[i-1] == ')' {
				break
			}
			var r reader
			r.start(pythonText, true)
			n, v = r.feed(b[i:], false)
			if v != yes {
				return soFar(v, final)
			}
			i += n
		}
		rest := bytes.TrimLeft(b[i:], " \t\r\n")
		if len(rest) == 0 {
			return unless(final)
		}
		i = len(b) - len(rest) + 1
		switch rest[0] {
		case ']':
			return yes
		case ',':
		default:
			return no
		}
	}
}

// soFar is the verdict on a list of which a part got this one.
func soFar(v verdict, final bool) verdict {
	if v == more {
		return unless(final)
	}
	return no
}

// pythonName reads a function's name and the opening parenthesis.
func pythonName(b []byte) (name string, n int, v verdict) {
	rest := bytes.TrimLeft(b, " \t\r\n")
	stop := bytes.IndexByte(rest, '(')
	text := rest
	if stop >= 0 {
		text = rest[:stop]
	}
	word := bytes.TrimSpace(text)
	if !isName(word) || len(word) > 0 && isDigit(word[0]) || stop == 0 || stop > 0 && len(word) == 0 || len(word) > maxName {
		return "", 0, no
	}
	if stop < 0 {
		return "", 0, more
	}
	return string(word), len(b) - len(rest) + stop + 1, yes
}

// pythonKey reads the key of the next argument with its equals sign, or the closing parenthesis: then name is empty.
func pythonKey(b []byte) (name string, n int, v verdict) {
	rest := bytes.TrimLeft(b, " \t\r\n,")
	if len(rest) == 0 {
		return "", 0, more
	}
	space := len(b) - len(rest)
	if rest[0] == ')' {
		return "", space + 1, yes
	}
	stop := bytes.IndexByte(rest, '=')
	text := rest
	if stop >= 0 {
		text = rest[:stop]
	}
	word := bytes.TrimSpace(text)
	if !isName(word) || isDigit(rest[0]) || stop == 0 || stop > 0 && len(word) == 0 || len(word) > maxName {
		return "", 0, no
	}
	if stop < 0 || stop+1 == len(rest) {
		return "", 0, more
	}
	if rest[stop+1] == '=' { // a comparison
		return "", 0, no
	}
	return string(word), space + stop + 1, yes
}

// python reads what is between the calls of a list: its brackets, commas, and the name that begins the next call.
func (p *Parser) python(final bool) bool {
	rest := bytes.TrimLeft(p.buf, " \t\r\n,")
	space := len(p.buf) - len(rest)
	if len(rest) == 0 {
		if final {
			p.consume(space)
		}
		return false
	}
	if p.calls > 0 && rest[0] == ']' && p.list {
		p.consume(space + 1)
		p.list = false
		return p.to(inText)
	}
	from := 0
	if rest[0] == '[' && !p.list {
		from = 1
	}
	name, n, v := pythonName(rest[from:])
	if v == more && !final {
		return false
	}
	if v != yes {
		p.list = false
		return p.giveUp(final)
	}
	p.consume(space + from + n)
	p.begin(name, "")
	return p.to(inPythonArguments)
}

// pythonArguments reads what is between the arguments of a call, and the arguments. They are written as the members of
// a JSON object, as those in tags are.
func (p *Parser) pythonArguments(final bool) bool {
	if p.x.begun { // a value is being read
		switch p.readValue(final) {
		case more:
			return false
		case yes:
			p.x.begun = false
			return true
		}
		return p.malformedPython()
	}
	name, n, v := pythonKey(p.buf)
	if v == more {
		return false
	}
	if v == no {
		return p.malformedPython()
	}
	p.consume(n)
	if name == "" {
		if p.wrote {
			p.arguments([]byte("}"))
		}
		p.end()
		p.list = true
		return p.to(inPython)
	}
	p.x.name, p.x.begun = name, true
	p.value.start(pythonText, true)
	p.value.out = p.memberKey()
	return true
}

// malformedPython passes on what is left of a call as it is, up to what looks like the list's end.
func (p *Parser) malformedPython() bool {
	p.spoil()
	p.x.begun, p.depth = false, 0
	return p.to(inRaw)
}
