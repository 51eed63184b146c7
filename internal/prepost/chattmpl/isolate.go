package chattmpl

import (
	"regexp"
	"strings"
	"unicode"
)

// Fuel pays for every instruction and every byte, but not for what one instruction does with values that hold one value
// many times over, such as comparing them. A template gets such values by doubling a list again and again: in an
// assignment that uses its own old value twice, or in a macro that calls itself with a list it makes. (One that hides
// this behind other names only hurts its own operator.)
//
// Those few templates are rendered in a goroutine of their own, which can be given up at the deadline but costs about
// as much again as a short render; all others end by fuel alone and are rendered where the request is.

// Written for the source of templates as they are published, with or without white-space control and line breaks.
var (
	assignments = regexp.MustCompile(`\{%[-+]?\s*set\s+([\w.]+)\s*=((?s:.*?))%\}`)            // name, value
	macros      = regexp.MustCompile(`\{%[-+]?\s*macro\s+(\w+)((?s:.*?))\{%[-+]?\s*endmacro`) // name, body
	listLiteral = regexp.MustCompile(`(?:^|[=(,+])\s*\[`)                                     // not an index
)

// mayHideWork reports whether a template can do more work than fuel counts. A wrong yes costs some time in each render,
// a wrong no a goroutine that can't be given up.
func mayHideWork(src string) bool {
	for _, m := range assignments.FindAllStringSubmatch(src, -1) {
		name, value := m[1], m[2]
		// Its old value twice: the new one is at least twice as large.
		if words(value, name) > 1 &&
			(strings.Contains(value, "+") || listLiteral.MatchString(value)) {
			return true
		}
	}
	for _, m := range macros.FindAllStringSubmatch(src, -1) {
		// It names itself, and makes a list on the way.
		if words(m[2], m[1]) > 0 && listLiteral.MatchString(m[2]) {
			return true
		}
	}
	return false
}

// words counts how often a name stands in an expression, not as part of another one.
func words(expression, name string) int {
	n := 0
	for _, word := range strings.FieldsFunc(expression, func(r rune) bool {
		return r != '.' && r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r)
	}) {
		if word == name {
			n++
		}
	}
	return n
}
