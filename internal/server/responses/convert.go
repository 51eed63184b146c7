package responses

import (
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/server/reply"
)

// Turn is a responses request as a chat.
type Turn struct {
	Chat  *openai.ChatRequest        // not validated yet
	Tools map[string]reply.CalledAs  // by the name the model knows; plain functions aren't here
	Echo  func(store bool) []byte    // what the answer repeats, as members that each begin with a comma
	Items []openai.InputItem         // new in this turn, references resolved
	Left  struct{ Tools, Items int } // what the model isn't told of
}

// Convert makes a chat of req. items is the whole conversation: what came before, then the request's own. The chat
// shares no memory with req.
func Convert(req *openai.ResponsesRequest, items []openai.InputItem, opts openai.DecodeOptions) (*Turn, error) {
	turn := &Turn{}
	offered := offer(req, turn)
	c := conversation{}
	if req.Instructions != nil && *req.Instructions != "" {
		c.system = append(c.system, *req.Instructions)
	}
	for i := range items {
		if !c.add(&items[i]) {
			turn.Left.Items++
		}
	}
	c.flush()
	if c.n == 0 {
		return nil, fault.Bad("input", "`input` must hold at least one message").WithCode("invalid_value")
	}
	body := req.Chat([]byte{'{'})
	body = append(append(append(body, `"messages":[`...), c.out...), ']')
	body = appendTools(body, req, offered)
	body = appendSettings(body, req)
	opts.Strict = false
	chat, err := openai.DecodeChat(append(body, '}'), opts)
	if err != nil {
		return nil, InTerms(err)
	}
	turn.Chat = chat
	turn.Echo = func(store bool) []byte { return echo(req, offered, store) }
	return turn, nil
}

// appendSettings appends what chat has other names for.
func appendSettings(b []byte, req *openai.ResponsesRequest) []byte {
	limit := req.MaxOutputTokens
	if limit == nil {
		limit = req.MaxTokens
	}
	if limit != nil {
		b = strconv.AppendInt(append(b, `,"max_completion_tokens":`...), *limit, 10)
	}
	if LogProbs(req) {
		b = append(b, `,"logprobs":true`...)
	}
	if r := req.Reasoning; r != nil && r.Effort != nil {
		b = appendString(append(b, `,"reasoning_effort":`...), *r.Effort)
	}
	if req.Text == nil || req.Text.Format == nil {
		return b
	}
	switch f := req.Text.Format; f.Type {
	case "json_object":
		b = append(b, `,"response_format":{"type":"json_object"}`...)
	case "json_schema":
		b = append(b, `,"response_format":{"type":"json_schema","json_schema":{"name":`...)
		b = appendString(b, f.Name)
		b = append(append(b, `,"schema":`...), f.Schema...)
		b = append(b, "}}"...)
	}
	return b
}

// LogProbs reports whether the client wants to see probabilities: either field asks for them.
func LogProbs(req *openai.ResponsesRequest) bool {
	return req.Wants("message.output_text.logprobs") || (req.TopLogprobs != nil && *req.TopLogprobs > 0)
}

// conversation gathers messages of a chat. An assistant's message gathers in turn: thoughts, text and calls are items of
// their own, and one message to a template.
type conversation struct {
	out    []byte   // JSON messages, separated by commas
	n      int      // how many
	system []string // instructions, as long as nothing else has come: templates know one such message, at the start

	thought string             // of the assistant's message
	parts   []openai.InputPart // likewise
	calls   []byte             // JSON calls, separated by commas
	open    bool               // there is such a message
}

