package openai

import "encoding/json"

// The tables of what makes up a responses request. New members of its objects are nobody's mistake, so that only those
// at the root are noted.
var (
	responsesTable = newTable("", commonFields(func(r *ResponsesRequest) *Common { return &r.Common }), responsesFields()).
			alias("chat_template_kwargs", "chat_template_args")

	reasoningTable = newTable("", []field[Reasoning]{
		textField("effort", func(o *Reasoning) **string { return &o.Effort }),
		textField("summary", func(o *Reasoning) **string { return &o.Summary }),
		textField("generate_summary", func(o *Reasoning) **string { return &o.GenerateSummary }),
	}).quietly()
	textTable = newTable("", []field[TextConfig]{
		structField("format", textFormatTable, func(c *TextConfig) **TextFormat { return &c.Format }),
		textField("verbosity", func(c *TextConfig) **string { return &c.Verbosity }),
	}).quietly()
	textFormatTable = newTable("", []field[TextFormat]{
		requiredText("type", func(f *TextFormat) *string { return &f.Type }),
		requiredText("name", func(f *TextFormat) *string { return &f.Name }),
		textField("description", func(f *TextFormat) **string { return &f.Description }),
		objectField("schema", func(f *TextFormat) *json.RawMessage { return &f.Schema }),
		boolField("strict", func(f *TextFormat) **bool { return &f.Strict }),
	}).quietly()

	// A namespace holds functions and no other namespace.
	innerToolTable     = newTable("", responsesToolFields()).quietly()
	responsesToolTable = newTable("", responsesToolFields(), []field[toolReader]{
		{name: "tools", kind: "array", read: readInnerTools},
	}).quietly()
	toolFormatTable = newTable("", []field[ToolFormat]{
		requiredText("type", func(f *ToolFormat) *string { return &f.Type }),
		requiredText("syntax", func(f *ToolFormat) *string { return &f.Syntax }),
		requiredText("definition", func(f *ToolFormat) *string { return &f.Definition }),
	}).quietly()
	choiceTable = newTable("", []field[choiceReader]{
		requiredText("type", func(c *choiceReader) *string { return &c.kind }),
		requiredText("name", func(c *choiceReader) *string { return &c.Name }),
		requiredText("mode", func(c *choiceReader) *string { return &c.Mode }),
		{name: "tools", kind: "array", read: func(r *reader, c *choiceReader) error {
			return readArray(r, "an array of tools", func(int) error {
				var t choiceReader
				t.ResponsesChoice = new(ResponsesChoice)
				err := readObject(r, allowedTable, &t)
				switch {
				case t.Name != "":
					c.Allowed = append(c.Allowed, t.Name)
				case t.kind == ToolLocalShell, t.kind == ToolShell, t.kind == ToolPatch:
					c.Allowed = append(c.Allowed, t.kind)
				}
				return err
			})
		}},
	}).quietly()
	allowedTable = newTable("", []field[choiceReader]{
		requiredText("type", func(c *choiceReader) *string { return &c.kind }),
		requiredText("name", func(c *choiceReader) *string { return &c.Name }),
	}).quietly()

	outcomeTable = newTable("", []field[outcome]{
		requiredText("type", func(o *outcome) *string { return &o.kind }),
		intField("exit_code", func(o *outcome) **int64 { return &o.code }),
	}).quietly()
	itemTable     = newTable("", itemFields()).quietly()
	itemPartTable = newTable("", itemPartFields()).quietly()
)

// responsesFields are those only responses requests have.
func responsesFields() []field[ResponsesRequest] {
	type T = ResponsesRequest
	fields := []field[T]{
		{name: "input", kind: "string|array", read: readInput},
		textField("instructions", func(t *T) **string { return &t.Instructions }),
		intField("max_output_tokens", func(t *T) **int64 { return &t.MaxOutputTokens }),
		intField("top_logprobs", func(t *T) **int64 { return &t.TopLogprobs }),
		textsField("include", func(t *T) *[]string { return &t.Include }),
		{name: "tools", kind: "array", read: readResponsesTools},
		{name: "tool_choice", kind: "string|object", read: func(r *reader, t *T) (err error) {
			t.ToolChoice, err = readResponsesChoice(r)
			return err
		}},
		boolField("parallel_tool_calls", func(t *T) **bool { return &t.ParallelToolCalls }),
		intField("max_tool_calls", func(t *T) **int64 { return &t.MaxToolCalls }),
		structField("text", textTable, func(t *T) **TextConfig { return &t.Text }),
		{name: "reasoning", kind: "object", read: func(r *reader, t *T) (err error) {
			o := new(Reasoning)
			o.Raw, err = r.span(func() error { return readObject(r, reasoningTable, o) })
			t.Reasoning = o
			return err
		}},
		textField("previous_response_id", func(t *T) **string { return &t.PreviousID }),
		boolField("store", func(t *T) **bool { return &t.Store }),
		// Refused whatever they hold, so their type isn't looked at.
		anyField("conversation", func(t *T) *json.RawMessage { return &t.Conversation }),
		anyField("prompt", func(t *T) *json.RawMessage { return &t.Prompt }),
		boolField("background", func(t *T) **bool { return &t.Background }),
		textField("truncation", func(t *T) **string { return &t.Truncation }),
		objectField("chat_template_args", func(t *T) *json.RawMessage { return &t.ChatTemplateArgs }),
		intField("thinking_token_budget", func(t *T) **int64 { return &t.ThinkingTokenBudget }),
	}
	return append(fields,
		textField("service_tier", func(t *T) **string { return &t.ServiceTier }),
		textField("prompt_cache_key", func(t *T) **string { return &t.PromptCacheKey }),
		textField("prompt_cache_retention", func(t *T) **string { return &t.PromptCacheRetention }),
		textField("safety_identifier", func(t *T) **string { return &t.SafetyIdentifier }),
		objectField("client_metadata", func(t *T) *json.RawMessage { return &t.ClientMetadata }),
	)
}

