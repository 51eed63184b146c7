package messages

import (
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/portico-llm/portico/api/anthropic"
)

// ChatOptions say how requests are turned into chat requests.
type ChatOptions struct {
	// KeepPreamble leaves the line in that Claude Code puts ahead of its system prompt for billing. It differs from
	// request to request, so that with it no two prompts have a common prefix.
	KeepPreamble bool
}

// Chat is a request as a chat request.
type Chat struct {
	Body    []byte   // of POST /v1/chat/completions
	origins []string // where each of its messages comes from
}

// The chat request, as far as a message request fills it. Empty members are left out.
type (
	chatRequest struct {
		Model           string          `json:"model"`
		Messages        []chatMessage   `json:"messages"`
		Stream          bool            `json:"stream,omitzero"`
		MaxTokens       *int64          `json:"max_tokens,omitzero"`
		Stop            []string        `json:"stop,omitempty"`
		Temperature     *float64        `json:"temperature,omitzero"`
		TopP            *float64        `json:"top_p,omitzero"`
		TopK            *int64          `json:"top_k,omitzero"`
		Tools           []chatTool      `json:"tools,omitempty"`
		ToolChoice      any             `json:"tool_choice,omitzero"`
		Parallel        *bool           `json:"parallel_tool_calls,omitzero"`
		Thinking        *chatThinking   `json:"thinking,omitzero"`
		ThinkingBudget  *int64          `json:"thinking_token_budget,omitzero"`
		ReasoningEffort *string         `json:"reasoning_effort,omitzero"`
		ResponseFormat  *responseFormat `json:"response_format,omitzero"`
		Kwargs          jsontext.Value  `json:"chat_template_kwargs,omitzero"`
		AddGeneration   *bool           `json:"add_generation_prompt,omitzero"`
		ContinueFinal   bool            `json:"continue_final_message,omitzero"`
		NvExt           jsontext.Value  `json:"nvext,omitzero"`
	}
	chatMessage struct {
		Role       string     `json:"role"`
		Content    any        `json:"content"` // a string, or parts
		Reasoning  string     `json:"reasoning_content,omitzero"`
		ToolCalls  []chatCall `json:"tool_calls,omitempty"`
		ToolCallID string     `json:"tool_call_id,omitzero"`
	}
	chatPart struct {
		Type  string     `json:"type"`
		Text  *string    `json:"text,omitzero"`
		Image *chatImage `json:"image_url,omitzero"`
	}
	chatImage struct {
		URL string `json:"url"`
	}
	chatCall struct {
		ID       string       `json:"id"`
		Type     string       `json:"type"`
		Function chatFunction `json:"function"`
	}
	chatFunction struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"` // JSON
	}
	chatTool struct {
		Type     string       `json:"type"`
		Function declaredTool `json:"function"`
	}
	declaredTool struct {
		Name        string         `json:"name"`
		Description string         `json:"description,omitzero"`
		Parameters  jsontext.Value `json:"parameters,omitzero"`
		Strict      *bool          `json:"strict,omitzero"`
	}
	chatThinking struct {
		Type string `json:"type"`
	}
	responseFormat struct {
		Type   string     `json:"type"`
		Schema jsonSchema `json:"json_schema"`
	}
	jsonSchema struct {
		Name   string         `json:"name"`
		Schema jsontext.Value `json:"schema"`
	}
	namedChoice struct {
		Type     string     `json:"type"`
		Function calledName `json:"function"`
	}
	calledName struct {
		Name string `json:"name"`
	}
)

// lenient passes the client's own objects on as they are, also where a name comes twice.
var lenient = jsontext.AllowDuplicateNames(true)

// NewChat writes a decoded request as a chat request. Its failures are those of values that make no JSON, which
// decoding has ruled out.
func NewChat(req *anthropic.Request, opts ChatOptions) (*Chat, error) {
	out := chatRequest{
		Model: req.Model, Stream: req.Stream, MaxTokens: req.MaxTokens, Stop: req.StopSequences,
		Temperature: req.Temperature, TopP: req.TopP, TopK: req.TopK, NvExt: given(req.NvExt),
	}
	w := conversation{}
	begins := beginning(req.Messages)
	w.system(req, begins, opts.KeepPreamble)
	for i := range req.Messages {
		m := &req.Messages[i]
		if i < begins && m.Role == "system" { // said already
			continue
		}
		if err := w.turn(m, i); err != nil {
			return nil, err
		}
	}
	out.Messages = w.messages
	out.setTools(req)
	out.setForm(req)
	if err := out.setThinking(req); err != nil {
		return nil, err
	}
	// As with Anthropic an answer goes on where the assistant's last turn ends, when that is in the middle of a text.
	if endsOpen(req) {
		no := false
		out.ContinueFinal, out.AddGeneration = true, &no
	}
	body, err := json.Marshal(&out, lenient)
	if err != nil {
		return nil, err
	}
	return &Chat{Body: body, origins: w.origins}, nil
}

