package pipeline

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/prepost"
)

// planAnswer decides how the answer to a chat is taken apart, and tells the worker what that needs of it.
func (p *Pipeline) planAnswer(out *Prepared, q *worker.Request, req *openai.ChatRequest, tail string) {
	// Without tools even the look at the request is saved for models that have no parser.
	set := out.Set
	if p.answers == nil || set.ToolParser == "" && set.ReasoningParser == "" && len(req.ToolList) == 0 {
		return
	}
	asked := answerRequest(set, req, tail)
	plan := p.answers(asked)
	if plan == nil {
		return
	}
	out.Answer = plan
	// A client that wants to see special tokens gets them from us, and what it says either way the worker is told.
	out.keepSpecial = req.SkipSpecialTokens != nil && !*req.SkipSpecialTokens
	for _, text := range plan.Markup {
		if id, ok := set.Tokenizer.TokenID(text); ok && !slices.Contains(out.markup, id) {
			out.markup = append(out.markup, id)
		}
	}
	if plan.WorkerKeepsSpecial && q.Output.SkipSpecialTokens == nil {
		no := false
		q.Output.SkipSpecialTokens = &no
	}
	if !isOn(req.IgnoreEOS) {
		showStops(set, &q.Stop, plan.VisibleStops)
	}
	q.RequireReasoning = plan.RequireReasoning
	// What the client wants the answer held to goes before a tag that only helps the model along.
	must := asked.Choice == prepost.MustCall || asked.Choice == prepost.MustCallFunction
	chosen := len(asked.Format) > 0 && asked.Tags.WithFormat // the tag holds the format, too
	if len(plan.StructuralTag) > 0 && (must || chosen || q.Sampling.GuidedDecoding == nil) {
		var w objectWriter
		w.raw("structural_tag", plan.StructuralTag)
		guidedSettings(&w, &req.Common)
		q.Sampling.GuidedDecoding = w.done()
	}
	if plan.Reasoning {
		q.ExtraArgs = reasoningArgs(q.ExtraArgs, plan, req)
	}
}

// answerRequest describes a request to the parsers. Tools are copied: they are needed for as long as the answer takes,
// and the body they came in isn't.
func answerRequest(set *catalog.Set, req *openai.ChatRequest, tail string) *prepost.AnswerRequest {
	a := &prepost.AnswerRequest{
		ToolParser: set.ToolParser, ReasoningParser: set.ReasoningParser,
		OneCall: req.ParallelToolCalls != nil && !*req.ParallelToolCalls,
		JSON:    heldToJSON(req),
		Prompt:  tail,
		Special: func(text string) bool { return isSpecial(set.Tokenizer, text) },
	}
	if c := req.ToolChoice; c != nil {
		a.Choice, a.Function = choices[c.Mode], strings.Clone(c.Name)
	}
	for i := range req.ToolList {
		t := &req.ToolList[i]
		a.Tools = append(a.Tools, prepost.Function{
			Name: strings.Clone(t.Name), Parameters: bytes.Clone(t.Parameters),
			Strict: isOn(t.Strict), Loose: t.Strict != nil && !*t.Strict})
	}
	if set.Card != nil {
		if t := set.Card.RuntimeConfig.CallTags(); t != nil {
			a.Tags = prepost.CallTags{On: true, Always: t.Scope == "always", Strict: t.Schema == "strict",
				WithFormat: t.WithFormat, Exclude: t.Exclude, AnyOrder: t.AnyOrder}
			if t.WithFormat {
				a.Format = formatSchema(req.ResponseFormat)
			}
		}
		a.Tags.Boundary, a.Tags.Gate = boundary(&set.Card.RuntimeConfig)
	}
	a.Continues = isOn(req.ContinueFinal)
	if req.ReasoningEffort != nil {
		a.ReasoningEffort = *req.ReasoningEffort
	}
	if t := req.Thinking; t != nil && (t.Type == "enabled" || t.Type == "disabled") {
		on := t.Type == "enabled"
		a.Thinking = &on
	}
	// What the client sets by name counts before its other fields. An object that can't be read says nothing.
	if req.ChatTemplateArgs != nil {
		_ = eachMember(req.ChatTemplateArgs, func(name string, value json.RawMessage) error {
			on := string(value) == "true"
			switch {
			case !on && string(value) != "false":
			case name == "enable_thinking":
				a.EnableThinking = &on
			case name == "thinking":
				a.Thinking = &on
			}
			return nil
		})
	}
	return a
}

// boundary reads whose business thoughts are in front of a structural tag. An engine that lets them pass by itself does
// so whatever the tag's settings say.
func boundary(r *worker.RuntimeConfig) (b prepost.Boundary, gate bool) {
	said := ""
	if t := r.CallTags(); t != nil {
		said = t.Boundary
	}
	switch {
	case said == "backend":
		b = prepost.BoundaryTold
	case r.Flag(worker.FlagTagExcludesReasoning):
		b = prepost.BoundaryEngine
	case said == "structural_tag":
		b = prepost.BoundaryTag
	}
	return b, r.Flag(worker.FlagTagReasoningGate)
}

// choices are the modes of tool_choice.
var choices = map[string]prepost.CallChoice{
	"none": prepost.MustNotCall, "required": prepost.MustCall, "function": prepost.MustCallFunction,
}

