package reply

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/server/sse"
)

// Stream writes an answer as server-sent events while it comes.
type Stream struct {
	base             // options, choices, usage
	out  *sse.Writer // gathers and sends
	head []byte      // what begins every chunk, up to its choices
	tail []byte      // what follows the choices, up to the usage or the end

	// Together these tell whether only the end mark is outstanding. Choices that the worker never makes don't count.
	open  int  // choices that have begun and not ended
	begun bool // a choice has begun
}

var _ pipeline.Sink = (*Stream)(nil)

// NewStream returns a Stream that writes to out.
func NewStream(out *sse.Writer, opts Options) *Stream {
	s := &Stream{base: base{opts: opts}, out: out}
	// Everything that is the same in all chunks is encoded here, once for the whole answer.
	s.head = appendString(append(s.head, `data: {"id":`...), opts.ID)
	s.head = append(s.head, `,"choices":[`...)
	s.tail = append(s.tail, `],"created":`...)
	s.tail = strconv.AppendInt(s.tail, opts.Created.Unix(), 10)
	s.tail = appendString(append(s.tail, `,"model":`...), opts.Model)
	if !opts.Chat {
		s.tail = append(s.tail, `,"system_fingerprint":null`...)
	}
	s.tail = append(append(append(s.tail, `,"object":"`...), opts.object(true)...), '"')
	return s
}

// Start writes the annotations of the request. Nothing is sent yet: until the first flush a failure can have a status.
func (s *Stream) Start(p *pipeline.Prepared) error {
	s.begin(p)
	s.out.Begin()
	if s.opts.Notes == (Notes{}) {
		return nil
	}
	b := s.out.Buffer()
	if s.opts.Notes.RequestID {
		b = append(appendString(append(b, "event: request_id\n: "...), s.opts.RequestID), "\n\n"...)
	}
	if s.opts.Notes.Prompt && p.Prompt != "" {
		b = append(appendString(append(b, "event: formatted_prompt\n: "...), p.Prompt), "\n\n"...)
	}
	if s.opts.Notes.TokenIDs && len(p.Requests) > 0 {
		b = append(b, "event: token_ids\n: \""...) // the value is a string that holds the array
		b = append(worker.AppendJSONNumbers(b, p.Requests[0].TokenIDs), "\"\n\n"...)
	}
	s.out.SetBuffer(b)
	return nil
}

// maxGathered is how much is gathered at most before it is sent, however much more has been received.
const maxGathered = 32 << 10

// Delta appends what d adds. Its failure is the client's: it takes no more.
func (s *Stream) Delta(d *pipeline.Delta) error {
	b := s.out.Buffer()
	switch {
	// A worker that speaks the client's format: its chunk is ours.
	case d.Raw != nil:
		b = s.rawChunk(b, d.Raw)
	case d.Event != "":
		b = appendEvent(b, d.Event, d.Comment)
	default:
		b = s.chunk(b, d)
	}
	s.out.SetBuffer(b)
	// Without holding: the buffer is full whatever else is coming.
	if len(b) > maxGathered {
		return s.out.Flush()
	}
	return nil
}

// Flush sends what was gathered. It blocks while the client is slow, up to the write time-out, and so slows its own
// worker only.
func (s *Stream) Flush() error {
	// Once every choice has ended only the end mark is outstanding: it is not to be held back.
	if s.begun && s.open == 0 {
		return s.out.Flush()
	}
	return s.out.FlushAndHold()
}

// Finish ends the stream: the usage, when asked for, and the end mark.
func (s *Stream) Finish() error {
	if s.opts.Usage && !s.rawAnswer { // such a worker writes the usage chunk itself
		b := append(append(s.out.Buffer(), s.head...), s.tail...)
		b = s.appendUsage(append(b, `,"usage":`...))
		s.out.SetBuffer(append(b, "}\n\n"...))
	}
	return s.out.Finish()
}

// Fail ends the stream with an error event, whose data is body, and the end mark.
func (s *Stream) Fail(body []byte) error {
	b := append(append(s.out.Buffer(), "data: "...), body...)
	s.out.SetBuffer(append(b, "\n\n"...))
	return s.out.Finish()
}

