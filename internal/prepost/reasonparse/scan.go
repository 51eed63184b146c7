package reasonparse

import "bytes"

// action is what a marker does. What exactly that means depends on the machine that gave the marker to the scanner.
type action uint8

const (
	opens   action = iota // begins a thought
	closes                // ends a thought
	drops                 // markup that never shows
	answers               // ends a thought, and is no part of the answer either
	calls                 // begins a tool call, if what follows looks like one
	ends                  // ends what calls began, or a message of a channel dialect
	heads                 // begins the header of a message
	bodies                // ends the header of a message and begins its body
	inner                 // markup inside a header
)

// mark is one literal to look for.
type mark struct {
	text  string
	act   action
	shape shape  // for calls: what has to follow; nil: anything
	end   string // for calls: what ends it; empty: unknown
}

// markSet is what to look for in one state. No literal is the beginning of another, so that the first full match at a
// position is the only one.
type markSet struct {
	marks []mark
	first [256]bool
}

func newMarkSet(marks ...mark) *markSet {
	s := &markSet{marks: marks}
	for _, m := range marks {
		s.first[m.text[0]] = true
	}
	return s
}

// plain tells that no marker can begin in text.
func (s *markSet) plain(text []byte) bool {
	for _, c := range text {
		if s.first[c] {
			return false
		}
	}
	return true
}

// find returns where in text the first marker is, or the first beginning of one that the end of text cuts off (then
// the mark is nil). Without either it returns the length of text.
func (s *markSet) find(text []byte) (int, *mark) {
	for i, c := range text {
		if !s.first[c] {
			continue
		}
		rest, partial := text[i:], false
		for k := range s.marks {
			m := &s.marks[k]
			if m.text[0] != c {
				continue
			}
			if len(rest) >= len(m.text) {
				if string(rest[:len(m.text)]) == m.text {
					return i, m
				}
			} else if m.text[:len(rest)] == string(rest) {
				partial = true
			}
		}
		if partial {
			return i, nil
		}
	}
	return len(text), nil
}

// verdict is the answer to a question about text of which perhaps only the beginning is known.
type verdict uint8

const (
	no verdict = iota
	yes
	unknown
)

// shape tells whether the text after a marker is what the marker announces, so that a thought which merely mentions a
// marker isn't torn apart.
type shape func(after []byte) verdict

// maxBlank bounds how much white space a shape waits through.
const maxBlank = 64

// skipBlank returns text without its leading white space; unknown when there is nothing else (yet), no when there is
// more white space than anyone writes.
func skipBlank(text []byte) ([]byte, verdict) {
	rest := bytes.TrimLeft(text, " \t\r\n")
	switch {
	case len(text)-len(rest) > maxBlank:
		return nil, no
	case len(rest) == 0:
		return nil, unknown
	}
	return rest, yes
}

// followed is the shape of one of several literals after white space.
func followed(literals ...string) shape {
	return func(after []byte) verdict {
		rest, v := skipBlank(after)
		if v != yes {
			return v
		}
		return startsWith(rest, literals...)
	}
}

func startsWith(text []byte, literals ...string) verdict {
	v := no
	for _, l := range literals {
		switch {
		case len(text) >= len(l) && string(text[:len(l)]) == l:
			return yes
		case len(text) < len(l) && l[:len(text)] == string(text):
			v = unknown
		}
	}
	return v
}

// maxName is the longest function name a shape waits through; OpenAI's limit is 64.
const maxName = 128

// named is the shape of a function's name and then one of several literals, white space around the name allowed.
func named(literals ...string) shape {
	return func(after []byte) verdict {
		rest, v := skipBlank(after)
		if v != yes {
			return v
		}
		n := 0
		for n < len(rest) && isNameByte(rest[n]) {
			n++
		}
		switch {
		case n == 0 || n > maxName:
			return no
		case n == len(rest):
			return unknown
		}
		if rest, v = skipBlank(rest[n:]); v != yes {
			return v
		}
		return startsWith(rest, literals...)
	}
}

// either is the shape of one of several shapes.
func either(shapes ...shape) shape {
	return func(after []byte) verdict {
		v := no
		for _, s := range shapes {
			switch s(after) {
			case yes:
				return yes
			case unknown:
				v = unknown
			}
		}
		return v
	}
}

func isNameByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '.'
}
