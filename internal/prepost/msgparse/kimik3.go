package msgparse

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/portico-llm/portico/internal/prepost"
)

// Kimi K3 writes each argument as an element of its own, with its type: {"n": 1} is
// <|open|>argument key="n" type="number"<|sep|>1<|close|>argument<|sep|>. So the tool's schema is taken apart here, where
// other dialects leave it to the engine.

const (
	k3Close    = "<|close|>"
	k3Argument = "<|open|>argument "
	k3ArgEnd   = "<|close|>argument<|sep|>"
)

func isKimiK3(dialect string) bool { return dialect == "kimi_k3" || dialect == "kimi-k3" }

// kimiK3Format is a message behind its thought: text where there may be some, and calls.
func kimiK3Format(q *prepost.AnswerRequest) any {
	var tags []tagFormat
	for _, f := range callable(q) {
		tags = append(tags, tagged(`<|open|>call tool="`+f.Name+`" index="`,
			sequence(regex("[1-9][0-9]*"), constant(`"<|sep|>`), k3Arguments(argumentSchema(q, &f))),
			"<|close|>call<|sep|>"))
	}
	var calls any = several(tags, q.OneCall)
	if q.OneCall && !mustCall(q) {
		calls = oneOf(tags)
	}
	tools := tagged("<|open|>tools<|sep|>", calls, "<|close|>tools<|sep|>")
	var text any
	switch q.Choice {
	case prepost.MustCallFunction:
		text = constant("")
	case prepost.MustCall:
		text = anyText("<|open|>", k3Close)
	default:
		return sequence(anyText("<|open|>tools<|sep|>", "<|open|>think<|sep|>", "<|close|>think<|sep|>", "<|open|>call"),
			optional(tools))
	}
	return sequence(optional(constant("<|open|>response<|sep|>")), text, optional(constant("<|close|>response<|sep|>")),
		tools, optional(constant("<|close|>message<|sep|>")))
}

// oneOf is one call.
func oneOf(tags []tagFormat) any {
	if len(tags) == 1 {
		return tags[0]
	}
	var all []any
	for _, t := range tags {
		all = append(all, t)
	}
	return either(all...)
}

// k3Schema is the part of a JSON schema that decides how an argument is written.
type k3Schema struct {
	Type       json.RawMessage   `json:"type"`
	Properties json.RawMessage   `json:"properties"`
	Required   []string          `json:"required"`
	AnyOf      []json.RawMessage `json:"anyOf"`
	OneOf      []json.RawMessage `json:"oneOf"`
	AllOf      []json.RawMessage `json:"allOf"`
	Enum       []json.RawMessage `json:"enum"`
	Const      json.RawMessage   `json:"const"`
	Ref        string            `json:"$ref"`
	Pattern    string            `json:"pattern"`
	MinLength  int               `json:"minLength"`
	MaxLength  *int              `json:"maxLength"`

	Defs    map[string]json.RawMessage `json:"$defs"`
	OldDefs map[string]json.RawMessage `json:"definitions"`
}

// k3Arguments are the arguments of a call: those that are required in their order, then the others in any.
func k3Arguments(schema json.RawMessage) any {
	var root k3Schema
	if json.Unmarshal(schema, &root) != nil {
		return k3Anything()
	}
	names, schemas := members(root.Properties)
	if len(names) == 0 {
		if root.Properties != nil && len(root.Required) == 0 {
			return constant("")
		}
		return k3Anything()
	}
	var must, may []any
	required := map[string]bool{}
	for _, name := range root.Required {
		if required[name] {
			continue
		}
		required[name] = true
		forms := root.forms(name, schemas[name])
		switch {
		case forms == nil:
			return k3Anything()
		case len(forms) == 1:
			must = append(must, forms[0])
		default:
			must = append(must, either(forms...))
		}
	}
	for _, name := range names {
		if required[name] {
			continue
		}
		forms := root.forms(name, schemas[name])
		if forms == nil {
			return k3Anything()
		}
		may = append(may, forms...)
	}
	switch {
	case len(may) == 1:
		must = append(must, star(may[0]))
	case len(may) > 1:
		must = append(must, star(either(may...)))
	}
	if len(root.Required) == 0 {
		return must[0]
	}
	return sequence(must...)
}

