package reply

import (
	"strconv"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/prepost"
)

// order is where each kind of piece stands in a message: the thought, the text, the calls. A chunk can hold all three,
// but says nothing of the order in which they came, so that a step back begins a new one.
var order = [...]int{prepost.Reasoning: 0, prepost.Content: 1, prepost.ToolCall: 2}

// parsedChunks appends the chunks for a delta whose text has been taken apart: as a rule one. Log probabilities go with
// the first, since nobody knows which of the tokens made which piece, and the end of the choice with the last.
func (s *Stream) parsedChunks(b []byte, d *pipeline.Delta, index int) []byte {
	c := &s.choices[index]
	for rest := d.Pieces; ; {
		n := run(rest)
		last := n == len(rest)
		first := !c.begun
		if first {
			c.begun, s.begun = true, true
			s.open++
		}
		finish := worker.FinishNone
		if last {
			finish = d.Finish
		}
		if finish != worker.FinishNone {
			s.open--
		}
		b = append(b, s.head...)
		b = s.parsedChoice(b, rest[:n], index, first, finish)
		b = s.endChunk(b)
		s.logprobs.reset()
		if last {
			return b
		}
		rest = rest[n:]
	}
}

// run returns how many of the pieces fit into one chunk.
func run(pieces []prepost.Piece) int {
	for i := 1; i < len(pieces); i++ {
		if order[pieces[i].Kind] < order[pieces[i-1].Kind] {
			return i
		}
	}
	return len(pieces)
}

// parsedChoice appends a choice with what the pieces, which are in order, add to its message.
func (s *Stream) parsedChoice(
	b []byte, pieces []prepost.Piece, index int, first bool, finish worker.FinishReason,
) []byte {
	c := &s.choices[index]
	b = append(b, `{"index":`...)
	b = strconv.AppendInt(b, int64(index), 10)
	b = append(b, `,"delta":{`...)
	mark := len(b)
	b, pieces = s.appendTexts(b, pieces, prepost.Reasoning)
	switch {
	case len(pieces) > 0 && pieces[0].Kind == prepost.Content:
		b, pieces = s.appendTexts(b, pieces, prepost.Content)
	case first && len(pieces) > 0: // as OpenAI begins a message of nothing but calls
		b = append(b, `"content":null,`...)
	case first && len(b) == mark: // its first chunk has a content, if an empty one
		b = append(b, `"content":"",`...)
	}
	if len(pieces) > 0 {
		b = append(s.appendCalls(append(b, `"tool_calls":[`...), c, pieces), `],`...)
	}
	if first {
		b = append(b, `"role":"assistant",`...)
	}
	if len(b) > mark {
		b = b[:len(b)-1] // the comma
	}
	b = append(append(b, `},"finish_reason":`...), c.finishReason(finish)...)
	b = s.appendLogProbs(append(b, `,"logprobs":`...), &s.logprobs)
	return append(b, '}')
}

// appendTexts appends the texts of the leading pieces of one kind as one member, and returns the other pieces.
func (s *Stream) appendTexts(b []byte, pieces []prepost.Piece, kind prepost.PieceKind) ([]byte, []prepost.Piece) {
	if len(pieces) == 0 || pieces[0].Kind != kind {
		return b, pieces
	}
	name := "content"
	if kind == prepost.Reasoning {
		name = s.opts.reasoningField()
	}
	b = append(append(append(b, '"'), name...), `":"`...)
	for len(pieces) > 0 && pieces[0].Kind == kind {
		b = appendEscaped(b, pieces[0].Text)
		pieces = pieces[1:]
	}
	return append(b, `",`...), pieces
}

// appendCalls appends fragments of calls: one for each call that the pieces say something of.
func (s *Stream) appendCalls(b []byte, c *choice, pieces []prepost.Piece) []byte {
	for i := 0; i < len(pieces); {
		p := &pieces[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"index":`...)
		b = strconv.AppendInt(b, int64(p.Call), 10)
		if p.Name != "" {
			c.calls++
			b = appendCallHead(append(b, ','), p)
			b = append(b, `,"arguments":"`...)
		} else {
			b = append(b, `,"function":{"arguments":"`...)
		}
		for call := p.Call; i < len(pieces) && pieces[i].Call == call; i++ {
			b = appendEscaped(b, pieces[i].Text)
		}
		b = append(b, `"}}`...)
	}
	return b
}

// appendCallHead appends what a call begins with, up to its function's name.
func appendCallHead(b []byte, p *prepost.Piece) []byte {
	b = append(b, `"id":"`...)
	if p.ID != "" {
		b = appendEscaped(b, p.ID)
	} else {
		b = appendCallID(b)
	}
	return appendString(append(b, `","type":"function","function":{"name":`...), p.Name)
}

// appendCallID appends an id that no other call has, of this answer or of those before it in a conversation.
func appendCallID(b []byte) []byte {
	return AppendID(append(b, "call_"...))
}

// finishReason is OpenAI's word for how the choice ended, as JSON. An engine that stopped of itself after a call has
// stopped for the call's result.
func (c *choice) finishReason(r worker.FinishReason) string {
	word := finishReason(r)
	if c.calls > 0 && word == `"stop"` {
		return `"tool_calls"`
	}
	return word
}

// message is the message of a whole choice whose text has been taken apart.
type message struct {
	reasoning []byte
	calls     []call
}

// call is one whole call.
type call struct {
	head      prepost.Piece // its first piece
	arguments []byte
}

// add takes the pieces of a delta. Content goes to text.
func (m *message) add(text []byte, pieces []prepost.Piece) []byte {
	for i := range pieces {
		p := &pieces[i]
		switch p.Kind {
		case prepost.Content:
			text = append(text, p.Text...)
		case prepost.Reasoning:
			m.reasoning = append(m.reasoning, p.Text...)
		case prepost.ToolCall:
			if p.Name != "" {
				m.calls = append(m.calls, call{head: *p})
			}
			if n := len(m.calls); n > 0 { // fragments belong to the call that began last
				m.calls[n-1].arguments = append(m.calls[n-1].arguments, p.Text...)
			}
		}
	}
	return text
}

// append appends the members of the message that only parsed answers have.
func (m *message) append(b []byte, reasoningField string) []byte {
	if len(m.reasoning) > 0 {
		b = append(append(append(b, `,"`...), reasoningField...), `":`...)
		b = appendString(b, m.reasoning)
	}
	if len(m.calls) == 0 {
		return b
	}
	b = append(b, `,"tool_calls":[`...)
	for i := range m.calls {
		c := &m.calls[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = appendCallHead(append(b, '{'), &c.head)
		b = appendString(append(b, `,"arguments":`...), c.arguments)
		b = append(b, "}}"...)
	}
	return append(b, ']')
}

// reasoningField is the name of the member that thoughts are in.
func (o *Options) reasoningField() string {
	if o.ReasoningField == "" {
		return "reasoning_content"
	}
	return o.ReasoningField
}
