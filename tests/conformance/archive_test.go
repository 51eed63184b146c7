package conformance_test

import (
	"fmt"
	"strings"
)

// archive is a transcript: a comment, and named sections in order. The format is txtar's: a section begins with a line
// of the form "-- name --" and goes up to the next.
type archive struct {
	comment  string
	sections []section
}

// section is a named part of a transcript. The text has all its line breaks.
type section struct{ name, text string }

// parse reads a transcript. Any text is one: what comes before the first section is the comment.
func parse(text string) *archive {
	a := &archive{}
	for line := range strings.Lines(text) {
		if name, ok := heading(line); ok {
			a.sections = append(a.sections, section{name: name})
			continue
		}
		if n := len(a.sections); n > 0 {
			a.sections[n-1].text += line
		} else {
			a.comment += line
		}
	}
	return a
}

// heading returns the name of the section that begins with line.
func heading(line string) (string, bool) {
	line = strings.TrimRight(line, "\n")
	inner, begins := strings.CutPrefix(line, "-- ")
	name, ends := strings.CutSuffix(inner, " --")
	return name, begins && ends
}

// find returns the section of the given name; nil without it.
func (a *archive) find(name string) *section {
	for i := range a.sections {
		if a.sections[i].name == name {
			return &a.sections[i]
		}
	}
	return nil
}

// text returns a section's text; empty without the section.
func (a *archive) text(name string) string {
	if s := a.find(name); s != nil {
		return s.text
	}
	return ""
}

// set replaces a section's text, at the end if there was none.
func (a *archive) set(name, text string) {
	if s := a.find(name); s != nil {
		s.text = text
		return
	}
	a.sections = append(a.sections, section{name, text})
}

// String writes the transcript. It is what parse has read, unless a section is without a line break at its end.
func (a *archive) String() string {
	var b strings.Builder
	b.WriteString(a.comment)
	for _, s := range a.sections {
		fmt.Fprintf(&b, "-- %s --\n%s", s.name, s.text)
	}
	return b.String()
}

// settings reads a section of "key: value" lines; other lines are left out. Without the section there are none.
func (a *archive) settings(name string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(a.text(name)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			out[key] = strings.TrimSpace(value)
		}
	}
	return out
}
