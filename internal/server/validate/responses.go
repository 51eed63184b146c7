package validate

import (
	"strconv"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/internal/fault"
)

// Responses checks what a responses request says in words of its own, and refuses by name what can't be done here. The
// rest is checked by Chat, once the request has become one.
func Responses(req *openai.ResponsesRequest, opts Options) error {
	opts = opts.withDefaults()
	checks := [...]func() error{
		func() error { return unsupported(req) },
		func() error { return input(req, opts) },
		func() error { return limit("max_output_tokens", req.MaxOutputTokens, opts) },
		func() error { return limit("max_tokens", req.MaxTokens, opts) },
		func() error { return within("top_logprobs", req.TopLogprobs, 0, int64(opts.MaxTopLogprobs)) },
		func() error { return within("n", req.N, 1, 1) },
		func() error { return responsesTools(req, opts) },
		func() error { return responsesChoice(req) },
		func() error { return textFormat(req) },
		func() error { return responsesReasoning(req) },
		func() error { return notEmpty("previous_response_id", req.PreviousID) },
	}
	for _, check := range checks {
		if err := check(); err != nil {
			return err
		}
	}
	if t := req.Truncation; t != nil && *t != "auto" && *t != "disabled" {
		return refuse("truncation", "`truncation` must be auto or disabled")
	}
	return nil
}

// unsupported refuses what would change the answer if it were ignored.
func unsupported(req *openai.ResponsesRequest) error {
	switch {
	case yes(req.Background):
		return refuseFeature("background", "`background` is not supported; wait for the answer, or stream it")
	case req.Prompt != nil:
		return refuseFeature("prompt", "`prompt` is not supported: no prompts are stored here; send `instructions` and `input`")
	case req.Conversation != nil:
		return refuseFeature("conversation", "`conversation` is not supported; use `previous_response_id`")
	}
	return nil
}

// refuseFeature is the failure of a good request to another server.
func refuseFeature(param, message string) error {
	e := fault.New(fault.NotImplemented, "%s", message)
	e.Param = param
	return e.WithCode("unsupported_parameter")
}

// input checks that there is something to answer. Behind an earlier response there is.
func input(req *openai.ResponsesRequest, opts Options) error {
	switch n := len(req.Items); {
	case n == 0 && req.PreviousID == nil:
		return refuse("input", "`input` must hold at least one item")
	case n > opts.MaxMessages:
		return refuse("input", "`input` must hold at most %d items, not %d", opts.MaxMessages, n)
	}
	return nil
}

// responsesTools checks the tools that a model can be offered.
func responsesTools(req *openai.ResponsesRequest, opts Options) error {
	if n := len(req.ToolList); n > opts.MaxTools {
		return refuse("tools", "`tools` must hold at most %d tools, not %d", opts.MaxTools, n)
	}
	for i := range req.ToolList {
		t := &req.ToolList[i]
		if t.Type != "function" && t.Type != "custom" {
			continue // left to the conversion
		}
		path := "tools[" + strconv.Itoa(t.Index) + "]"
		switch size := len(t.Namespace) + len(t.Name); {
		case t.Name == "":
			return refuse(path+".name", "`%s.name` must be a string that isn't empty", path)
		case size > opts.MaxToolName-2: // two bytes join the names
			return refuse(path+".name", "`%s.name` must have at most %d bytes, with its namespace, not %d",
				path, opts.MaxToolName-2, size)
		}
		if yes(t.Strict) && t.Parameters != nil && !closed(t.Parameters) {
			return refuse(path+".parameters", "`%s.parameters`: the strict function %q must have "+
				"additionalProperties: false in every object schema", path, t.Name)
		}
	}
	return nil
}

// responsesChoice checks that what has to be called is there.
func responsesChoice(req *openai.ResponsesRequest) error {
	c := req.ToolChoice
	if c == nil || c.Mode == "none" || (c.Mode == "auto" && c.Allowed == nil) {
		return nil
	}
	callable := map[string]bool{}
	for i := range req.ToolList {
		if name, ok := req.ToolList[i].Called(); ok {
			callable[name] = true
		}
	}
	switch {
	case c.Mode == "function" && !callable[c.Name]:
		return refuse("tool_choice.name", "`tool_choice` names the tool %q, which isn't one of `tools` that clients run", c.Name)
	case c.Allowed != nil:
		for _, name := range c.Allowed {
			if callable[name] {
				return nil
			}
		}
		return refuse("tool_choice.tools", "`tool_choice.tools` must name one of `tools` that clients run")
	case len(callable) == 0:
		return refuse("tools", "`tools` must hold a tool that clients run when `tool_choice` asks for a call")
	}
	return nil
}

// textFormat checks the form of the answer.
func textFormat(req *openai.ResponsesRequest) error {
	if req.Text == nil || req.Text.Format == nil {
		return nil
	}
	switch f := req.Text.Format; f.Type {
	case "text", "json_object":
		return nil
	case "json_schema":
		if f.Name == "" {
			return refuse("text.format.name", "`text.format.name` must be a string that isn't empty")
		}
		if f.Schema == nil {
			return refuse("text.format.schema", "`text.format.schema` must be a JSON schema object")
		}
		return schema("text.format.schema", f.Schema)
	}
	return refuse("text.format.type", "`text.format.type` must be text, json_object or json_schema")
}

// responsesReasoning checks the effort.
func responsesReasoning(req *openai.ResponsesRequest) error {
	if req.Reasoning == nil || req.Reasoning.Effort == nil {
		return nil
	}
	err := reasoning(&openai.ChatRequest{ReasoningEffort: req.Reasoning.Effort})
	if err != nil {
		return refuse("reasoning.effort", "`reasoning.effort` must be none, minimal, low, medium, high, xhigh or max")
	}
	return nil
}