// chunk appends the chunk for d, if d says anything a client sees.
func (s *Stream) chunk(b []byte, d *pipeline.Delta) []byte {
	// Counting comes before the look at what is visible: a token without text is a token.
	index := s.index(d)
	c := &s.choices[index]
	s.count(d)
	s.ext.add(d)
	s.logprobs.reset()
	s.addLogProbs(&s.logprobs, d, c)
	if !s.visible(d, c) {
		return b
	}
	if s.parsed {
		return s.parsedChunks(b, d, index)
	}
	first := !c.begun
	if first {
		c.begun, s.begun = true, true
		s.open++
	}
	// A choice ends once: the pipeline drops what comes after its finish.
	if d.Finish != worker.FinishNone {
		s.open--
	}
	// From here on the chunk is assembled in the order of its keys.
	b = append(b, s.head...)
	if s.opts.Chat {
		b = s.chatChoice(b, d, index, first)
	} else {
		b = s.completionChoice(b, d, index, first)
	}
	return s.endChunk(b)
}

// endChunk appends what stands behind the choice.
func (s *Stream) endChunk(b []byte) []byte {
	b = append(b, s.tail...)
	if s.opts.ContinuousUsage {
		b = s.appendUsage(append(b, `,"usage":`...))
	} else if !s.opts.Chat { // chat chunks leave the key out, completion chunks don't
		b = append(b, `,"usage":null`...)
	}
	b = s.ext.append(b)
	return append(b, "}\n\n"...)
}

// visible reports whether d makes a chunk. A chat choice begins with its first output even when that holds no text
// yet: its role is worth telling.
func (s *Stream) visible(d *pipeline.Delta, c *choice) bool {
	return len(d.Text) > 0 || len(d.Pieces) > 0 || d.Finish != worker.FinishNone || s.logprobs.n > 0 || (s.opts.Chat && !c.begun)
}

// chatChoice appends a choice with what d adds to its message.
func (s *Stream) chatChoice(b []byte, d *pipeline.Delta, index int, first bool) []byte {
	b = append(b, `{"index":`...)
	b = strconv.AppendInt(b, int64(index), 10)
	b = append(b, `,"delta":{`...)
	if first || len(d.Text) > 0 { // OpenAI's first chunk has a content, if an empty one
		b = appendString(append(b, `"content":`...), d.Text)
	}
	if first { // the role stands in the first chunk of a choice only
		b = append(b, `,"role":"assistant"`...)
	}
	b = append(append(b, `},"finish_reason":`...), finishReason(d.Finish)...)
	b = s.appendLogProbs(append(b, `,"logprobs":`...), &s.logprobs)
	return append(b, '}')
}

// completionChoice appends a choice with the text d adds. Its keys stand in the same order as in a whole answer.
func (s *Stream) completionChoice(b []byte, d *pipeline.Delta, index int, first bool) []byte {
	b = append(b, `{"text":"`...)
	marks := &s.logprobs
	if first {
		b = appendEscaped(b, s.prefix(index))
		if s.echoed != nil { // whose probabilities come too late to be told
			marks = s.echoLogProbs(index/s.perPrompt, nil)
			marks.extend(&s.logprobs)
		}
	}
	b = append(appendEscaped(b, d.Text), `","index":`...)
	b = strconv.AppendInt(b, int64(index), 10)
	b = s.appendLogProbs(append(b, `,"logprobs":`...), marks)
	b = append(append(b, `,"finish_reason":`...), finishReason(d.Finish)...)
	return append(b, '}')
}

// appendEvent appends a worker's annotation. Its values are comments, so that readers that know nothing of it see no
// event.
func appendEvent(b []byte, name string, values []string) []byte {
	b = append(b, "event: "...)
	b = append(b, strings.Map(oneLine, name)...)
	b = append(b, '\n')
	for _, v := range values {
		b = append(append(append(b, ": "...), strings.Map(oneLine, v)...), '\n')
	}
	return append(b, '\n')
}

// oneLine keeps a worker's text from ending its line.
func oneLine(r rune) rune {
	if r == '\n' || r == '\r' {
		return ' '
	}
	return r
}

// rawChunk passes on a chunk that the worker wrote in the client's format.
func (s *Stream) rawChunk(b, raw []byte) []byte {
	s.rawAnswer = true
	usageOnly := s.countRaw(raw)
	if usageOnly && !s.opts.Usage {
		return b // usage only when asked for, whatever the worker sends
	}
	s.begun = true
	b = append(b, "data: "...)
	if bytes.ContainsAny(raw, "\r\n") { // only between tokens of JSON: strings can't hold them
		for _, line := range bytes.FieldsFunc(raw, func(r rune) bool { return r == '\n' || r == '\r' }) {
			b = append(b, line...)
		}
	} else {
		b = append(b, raw...)
	}
	return append(b, "\n\n"...)
}
