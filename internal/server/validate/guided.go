package validate

import (
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/portico-llm/portico/api/openai"
)

// constraints lists the guided-decoding constraints of a request, by their short names. The order is that of the
// message in guided; short names are the ones workers know.
func constraints(c *openai.Common) []string {
	var set []string
	if c.GuidedJSON != nil {
		set = append(set, "json")
	}
	if c.GuidedRegex != nil {
		set = append(set, "regex")
	}
	if len(c.GuidedChoice) > 0 { // no choices are no constraint
		set = append(set, "choice")
	}
	if c.GuidedGrammar != nil {
		set = append(set, "grammar")
	}
	return set
}

// guided checks that at most one constraint is set and that it isn't hopeless. Whether a schema, an expression or a
// grammar makes sense is for the worker's backend to say: dialects differ.
func guided(c *openai.Common, _ Options) error {
	// Passed over it would leave the answer free, and the client wouldn't know.
	if c.StructuredOutputs != nil {
		return refuse("structured_outputs", "`structured_outputs` is not supported: use response_format, guided_json, "+
			"guided_regex, guided_choice or guided_grammar")
	}
	// Which of them would win is nowhere defined, so none does.
	if set := constraints(c); len(set) > 1 {
		return refuse("guided_"+set[1], "only one of guided_json, guided_regex, guided_choice and guided_grammar can be "+
			"set, not %s", strings.Join(set, " and "))
	}
	if c.GuidedRegex != nil {
		if why := regexHopeless(*c.GuidedRegex); why != "" {
			return refuse("guided_regex", "`guided_regex` %s", why)
		}
		if what := regexBeyond(*c.GuidedRegex); what != "" {
			return refuse("guided_regex", "`guided_regex` must be a regular expression without %s: no engine can hold an "+
				"answer to them", what)
		}
	}
	// What is inside a grammar depends on the backend: only emptiness is wrong everywhere.
	if c.GuidedGrammar != nil && *c.GuidedGrammar == "" {
		return refuse("guided_grammar", "`guided_grammar` must not be empty")
	}
	return guidedJSON(c)
}

// guidedJSON checks a schema. One given as a string has to hold an object as shallow as any other.
func guidedJSON(c *openai.Common) error {
	if len(c.GuidedJSON) == 0 {
		return nil
	}
	// A schema given as an object is part of the body, whose depth is bounded already.
	if c.GuidedJSON[0] != '"' {
		return schema("guided_json", c.GuidedJSON)
	}
	// Depth is bounded for the sake of schema compilers, which recurse.
	inner, err := jsontext.AppendUnquote(nil, c.GuidedJSON)
	if err != nil || !isObject(inner) || depth(inner) > openai.DefaultMaxDepth {
		return refuse("guided_json", "`guided_json` must be a JSON schema, as an object or as a string that holds one, "+
			"nested at most %d levels", openai.DefaultMaxDepth)
	}
	return schema("guided_json", inner)
}

// schema checks that a schema isn't hopeless. The name is that of the field.
func schema(name string, raw []byte) error {
	if why := schemaHopeless(raw); why != "" {
		return refuse(name, "`%s` %s", name, why)
	}
	return nil
}

// depth returns how deep valid JSON nests. It must not be called with anything else: it trusts that every string ends.
func depth(raw []byte) int {
	// Valid JSON needs no look at what the brackets belong to; strings are passed over.
	deepest, now := 0, 0
	for i := 0; i < len(raw); i++ {
		switch raw[i] {
		case '"':
			for i++; raw[i] != '"'; i++ {
				if raw[i] == '\\' {
					i++
				}
			}
		case '{', '[':
			now++
			deepest = max(deepest, now)
		case '}', ']':
			now--
		}
	}
	return deepest
}

// responseFormat checks the form asked for and that nothing else constrains the answer. Types beyond OpenAI's three are
// refused: an answer in another form than the one asked for would be worse.
func responseFormat(req *openai.ChatRequest) error {
	f := req.ResponseFormat
	if f == nil {
		return nil
	}
	switch f.Type {
	case "text":
		return nil // any answer is text
	// A constraint, checked below with the next.
	case "json_object":
	case "json_schema":
		if err := jsonSchema(f.JSONSchema); err != nil {
			return err
		}
	default:
		return refuse("response_format.type", "`response_format.type` must be text, json_object or json_schema")
	}
	// The format is a constraint itself.
	if set := constraints(&req.Common); len(set) > 0 {
		return refuse("guided_"+set[0], "`guided_%s` can't be combined with a response_format of JSON: only one "+
			"constraint can be set", set[0])
	}
	return nil
}

// jsonSchema checks that the form has a name and says something.
func jsonSchema(s *openai.JSONSchema) error {
	const path = "response_format.json_schema"
	switch {
	case s == nil:
		return refuse(path, "`%s` must be an object with a name and a schema", path)
	// OpenAI requires it, and a client written for it sends one.
	case s.Name == "":
		return refuse(path+".name", "`%s.name` must be a string that isn't empty", path)
	case s.Schema == nil: // without one, json_object would have been meant
		return refuse(path+".schema", "`%s.schema` must be a JSON schema object", path)
	}
	return schema(path+".schema", s.Schema)
}
