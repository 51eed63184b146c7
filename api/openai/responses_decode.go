package openai

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// DecodeResponses reads the body of a responses request. The request aliases body, or a mended copy of it. Fields that
// the server doesn't know are noted and never refused: Dynamo takes them too, and clients of this interface send many.
func DecodeResponses(body []byte, opts DecodeOptions) (*ResponsesRequest, error) {
	opts = opts.withDefaults()
	opts.Strict = false
	req, err := decode(body, opts, responsesTable, (*ResponsesRequest).reset)
	if err != nil {
		return nil, err
	}
	switch {
	case req.Model == "":
		return nil, missing("model", "the name of a model")
	case req.Input == nil && req.PreviousID == nil:
		return nil, missing("input", inputKinds)
	}
	return req, nil
}

// reset empties the request for another reading, of body, and returns its common part.
func (r *ResponsesRequest) reset(body []byte) *Unknown {
	*r = ResponsesRequest{}
	r.body = body
	return &r.Unknown
}

// itemList is what DecodeItems reads its array into.
type itemList struct {
	Common // nothing of it is read
	items  []InputItem
}

// itemListTable is the table of an object around stored items.
var itemListTable = newTable("", []field[itemList]{
	{name: "items", kind: "array", read: func(r *reader, l *itemList) (err error) {
		_, err = rawArray(r, "an array of items", func(int) error { return addItem(r, &l.items) })
		return err
	}},
})

// DecodeItems reads an array of items that was checked before. The items alias list.
func DecodeItems(list []byte, opts DecodeOptions) ([]InputItem, error) {
	body := append(append([]byte(`{"items":`), list...), '}')
	l, err := decode(body, opts.withDefaults(), itemListTable, func(l *itemList, _ []byte) *Unknown {
		*l = itemList{}
		return &l.Unknown
	})
	if err != nil {
		return nil, err
	}
	return l.items, nil
}

// inputKinds is what may stand for a conversation.
const inputKinds = "a string or an array of items"

// readInput reads the conversation: a string is one message of the user's.
func readInput(r *reader, req *ResponsesRequest) (err error) {
	if r.dec.PeekKind() == '"' {
		v, err := r.quoted(inputKinds)
		if err != nil {
			return err
		}
		text, err := unquote(v)
		if err != nil {
			return err
		}
		req.Input = json.RawMessage(v)
		req.Items = []InputItem{{Type: ItemMessage, Role: RoleUser, Plain: true, Parts: []InputPart{{Kind: PartText, Text: text}},
			Raw: append(append([]byte(`{"type":"message","role":"user","content":`), v...), '}')}}
		return nil
	}
	req.Input, err = rawArray(r, inputKinds, func(int) error { return addItem(r, &req.Items) })
	return err
}

// addItem reads one item of an array.
func addItem(r *reader, items *[]InputItem) error {
	var item InputItem
	raw, err := r.span(func() error { return readObject(r, itemTable, &item) })
	if err != nil {
		return err
	}
	item.Raw = raw
	if err := item.check(r); err != nil {
		return err
	}
	*items = append(*items, item)
	return nil
}

// span returns the text of what read reads.
func (r *reader) span(read func() error) (json.RawMessage, error) {
	from := r.dec.InputOffset()
	if err := read(); err != nil {
		return nil, err
	}
	// What separates a value from the one before it belongs to neither.
	return json.RawMessage(bytes.TrimLeft(r.body[from:r.dec.InputOffset()], " \t\r\n,:")), nil
}

// itemRoles names the roles of a message item for failures.
const itemRoles = `"user", "assistant", "system" or "developer"`

// check settles the type, and looks at what that type has to have.
func (m *InputItem) check(r *reader) error {
	need := func(name, value, allowed string) error {
		if value != "" {
			return nil
		}
		r.enter(name)
		return r.bad(allowed)
	}
	switch m.Type {
	case "":
		if m.Role == "" {
			return need("type", "", "the type of an item, such as "+ItemMessage)
		}
		m.Type = ItemMessage // as OpenAI's clients leave it out
		return m.check(r)
	case ItemMessage:
		if m.Parts == nil {
			r.enter("content")
			return r.bad("a string or an array of content parts")
		}
		return need("role", string(m.Role), itemRoles)
	case ItemCall, ItemCustomCall:
		if err := need("name", m.Name, "the name of a function"); err != nil {
			return err
		}
		return need("call_id", m.CallID, "the id of a call")
	case ItemOutput, ItemCustomOutput, ItemShellOutput:
		if m.Parts == nil {
			r.enter("output")
			return r.bad("a string or an array of content parts")
		}
		return need("call_id", m.CallID, "the id of a call")
	case ItemShellCall, ItemPatchCall:
		if m.Action == nil {
			r.enter(map[string]string{ItemShellCall: "action", ItemPatchCall: "operation"}[m.Type])
			return r.bad("an object")
		}
		return need("call_id", m.CallID, "the id of a call")
	case ItemPatchOutput: // which may have nothing to say
		return need("call_id", m.CallID, "the id of a call")
	case ItemReference:
		return need("id", m.ID, "the id of an item")
	}
	return nil
}