// k3Anything is any arguments at all.
func k3Anything() any {
	return star(tagged(k3Argument, sequence(regex(`[^<]*<\|sep\|>`), anyText(k3Close)), k3ArgEnd))
}

// forms are the ways of writing an argument, one for each type it may have. Nil: its name can't stand in markup.
func (root *k3Schema) forms(name string, schema json.RawMessage) []any {
	if strings.ContainsAny(name, "\"&<") {
		return nil
	}
	var out []any
	root.eachType(schema, 0, func(kind string, content any) {
		out = append(out, tagged(k3Argument+`key="`+name+`" type="`+kind+`"<|sep|>`, content, k3ArgEnd))
	})
	return out
}

// maxDepth bounds how far references and alternatives are followed: schemas may refer to themselves.
const maxDepth = 8

// k3Types are the types in the order in which they are tried. Engines know integer, the markup doesn't.
var k3Types = [...]string{"string", "number", "integer", "boolean", "array", "object", "null"}

// eachType calls add for each type that a value of the schema may have, with the form of such a value.
func (root *k3Schema) eachType(schema json.RawMessage, depth int, add func(kind string, content any)) {
	var s k3Schema
	if depth > maxDepth || len(schema) == 0 || json.Unmarshal(schema, &s) != nil || len(s.AllOf) > 0 {
		s = k3Schema{} // anything
	}
	switch {
	case s.Ref != "":
		root.eachType(root.target(s.Ref), depth+1, add)
		return
	case len(s.AnyOf)+len(s.OneOf) > 0:
		for _, one := range append(slices.Clone(s.AnyOf), s.OneOf...) {
			root.eachType(one, depth+1, add)
		}
		return
	case s.Const != nil:
		eachValue([]json.RawMessage{s.Const}, add)
		return
	case s.Enum != nil:
		eachValue(s.Enum, add)
		return
	}
	types := s.types()
	for _, t := range k3Types {
		switch {
		case !slices.Contains(types, t):
		case t == "string":
			add(t, s.text())
		case len(types) == 1:
			add(k3Kind(t), schemaFormat{Type: "json_schema", Schema: root.withDefs(schema), Style: "json"})
		default:
			add(k3Kind(t), schemaFormat{Type: "json_schema", Schema: root.withDefs(retyped(schema, t)), Style: "json"})
		}
	}
}

// types are the types a schema names; without any it allows all.
func (s *k3Schema) types() []string {
	var one string
	var several []string
	switch {
	case json.Unmarshal(s.Type, &one) == nil:
		several = []string{one}
	case json.Unmarshal(s.Type, &several) != nil || len(several) == 0:
		several = []string{"string", "number", "boolean", "array", "object", "null"}
	}
	return several
}

// k3Kind is the markup's name of a type.
func k3Kind(t string) string {
	if t == "integer" {
		return "number"
	}
	return t
}

// text is the form of a string, which stands as it is. Patterns that are more than what is between two anchors are left
// to the client: the engine has no way to hold a part of the text to them.
func (s *k3Schema) text() any {
	inner, begins := strings.CutPrefix(s.Pattern, "^")
	inner, ends := strings.CutSuffix(inner, "$")
	switch {
	case begins && ends && inner != "" && !strings.ContainsAny(inner, `|<\^$`):
		return regex("(?:" + inner + ")")
	case s.Pattern == "" && s.MaxLength != nil && s.MinLength >= 0 && s.MinLength <= *s.MaxLength:
		return regex(fmt.Sprintf("(?:[^<]|<[^|]){%d,%d}", s.MinLength, *s.MaxLength))
	}
	return anyText(k3Close)
}

