package toolparse

import (
	"bytes"
	"encoding/json"
	"strings"
)

// kinds is a set of JSON types.
type kinds uint8

const (
	kindString kinds = 1 << iota
	kindNumber       // and integer
	kindBool
	kindNull
	kindObject
	kindArray
	kindNested // no declared type, in a dialect whose values may be made of tags

	kindAny = kindNumber | kindBool | kindNull | kindObject | kindArray
)

// Types matter for dialects whose values are plain text: 5 may be a number or a string, and only the tool's schema knows.

// schemas answers what the declared tools say of their parameters. A tool's schema is read when it is called.
type schemas struct {
	tools []Tool
	read  map[string]map[string]kinds
}

// node is the part of a JSON schema that tells types.
type node struct {
	Type       json.RawMessage            `json:"type"`
	Properties map[string]json.RawMessage `json:"properties"`
	AnyOf      []json.RawMessage          `json:"anyOf"`
	OneOf      []json.RawMessage          `json:"oneOf"`
	AllOf      []json.RawMessage          `json:"allOf"`
	Enum       []json.RawMessage          `json:"enum"`
	Const      json.RawMessage            `json:"const"`
	Ref        string                     `json:"$ref"`
	Defs       map[string]json.RawMessage `json:"$defs"`
	OldDefs    map[string]json.RawMessage `json:"definitions"`
}

// kinds returns what a function's parameter may be; 0 when the schema doesn't say.
func (s *schemas) kinds(function, parameter string) kinds {
	// A map that is there but empty says that the function isn't declared, or its schema not read.
	if known, ok := s.read[function]; ok {
		return known[parameter]
	}
	if s.read == nil {
		s.read = make(map[string]map[string]kinds)
	}
	known := make(map[string]kinds)
	s.read[function] = known
	for _, t := range s.tools {
		var root node
		if t.Name != function || json.Unmarshal(t.Parameters, &root) != nil {
			continue
		}
		for name, property := range root.Properties {
			known[name] = root.kindsOf(property, 0)
		}
	}
	return known[parameter]
}

// kindsOf returns the types that a schema allows. References are followed within root.
func (root *node) kindsOf(schema json.RawMessage, depth int) kinds {
	var n node
	if depth > 8 || json.Unmarshal(schema, &n) != nil {
		return 0
	}
	// Alternatives and parts are added up: too many kinds are harmless, since a value has to look like one of them.
	k := typeKinds(n.Type)
	for _, list := range [][]json.RawMessage{n.AnyOf, n.OneOf, n.AllOf} {
		for _, other := range list {
			k |= root.kindsOf(other, depth+1)
		}
	}
	if name, ok := strings.CutPrefix(n.Ref, "#/$defs/"); ok {
		k |= root.kindsOf(root.Defs[name], depth+1)
	} else if name, ok := strings.CutPrefix(n.Ref, "#/definitions/"); ok {
		k |= root.kindsOf(root.OldDefs[name], depth+1)
	}
	if k == 0 {
		for _, v := range append(n.Enum, n.Const) {
			k |= kindOfValue(v)
		}
		if n.Properties != nil {
			k |= kindObject
		}
	}
	return k
}

// typeKinds reads the type keyword: a name or a list of names.
func typeKinds(raw json.RawMessage) (k kinds) {
	var one string
	var all []string
	if json.Unmarshal(raw, &one) == nil {
		all = []string{one}
	} else if json.Unmarshal(raw, &all) != nil {
		return 0
	}
	for _, name := range all {
		switch name {
		case "string":
			k |= kindString
		case "integer", "number":
			k |= kindNumber
		case "boolean":
			k |= kindBool
		case "null":
			k |= kindNull
		case "object":
			k |= kindObject
		case "array":
			k |= kindArray
		}
	}
	return k
}

// kindOfValue tells the kind of a JSON value by its first byte.
func kindOfValue(v []byte) kinds {
	if len(v) == 0 {
		return 0
	}
	switch v[0] {
	case '"':
		return kindString
	case '{':
		return kindObject
	case '[':
		return kindArray
	case 't', 'f':
		return kindBool
	case 'n':
		return kindNull
	}
	return kindNumber
}

// convert makes JSON of a parameter's text. What isn't of one of the allowed kinds stays the string that it is, as it
// is: a client can still refuse it, and sees what the model meant. Where mark is set, values may be made of tags.
func convert(text []byte, k kinds, mark string) []byte {
	t := bytes.TrimSpace(text)
	if mark != "" && k&(kindNested|kindObject|kindArray) != 0 && bytes.HasPrefix(t, []byte(mark)) {
		if out, v := nestedValue(t, mark, 0); v == yes {
			return out
		}
	}
	word := strings.ToLower(string(t))
	switch {
	case k&kindNull != 0 && (word == "null" || word == "none"):
		return []byte("null")
	case k&kindBool != 0 && (word == "true" || word == "false"):
		return []byte(word)
	case k&kindNumber != 0 && isNumber(string(t)):
		return t
	}
	if k&(kindObject|kindArray) != 0 && len(t) > 0 && kindOfValue(t)&k&(kindObject|kindArray) != 0 {
		var out bytes.Buffer
		if json.Compact(&out, t) == nil {
			return out.Bytes()
		}
		// Python's literals where JSON was asked for.
		var r reader
		r.start(pythonText, true)
		if n, v := r.feed(t, true); v == yes && n == len(t) {
			return r.out
		}
	}
	if k == kindAny && len(t) > 0 && t[0] == '"' && json.Valid(t) {
		return t // said to be JSON, and a string of it
	}
	return appendQuoted(nil, text)
}
