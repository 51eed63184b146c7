package pipeline

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/prepost/chain"
	"github.com/portico-llm/portico/internal/router"
)

// leg turns the items of one worker stream into deltas. It belongs to one goroutine.
type leg struct {
	sink     Sink                  // where deltas go; shared in a batch
	prompt   int                   // index into Prepared.Requests
	raw      bool                  // the worker answers in the client's format
	stop     worker.StopConditions // of the request, which doesn't live as long
	choices  []legChoice           // by the worker's index
	open     int                   // choices that go on
	local    bool                  // a choice was ended here, so that the worker is to be told
	items    int                   // outputs seen, dropped ones included
	tokens   int                   // generated, for the span
	instance *worker.Instance      // who answers

	move  *move  // nil: the request can't go on at another worker
	stays string // why, where there is something to tell
	moved int    // tokens the current worker was given as part of its prompt

	aimed       aim              // of the current worker
	prefilled   *worker.Instance // who has read the prompt for it; nil: itself
	prefillRank *uint32          // at which rank, where the router has chosen one
	lostPrefill []uint64         // prefill workers that failed this request
	toll        router.Toll      // what the request has cost
	heard       bool             // the current worker has generated something

	span      trace.Span          // of the whole stream
	wait      trace.Span          // for the first output
	began     time.Time           // when the worker had said that it started
	roundtrip prometheus.Observer // from then to the first output
	decoding  time.Duration       // spent on the outputs that were timed
	timed     int                 // how many that were
	awaiting  prometheus.Gauge    // counts the wait for it; nil once that is over

	delta  Delta               // reused for every item
	text   []byte              // its text
	pieces []prepost.Piece     // its pieces
	gather func(prepost.Piece) // adds to pieces; made once
	usage  worker.Usage        // its usage, where the worker's own needs mending
}

// legChoice is one of the n choices of a prompt.
type legChoice struct {
	chain     *chain.Choice        // its detokeniser and stops
	parser    prepost.AnswerParser // takes the text apart; nil: nothing does
	reasoning int                  // tokens of reasoning told so far
	seen      bool                 // the worker has mentioned it
	done      bool                 // has its finish reason
}

// newLeg makes a chain for every choice, while the prompt is still there for the decoders to look at.
func newLeg(req *Prepared, prompt int, sink Sink) *leg {
	l := &leg{sink: sink, prompt: prompt, raw: len(req.Requests) == 0}
	if l.raw {
		return l
	}
	q := req.Requests[prompt]
	l.stop = q.Stop
	l.choices = make([]legChoice, max(req.Choices, 1))
	l.open = len(l.choices)
	for i := range l.choices {
		l.choices[i].chain = chain.New(chain.Options{
			Decoder:     newDecoder(req, q),
			Stop:        &l.stop,
			IncludeStop: isOn(q.Sampling.IncludeStopStr),
			NoStopTrim:  isOn(q.Output.NoStopTrim),
		})
		if req.Parsed() {
			l.choices[i].parser = req.Answer.New()
		}
	}
	if req.Parsed() {
		l.gather = func(p prepost.Piece) { l.pieces = append(l.pieces, p) }
	}
	return l
}

// newDecoder returns a decoder for one choice. The prompt's last tokens decide whether the answer's first one has a space
// ahead of it.
func newDecoder(req *Prepared, q *worker.Request) prepost.Decoder {
	t := req.Set.Tokenizer
	// Absent is true: special tokens are no part of a text.
	skip := q.Output.SkipSpecialTokens == nil || *q.Output.SkipSpecialTokens
	if req.Answer != nil { // what the worker is told is then another matter
		skip = !req.keepSpecial
	}
	if skip && len(req.markup) > 0 {
		return t.NewMarkupDecoder(q.TokenIDs, req.markup)
	}
	return t.NewDecoder(q.TokenIDs, skip)
}

// item handles one item of the stream. It is the function given to Each.
func (l *leg) item(it *worker.Item, more bool) error {
	// A failure ends the stream, and what the item holds besides is dropped.
	if it.Err != nil || it.Event == "error" {
		return workerFault(it, l.items == 0)
	}
	// Annotations go out ahead of the data they came with.
	if it.Event != "" {
		l.delta = l.blank(0)
		l.delta.Event, l.delta.Comment = it.Event, it.Comment
		l.begin()
		if err := l.sink.Delta(&l.delta); err != nil {
			return err
		}
	}
	if it.HasData {
		if err := l.data(it); err != nil {
			return err
		}
	}
	// When the engine ended every choice itself, only the end mark is outstanding, and telling it to stop would be a
	// cancel in its books.
	if l.open == 0 && l.local && !l.raw {
		return router.ErrStop
	}
	// As long as items are waiting already, gathering costs no time; otherwise the client gets what there is.
	if more {
		return nil
	}
	return l.sink.Flush()
}

// data handles an item's payload: one output, or one chunk in the client's format.
func (l *leg) data(it *worker.Item) error {
	if l.heard = true; l.toll.Struck > 0 {
		l.toll.Struck = 0 // it isn't the request that takes workers down
	}
	if l.items++; l.items == 1 {
		l.roundtrip.Observe(time.Since(l.began).Seconds())
		l.arrived()
	}
	if l.raw {
		l.begin()
		l.delta = l.blank(0)
		l.delta.Raw = it.Raw
		return l.sink.Delta(&l.delta)
	}
	return l.output(&it.Output)
}

