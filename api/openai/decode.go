package openai

import (
	"bytes"
	"errors"
	"io"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/portico-llm/portico/internal/fault"
)

// DefaultMaxDepth is how deep a body may nest unless DecodeOptions says otherwise.
const DefaultMaxDepth = 500

// DecodeOptions say how strictly a request is read. The zero value works.
type DecodeOptions struct {
	Strict      bool // refuse fields that Dynamo doesn't know, OpenAI's newer ones included
	IgnoreNvExt bool // read nothing of nvext but its cache_salt
	MaxDepth    int  // of nested arrays and objects; 0: DefaultMaxDepth
}

// withDefaults fills in the limits that were left open.
func (o DecodeOptions) withDefaults() DecodeOptions {
	if o.MaxDepth <= 0 {
		o.MaxDepth = DefaultMaxDepth
	}
	return o
}

// DecodeChat reads the body of a chat request. The request aliases body, or a mended copy of it.
//
// Decoding is the first thing that happens to a request, before its model is known: limits here protect the process and
// nothing else.
func DecodeChat(body []byte, opts DecodeOptions) (*ChatRequest, error) {
	req, err := decode(body, opts.withDefaults(), chatTable, (*ChatRequest).reset)
	if err != nil {
		return nil, err
	}
	switch {
	case req.Model == "":
		return nil, missing("model", "the name of a model")
	case req.Messages == nil:
		return nil, missing("messages", "an array with at least one message")
	}
	return req, nil
}

// DecodeCompletion reads the body of a completion request. The request aliases body, or a mended copy of it.
func DecodeCompletion(body []byte, opts DecodeOptions) (*CompletionRequest, error) {
	req, err := decode(body, opts.withDefaults(), completionTable, (*CompletionRequest).reset)
	if err != nil {
		return nil, err
	}
	switch {
	case req.Model == "":
		return nil, missing("model", "the name of a model")
	case !req.Prompt.Given && req.PromptEmbeds == nil:
		return nil, missing("prompt", "a string, an array of strings, an array of token ids or an array of these")
	}
	return req, nil
}

// reset empties the request for another reading, of body, and returns where unknown fields are noted.
func (r *ChatRequest) reset(body []byte) *Unknown {
	*r = ChatRequest{}
	r.body = body
	return &r.Unknown
}

// reset does the same for a completion.
func (r *CompletionRequest) reset(body []byte) *Unknown {
	*r = CompletionRequest{}
	r.body = body
	return &r.Unknown
}

// lenientNames leaves duplicates to the field tables: the library's own check would look at every object of the body.
var lenientNames = jsontext.AllowDuplicateNames(true)

// decode reads body, and on a failure that mending can cure reads it a second time.
func decode[T any](body []byte, opts DecodeOptions, fields *table[T], reset func(*T, []byte) *Unknown) (*T, error) {
	if err := CheckBody(body, opts.MaxDepth); err != nil {
		return nil, err
	}
	// The document is the only thing allocated beside the request: reader and options live in it.
	doc := &document[T]{out: new(T), fields: fields}
	doc.reader.opts = opts
	// Only syntax can be mended: a fault of the request's own shape would come back unchanged.
	err := doc.read(body, reset)
	if _, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		if mended, changed := mend(body); changed {
			err = doc.read(mended, reset)
		}
	}
	if err != nil {
		return nil, syntaxFault(err)
	}
	// A mended reading has begun with an empty list, so nothing is counted twice.
	if u := doc.reader.unknown; opts.Strict && u.Count > 0 {
		return nil, unsupported(u)
	}
	return doc.out, nil
}

// document is what the JSON library is asked to fill: it lends its pooled decoder to the reader.
type document[T any] struct {
	reader reader
	out    *T        // emptied before each reading
	fields *table[T] // of the root object
}

// read reads body into a request that has been emptied.
func (d *document[T]) read(body []byte, reset func(*T, []byte) *Unknown) error {
	unknown := reset(d.out, body)
	// A second reading starts over in every respect: what the first left behind, path included, is gone.
	d.reader.start(body, unknown)
	return json.Unmarshal(body, d, lenientNames)
}

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (d *document[T]) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	d.reader.dec = dec // valid during this call only
	return readObject(&d.reader, d.fields, d.out)
}

