package server

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/server/reply"
	"github.com/portico-llm/portico/internal/server/sse"
)

// lookup finds the request's model, and settles the metrics' labels.
func (x *exchange) lookup(c *openai.Common) (*catalog.Set, error) {
	if n := c.Unknown.Count; n > 0 {
		x.s.metrics.unknown.WithLabelValues(x.endpoint.String()).Add(float64(n))
	}
	return x.find(c.Model, c.Streaming())
}

// find looks a model up among those that have the request's endpoint.
func (x *exchange) find(model string, stream bool) (*catalog.Set, error) {
	set, err := x.s.opts.Catalog.LookupFor(model, x.endpoint.surface())
	// A model that isn't ready is in the catalog all the same, so its name makes a label.
	if err != nil && fault.KindOf(err) != fault.Unavailable {
		x.known(unknownModel, stream)
		return nil, err
	}
	x.known(model, stream)
	return set, err
}

// form is how an endpoint writes its answers: in one body, and as a stream of events.
type form struct {
	fold   func() folder
	stream func(*sse.Writer) streamer
}

// folder gathers an answer into one body. AppendBody is called once, after the pipeline has run without failure.
type folder interface {
	pipeline.Sink
	Usage() worker.Usage
	AppendBody(dst []byte) ([]byte, error)
}

// streamer writes an answer as events. Finish or Fail is called once, at the end, unless nothing has been sent and the
// failure becomes a status.
type streamer interface {
	pipeline.Sink
	Usage() worker.Usage
	Finish() error
	Fail(f *fault.Error) error
}

// completionForm is the form of chat and completions.
func (x *exchange) completionForm(o reply.Options) form {
	return form{
		fold:   func() folder { return reply.NewFold(o) },
		stream: func(out *sse.Writer) streamer { return chunked{reply.NewStream(out, o), x.errors} },
	}
}

// chunked is a stream of chunks, whose failure is an error object.
type chunked struct {
	*reply.Stream
	errors *errorTable
}

// Fail ends the stream with f.
func (c chunked) Fail(f *fault.Error) error { return c.Stream.Fail(c.errors.appendEvent(nil, f)) }

// answer runs a prepared request and writes what comes.
func (x *exchange) answer(p *pipeline.Prepared, how form) error {
	if x.stream {
		return x.answerStream(p, how)
	}
	// The answer is gathered in memory: its length is bounded by max_tokens and the model's context.
	fold := how.fold()
	sink := observed{sink: fold, x: x}
	err := x.s.opts.Pipeline.Run(x.r.Context(), p, &sink)
	x.account(&sink, fold.Usage())
	if err != nil {
		return err
	}
	body, err := fold.AppendBody(nil)
	if err != nil {
		return err
	}
	return x.write(body)
}

// write answers with a whole body.
func (x *exchange) write(body []byte) error {
	x.s.writeWithin(x.w, x.s.opts.Stream.WriteTimeout)
	x.answered = true
	if err := writeJSON(x.w, body); err != nil {
		return errGone.Because(err)
	}
	return nil
}

// writeJSON answers with a body that is there whole.
func writeJSON(w http.ResponseWriter, body []byte) error {
	h := w.Header()
	h["Content-Type"] = jsonType
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	_, err := w.Write(body)
	return err
}

// The header's value and the failure of a write, made once.
var (
	jsonType = []string{"application/json"} // shared: nobody changes a header's values in place
	errGone  = fault.New(fault.Cancelled, "The client stopped reading")
)

// answerStream answers with events. Until the first of them has left, a failure is a status; then it is an error event
// before the end mark.
func (x *exchange) answerStream(p *pipeline.Prepared, how form) error {
	// From here until Abandon or Close the writer owns the response.
	opts := x.s.opts.Stream
	opts.Beat = x.beat
	out := sse.NewWriter(x.w, x.r, opts)
	defer out.Close()
	stream := how.stream(out)
	returned := false
	defer func() { // also when a panic comes by
		begun := !out.Abandon()
		x.answered = x.answered || begun
		// A stream that just ended would look like a whole answer.
		if begun && !returned {
			_ = stream.Fail(errPanic) // the panic is what is reported
		}
	}()
	err := x.runStream(out, stream, p)
	returned = true
	return err
}