// arrived ends the wait for the first output, if it hasn't ended yet.
func (l *leg) arrived() {
	if l.awaiting == nil {
		return
	}
	l.awaiting.Dec()
	l.awaiting = nil
	l.wait.End()
}

// blank is a delta of a choice that says only where it comes from.
func (l *leg) blank(choice int) Delta {
	return Delta{
		Prompt: l.prompt, Choice: choice, Instance: l.instance, Rank: l.aimed.rank,
		Prefill: l.prefilled, PrefillRank: l.prefillRank,
	}
}

// aim is what the router made of a call when it was last tried.
type aim struct {
	rank *uint32 // chosen by the router; nil: none
}

// trailer handles an output of a choice that has ended: its tokens are dropped, but engines may send their count last.
func (l *leg) trailer(o *worker.Output) error {
	if o.Usage == nil {
		return nil
	}
	l.delta = l.blank(int(o.Index))
	l.delta.Usage = l.counted(o.Usage)
	return l.sink.Delta(&l.delta)
}

// output handles one engine output. Outputs of a choice that has ended are dropped: a client sees one finish reason.
func (l *leg) output(o *worker.Output) error {
	// Compared in 64 bits: the index is the worker's, and any 32 bits may come.
	if int64(o.Index) >= int64(len(l.choices)) {
		return errUnknownChoice(o.Index, len(l.choices))
	}
	if o.FinishReason == worker.FinishError { // what text it may hold is part of the failure
		return engineFault(o.FinishError, l.items == 1)
	}
	c := &l.choices[o.Index]
	if c.done {
		return l.trailer(o)
	}
	var begin time.Time
	if l.items%sampled == 1 {
		begin = time.Now()
	}
	res, err := c.chain.Step(l.text[:0], o)
	if !begin.IsZero() {
		l.decoding += time.Since(begin)
		l.timed++
	}
	l.text = res.Text
	if err != nil {
		return errDecode.Because(err)
	}
	c.seen = true
	l.tokens += res.Tokens
	l.note(o)
	l.delta = Delta{
		Prompt: l.prompt, Choice: int(o.Index), Instance: l.instance, Rank: l.aimed.rank,
		Prefill: l.prefilled, PrefillRank: l.prefillRank,
		Text:   res.Text,
		Tokens: res.Tokens,
		// Tokens behind a stop were generated for nothing: they are neither shown nor counted.
		TokenIDs:    o.TokenIDs[:res.Tokens],
		LogProbs:    o.LogProbs[:min(res.Tokens, len(o.LogProbs))],
		TopLogProbs: o.TopLogProbs[:min(res.Tokens, len(o.TopLogProbs))],
		Finish:      res.Finish,
		StopReason:  res.StopReason,
		Usage:       l.counted(o.Usage),
		EngineData:  o.EngineData,
	}
	if res.Finish != worker.FinishNone {
		c.done = true
		l.open--
		// The engine goes on unless it stopped with the same output.
		l.local = l.local || (res.Stopped && o.FinishReason == worker.FinishNone)
	}
	if c.parser != nil {
		l.parse(c)
	}
	return l.sink.Delta(&l.delta)
}

// end closes the choices that a complete stream left open, so that each has its finish reason, and releases what they
// held back. Nothing is flushed: what was gathered leaves together with the end of the answer.
//
// A worker that ignores n never mentions the choices it didn't make: those don't exist. One that says nothing at all
// has given an empty answer.
func (l *leg) end() error {
	if l.raw {
		return nil
	}
	if l.items == 0 {
		l.choices[0].seen = true
	}
	for i := range l.choices {
		c := &l.choices[i]
		if c.done || !c.seen {
			continue
		}
		// A character cut in half, or the beginning of what might have been a stop string.
		text, err := c.chain.End(l.text[:0])
		if err != nil {
			return errDecode.Because(err)
		}
		c.done = true
		l.text = text
		l.delta = l.blank(i)
		l.delta.Text, l.delta.Finish = text, worker.FinishStop
		if c.parser != nil {
			l.parse(c)
		}
		if err := l.sink.Delta(&l.delta); err != nil {
			return err
		}
	}
	if l.span.IsRecording() {
		l.span.SetAttributes(attribute.Int("portico.items", l.items))
	}
	return nil
}

// errDecode is never changed: Because makes copies.
var errDecode = fault.New(fault.Internal, "The answer's tokens could not be decoded")

// errUnknownChoice is the failure of a worker that counts choices differently: nobody knows where its text belongs.
func errUnknownChoice(index uint32, choices int) *fault.Error {
	return &fault.Error{
		Kind: fault.BadGateway, Origin: fault.FromWorker,
		Message: "The worker answered with a choice that was not asked for",
		Details: map[string]any{"index": index, "choices": choices},
	}
}

// account adds what decoding the answer took to m. It is called once, at the end.
func (l *leg) account(m *detokMetrics) {
	if l.timed == 0 {
		return
	}
	each := l.decoding / time.Duration(l.timed)
	m.tokens.Add(float64(l.tokens))
	m.micros.Add(float64(each.Nanoseconds()) / 1e3 * float64(l.items))
	m.latency.Observe(float64(each.Nanoseconds()) / 1e6)
}
