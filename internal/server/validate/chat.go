package validate

import (
	"bytes"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/internal/fault"
)

// deprecated refuses what OpenAI replaced by tools long ago. A client that relies on them would take an answer without
// calls for the model's decision, so they aren't ignored.
func deprecated(req *openai.ChatRequest) error {
	for _, f := range [...]struct {
		name, instead string
		value         []byte
	}{{"functions", "tools", req.Functions}, {"function_call", "tool_choice", req.FunctionCall}} {
		if f.value != nil { // whatever it holds; null is absent
			// Not a bad request: the field is a good one, for another server.
			e := fault.New(fault.NotImplemented, "`%s` is deprecated and not supported; use `%s`", f.name, f.instead)
			e.Param = f.name
			return e
		}
	}
	return nil
}

// conversation checks that there is something to answer.
func conversation(req *openai.ChatRequest, opts Options) error {
	switch n := req.Conversation.Messages; {
	case n == 0:
		return refuse("messages", "`messages` must hold at least one message")
	case n > opts.MaxMessages: // templates take time that grows with the number
		return refuse("messages", "`messages` must hold at most %d messages, not %d", opts.MaxMessages, n)
	}
	return nil
}

// tools checks names, kinds and, for strict tools, schemas.
func tools(req *openai.ChatRequest, opts Options) error {
	if req.Tools == nil {
		return nil
	}
	// The whole array has been read by now; what is bounded here is the work of templates and of schema compilers.
	switch n := len(req.ToolList); {
	case n == 0:
		return refuse("tools", "`tools` must not be an empty array; leave it out to have no tools")
	case n > opts.MaxTools:
		return refuse("tools", "`tools` must hold at most %d tools, not %d", opts.MaxTools, n)
	}
	// Names may repeat: upstream and engines take that, and the model decides by description.
	for i := range req.ToolList {
		if err := tool(&req.ToolList[i], "tools["+strconv.Itoa(i)+"]", opts); err != nil {
			return err
		}
	}
	return nil
}

// tool checks one tool; path is where it stands.
func tool(t *openai.Tool, path string, opts Options) error {
	// Some clients leave the type out; there is only one.
	switch {
	case t.Type != "function" && t.Type != "":
		return refuse(path+".type", "`%s.type` must be function", path)
	case t.Name == "":
		return refuse(path+".function.name", "`%s.function.name` must be a string that isn't empty", path)
	case len(t.Name) > opts.MaxToolName:
		return refuse(path+".function.name", "`%s.function.name` must have at most %d bytes, not %d",
			path, opts.MaxToolName, len(t.Name))
	}
	// A strict tool promises that its schema allows nothing unnamed; one that doesn't keep to that is a mistake. OpenAI
	// also wants every property to be required; engines don't depend on it.
	if t.Strict != nil && *t.Strict && t.Parameters != nil && !closed(t.Parameters) {
		return refuse(path+".function.parameters", "`tools`: the parameters of strict function %q must have "+
			"additionalProperties: false in every object schema", t.Name)
	}
	return nil
}

// closed reports whether every object schema in a JSON schema forbids additional properties, as strict tools have to.
// References are not followed: definitions are looked at where they stand. What isn't JSON is not closed.
func closed(schema []byte) bool {
	// Read as a stream: no tree is built, and the depth is bounded since the body's is.
	dec := jsontext.NewDecoder(bytes.NewReader(schema), jsontext.AllowDuplicateNames(true))
	return closedValue(dec, true)
}

// closedValue reads one value. Only where a schema may stand does an object count as one: the members of properties
// are schemas, but properties itself isn't.
func closedValue(dec *jsontext.Decoder, isSchema bool) bool {
	switch dec.PeekKind() {
	case '{':
		return closedObject(dec, isSchema)
	case '[':
		if _, err := dec.ReadToken(); err != nil {
			return false
		}
		// An array stands where schemas may: anyOf and the like.
		for dec.PeekKind() != ']' {
			if !closedValue(dec, true) {
				return false
			}
		}
		_, err := dec.ReadToken()
		return err == nil
	}
	return dec.SkipValue() == nil
}

// closedObject reads one object and checks it when it is a schema for objects: one that says so, or has properties.
func closedObject(dec *jsontext.Decoder, isSchema bool) bool {
	if _, err := dec.ReadToken(); err != nil {
		return false
	}
	// type and properties both make a schema one for objects.
	object, forbids := false, false
	for dec.PeekKind() != '}' {
		name, err := dec.ReadToken()
		if err != nil {
			return false
		}
		key := name.String()
		switch kind := dec.PeekKind(); {
		// The names here are properties' or definitions', the values schemas.
		case !isSchema:
			if !closedValue(dec, true) {
				return false
			}
		// Only false forbids; a schema for the rest allows some.
		case key == "type" || key == "additionalProperties":
			value, err := dec.ReadValue()
			if err != nil {
				return false
			}
			object = object || string(value) == `"object"`
			forbids = forbids || kind == 'f'
		case key == "properties" || key == "$defs" || key == "definitions":
			object = object || key == "properties"
			if !closedValue(dec, false) {
				return false
			}
		case key == "items" || key == "anyOf" || key == "allOf" || key == "oneOf" || key == "not":
			if !closedValue(dec, true) {
				return false
			}
		// Defaults, examples and the like are data, whatever they look like.
		default:
			if dec.SkipValue() != nil {
				return false
			}
		}
	}
	_, err := dec.ReadToken()
	// A schema that isn't for objects has nothing to forbid.
	return err == nil && (!object || forbids)
}