// heldToJSON reports whether the answer proper has to be JSON.
func heldToJSON(req *openai.ChatRequest) bool {
	if c := req.ToolChoice; c != nil && len(req.ToolList) > 0 && (c.Mode == "required" || c.Mode == "function") {
		return true
	}
	return formatSchema(req.ResponseFormat) != nil || len(req.GuidedJSON) > 0
}

// isSpecial reports whether text is a token that decoders skip.
func isSpecial(t prepost.Tokenizer, text string) bool {
	id, ok := t.TokenID(text)
	if !ok {
		return false
	}
	skipped, err := t.Decode([]prepost.TokenID{id}, true)
	return err == nil && skipped == ""
}

// showStops makes stop tokens of the model visible, since a parser waits for their text.
func showStops(set *catalog.Set, s *worker.StopConditions, tokens []string) {
	for _, text := range tokens {
		id, ok := set.Tokenizer.TokenID(text)
		if !ok {
			continue
		}
		// The set's own list is shared with other requests.
		var hidden []uint32
		for _, stop := range s.StopTokenIDsHidden {
			if stop != id {
				hidden = append(hidden, stop)
			}
		}
		s.StopTokenIDsHidden = hidden
		s.StopTokenIDsVisible = append(s.StopTokenIDsVisible, id)
	}
}

// reasoningArgs adds what an engine's own reasoning parser wants to know to the further arguments of a request.
func reasoningArgs(args json.RawMessage, plan *prepost.AnswerPlan, req *openai.ChatRequest) json.RawMessage {
	kwargs := templateKwargs(req)
	if plan.WithoutThought {
		kwargs = withoutThought(kwargs, plan.ModeSwitch)
	}
	if plan.DefaultThinking {
		kwargs = withThinking(kwargs)
	}
	if kwargs == nil && !plan.ThoughtIsOpen {
		return args
	}
	var all, inner objectWriter
	if args != nil {
		// Written by this package a moment ago: it is an object.
		_ = eachMember(args, func(name string, value json.RawMessage) error {
			all.raw(name, value)
			return nil
		})
	}
	inner.raw("chat_template_kwargs", kwargs)
	all.raw("reasoning_parser_kwargs", inner.done())
	if plan.ThoughtIsOpen {
		all.boolean("reasoning_ended", false)
	}
	return all.done()
}

// chatKwargs returns the further variables of the template. The form of the answer may leave no room for a thought, so
// that the template must not begin one.
func (p *Pipeline) chatKwargs(set *catalog.Set, req *openai.ChatRequest) json.RawMessage {
	kwargs := templateKwargs(req)
	if p.answers == nil || set.ToolParser == "" && set.ReasoningParser == "" || !heldToJSON(req) {
		return kwargs
	}
	// How the prompt ends doesn't matter to this part of the plan, and isn't known before it is rendered.
	if plan := p.answers(answerRequest(set, req, "")); plan != nil && plan.WithoutThought {
		return withoutThought(kwargs, plan.ModeSwitch)
	}
	return kwargs
}

// withoutThought switches thinking off, whatever the template's variables say.
func withoutThought(kwargs json.RawMessage, mode bool) json.RawMessage {
	var w objectWriter
	if kwargs != nil {
		_ = eachMember(kwargs, func(name string, value json.RawMessage) error {
			if name != "enable_thinking" && name != "thinking" && (name != "thinking_mode" || !mode) {
				w.raw(name, value)
			}
			return nil
		})
	}
	w.boolean("enable_thinking", false)
	w.boolean("thinking", false)
	if mode {
		w.text("thinking_mode", "disabled")
	}
	return w.done()
}

// withThinking switches thinking on where the template's variables don't say.
func withThinking(kwargs json.RawMessage) json.RawMessage {
	var w objectWriter
	given := map[string]bool{}
	if kwargs != nil {
		_ = eachMember(kwargs, func(name string, value json.RawMessage) error {
			w.raw(name, value)
			given[name] = true
			return nil
		})
	}
	for _, name := range []string{"enable_thinking", "thinking"} {
		if !given[name] {
			w.boolean(name, true)
		}
	}
	return w.done()
}

// tailSize is how much of a prompt's end is looked at; openers of thoughts are far shorter.
const tailSize = 512

// tailTokens is the same for prompts that come as tokens.
const tailTokens = 64

// promptTail returns the end of a prompt that tells how the answer begins. Of a prompt that ends in the middle of the
// assistant's message that is the message, with a little of what the template writes in front of it.
func promptTail(prompt string, req *openai.ChatRequest) string {
	if isOn(req.ContinueFinal) {
		if text := lastText(req.Messages); text != "" {
			if i := strings.LastIndex(prompt, text); i >= 0 {
				return prompt[max(i-leadSize, 0):]
			}
		}
	}
	return prompt[max(len(prompt)-tailSize, 0):]
}

// leadSize is how much in front of a message is looked at for an opener that the template has put there.
const leadSize = 32

// lastText returns the text of the last message, when it is a string.
func lastText(messages json.RawMessage) string {
	var list []struct {
		Content json.RawMessage `json:"content"`
	}
	var text string
	if json.Unmarshal(messages, &list) != nil || len(list) == 0 ||
		json.Unmarshal(list[len(list)-1].Content, &text) != nil {
		return ""
	}
	return strings.TrimSpace(text)
}
