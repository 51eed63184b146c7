package pipeline

import (
	"encoding/json"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/internal/catalog"
)

// templateTools returns the tools the template shows the model. With tool_choice none it shows none, unless the worker
// wants the prompt (and so its cached prefix) to stay the same.
func templateTools(set *catalog.Set, req *openai.ChatRequest) json.RawMessage {
	if req.ToolChoice != nil && req.ToolChoice.Mode == "none" {
		if exclude := set.Card.RuntimeConfig.ExcludeToolsWhenNone; exclude == nil || *exclude {
			return nil
		}
	}
	return req.Tools
}

// reasoningVars are the names under which templates of different model families look for the reasoning switch.
var reasoningVars = [...]struct{ name, on, off string }{
	{"enable_thinking", "true", "false"}, // Qwen
	{"thinking", "true", "false"},        // DeepSeek
	{"thinking_mode", `"enabled"`, `"disabled"`},
}

// templateKwargs returns the further variables of the template: the client's chat_template_kwargs, and what the
// reasoning fields of the request mean to templates, under each of the names they use. What the client set by name
// stays as it is.
func templateKwargs(req *openai.ChatRequest) json.RawMessage {
	if req.ChatTemplateArgs == nil && req.ReasoningEffort == nil && req.Thinking == nil {
		return nil
	}
	// Member by member instead of merging text: the client's object may be empty, or have white space anywhere.
	var w objectWriter
	// What the client set, by name: its own spelling of JSON, good enough to tell on from off.
	given := map[string]string{}
	if req.ChatTemplateArgs != nil {
		err := eachMember(req.ChatTemplateArgs, func(name string, value json.RawMessage) error {
			w.raw(name, value)
			given[name] = string(value)
			return nil
		})
		if err != nil { // impossible after decoding; the client's text is then the best there is
			return req.ChatTemplateArgs
		}
	}
	if _, ok := given["reasoning_effort"]; !ok && req.ReasoningEffort != nil {
		w.text("reasoning_effort", *req.ReasoningEffort)
	}
	// A model's template looks for one of the names, which one is not known here: so it finds the switch under each.
	if on := reasoningSwitch(given, req); on != nil {
		for _, v := range reasoningVars {
			if _, ok := given[v.name]; ok {
				continue
			}
			value := v.off
			if *on {
				value = v.on
			}
			w.raw(v.name, json.RawMessage(value))
		}
	}
	return w.done()
}

// reasoningSwitch finds whether reasoning is wanted; nil: the request doesn't say. A variable set by name counts
// before thinking, and thinking before reasoning_effort.
func reasoningSwitch(given map[string]string, req *openai.ChatRequest) *bool {
	yes, no := true, false
	// Values of other kinds are the template's business and say nothing here.
	for _, v := range reasoningVars {
		switch given[v.name] {
		case v.on:
			return &yes
		case v.off:
			return &no
		}
	}
	// Types that leave it to the model fall through to the effort.
	switch t := req.Thinking; {
	case t != nil && t.Type == "enabled":
		return &yes
	case t != nil && t.Type == "disabled":
		return &no
	}
	// Any effort but none asks for some reasoning.
	switch e := req.ReasoningEffort; {
	case e == nil:
		return nil
	case *e == "none":
		return &no
	}
	return &yes
}