// add adds an item. It reports false for one that means nothing to a model.
func (c *conversation) add(m *openai.InputItem) bool {
	switch m.Type {
	case openai.ItemMessage:
		c.message(m)
	case openai.ItemReasoning:
		if c.open && (len(c.parts) > 0 || len(c.calls) > 0) {
			c.flush()
		}
		c.begin()
		c.thought += thoughtOf(m)
	case openai.ItemCall:
		c.call(m, jsonArguments(m.Arguments))
	case openai.ItemCustomCall:
		c.call(m, string(append(appendString([]byte(`{"input":`), m.Arguments), '}')))
	case openai.ItemLocalShellCall, openai.ItemShellCall, openai.ItemPatchCall:
		own := *m
		own.Name, own.Namespace = m.Own(), ""
		if own.CallID == "" {
			own.CallID = m.ID
		}
		c.call(&own, jsonArguments(string(m.Action)))
	case openai.ItemOutput, openai.ItemCustomOutput, openai.ItemLocalShellOutput, openai.ItemShellOutput, openai.ItemPatchOutput:
		c.flush()
		id := m.CallID
		if id == "" {
			id = m.ID
		}
		c.element(`"tool","tool_call_id":`, func(b []byte) []byte {
			return appendContent(append(appendString(b, id), `,"content":`...), resultOf(m))
		})
	default:
		return false
	}
	return true
}

// message adds a message item.
func (c *conversation) message(m *openai.InputItem) {
	switch m.Role {
	case openai.RoleAssistant:
		// Text behind calls belongs to the message of the calls, which nothing may stand between and their results.
		if c.open && len(c.parts) > 0 && len(c.calls) == 0 {
			c.flush()
		}
		c.begin()
		c.parts = append(c.parts, m.Parts...)
	case openai.RoleSystem, openai.RoleDeveloper:
		if c.n == 0 && !c.open {
			c.system = append(c.system, textOf(m.Parts))
			return
		}
		fallthrough
	default:
		c.flush()
		role := m.Role
		if role == openai.RoleDeveloper { // templates know the older word
			role = openai.RoleSystem
		}
		c.element(`"`+string(role)+`","content":`, func(b []byte) []byte { return appendContent(b, m.Parts) })
	}
}

// begin makes the assistant's message the open one.
func (c *conversation) begin() {
	c.instruct()
	c.open = true
}

// call adds a call to the assistant's message.
func (c *conversation) call(m *openai.InputItem, arguments string) {
	c.begin()
	if len(c.calls) > 0 {
		c.calls = append(c.calls, ',')
	}
	c.calls = appendString(append(c.calls, `{"id":`...), m.CallID)
	c.calls = appendString(append(c.calls, `,"type":"function","function":{"name":`...), modelName(m.Namespace, m.Name))
	c.calls = append(appendString(append(c.calls, `,"arguments":`...), arguments), "}}"...)
}

// flush ends the assistant's message, if one is open.
func (c *conversation) flush() {
	c.instruct()
	if !c.open {
		return
	}
	c.element(`"assistant","content":`, func(b []byte) []byte {
		if len(c.parts) == 0 { // beside calls or a thought: not null, which templates print
			b = append(b, `""`...)
		} else {
			b = appendContent(b, c.parts)
		}
		if c.thought != "" {
			b = appendString(append(b, `,"reasoning_content":`...), c.thought)
		}
		if len(c.calls) > 0 {
			b = append(append(append(b, `,"tool_calls":[`...), c.calls...), ']')
		}
		return b
	})
	c.open, c.thought, c.parts, c.calls = false, "", nil, c.calls[:0]
}

// instruct writes the instructions gathered so far as the first message.
func (c *conversation) instruct() {
	if len(c.system) == 0 {
		return
	}
	text := strings.Join(c.system, "\n\n")
	c.system = nil
	c.element(`"system","content":`, func(b []byte) []byte { return appendString(b, text) })
}

// element appends one message; start is its role and what stands ahead of the value that rest begins with.
func (c *conversation) element(start string, rest func([]byte) []byte) {
	if c.n > 0 {
		c.out = append(c.out, ',')
	}
	c.n++
	c.out = append(append(c.out, `{"role":`...), start...)
	c.out = append(rest(c.out), '}')
}