// readItemRole reads who a message is from.
func readItemRole(r *reader, m *InputItem) error {
	s, err := r.text(itemRoles)
	if err != nil {
		return err
	}
	switch m.Role = Role(s); m.Role {
	case RoleUser, RoleAssistant, RoleSystem, RoleDeveloper:
		return nil
	}
	return r.oneOf(s, itemRoles)
}

// readParts reads a text or a list of parts.
func readParts(r *reader, m *InputItem) error {
	const allowed = "a string or an array of content parts"
	if r.dec.PeekKind() == '"' {
		text, err := r.text(allowed)
		m.Parts, m.Plain = []InputPart{{Kind: PartText, Text: text}}, true
		return err
	}
	parts := []InputPart{}
	err := readArray(r, allowed, func(int) error {
		if r.dec.PeekKind() == '"' { // a bare text among the parts
			text, err := r.text("a content part")
			parts = append(parts, InputPart{Kind: PartText, Text: text})
			return err
		}
		p := rawPart{}
		if err := readObject(r, itemPartTable, &p); err != nil {
			return err
		}
		part, err := p.part(r)
		parts = append(parts, part)
		return err
	})
	m.Parts = parts
	return err
}

// rawPart is a content part as clients write it, of either of OpenAI's interfaces.
type rawPart struct {
	kind, text, refusal, detail, url, fileID string
	hasText, hasRefusal                      bool
	audio                                    json.RawMessage

	stdout  *string // of what a shell has run; such parts have no type
	stderr  string
	outcome outcome
}

// outcome is how a command ended.
type outcome struct {
	kind string // exit or timeout
	code *int64 // of its exit
}

// ran is what a model is shown of a command that was run: what it printed, and how it ended where that isn't plain.
func (p *rawPart) ran() string {
	text := strings.TrimRight(*p.stdout, "\n")
	add := func(more string) {
		if text != "" && more != "" {
			text += "\n"
		}
		text += more
	}
	add(strings.TrimRight(p.stderr, "\n"))
	switch code := p.outcome.code; {
	case p.outcome.kind == "timeout":
		add("[timed out]")
	case code != nil && (*code != 0 || text == ""):
		add("[exit code " + strconv.FormatInt(*code, 10) + "]")
	}
	return text
}

// itemPartKinds names the kinds of content part for failures.
const itemPartKinds = `"input_text", "output_text", "refusal", "input_image" or "input_audio"`

// part makes of what was read what the server works with.
func (p *rawPart) part(r *reader) (InputPart, error) {
	none := InputPart{}
	switch p.kind {
	case "input_text", "output_text", "text", "summary_text", "reasoning_text":
		if !p.hasText {
			r.enter("text")
			return none, r.bad("a string")
		}
		return InputPart{Kind: PartText, Text: p.text}, nil
	case "refusal":
		if !p.hasRefusal {
			r.enter("refusal")
			return none, r.bad("a string")
		}
		return InputPart{Kind: PartRefusal, Text: p.refusal}, nil
	case "input_image", "image_url", "input_video", "video_url", "audio_url":
		kind := map[string]string{"input_image": "image_url", "input_video": "video_url"}[p.kind]
		if kind == "" {
			kind = p.kind
		}
		if p.url == "" {
			r.enter(kind)
			if p.fileID != "" {
				return none, r.bad("a URL; there are no uploaded files")
			}
			return none, r.bad("a URL")
		}
		return InputPart{Kind: kind, URL: p.url, Detail: p.detail}, nil
	case PartInputAudio:
		if p.audio == nil {
			r.enter(PartInputAudio)
			return none, r.bad("an object")
		}
		return InputPart{Kind: PartInputAudio, Raw: p.audio}, nil
	case "":
		if p.stdout != nil {
			return InputPart{Kind: PartText, Text: p.ran()}, nil
		}
		r.enter("type")
		return none, r.bad(itemPartKinds)
	}
	r.enter("type")
	return none, r.oneOf(p.kind, itemPartKinds)
}

// readPartURL reads a URL, which is a string in one of OpenAI's interfaces and an object in the other.
func readPartURL(r *reader, p *rawPart) (err error) {
	if r.dec.PeekKind() == '"' {
		p.url, err = r.text("a URL")
		return err
	}
	fields := map[string]string{"url": "", "detail": ""}
	if err := readTexts(r, fields); err != nil {
		return err
	}
	p.url = fields["url"]
	if fields["detail"] != "" {
		p.detail = fields["detail"]
	}
	return nil
}

// readItemArguments reads the arguments of a call: JSON in a string, or the object itself as some clients send it.
func readItemArguments(r *reader, m *InputItem) error {
	if r.dec.PeekKind() == '{' {
		v, err := r.raw()
		m.Arguments = string(v)
		return err
	}
	var err error
	m.Arguments, err = r.text("a JSON object in a string")
	return err
}

