package config

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// value is the typed side of a setting: a variable in a Config and how text becomes its value.
type value interface {
	set(text string) error // leaves the variable alone on failure
	String() string        // as set would take it
	allowed() string       // what set takes, for help and errors
	kind() string          // the word for an argument in the help text
}

// textValue is any string.
type textValue struct{ p *string }

// text binds a string, and gives it its default, as the other constructors do.
func text(p *string, def string) value { *p = def; return textValue{p} }

// set takes any text, the empty one too.
func (v textValue) set(s string) error { *v.p = s; return nil }
func (v textValue) String() string     { return *v.p }
func (v textValue) allowed() string    { return "any text" }
func (v textValue) kind() string       { return "TEXT" }

// pathValue is a text that names a file or a folder.
type pathValue struct{ textValue }

// path binds a file or folder. Whether it exists is found out by who opens it, which can say what it is for.
func path(p *string) value { return pathValue{textValue{p}} }

func (v pathValue) allowed() string { return "a path" }
func (v pathValue) kind() string    { return "PATH" }

// choiceValue is one of a few words.
type choiceValue struct {
	p     *string  // never empty
	words []string // all that are allowed
}

// choice binds a word. Case matters, as it does in Dynamo.
func choice(p *string, def string, words ...string) value { *p = def; return choiceValue{p, words} }

// set takes one of the words, letter by letter.
func (v choiceValue) set(s string) error {
	if !slices.Contains(v.words, s) {
		return errNotAllowed
	}
	*v.p = s
	return nil
}
func (v choiceValue) String() string  { return *v.p }
func (v choiceValue) allowed() string { return "one of " + strings.Join(v.words, ", ") }
func (v choiceValue) kind() string    { return strings.Join(v.words, "|") }

// boolValue takes the spellings that Dynamo takes.
type boolValue struct{ p *bool }

// boolean binds a switch.
func boolean(p *bool, def bool) value { *p = def; return boolValue{p} }

// set takes these in any case.
func (v boolValue) set(s string) error {
	switch strings.ToLower(s) {
	case "1", "true", "yes", "on":
		*v.p = true
	case "0", "false", "no", "off":
		*v.p = false
	default:
		return errNotAllowed
	}
	return nil
}
func (v boolValue) String() string  { return strconv.FormatBool(*v.p) }
func (v boolValue) allowed() string { return "true or false (also 1/0, yes/no, on/off)" }
func (v boolValue) kind() string    { return "" }

// intValue is a whole number within bounds, stored times a unit.
type intValue[T int | int64 | uint32 | uint64] struct {
	p        *T
	min, max int64 // in the unit, both allowed
	unit     int64 // what one stands for
}

// integer binds a whole number. A maximum of math.MaxInt32 reads as no maximum.
func integer[T int | int64 | uint32 | uint64](p *T, def, minimum, maximum int64) value {
	return scaled(p, def, minimum, maximum, 1)
}

// scaled is an integer that is given in another unit than it is stored in: megabytes for bytes.
func scaled[T int | int64 | uint32 | uint64](p *T, def, minimum, maximum, unit int64) value {
	*p = T(def * unit)
	return intValue[T]{p, minimum, maximum, unit}
}

// set takes decimal digits with an optional sign. Maximum times unit fits T: the table sees to it.
func (v intValue[T]) set(s string) error {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < v.min || n > v.max {
		return errNotAllowed
	}
	*v.p = T(n * v.unit)
	return nil
}
func (v intValue[T]) String() string { return strconv.FormatInt(int64(*v.p)/v.unit, 10) }

// allowed leaves out a maximum that is there only to keep arithmetic from overflowing.
func (v intValue[T]) allowed() string {
	if v.max == math.MaxInt32 {
		return fmt.Sprintf("a whole number, at least %d", v.min)
	}
	return fmt.Sprintf("a whole number from %d to %d", v.min, v.max)
}
func (v intValue[T]) kind() string { return "NUMBER" }

// durationValue is a number in the setting's unit, or a number with a unit of its own.
type durationValue struct {
	p        *time.Duration
	unit     time.Duration // of a number without one
	min, max time.Duration // both allowed
}

// longest is the bound of every duration: anything longer is a slip.
const longest = 30 * 24 * time.Hour

