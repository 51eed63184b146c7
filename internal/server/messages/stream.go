package messages

import (
	"strconv"

	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/server/reply"
	"github.com/portico-llm/portico/internal/server/sse"
)

// Stream writes an answer as Anthropic's events while it comes:
//
//	message_start (content_block_start content_block_delta* content_block_stop)+ message_delta message_stop
//
// A ping follows the start of the first block. A failure is an error event, and no message_stop.
type Stream struct {
	answer
	out   *sse.Writer
	buf   []byte // the writer's, while a delta is worked on
	inner bool   // buf ends inside the text of a content_block_delta, which more text can go on with
}

var (
	_ pipeline.Sink = (*Stream)(nil)
	_ blockWriter   = (*Stream)(nil)
)

// NewStream returns a Stream that writes to out.
func NewStream(out *sse.Writer, opts Options) *Stream {
	s := &Stream{answer: answer{opts: opts}, out: out}
	s.blocks.out = s
	return s
}

// Start writes message_start. Nothing is sent yet: until the first flush a failure can have a status.
func (s *Stream) Start(p *pipeline.Prepared) error {
	s.prepare(p)
	s.out.Begin()
	b := append(s.out.Buffer(), "event: message_start\ndata: {\"type\":\"message_start\",\"message\":"...)
	b = append(s.appendHead(b), `],"model":`...)
	b = append(reply.AppendString(b, s.opts.Model), `,"stop_reason":null,"stop_sequence":null,"usage":`...)
	s.out.SetBuffer(append(s.appendUsage(b, 0), "}}\n\n"...))
	return nil
}

// maxGathered is how much is gathered at most before it is sent, however much more has been received.
const maxGathered = 32 << 10

// Delta appends what d adds. It fails with a *fault.Error when the worker's answer can't be read, and with anything
// else when the client takes no more.
func (s *Stream) Delta(d *pipeline.Delta) error {
	s.buf = s.out.Buffer()
	err := s.add(d)
	s.endDelta()
	s.out.SetBuffer(s.buf)
	if full := len(s.buf) > maxGathered; err == nil && full {
		err = s.out.Flush()
	}
	s.buf = nil
	return err
}

// Flush sends what was gathered. It blocks while the client is slow, up to the write time-out, and so slows its own
// worker only.
func (s *Stream) Flush() error {
	if s.finish != "" { // only the end is outstanding, which is not to be held back
		return s.out.Flush()
	}
	return s.out.FlushAndHold()
}

// Finish ends the stream with the reason why it ended, and the usage.
func (s *Stream) Finish() error {
	s.buf = s.out.Buffer()
	s.blocks.finish()
	b := append(s.buf, "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{"...)
	b = append(s.appendStop(b), `},"usage":`...)
	b = append(s.appendUsage(b, s.output), "}\n\n"...)
	b = append(b, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"...)
	s.out.SetBuffer(b)
	return s.out.End()
}

// Fail ends the stream with an error event, whose data is body. What had come of the answer goes out ahead of it.
func (s *Stream) Fail(body []byte) error {
	b := append(append(s.out.Buffer(), "event: error\ndata: "...), body...)
	s.out.SetBuffer(append(b, "\n\n"...))
	return s.out.End()
}

// begin writes content_block_start. The call's input, like all that a block holds, follows in deltas.
func (s *Stream) begin(p *prepost.Piece) {
	b := append(s.buf, "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":"...)
	b = strconv.AppendInt(b, int64(s.blocks.begun-1), 10)
	b = append(b, `,"content_block":{"type":`...)
	switch p.Kind {
	case prepost.Reasoning:
		b = append(b, `"thinking","thinking":"","signature":""`...)
	case prepost.ToolCall:
		b = append(appendCallHead(append(b, `"tool_use",`...), p), `,"input":{}`...)
	default:
		b = append(b, `"text","text":""`...)
	}
	b = append(b, "}}\n\n"...)
	if s.blocks.begun == 1 { // where Anthropic has it, and clients have seen it
		b = append(b, Ping...)
	}
	s.buf = b
}

// Ping is the event that keeps an idle stream alive. It may come at any time.
const Ping = "event: ping\ndata: {\"type\":\"ping\"}\n\n"

// text writes a content_block_delta, or goes on with the one that the buffer ends in.
func (s *Stream) text(kind prepost.PieceKind, text string) {
	if !s.inner {
		s.inner = true
		s.buf = s.deltaHead(s.buf)
		switch kind {
		case prepost.Reasoning:
			s.buf = append(s.buf, `"thinking_delta","thinking":"`...)
		case prepost.ToolCall:
			s.buf = append(s.buf, `"input_json_delta","partial_json":"`...)
		default:
			s.buf = append(s.buf, `"text_delta","text":"`...)
		}
	}
	s.buf = reply.AppendEscaped(s.buf, text)
}

// deltaHead appends a content_block_delta up to its type.
func (s *Stream) deltaHead(b []byte) []byte {
	b = append(b, "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":"...)
	b = strconv.AppendInt(b, int64(s.blocks.begun-1), 10)
	return append(b, `,"delta":{"type":`...)
}

// endDelta ends the content_block_delta that the buffer ends in, if there is one.
func (s *Stream) endDelta() {
	if s.inner {
		s.inner = false
		s.buf = append(s.buf, "\"}}\n\n"...)
	}
}

// end writes content_block_stop; a thought is sealed ahead of it.
func (s *Stream) end(kind prepost.PieceKind) {
	s.endDelta()
	b := s.buf
	if kind == prepost.Reasoning {
		b = append(s.deltaHead(b), `"signature_delta","signature":"`+signature+"\"}}\n\n"...)
	}
	b = append(b, "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":"...)
	b = strconv.AppendInt(b, int64(s.blocks.begun-1), 10)
	s.buf = append(b, "}\n\n"...)
}