// beginning is how many turns there are before the assistant's first.
func beginning(turns []anthropic.Message) int {
	for i := range turns {
		if turns[i].Role == "assistant" {
			return i
		}
	}
	return len(turns)
}

// given is v, or nothing where it is null.
func given(v jsontext.Value) jsontext.Value {
	if v.Kind() == 'n' {
		return nil
	}
	return v
}

// setTools translates the tools and what is said of their use.
func (out *chatRequest) setTools(req *anthropic.Request) {
	for i := range req.Tools {
		t := &req.Tools[i]
		out.Tools = append(out.Tools, chatTool{"function", declaredTool{
			t.Name, t.Description, given(t.InputSchema), t.Strict}})
	}
	c := req.ToolChoice
	if c == nil {
		return
	}
	switch c.Type {
	case "any":
		out.ToolChoice = "required"
	case "tool":
		out.ToolChoice = namedChoice{"function", calledName{c.Name}}
	default: // auto, none
		out.ToolChoice = c.Type
	}
	if c.DisableParallel != nil {
		parallel := !*c.DisableParallel
		out.Parallel = &parallel
	}
}

// setForm translates the form the answer is held to. The newer place counts.
func (out *chatRequest) setForm(req *anthropic.Request) {
	format := req.OutputFormat
	if c := req.OutputConfig; c != nil {
		out.ReasoningEffort = c.Effort
		if c.Format != nil {
			format = c.Format
		}
	}
	if format != nil {
		out.ResponseFormat = &responseFormat{"json_schema", jsonSchema{"answer", format.Schema}}
	}
}

// setThinking translates the switch and the budget of thinking, both for the template and for the worker.
func (out *chatRequest) setThinking(req *anthropic.Request) error {
	vars := []templateVar{
		// Agents' thoughts lead from one use of a tool to the next: templates that would cut them out of the history are
		// told not to.
		{"truncate_history_thinking", "false"},
	}
	t := req.Thinking
	if t == nil || t.Type != "disabled" { // as Dynamo has it: a model that can think does, unless told otherwise
		vars = append(vars, templateVar{"enable_thinking", "true"}, templateVar{"thinking", "true"})
	}
	if t != nil {
		out.Thinking = &chatThinking{t.Type}
		if t.Type == "enabled" && t.BudgetTokens != nil {
			out.ThinkingBudget = t.BudgetTokens
			budget, err := json.Marshal(*t.BudgetTokens)
			if err != nil {
				return err
			}
			vars = append(vars, templateVar{"thinking_budget", string(budget)})
		}
	}
	var err error
	out.Kwargs, err = withVars(given(req.ChatTemplateKwargs), vars)
	return err
}

// templateVar is one variable of a template, with its value as JSON.
type templateVar struct{ name, value string }

// withVars adds variables to the client's own, which count before them.
func withVars(own jsontext.Value, vars []templateVar) (jsontext.Value, error) {
	all := map[string]jsontext.Value{}
	if own != nil {
		if err := json.Unmarshal(own, &all, lenient); err != nil {
			return nil, err
		}
	}
	for _, v := range vars {
		if _, ok := all[v.name]; !ok {
			all[v.name] = jsontext.Value(v.value)
		}
	}
	// Sorted, so that equal requests are equal in every byte.
	return json.Marshal(all, lenient, json.Deterministic(true))
}

// endsOpen reports whether the last turn is the beginning of the answer: the assistant's, and with text at its end.
func endsOpen(req *anthropic.Request) bool {
	last := &req.Messages[len(req.Messages)-1]
	if last.Role != "assistant" {
		return false
	}
	if last.Content.Plain {
		return strings.TrimSpace(last.Content.Text) != ""
	}
	n := len(last.Content.Blocks)
	if n == 0 {
		return false
	}
	for i := range last.Content.Blocks {
		if last.Content.Blocks[i].Type == anthropic.BlockToolUse {
			return false
		}
	}
	b := &last.Content.Blocks[n-1]
	return b.Type == anthropic.BlockText && strings.TrimSpace(*b.Text) != ""
}