// seconds binds a duration that is given in seconds, as Dynamo gives most.
func seconds(p *time.Duration, def, minimum time.Duration) value {
	*p = def
	return durationValue{p, time.Second, minimum, longest}
}

// milliseconds binds a duration that is given in milliseconds, as names that end in _MS say.
func milliseconds(p *time.Duration, def, minimum time.Duration) value {
	*p = def
	return durationValue{p, time.Millisecond, minimum, longest}
}

// set takes a plain number in the unit, fractions too, or what time.ParseDuration takes.
func (v durationValue) set(s string) error {
	d, err := time.ParseDuration(s)
	if n, numErr := strconv.ParseFloat(s, 64); numErr == nil {
		// The bound is checked before the conversion: a float too large for a Duration has no defined one.
		if math.IsNaN(n) || math.Abs(n) > float64(longest)/float64(v.unit) {
			return errNotAllowed
		}
		d, err = time.Duration(n*float64(v.unit)), nil
	}
	if err != nil || d < v.min || d > v.max {
		return errNotAllowed
	}
	*v.p = d
	return nil
}

// String is a plain number again, so that a dump reads like the file it may become.
func (v durationValue) String() string {
	return strconv.FormatFloat(float64(*v.p)/float64(v.unit), 'f', -1, 64)
}
func (v durationValue) allowed() string {
	unit := "seconds"
	if v.unit == time.Millisecond {
		unit = "milliseconds"
	}
	return fmt.Sprintf("%s from %s to %s, or with a unit as in 1500ms", unit, durationValue{&v.min, v.unit, 0, 0},
		durationValue{&v.max, v.unit, 0, 0})
}
func (v durationValue) kind() string {
	if v.unit == time.Millisecond {
		return "MS"
	}
	return "SECS"
}

// numberValue is a fraction within bounds.
type numberValue struct {
	p        *float64
	min, max float64
}

// number binds a fraction.
func number(p *float64, def, minimum, maximum float64) value {
	*p = def
	return numberValue{p, minimum, maximum}
}

// set takes what strconv does, exponents included.
func (v numberValue) set(s string) error {
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || !(n >= v.min && n <= v.max) { // written so that NaN is refused
		return errNotAllowed
	}
	*v.p = n
	return nil
}
func (v numberValue) String() string  { return strconv.FormatFloat(*v.p, 'f', -1, 64) }
func (v numberValue) allowed() string { return fmt.Sprintf("a number from %v to %v", v.min, v.max) }
func (v numberValue) kind() string    { return "NUMBER" }

// listValue is a comma-separated list without empty elements.
type listValue struct{ p *[]string }

// list binds a list.
func list(p *[]string, def ...string) value { *p = def; return listValue{p} }

// set drops blanks around elements and elements that are empty; a list of nothing is refused.
func (v listValue) set(s string) error {
	var elements []string
	for element := range strings.SplitSeq(s, ",") {
		if element = strings.TrimSpace(element); element != "" {
			elements = append(elements, element)
		}
	}
	if len(elements) == 0 {
		return errNotAllowed
	}
	*v.p = elements
	return nil
}
func (v listValue) String() string  { return strings.Join(*v.p, ",") }
func (v listValue) allowed() string { return "a list with commas" }
func (v listValue) kind() string    { return "A,B" }

// pairsValue is a list of key=value, percent-encoded as OpenTelemetry has it.
type pairsValue struct{ p *map[string]string }

// pairs binds keys and values.
func pairs(p *map[string]string) value { *p = nil; return pairsValue{p} }

// set replaces all pairs at once: layers don't mix.
func (v pairsValue) set(s string) error {
	m, err := parsePairs(s)
	if err != nil {
		return err
	}
	*v.p = m
	return nil
}
func (v pairsValue) String() string  { return formatPairs(*v.p) }
func (v pairsValue) allowed() string { return "a list key=value,key=value" }
func (v pairsValue) kind() string    { return "K=V,K=V" }

// ignoredValue belongs to a setting without effect: switches are still checked, anything else is taken as it is.
type ignoredValue struct{ textValue }

// ignoredText takes an argument and forgets it.
func ignoredText() value { return ignoredValue{textValue{new(string)}} }

// ignoredSwitch takes an on or off and forgets it. It checks the spelling: a switch with a word behind it is most
// likely a switch that was taken for one with an argument.
func ignoredSwitch() value { return boolean(new(bool), false) }
