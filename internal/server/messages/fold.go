package messages

import (
	"bytes"
	"errors"
	"io"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/server/reply"
)

// Fold gathers an answer into one message: its blocks are those of the stream.
type Fold struct {
	answer
	content []byte // the blocks so far, as elements of an array
	input   []byte // of the open call, as the model wrote it
}

var (
	_ pipeline.Sink = (*Fold)(nil)
	_ blockWriter   = (*Fold)(nil)
)

// NewFold returns an empty Fold.
func NewFold(opts Options) *Fold {
	f := &Fold{answer: answer{opts: opts}}
	f.blocks.out = f
	return f
}

// Start prepares for p's answer.
func (f *Fold) Start(p *pipeline.Prepared) error {
	f.prepare(p)
	return nil
}

// Delta adds d.
func (f *Fold) Delta(d *pipeline.Delta) error { return f.add(d) }

// Flush does nothing: the body leaves as a whole.
func (f *Fold) Flush() error { return nil }

// AppendBody appends the message. It is called once, after the pipeline has run without failure, and doesn't fail.
func (f *Fold) AppendBody(dst []byte) ([]byte, error) {
	f.blocks.finish()
	dst = append(f.appendHead(dst), f.content...)
	dst = append(reply.AppendString(append(dst, `],"model":`...), f.opts.Model), ',')
	dst = append(f.appendStop(dst), `,"usage":`...)
	return append(f.appendUsage(dst, f.output), '}'), nil
}

// begin opens a block.
func (f *Fold) begin(p *prepost.Piece) {
	if f.blocks.begun > 1 {
		f.content = append(f.content, ',')
	}
	switch p.Kind {
	case prepost.Reasoning:
		f.content = append(f.content, `{"type":"thinking","thinking":"`...)
	case prepost.ToolCall:
		f.content = appendCallHead(append(f.content, `{"type":"tool_use",`...), p)
		f.input = f.input[:0]
	default:
		f.content = append(f.content, `{"type":"text","text":"`...)
	}
}

// text adds to the open block.
func (f *Fold) text(kind prepost.PieceKind, text string) {
	if kind == prepost.ToolCall {
		f.input = append(f.input, text...)
		return
	}
	f.content = reply.AppendEscaped(f.content, text)
}

// end closes the open block.
func (f *Fold) end(kind prepost.PieceKind) {
	switch kind {
	case prepost.Reasoning:
		f.content = append(f.content, `","signature":"`+signature+`"}`...)
	case prepost.ToolCall:
		f.content = append(appendInput(append(f.content, `,"input":`...), f.input), '}')
	default:
		f.content = append(f.content, `"}`...)
	}
}

// appendInput appends the input of a call as an object. Of one that was cut off, as by a limit of tokens, those members
// are left that are whole: clients of the stream do the same with what they have.
func appendInput(dst, text []byte) []byte {
	text = bytes.TrimSpace(text)
	if v := jsontext.Value(text); len(text) > 0 && text[0] == '{' && v.IsValid(lenient) {
		return append(dst, text...)
	}
	if len(text) == 0 || text[0] != '{' {
		return append(dst, "{}"...)
	}
	return append(dst, wholeMembers(text)...)
}

// wholeMembers reads the beginning of an object up to where it breaks off, leaves out what is not whole, and closes
// what is open.
func wholeMembers(text []byte) []byte {
	dec := jsontext.NewDecoder(bytes.NewReader(text), lenient, jsontext.AllowInvalidUTF8(true))
	var out bytes.Buffer
	enc := jsontext.NewEncoder(&out, lenient, jsontext.AllowInvalidUTF8(true))
	var name jsontext.Token // of a member whose value has not been seen
	named := false
	for {
		// A number at the very end may lack digits: only what something follows is whole.
		kind := dec.PeekKind()
		token, err := dec.ReadToken()
		if err != nil || kind == '0' && dec.InputOffset() == int64(len(text)) {
			break
		}
		if k, n := dec.StackIndex(dec.StackDepth()); k == '{' && n%2 == 1 && kind == '"' {
			name, named = token.Clone(), true
			continue
		}
		if named {
			if enc.WriteToken(name) != nil {
				break
			}
			named = false
		}
		if enc.WriteToken(token) != nil {
			break
		}
		if dec.StackDepth() == 0 { // whole, with something behind it
			break
		}
	}
	for enc.StackDepth() > 0 {
		end := jsontext.EndObject
		if k, _ := enc.StackIndex(enc.StackDepth()); k == '[' {
			end = jsontext.EndArray
		}
		if err := enc.WriteToken(end); err != nil && !errors.Is(err, io.EOF) {
			return []byte("{}")
		}
	}
	return bytes.TrimSpace(out.Bytes())
}
