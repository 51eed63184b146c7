package pipeline

import (
	"bytes"
	"encoding/json"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/internal/fault"
)

// noParameters is the schema of a function that takes none.
const noParameters = `{"type":"object","properties":{}}`

// chatGuided returns the guided_decoding object of a chat request; empty: none. A call that has to be made comes before
// the form of the answer: a call is no answer.
func chatGuided(req *openai.ChatRequest) (json.RawMessage, error) {
	// The order is the precedence: call, response_format, guided_*. That no two stand in each other's way has been
	// validated.
	schema, err := callSchema(req)
	if err != nil {
		return nil, err
	}
	if schema == nil {
		schema = formatSchema(req.ResponseFormat)
	}
	if schema == nil {
		return commonGuided(&req.Common), nil
	}
	var w objectWriter
	w.raw("json", schema)
	guidedSettings(&w, &req.Common)
	return w.done(), nil
}

// commonGuided returns the guided_decoding object of the guided_* fields; empty: none. Settings without a constraint
// are nothing to guide by.
func commonGuided(c *openai.Common) json.RawMessage {
	var w objectWriter
	// At most one of the four is set; each empty one writes nothing.
	w.raw("json", c.GuidedJSON)
	if c.GuidedRegex != nil {
		w.text("regex", *c.GuidedRegex)
	}
	w.texts("choice", c.GuidedChoice)
	if c.GuidedGrammar != nil {
		w.text("grammar", *c.GuidedGrammar)
	}
	if w.buf == nil {
		return nil
	}
	guidedSettings(&w, c)
	return w.done()
}

// guidedSettings adds how the worker is to guide, which goes with any constraint.
func guidedSettings(w *objectWriter, c *openai.Common) {
	if c.GuidedBackend != nil {
		w.text("backend", *c.GuidedBackend)
	}
	if c.GuidedWhitespacePattern != nil {
		w.text("whitespace_pattern", *c.GuidedWhitespacePattern)
	}
}

// formatSchema returns the schema a response format stands for; nil: any text.
func formatSchema(f *openai.ResponseFormat) json.RawMessage {
	switch {
	case f == nil:
		return nil
	// JSON mode of OpenAI's: an object, whatever its members.
	case f.Type == "json_object":
		return json.RawMessage(`{"type":"object"}`)
	case f.Type == "json_schema" && f.JSONSchema != nil:
		return f.JSONSchema.Schema
	}
	return nil
}

// callSchema returns the schema of an answer that has to be a tool call; nil when it need not be one. A named function
// takes its arguments alone; otherwise the answer is a list of calls.
func callSchema(req *openai.ChatRequest) (json.RawMessage, error) {
	c := req.ToolChoice
	if c == nil {
		return nil, nil
	}
	// Modes auto and none leave the answer free. That a named function exists has been validated.
	switch c.Mode {
	case "function":
		for i := range req.ToolList {
			if req.ToolList[i].Name == c.Name {
				return parameters(&req.ToolList[i]), nil
			}
		}
	case "required":
		// Absent is true, as OpenAI documents it.
		one := req.ParallelToolCalls != nil && !*req.ParallelToolCalls
		return callListSchema(req.ToolList, one)
	}
	return nil, nil
}

// parameters returns a tool's schema; a tool without one takes nothing.
func parameters(t *openai.Tool) json.RawMessage {
	if t.Parameters == nil {
		return json.RawMessage(noParameters)
	}
	return t.Parameters
}

// callListSchema is the schema of a list of calls of any of the tools: {"name","parameters"} each. References such as
// #/$defs/City count from the root, so the definitions of all tools move there.
func callListSchema(tools []openai.Tool, one bool) (json.RawMessage, error) {
	// Written by hand: the schemas inside keep the client's key order, which guides the order the model writes in.
	out := []byte(`{"type":"array","minItems":1,`)
	// At least one call is what required means; more are welcome unless the client says otherwise.
	if one {
		out = append(out, `"maxItems":1,`...)
	}
	out = append(out, `"items":{"type":"object","anyOf":[`...)
	var defs objectWriter
	seen := map[string]json.RawMessage{}
	for i := range tools {
		if i > 0 {
			out = append(out, ',')
		}
		schema, lifted, err := splitDefs(parameters(&tools[i]))
		if err != nil {
			return nil, fault.Bad("tools", "`tools`: the parameters of function %q are not a JSON schema", tools[i].Name)
		}
		// The same definition in several tools is the rule, two of one name the exception; there, no schema is right.
		for _, def := range lifted {
			if had, ok := seen[def.name]; ok {
				if !bytes.Equal(had, def.schema) {
					return nil, fault.Bad("tools", "the `tools` define %q in $defs differently; give it one name each", def.name)
				}
				continue
			}
			seen[def.name] = def.schema
			defs.raw(def.name, def.schema)
		}
		// A name and the parameters that go with it: anyOf keeps a model from mixing two tools.
		out = append(out, `{"properties":{"name":{"type":"string","enum":[`...)
		out = append(appendQuoted(out, tools[i].Name), `]},"parameters":`...)
		out = append(append(out, schema...), `},"required":["name","parameters"]}`...)
	}
	out = append(out, "]}"...)
	if d := defs.done(); d != nil {
		out = append(append(out, `,"$defs":`...), d...)
	}
	return append(out, '}'), nil
}

// definition is one member of a schema's $defs.
type definition struct {
	name   string          // what a reference names after #/$defs/
	schema json.RawMessage // as the client wrote it
}

// splitDefs returns a schema without its $defs, and these.
func splitDefs(schema json.RawMessage) (json.RawMessage, []definition, error) {
	// Most schemas have none and are passed on as they are.
	if !bytes.Contains(schema, []byte(`"$defs"`)) {
		return schema, nil, nil
	}
	// Only the schema's own definitions move; what is called $defs further down is data or belongs to a part with an
	// id of its own.
	var rest objectWriter
	var defs []definition
	err := eachMember(schema, func(name string, value json.RawMessage) error {
		if name != "$defs" || value[0] != '{' {
			rest.raw(name, value)
			return nil
		}
		return eachMember(value, func(name string, value json.RawMessage) error {
			defs = append(defs, definition{name, value})
			return nil
		})
	})
	// A schema of nothing but definitions allows everything.
	if rest.buf == nil {
		return json.RawMessage("{}"), defs, err
	}
	return rest.done(), defs, err
}

// eachMember calls do for each member of a JSON object, in order. The values alias raw.
func eachMember(raw json.RawMessage, do func(name string, value json.RawMessage) error) error {
	dec := jsontext.NewDecoder(bytes.NewBuffer(raw), jsontext.AllowDuplicateNames(true))
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	// On a syntax error the kind is none, and the next read returns it.
	for dec.PeekKind() != '}' {
		name, err := dec.ReadToken()
		if err != nil {
			return err
		}
		// The token is only valid until the next read.
		key := name.String()
		value, err := dec.ReadValue()
		if err != nil {
			return err
		}
		if err := do(key, json.RawMessage(value)); err != nil {
			return err
		}
	}
	return nil
}