// unsupported is the failure of fields that a strict server doesn't know, all of them in one text: a client mends
// them in one go.
func unsupported(u *Unknown) error {
	var list strings.Builder
	for i, name := range u.Names {
		if i > 0 {
			list.WriteString(", ")
		}
		list.WriteString("`" + name + "`")
	}
	if more := u.Count - len(u.Names); more > 0 {
		list.WriteString(" and more")
	}
	// Param names one field, the first; an empty name would read as no field at all.
	first := u.Names[0]
	if first == "" {
		first = `""`
	}
	return fault.Bad(first, "Unsupported parameter(s): %s", list.String()).WithCode("unsupported_parameter")
}

// missing is the failure of a field that has to be there.
func missing(name, allowed string) error {
	return fault.Bad(name, "`%s` is missing; it must be %s", name, allowed).WithCode("missing_required_parameter")
}

// syntaxFault turns what the JSON library reports into a failure the client can act on; faults stay as they are.
func syntaxFault(err error) error {
	if f, ok := errors.AsType[*fault.Error](err); ok {
		return f
	}
	s, ok := errors.AsType[*jsontext.SyntacticError](err)
	if !ok {
		return fault.Bad("", "The body is not a valid request").Because(err)
	}
	// The library knows where it stood even when no field was being read, so its path is the better one.
	path := pointerPath(s.JSONPointer)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fault.Bad(path, "The body is not valid JSON: it ends at byte %d, in the middle of a value", s.ByteOffset).
			WithCode("invalid_json").Because(err)
	}
	// The library quotes what it stumbled over, which may be long and the client's.
	reason := strings.TrimPrefix(s.Err.Error(), "jsontext: ")
	return fault.Bad(path, "The body is not valid JSON: %s at byte %d", clip(reason, 120), s.ByteOffset).
		WithCode("invalid_json").Because(err)
}

// pointerPath writes a JSON pointer the way params are written: /messages/2/content → messages[2].content.
func pointerPath(p jsontext.Pointer) string {
	var path strings.Builder
	for name := range p.Tokens() {
		switch {
		// A pointer doesn't tell indices from names of digits; indices are by far the likelier.
		case name != "" && strings.Trim(name, "0123456789") == "":
			path.WriteString("[" + name + "]")
		case path.Len() > 0:
			path.WriteString("." + clip(name, maxUnknownBytes))
		default:
			path.WriteString(clip(name, maxUnknownBytes))
		}
	}
	return path.String()
}

// tooDeep reports whether body nests deeper than limit. Counting brackets, which is fast, settles it for all but odd
// bodies; brackets inside strings count too, so a large count proves nothing and the depth is then measured.
func tooDeep(body []byte, limit int) bool {
	if bytes.Count(body, []byte{'{'})+bytes.Count(body, []byte{'['}) <= limit {
		return false
	}
	// Brackets count only outside strings; unbalanced ones are found later, by the JSON library.
	depth := 0
	for i := 0; i < len(body); i++ {
		switch body[i] {
		case '"':
			i = stringEnd(body, i)
		case '{', '[':
			if depth++; depth > limit {
				return true
			}
		case '}', ']':
			depth--
		}
	}
	return false
}

// stringEnd returns the index of the quote that ends the string beginning at i, or the last index.
func stringEnd(body []byte, i int) int {
	for i++; i < len(body); i++ {
		// The search runs at memory speed, which matters: nearly all of a body is inside strings.
		n := bytes.IndexByte(body[i:], '"')
		if n < 0 {
			break
		}
		i += n
		// A quote behind an odd number of backslashes is part of the string.
		slashes := 0
		for body[i-1-slashes] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			return i
		}
	}
	return len(body) - 1
}

// clip shortens s to at most n bytes, at a character's border.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	// 10xxxxxx continues a character of UTF-8 (RFC 3629), so the cut moves ahead of it.
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n] + "…"
}