// runStream is answerStream without what comes after every end.
func (x *exchange) runStream(out *sse.Writer, stream streamer, p *pipeline.Prepared) error {
	sink := observed{sink: stream, x: x}
	err := x.s.opts.Pipeline.Run(x.r.Context(), p, &sink)
	// Also of a stream that broke off: the tokens were generated.
	x.account(&sink, stream.Usage())
	if err == nil {
		x.answered = true
		if err := stream.Finish(); err != nil {
			return errGone.Because(err)
		}
		return nil
	}
	if sink.failed { // the client's end of the connection, whatever the pipeline makes of it
		x.answered = true
		return errGone.Because(err)
	}
	if out.Abandon() { // nothing has left: the failure can still be a status
		return err
	}
	x.answered = true
	f := fault.From(err)
	// A worker that reports a cancel is another matter: its client is still there.
	if f.Kind == fault.Cancelled && f.Origin == fault.FromRequest {
		return f // nobody reads
	}
	if werr := stream.Fail(f); werr != nil {
		return errGone.Because(werr)
	}
	return f
}

// observed measures an answer on its way to the sink that writes it, so that both modes are measured alike. It belongs
// to one request, and its methods are called one at a time.
type observed struct {
	sink   pipeline.Sink // a folder or a streamer
	x      *exchange     // whose metrics are moved
	last   time.Time     // of the last output; zero before the first
	tokens int           // seen so far, over all choices
	input  int           // tokens of the prompt, of the first one of a batch

	instance *worker.Instance // that last's output came from
	reader   *workerLast      // gauges of who has read the prompt
	worker   *workerLast      // its own
	finish   []string         // reasons, for the trace only
	failed   bool             // the sink could not write
}

var _ pipeline.Sink = (*observed)(nil)

// Start notes the prompt's length and passes on.
func (o *observed) Start(p *pipeline.Prepared) error {
	if len(p.Requests) > 0 && p.Requests[0] != nil {
		o.input = len(p.Requests[0].TokenIDs)
	}
	return o.sink.Start(p)
}

// Delta measures d and passes it on. The time of an output is shared by its tokens.
func (o *observed) Delta(d *pipeline.Delta) error {
	// Annotations and bare usage are no output.
	if d.Tokens > 0 || len(d.Text) > 0 || d.Raw != nil {
		o.observe(d)
	}
	if d.Finish != worker.FinishNone && o.x.span != nil {
		o.finish = append(o.finish, string(d.Finish))
	}
	err := o.sink.Delta(d)
	if err != nil {
		// The sinks fail with a fault when the answer is at fault, and with anything else when the client is.
		_, known := errors.AsType[*fault.Error](err)
		o.failed = o.failed || !known
	}
	return err
}

// observe counts one output at the time it arrived, before it is written: a slow client doesn't make a slow model.
func (o *observed) observe(d *pipeline.Delta) {
	now, m := time.Now(), o.x.model
	if d.Instance != nil && d.Instance != o.instance {
		o.meet(d)
	}
	if o.last.IsZero() { // the first output, whatever it holds, ends the wait
		ttft := now.Sub(o.x.began).Seconds()
		m.ttft.Observe(ttft)
		if o.reader != nil {
			note(&o.reader.ttft, ttft)
		}
		o.x.dequeue()
	} else {
		// One observation for each token, so that the histogram weighs them alike however an engine batches.
		each := now.Sub(o.last).Seconds() / float64(max(d.Tokens, 1))
		for range max(d.Tokens, 1) {
			m.itl.Observe(each)
		}
		if o.worker != nil {
			note(&o.worker.itl, each)
		}
	}
	o.last = now
	o.tokens += d.Tokens
	m.tokens.Add(float64(d.Tokens))
}

// meet notes who answers from here on.
func (o *observed) meet(d *pipeline.Delta) {
	gauges := o.x.s.metrics.workers
	o.instance = d.Instance
	o.worker = gauges.of(keyOf(d.Instance, d.Rank, decodeType))
	if o.reader = o.worker; d.Prefill != nil {
		o.reader = gauges.of(keyOf(d.Prefill, d.PrefillRank, prefillType))
	}
	note(&o.reader.input, float64(o.input))
}

// Flush passes on and notes whether the client takes what it is sent.
func (o *observed) Flush() error {
	err := o.sink.Flush()
	o.failed = o.failed || err != nil
	return err
}

// account observes the sizes of an answer.
func (x *exchange) account(o *observed, u worker.Usage) {
	if u.CompletionTokens > o.tokens { // counted by the worker only
		x.model.tokens.Add(float64(u.CompletionTokens - o.tokens))
	}
	// A failure before the first token has no length; zero would drag the distribution down.
	if u.CompletionTokens > 0 {
		x.model.output.Observe(float64(u.CompletionTokens))
	}
	if u.CachedTokens != nil {
		x.model.cached.Observe(float64(*u.CachedTokens))
	}
	x.describeAnswer(o, u)
}