// resultOf is what a model is shown of a call's result.
func resultOf(m *openai.InputItem) []openai.InputPart {
	text := ""
	switch m.Type {
	default:
		return m.Parts
	case openai.ItemShellOutput: // a part for each command
		texts := make([]string, len(m.Parts))
		for i := range m.Parts {
			texts[i] = m.Parts[i].Text
		}
		text = strings.Join(texts, "\n")
	case openai.ItemPatchOutput:
		switch text = textOf(m.Parts); {
		case text == "":
			text = m.Status
		case m.Status == "failed":
			text = "failed: " + text
		}
	}
	return []openai.InputPart{{Kind: openai.PartText, Text: text}}
}

// thoughtOf is the text of a thought: as it was told, or as it was handed out to be sent back.
func thoughtOf(m *openai.InputItem) string {
	if text := textOf(m.Parts); text != "" {
		return text
	}
	return reply.OpenThought(m.Encrypted)
}

// textOf joins the texts among parts.
func textOf(parts []openai.InputPart) string {
	if len(parts) == 1 {
		return parts[0].Text
	}
	var all strings.Builder
	for i := range parts {
		all.WriteString(parts[i].Text)
	}
	return all.String()
}

// jsonArguments are the arguments of a call as templates can take them apart. A model that wrote something else is shown
// what it wrote.
func jsonArguments(text string) string {
	trimmed := strings.TrimSpace(text)
	switch {
	case trimmed == "":
		return "{}"
	case trimmed[0] == '{' && jsontext.Value(trimmed).IsValid(jsontext.AllowDuplicateNames(true)):
		return text
	}
	return string(append(appendString([]byte(`{"arguments":`), text), '}'))
}

// appendContent appends content as chat has it: a string, or parts where there is more than one text.
func appendContent(b []byte, parts []openai.InputPart) []byte {
	if len(parts) == 0 {
		return append(b, `""`...)
	}
	if len(parts) == 1 && (parts[0].Kind == openai.PartText || parts[0].Kind == openai.PartRefusal) {
		return appendString(b, parts[0].Text)
	}
	b = append(b, '[')
	for i := range parts {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendPart(b, &parts[i])
	}
	return append(b, ']')
}

// appendPart appends one content part of a chat.
func appendPart(b []byte, p *openai.InputPart) []byte {
	b = append(append(append(append(b, `{"type":"`...), p.Kind...), `","`...), p.Kind...)
	b = append(b, `":`...)
	switch p.Kind {
	case openai.PartText, openai.PartRefusal:
		b = appendString(b, p.Text)
	case openai.PartInputAudio:
		b = append(b, p.Raw...)
	default:
		b = appendString(append(b, `{"url":`...), p.URL)
		if p.Detail != "" {
			b = appendString(append(b, `,"detail":`...), p.Detail)
		}
		b = append(b, '}')
	}
	return append(b, '}')
}

// appendString appends s as a JSON string.
func appendString(b []byte, s string) []byte {
	out, err := jsontext.AppendQuote(b, s)
	if err != nil { // only invalid UTF-8, which has been replaced
		return out
	}
	return out
}

// InTerms tells a failure of the chat in terms of the request that it was made of.
func InTerms(err error) error {
	f := fault.From(err)
	for _, t := range [...][2]string{
		{"messages", "input"}, {"max_completion_tokens", "max_output_tokens"},
		{"reasoning_effort", "reasoning.effort"}, {"response_format.json_schema", "text.format"},
		{"response_format", "text.format"},
	} {
		rest, ok := strings.CutPrefix(f.Param, t[0])
		if !ok || (rest != "" && rest[0] != '.' && rest[0] != '[') {
			continue
		}
		out := *f
		// Positions among the messages aren't those among the items.
		if out.Param = t[1] + rest; t[0] == "messages" {
			out.Param = t[1]
		}
		out.Message = strings.ReplaceAll(f.Message, "`"+f.Param+"`", "`"+out.Param+"`")
		out.Message = strings.ReplaceAll(out.Message, "`"+t[0]+"`", "`"+t[1]+"`")
		return &out
	}
	return err
}
