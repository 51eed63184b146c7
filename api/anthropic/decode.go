package anthropic

import (
	"errors"
	"reflect"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/internal/fault"
)

// Options say how a body is read. The zero value works.
type Options struct {
	MaxDepth int // of nested arrays and objects; 0: openai.DefaultMaxDepth
}

// lenient lets the last of several members of one name count, as most readers of JSON do.
var lenient = jsontext.AllowDuplicateNames(true)

// Decode reads the body of POST /v1/messages. Failures are *fault.Error.
func Decode(body []byte, opts Options) (*Request, error) {
	req, err := decode(body, opts)
	if err != nil {
		return nil, err
	}
	if req.MaxTokens == nil {
		return nil, missing("max_tokens", "an integer greater than 0")
	}
	return req, nil
}

// DecodeCount reads the body of POST /v1/messages/count_tokens, which needs no max_tokens. Failures are *fault.Error.
func DecodeCount(body []byte, opts Options) (*Request, error) { return decode(body, opts) }

// decode reads what both have in common.
func decode(body []byte, opts Options) (*Request, error) {
	if err := openai.CheckBody(body, opts.MaxDepth); err != nil {
		return nil, err
	}
	req := new(Request)
	err := json.Unmarshal(body, req, lenient)
	// Only what is wrong inside strings can be mended, and that is always an error of syntax.
	if _, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		if mended, changed := openai.Mend(body); changed {
			*req = Request{}
			err = json.Unmarshal(mended, req, lenient)
		}
	}
	if err != nil {
		return nil, decodeFault(err)
	}
	if err := req.check(); err != nil {
		return nil, err
	}
	return req, nil
}

// wrongKind is the failure of a value that may have one of several types.
type wrongKind struct{ allowed string }

// Error says what is allowed.
func (e *wrongKind) Error() string { return "must be " + e.allowed }

// UnmarshalJSONFrom implements json.UnmarshalerFrom: content is a string or an array of blocks.
func (c *Content) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	*c = Content{}
	switch dec.PeekKind() {
	case 'n':
		return dec.SkipValue()
	case '"':
		c.Given, c.Plain = true, true
		return json.UnmarshalDecode(dec, &c.Text)
	case '[':
		c.Given, c.Blocks = true, []Block{}
		return json.UnmarshalDecode(dec, &c.Blocks)
	}
	if err := dec.SkipValue(); err != nil {
		return err
	}
	return &wrongKind{"a string or an array of content blocks"}
}

// UnmarshalJSONFrom implements json.UnmarshalerFrom: a source is an object, or the URL of a search result.
func (s *Source) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	*s = Source{}
	if dec.PeekKind() == '"' {
		return json.UnmarshalDecode(dec, &s.URL)
	}
	type plain Source // without this method
	return json.UnmarshalDecode(dec, (*plain)(s))
}

// decodeFault turns what the JSON library reports into a failure that names the field.
func decodeFault(err error) error {
	s, ok := errors.AsType[*json.SemanticError](err)
	if !ok {
		return openai.SyntaxFault(err)
	}
	allowed := allowedFor(s.GoType)
	if w, ok := errors.AsType[*wrongKind](err); ok {
		allowed = w.allowed
	}
	path := openai.PointerPath(s.JSONPointer)
	if path == "" {
		return fault.Bad("", "The body must be a JSON object")
	}
	return fault.Bad(path, "`%s` must be %s", path, allowed).WithCode("invalid_type").Because(err)
}

// allowedFor says in JSON's words what a Go type takes.
func allowedFor(t reflect.Type) string {
	if t == nil {
		return "of another type"
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int64:
		return "an integer"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "an array"
	}
	return "an object"
}

// missing is the failure of a field that has to be there.
func missing(path, allowed string) error {
	return fault.Bad(path, "`%s` is missing; it must be %s", path, allowed).WithCode("missing_required_parameter")
}

// refuse is the failure of a value that isn't allowed.
func refuse(path, format string, args ...any) error {
	return fault.Bad(path, format, args...).WithCode("invalid_value")
}

// check looks at what types alone don't tell. Ranges of numbers are checked later, with those of the other endpoints.
func (r *Request) check() error {
	switch {
	case r.Model == "":
		return missing("model", "the name of a model")
	case len(r.Messages) == 0:
		return missing("messages", "an array with at least one message")
	case len(r.MCPServers) > 0:
		return refuse("mcp_servers", "`mcp_servers` is not supported; run the servers in the client and pass their `tools`")
	}
	for i := range r.System.Blocks {
		if b, path := &r.System.Blocks[i], "system"+index(i); b.Type != BlockText || b.Text == nil {
			return refuse(path, "`%s` must be a text block: {\"type\":\"text\",\"text\":…}", path)
		}
	}
	for i := range r.Messages {
		if err := r.Messages[i].check("messages" + index(i)); err != nil {
			return err
		}
	}
	for i := range r.Tools {
		if err := r.Tools[i].check("tools" + index(i)); err != nil {
			return err
		}
	}
	return r.checkSwitches()
}

// index is one step of a path.
func index(i int) string { return "[" + strconv.Itoa(i) + "]" }

// checkSwitches looks at the fields that take one of a few words, and at the objects passed on as they are.
func (r *Request) checkSwitches() error {
	for _, v := range [...]struct {
		path  string
		value jsontext.Value
	}{{"nvext", r.NvExt}, {"chat_template_kwargs", r.ChatTemplateKwargs}} {
		if err := object(v.path, v.value); err != nil {
			return err
		}
	}
	if c := r.ToolChoice; c != nil {
		switch {
		case c.Type != "auto" && c.Type != "any" && c.Type != "tool" && c.Type != "none":
			return refuse("tool_choice.type", "`tool_choice.type` must be auto, any, tool or none, not %q", clip(c.Type))
		case c.Type == "tool" && c.Name == "":
			return missing("tool_choice.name", "the name of a tool")
		}
	}
	if t := r.Thinking; t != nil && t.Type != "enabled" && t.Type != "disabled" && t.Type != "adaptive" {
		return refuse("thinking.type", "`thinking.type` must be enabled, disabled or adaptive, not %q", clip(t.Type))
	}
	if err := r.OutputFormat.check("output_format"); err != nil || r.OutputConfig == nil {
		return err
	}
	return r.OutputConfig.Format.check("output_config.format")
}

// check looks at the form an answer is held to; nil is none.
func (f *Format) check(path string) error {
	switch {
	case f == nil:
		return nil
	case f.Type != "json_schema":
		return refuse(path+".type", "`%s.type` must be json_schema, not %q", path, clip(f.Type))
	case len(f.Schema) == 0 || f.Schema.Kind() == 'n':
		return missing(path+".schema", "a JSON schema object")
	}
	return object(path+".schema", f.Schema)
}

// object checks a value that is passed on as it is.
func object(path string, v jsontext.Value) error {
	if len(v) == 0 || v.Kind() == '{' || v.Kind() == 'n' {
		return nil
	}
	return fault.Bad(path, "`%s` must be an object", path).WithCode("invalid_type")
}

// check looks at a tool.
func (t *Tool) check(path string) error {
	switch {
	case t.Type != "" && t.Type != "custom":
		return refuse(path+".type", "`%s.type` must be custom: Anthropic's tool %q is not supported", path, clip(t.Type))
	case t.Name == "":
		return missing(path+".name", "the name of the tool")
	}
	return object(path+".input_schema", t.InputSchema)
}

// clip shortens what a message repeats of a request.
func clip(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}