// readResponsesTools reads the tools. Those of a namespace are listed each for itself.
func readResponsesTools(r *reader, req *ResponsesRequest) (err error) {
	namespaces := 0
	req.Tools, err = rawArray(r, "an array of tools", func(i int) error {
		t := ResponsesTool{Index: i}
		s := toolReader{ResponsesTool: &t}
		if err := readObject(r, responsesToolTable, &s); err != nil {
			return err
		}
		if t.Type == "" {
			r.enter("type")
			return r.bad("the type of a tool, such as function")
		}
		if t.Type != "namespace" {
			req.ToolList = append(req.ToolList, t)
			return nil
		}
		if namespaces++; namespaces > maxReadNamespaces {
			return r.bad("one of at most " + strconv.Itoa(maxReadNamespaces) + " namespaces")
		}
		for _, inner := range s.inner {
			inner.Namespace, inner.Index = t.Name, i
			req.ToolList = append(req.ToolList, inner)
		}
		return nil
	})
	return err
}

// toolReader is a tool while it is read, with the tools inside it.
type toolReader struct {
	*ResponsesTool
	inner []ResponsesTool // of a namespace
}

// readInnerTools reads the tools of a namespace.
func readInnerTools(r *reader, s *toolReader) error {
	return readArray(r, "an array of tools", func(int) error {
		t := ResponsesTool{}
		if err := readObject(r, innerToolTable, &toolReader{ResponsesTool: &t}); err != nil {
			return err
		}
		s.inner = append(s.inner, t)
		return nil
	})
}

// responsesChoices says what is allowed as a tool_choice.
const responsesChoices = `"none", "auto", "required", {"type":"function","name":…}, {"type":"custom","name":…}, ` +
	`{"type":"shell"}, {"type":"apply_patch"} or {"type":"allowed_tools","mode":…,"tools":[…]}`

// readResponsesChoice reads a mode, a named tool, or the tools on offer.
func readResponsesChoice(r *reader) (*ResponsesChoice, error) {
	c := new(ResponsesChoice)
	var err error
	c.Raw, err = r.span(func() error { return c.read(r) })
	return c, err
}

// read reads the choice in either of its shapes.
func (c *ResponsesChoice) read(r *reader) error {
	switch r.dec.PeekKind() {
	case '"':
		mode, err := r.text(responsesChoices)
		if err != nil {
			return err
		}
		if mode != "none" && mode != "auto" && mode != "required" {
			return r.oneOf(mode, responsesChoices)
		}
		c.Mode = mode
		return nil
	case '{':
		s := choiceReader{ResponsesChoice: c}
		if err := readObject(r, choiceTable, &s); err != nil {
			return err
		}
		return s.finish(r)
	}
	return r.wrong(responsesChoices)
}

// choiceReader is a choice while it is read.
type choiceReader struct {
	*ResponsesChoice
	kind string // type of the object
}

// finish settles the mode by the object's type.
func (s *choiceReader) finish(r *reader) error {
	switch s.kind {
	case ToolLocalShell, ToolShell, ToolPatch:
		s.Mode, s.Name = "function", s.kind
		return nil
	case "function", "custom":
		if s.Name == "" {
			r.enter("name")
			return r.bad("the name of a tool")
		}
		s.Mode = "function"
		return nil
	case "allowed_tools":
		if s.Mode == "" {
			s.Mode = "auto"
		}
		if s.Mode != "auto" && s.Mode != "required" {
			r.enter("mode")
			return r.oneOf(s.Mode, `"auto" or "required"`)
		}
		if s.Allowed == nil {
			s.Allowed = []string{}
		}
		return nil
	}
	r.enter("type")
	return r.oneOf(s.kind, `"function", "custom", "shell", "apply_patch" or "allowed_tools"`)
}

// Chat returns the members of the request's body that a chat request has too, as they were sent and each followed by a
// comma, for one that is being put together.
func (r *ResponsesRequest) Chat(dst []byte) []byte {
	// The body has been decoded once: none of the errors below can happen.
	dec := jsontext.NewDecoder(bytes.NewBuffer(r.body), lenientNames)
	if _, err := dec.ReadToken(); err != nil {
		return dst
	}
	for dec.PeekKind() == '"' {
		token, err := dec.ReadToken()
		if err != nil {
			return dst
		}
		name := token.String()
		value, err := dec.ReadValue()
		if err != nil {
			return dst
		}
		if value.Kind() == 'n' || !sharedWithChat[name] {
			continue
		}
		if name == "nvext" && r.saltOnly {
			value = saltObject(r.NvExt)
		}
		dst = append(append(append(dst, '"'), name...), `":`...)
		dst = append(append(dst, value...), ',')
	}
	return dst
}

// sharedWithChat are the members that mean the same in both requests.
var sharedWithChat = func() map[string]bool {
	shared := map[string]bool{"parallel_tool_calls": true, "thinking_token_budget": true, "chat_template_args": true,
		"chat_template_kwargs": true, "top_logprobs": true}
	for _, f := range commonFields(func(c *Common) *Common { return c }) {
		shared[f.name] = true
	}
	// Said in other words, or of the answer's form, which is another.
	for _, name := range []string{"stream_options", "max_tokens", "n", "metadata", "user"} {
		delete(shared, name)
	}
	return shared
}()