// responsesToolFields are those of a tool. Some clients send a function in the form of chat, one level deeper.
func responsesToolFields() []field[toolReader] {
	type T = toolReader
	fields := []field[T]{
		requiredText("type", func(t *T) *string { return &t.Type }),
		requiredText("name", func(t *T) *string { return &t.Name }),
		textField("description", func(t *T) **string { return &t.Description }),
		objectField("parameters", func(t *T) *json.RawMessage { return &t.Parameters }),
		boolField("strict", func(t *T) **bool { return &t.Strict }),
		structField("format", toolFormatTable, func(t *T) **ToolFormat { return &t.Format }),
	}
	inner := newTable("", fields[1:5]).quietly()
	return append(fields,
		field[T]{name: "function", kind: "object", read: func(r *reader, t *T) error { return readObject(r, inner, t) }},
		field[T]{name: "environment", kind: "object", read: func(r *reader, t *T) error {
			is := map[string]string{"type": ""}
			err := readTexts(r, is)
			t.Where = is["type"]
			return err
		}})
}

// itemFields are those of all kinds of item.
func itemFields() []field[InputItem] {
	type T = InputItem
	return []field[T]{
		requiredText("type", func(m *T) *string { return &m.Type }),
		requiredText("id", func(m *T) *string { return &m.ID }),
		{name: "role", kind: "string", read: readItemRole},
		{name: "content", kind: "string|array", read: func(r *reader, m *T) error {
			summary := m.Parts
			err := readParts(r, m)
			if len(m.Parts) == 0 && len(summary) > 0 { // of a thought that has nothing else
				m.Parts = summary
			}
			return err
		}},
		requiredText("call_id", func(m *T) *string { return &m.CallID }),
		requiredText("name", func(m *T) *string { return &m.Name }),
		requiredText("namespace", func(m *T) *string { return &m.Namespace }),
		{name: "arguments", kind: "string|object", read: readItemArguments},
		requiredText("input", func(m *T) *string { return &m.Arguments }),
		{name: "output", kind: "any", read: func(r *reader, m *T) error {
			// What tools of other kinds give back is nothing a model here has asked for.
			if r.dec.PeekKind() == '{' {
				return r.dec.SkipValue()
			}
			return readParts(r, m)
		}},
		objectField("action", func(m *T) *json.RawMessage { return &m.Action }),
		objectField("operation", func(m *T) *json.RawMessage { return &m.Action }),
		requiredText("status", func(m *T) *string { return &m.Status }),
		// Thoughts are told whole; a summary counts where there is nothing else.
		{name: "summary", kind: "array", read: func(r *reader, m *T) error {
			if len(m.Parts) > 0 {
				return r.dec.SkipValue()
			}
			return readParts(r, m)
		}},
		requiredText("encrypted_content", func(m *T) *string { return &m.Encrypted }),
	}
}

// itemPartFields are those of all kinds of content part.
func itemPartFields() []field[rawPart] {
	type T = rawPart
	return []field[T]{
		requiredText("type", func(p *T) *string { return &p.kind }),
		{name: "text", kind: "string", read: func(r *reader, p *T) (err error) {
			p.text, err = r.text("a string")
			p.hasText = true
			return err
		}},
		{name: "refusal", kind: "string", read: func(r *reader, p *T) (err error) {
			p.refusal, err = r.text("a string")
			p.hasRefusal = true
			return err
		}},
		{name: "image_url", kind: "string|object", read: readPartURL},
		{name: "video_url", kind: "string|object", read: readPartURL},
		{name: "audio_url", kind: "string|object", read: readPartURL},
		requiredText("detail", func(p *T) *string { return &p.detail }),
		requiredText("file_id", func(p *T) *string { return &p.fileID }),
		objectField("input_audio", func(p *T) *json.RawMessage { return &p.audio }),
		textField("stdout", func(p *T) **string { return &p.stdout }),
		requiredText("stderr", func(p *T) *string { return &p.stderr }),
		{name: "outcome", kind: "object", read: func(r *reader, p *T) error {
			return readObject(r, outcomeTable, &p.outcome)
		}},
	}
}