// eachValue is eachType for values that are listed.
func eachValue(values []json.RawMessage, add func(kind string, content any)) {
	byKind := map[string][]json.RawMessage{}
	var texts []any
	free := false
	for _, v := range values {
		v = bytes.TrimSpace(v)
		kind := kindOf(v)
		if kind != "string" {
			byKind[kind] = append(byKind[kind], v)
			continue
		}
		var text string
		if json.Unmarshal(v, &text) != nil || strings.Contains(text, k3Close) {
			free = true // can't be told from the end of the argument
			continue
		}
		texts = append(texts, constant(text))
	}
	switch {
	case free:
		add("string", anyText(k3Close))
	case len(texts) == 1:
		add("string", texts[0])
	case len(texts) > 1:
		add("string", either(texts...))
	}
	for _, kind := range k3Types {
		if list := byKind[kind]; len(list) > 0 {
			raw, _ := json.Marshal(map[string][]json.RawMessage{"enum": list}) // of JSON just read
			add(kind, schemaFormat{Type: "json_schema", Schema: raw, Style: "json"})
		}
	}
}

// kindOf is the type of a value.
func kindOf(v json.RawMessage) string {
	switch {
	case len(v) == 0 || v[0] == 'n':
		return "null"
	case v[0] == '"':
		return "string"
	case v[0] == '{':
		return "object"
	case v[0] == '[':
		return "array"
	case v[0] == 't' || v[0] == 'f':
		return "boolean"
	}
	return "number"
}

// target is what a reference within the schema leads to; nil: nowhere, so that anything goes.
func (root *k3Schema) target(ref string) json.RawMessage {
	if name, ok := strings.CutPrefix(ref, "#/$defs/"); ok {
		return root.Defs[name]
	}
	if name, ok := strings.CutPrefix(ref, "#/definitions/"); ok {
		return root.OldDefs[name]
	}
	return nil
}

// withDefs gives a part of the schema the definitions it may refer to.
func (root *k3Schema) withDefs(part json.RawMessage) json.RawMessage {
	if !bytes.Contains(part, []byte(`"$ref"`)) {
		return part
	}
	var all map[string]json.RawMessage
	if json.Unmarshal(part, &all) != nil {
		return part
	}
	for name, defs := range map[string]map[string]json.RawMessage{"$defs": root.Defs, "definitions": root.OldDefs} {
		if raw, err := json.Marshal(defs); err == nil && len(defs) > 0 {
			all[name] = raw
		}
	}
	out, err := json.Marshal(all)
	if err != nil {
		return part
	}
	return out
}

// retyped is a schema that allows one type of several.
func retyped(schema json.RawMessage, kind string) json.RawMessage {
	all := map[string]json.RawMessage{}
	if len(schema) > 0 && json.Unmarshal(schema, &all) != nil || all == nil {
		all = map[string]json.RawMessage{} // true
	}
	all["type"] = json.RawMessage(`"` + kind + `"`)
	out, err := json.Marshal(all)
	if err != nil {
		return schema
	}
	return out
}

// members returns an object's members, and their names in the order in which they stand: it is the order in which the
// model will write them.
func members(object json.RawMessage) (names []string, values map[string]json.RawMessage) {
	if json.Unmarshal(object, &values) != nil || len(values) == 0 {
		return nil, nil
	}
	seen := map[string]bool{}
	dec := json.NewDecoder(bytes.NewReader(object))
	if _, err := dec.Token(); err != nil {
		return nil, nil
	}
	for dec.More() {
		name, err := dec.Token()
		var value json.RawMessage
		if err != nil || dec.Decode(&value) != nil {
			return nil, nil
		}
		if s, ok := name.(string); ok && !seen[s] {
			seen[s] = true
			names = append(names, s)
		}
	}
	return names, values
}
