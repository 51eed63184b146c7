package validate

import (
	"bytes"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/portico-llm/portico/api/openai"
)

// schemaHopeless says, in words that follow the name of a field, why no engine should be asked to follow a JSON schema:
// it nests too deep for compilers, which recurse, refers to a document that isn't here, or holds a hopeless pattern. It
// is "" when nothing of the kind is found. Everything else about a schema is for the worker's backend to judge.
func schemaHopeless(schema []byte) string {
	s := schemaReader{own: map[string]bool{}}
	// References may stand before what they name, so they are looked at once all names are known.
	s.value(jsontext.NewDecoder(bytes.NewReader(schema), jsontext.AllowDuplicateNames(true)), "", true)
	if s.wrong != "" {
		return s.wrong
	}
	for _, r := range s.refs {
		document, _, _ := strings.Cut(r.target, "#")
		if document != "" && !s.own[document] {
			return "must hold what its references name: " + at(r.path) + " refers to another document, and none is fetched"
		}
	}
	return ""
}

// schemaReader reads a schema as a stream: no tree is built.
type schemaReader struct {
	own   map[string]bool // the documents that the schema is or holds, by $id
	refs  []reference
	wrong string // the first thing found
}

// reference is a $ref and the JSON pointer of where it stands.
type reference struct{ path, target string }

// at says where something stands in a schema.
func at(path string) string { return "`" + path[:min(len(path), 200)] + "`" }

// value reads one value at a JSON pointer. Only where a schema may stand do members have a meaning: a property may be
// called $ref or pattern.
func (s *schemaReader) value(dec *jsontext.Decoder, path string, isSchema bool) {
	switch kind := dec.PeekKind(); {
	case s.wrong != "":
	case dec.StackDepth() > openai.DefaultMaxDepth:
		s.wrong = "must nest less deep"
	case kind == '{' || kind == '[':
		if _, err := dec.ReadToken(); err != nil {
			return
		}
		for s.wrong == "" && dec.PeekKind() != '}' && dec.PeekKind() != ']' {
			if kind == '[' {
				s.value(dec, path, isSchema)
			} else if name, err := dec.ReadToken(); err == nil {
				s.member(dec, path, name.String(), isSchema)
			}
			if dec.PeekKind() == 0 {
				return // no JSON; told elsewhere
			}
		}
		_, _ = dec.ReadToken() // the end of what PeekKind saw
	default:
		_ = dec.SkipValue() // an error shows again at the next look
	}
}

// member reads one member of an object: of a schema, or of an object that holds schemas by name.
func (s *schemaReader) member(dec *jsontext.Decoder, path, name string, isSchema bool) {
	path += "/" + name
	text := dec.PeekKind() == '"'
	switch {
	case !isSchema:
		s.value(dec, path, true)
	case text && (name == "$ref" || name == "$dynamicRef" || name == "$id" || name == "pattern"):
		value, err := dec.ReadToken()
		if err != nil {
			return
		}
		s.text(path, name, value.String())
	case name == "properties" || name == "$defs" || name == "definitions" || name == "patternProperties" || name == "dependentSchemas":
		s.value(dec, path, false)
	// Data, whatever it looks like.
	case name == "const" || name == "enum" || name == "default" || name == "examples" || name == "example":
		_ = dec.SkipValue() // an error shows again at the next look
	default:
		s.value(dec, path, true)
	}
}

// text takes note of a member whose text has a meaning.
func (s *schemaReader) text(path, name, value string) {
	switch name {
	case "$id":
		document, _, _ := strings.Cut(value, "#")
		s.own[document] = true
	case "pattern":
		if why := regexHopeless(value); why != "" && value != "" {
			s.wrong = "has a pattern that no engine should be given: " + at(path) + " " + why
		}
	default:
		s.refs = append(s.refs, reference{path, value})
	}
}