// toolChoice checks that what has to be called is there, and that no other constraint stands in its way.
func toolChoice(req *openai.ChatRequest) error {
	c := req.ToolChoice
	// The model is free: tools may even be missing.
	if c == nil || c.Mode == "none" || c.Mode == "auto" {
		return nil
	}
	// What has to be called has to be there.
	if len(req.ToolList) == 0 {
		return refuse("tools", "`tools` must not be empty when `tool_choice` asks for a call")
	}
	// The call is a constraint itself. A response_format is not in its way: it is about answers, not calls. Two
	// constraints on one answer: an engine takes only one.
	if set := constraints(&req.Common); len(set) > 0 {
		return refuse("guided_"+set[0], "`guided_%s` can't be combined with a `tool_choice` that asks for a call", set[0])
	}
	found := c.Mode == "required"
	for i := range req.ToolList {
		t := &req.ToolList[i]
		if c.Mode != "required" && t.Name != c.Name {
			continue
		}
		// Arguments that must be given are a constraint made of the schema. Where calls are free, it is only shown.
		if err := schema("tools["+strconv.Itoa(i)+"].function.parameters", t.Parameters); err != nil {
			return err
		}
		found = true
	}
	if found {
		return nil
	}
	return refuse("tool_choice.function.name", "`tool_choice` names the function %q, which isn't in `tools`", c.Name)
}

// reasoning checks the fields that switch and bound a model's reasoning.
func reasoning(req *openai.ChatRequest) error {
	if e := req.ReasoningEffort; e != nil {
		switch *e {
		// Templates know some of these each, and take the others as the nearest they know.
		case "none", "minimal", "low", "medium", "high", "xhigh", "max":
		default:
			return refuse("reasoning_effort", "`reasoning_effort` must be none, minimal, low, medium, high, xhigh or max")
		}
	}
	if t := req.Thinking; t != nil {
		switch t.Type {
		// The last two leave it to the model.
		case "enabled", "disabled", "adaptive", "auto":
		default:
			return refuse("thinking.type", "`thinking.type` must be enabled, disabled, adaptive or auto")
		}
	}
	// 0 is allowed: it ends the reasoning as soon as it has begun.
	return within("thinking_token_budget", req.ThinkingTokenBudget, 0, maxTokens)
}

// template checks what reaches the chat template beside messages and tools. Templates are programs, if small ones:
// clients choose among their variables and bring none of their own.
func template(req *openai.ChatRequest) error {
	if req.ChatTemplate != nil {
		return refuse("chat_template", "`chat_template` is not supported: the template comes with the model")
	}
	// Left out, add_generation_prompt is true, and clients have to say that they mean otherwise, as with transformers.
	if yes(req.ContinueFinal) && (req.AddGenerationPrompt == nil || *req.AddGenerationPrompt) {
		return refuse("add_generation_prompt", "`add_generation_prompt` must be false when `continue_final_message` is "+
			"true: an answer either continues the last message or begins a new one")
	}
	// All other variables are free: what a template doesn't know it doesn't read.
	if req.ChatTemplateArgs == nil {
		return nil
	}
	dec := jsontext.NewDecoder(bytes.NewReader(req.ChatTemplateArgs), jsontext.AllowDuplicateNames(true))
	if _, err := dec.ReadToken(); err != nil {
		return refuse("chat_template_kwargs", "`chat_template_kwargs` must be an object")
	}
	// Only the first level is the template's variables.
	for dec.PeekKind() == '"' {
		name, err := dec.ReadToken()
		if err != nil {
			return refuse("chat_template_kwargs", "`chat_template_kwargs` must be an object")
		}
		switch key := name.String(); key {
		// A second source for these would let a template see another conversation than the one that was checked.
		case "messages", "tools", "documents":
			return refuse("chat_template_kwargs."+key, "`chat_template_kwargs` must not hold %q: the template has it "+
				"from the request", key)
		}
		if dec.SkipValue() != nil {
			return refuse("chat_template_kwargs", "`chat_template_kwargs` must be an object")
		}
	}
	return nil
}

// yes is false for absent and false alike.
func yes(v *bool) bool { return v != nil && *v }
