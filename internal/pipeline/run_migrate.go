package pipeline

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/router"
)

// Migration says what becomes of requests whose worker is lost while it answers: they go on at another worker, which
// takes prompt and answer so far for its prompt. The zero value leaves them to fail.
type Migration struct {
	Limit     int // how often one request may go on elsewhere; 0: never
	MaxSeqLen int // tokens of prompt and answer beyond which a request stays where it is; 0: no bound

	// Repetition says that the engines' repetition penalties count the tokens of prompts, so that a continuation is
	// penalised like the whole answer. Otherwise requests with one stay where they are.
	Repetition bool
}

// move is what a request needs to go on at another worker. It belongs to the leg, whose decoder and stops know nothing
// of the change: they see one sequence of tokens.
//
// Until the first output the request is held as it was sent, and any request may begin anew elsewhere. From then on
// only what a continuation needs is held: 4 bytes for each token of the prompt, 4 to 8 for each of the answer, and the
// settings, which are small. A request that can't be continued holds nothing then.
type move struct {
	call    *router.Call    // as first dispatched
	request *worker.Request // nil: a Text worker's
	media   *loadedMedia    // what the request says of images; nil: nothing
	aimed   *aim            // the leg's
	bound   int             // tokens that may be held; 0: any number
	context int             // tokens that prompt and answer may have together; 0: unknown
	left    int             // how often the request may still go on elsewhere
	stays   string          // why it can't be continued once its answer has begun; empty: it can

	overlong prometheus.Counter // requests that became too long to move; nil without a bound

	begun     bool            // an output or an annotation has been passed on
	generated []uint32        // the answer so far
	link      json.RawMessage // the current worker's trace and span, if it has told them
	excluded  []uint64        // instances that failed this request
	refused   int             // instances that the last Dispatch tried in vain
	full      bool            // all failures so far came of workers at capacity
}

// newMove returns what is needed to move a request about to be dispatched with call, or nil when it is not to be moved.
func (p *Pipeline) newMove(req *Prepared, l *leg, call *router.Call) *move {
	if p.migration.Limit <= 0 || req.Pin != nil {
		return nil
	}
	prompt := l.prompt
	m := &move{call: call, aimed: &l.aimed, bound: p.migration.MaxSeqLen, left: p.migration.Limit, full: true}
	if prompt >= len(req.Requests) {
		m.stays = "the worker doesn't say which tokens it has generated"
	} else {
		m.request, m.media = req.Requests[prompt], req.media
		m.context = int(req.Set.Card.EffectiveContextLength())
		m.stays = p.migration.fixed(m.request, req.Choices)
		if m.bound > 0 {
			m.overlong = p.migrations.tooLong.WithLabelValues(req.Model)
		}
		if m.tooLong() {
			m.overlong.Inc()
			return nil
		}
	}
	call.Failed = m.failed
	return m
}

// fixed says why a request can't be continued by another worker from its tokens alone; empty: it can. In each case
// there is state that only the lost worker had. A seed is no reason: what is drawn anew is as good a sample, and nobody
// promises that a seed gives the same answer twice.
func (m Migration) fixed(q *worker.Request, choices int) string {
	s := &q.Sampling
	switch {
	case choices > 1 || s.BestOf != nil && *s.BestOf > 1 || isOn(s.UseBeamSearch):
		return "several choices are generated together"
	case len(s.GuidedDecoding) > 0:
		return "guided decoding would start over in the middle of its grammar"
	case nonZero(s.PresencePenalty) || nonZero(s.FrequencyPenalty):
		return "penalties count the tokens a worker has generated itself"
	case !m.Repetition && s.RepetitionPenalty != nil && *s.RepetitionPenalty != 1:
		return "a repetition penalty may count the tokens a worker has generated itself alone"
	case bansPhrases(q.ExtraArgs):
		return "banned phrases are found in the tokens a worker has generated itself"
	case q.Stop.MaxThinkingTokens != nil:
		return "the worker counts the tokens of its thinking"
	case q.PromptEmbeds != "":
		return "the prompt is no tokens"
	}
	return ""
}

// bansPhrases reports whether a request bans sequences of several tokens. Workers look for the beginning of one in what
// they have generated; single tokens are banned wherever they would come.
func bansPhrases(extra json.RawMessage) bool {
	const name = "bad_words_token_ids"
	if !bytes.Contains(extra, []byte(name)) {
		return false
	}
	var args struct {
		Sampling map[string]json.RawMessage `json:"sampling_options"`
	}
	if json.Unmarshal(extra, &args) != nil {
		return true // whatever it is, it isn't known to be single tokens
	}
	var list []json.RawMessage
	if raw := args.Sampling[name]; len(raw) == 0 || json.Unmarshal(raw, &list) != nil {
		return len(raw) > 0
	}
	for _, raw := range list {
		var id uint32
		var phrase []uint32
		if json.Unmarshal(raw, &id) != nil && (json.Unmarshal(raw, &phrase) != nil || len(phrase) > 1) {
			return true
		}
	}
	return false
}

// nonZero is false for absent and zero alike.
func nonZero(v *float64) bool { return v != nil && *v != 0 }

// tooLong reports whether there are more tokens than may be held.
func (m *move) tooLong() bool {
	return m.bound > 0 && len(m.request.TokenIDs)+len(m.generated) > m.bound
}

// failed notes an instance that Dispatch tried in vain. One at capacity may have room when the request comes by again,
// and one whose plane was down is as good as before.
func (m *move) failed(instanceID uint64, err error) {
	m.refused++
	if fault.KindOf(err) == fault.Overloaded {
		return
	}
	m.full = false
	if !errors.Is(err, router.ErrPlaneDown) {
		m.excluded = append(m.excluded, instanceID)
	}
}

// maxKept bounds the settings of a request that are held while its answer is under way. Beyond it are media that came
// inside the request; holding those for every stream would cost more than the rare move is worth.
const maxKept = 1 << 20

// begin is called with the first output. What it keeps of the request refers to nothing of the body it came in.
func (m *move) begin() {
	m.begun = true
	m.call.TokenIDs, m.call.Request, m.call.Body = nil, nil, nil
	if m.stays != "" {
		return
	}
	// Items go with the prompt alone: a continuation's is another one, and has its images by URL.
	m.request, m.media = m.media.without(m.request), nil
	kept := 0
	for _, raw := range rawValues(m.request) {
		kept += len(*raw)
	}
	switch {
	case kept > maxKept:
		m.stays = "its media are too large to be held"
	case kept > 0: // mostly there is nothing, and the request refers to nothing else
		m.request = detached(m.request)
	}
}

// detached returns a copy of q whose JSON values are its own.
func detached(q *worker.Request) *worker.Request {
	c := *q
	for _, raw := range rawValues(&c) {
		*raw = bytes.Clone(*raw)
	}
	return &c
}

// rawValues are the values of q that may be part of the client's body, or large.
func rawValues(q *worker.Request) [14]*json.RawMessage {
	return [...]*json.RawMessage{
		&q.MultiModalData, &q.MultiModalUUIDs, &q.RouterOverride, &q.PrefillResult, &q.ExtraArgs,
		&q.Router, &q.AgentContext, &q.MMProcessorKwargs, &q.MediaIOKwargs, &q.MMRoutingInfo, &q.EncoderResult,
		&q.MigrationLink, &q.KVHint, &q.Routing.Constraints,
	}
}

// note takes down an output that the leg has consumed.
func (m *move) note(o *worker.Output) {
	if o.HasText && m.stays == "" {
		// What its detokeniser and its stop strings hold back is in no token.
		m.stays = "the worker makes the text itself"
	}
	if m.stays != "" {
		return
	}
	if len(o.TraceLink) > 0 {
		m.link = traceLink(o.TraceLink)
	}
	if m.generated == nil {
		m.generated = make([]uint32, 0, 64)
	}
	m.generated = append(m.generated, o.TokenIDs...)
	if m.tooLong() {
		m.stays = "it has become too long"
		m.overlong.Inc()
	}
}

// traceLink returns a copy of a worker's trace and span, nil unless it is well formed: the next worker is to hang its own
// from there.
func traceLink(raw json.RawMessage) json.RawMessage {
	var link struct {
		Trace string `json:"trace_id"`
		Span  string `json:"span_id"`
	}
	if json.Unmarshal(raw, &link) != nil {
		return nil
	}
	if _, err := trace.TraceIDFromHex(link.Trace); err != nil {
		return nil
	}
	if _, err := trace.SpanIDFromHex(link.Span); err != nil {
		return nil
	}
	return fmt.Appendf(nil, `{"trace_id":%q,"span_id":%q}`, link.Trace, link.Span)
}

// begin tells that the client is about to see something of the answer.
func (l *leg) begin() {
	if l.move != nil && !l.move.begun {
		l.move.begin()
		l.settle()
	}
}

// note takes down what was generated, for as long as the request can go on elsewhere.
func (l *leg) note(o *worker.Output) {
	if l.begin(); l.move != nil {
		l.move.note(o)
		l.settle()
	}
}

// settle lets go of what is held for a move once there can't be any.
func (l *leg) settle() {
	if l.move.stays != "" {
		l.move, l.stays = nil, l.move.stays
	}
}

// counted is a worker's own count as it would be had the worker written all of the answer.
func (l *leg) counted(u *worker.Usage) *worker.Usage {
	if u == nil || l.moved == 0 || u.PromptTokens < l.moved {
		return u
	}
	l.usage = *u // the worker's is in an item that isn't ours to change
	l.usage.PromptTokens -= l.moved
	l.usage.CompletionTokens += l.moved
	if u.CachedTokens != nil {
		// Of what is cached the prompt comes first, the answer so far behind it.
		cached := min(*u.CachedTokens, l.usage.PromptTokens)
		l.usage.CachedTokens = &cached
	}
	return &l.usage
}

// next describes the request to the router once more, with what was generated as part of the prompt and the budgets
// less by as much.
func (m *move) next() *router.Call {
	c := *m.call
	c.Exclude = m.excluded
	if m.request == nil {
		return &c
	}
	q := *m.request
	if m.begun { // what comes ahead of an answer has come
		q.Annotations, q.Output.PromptLogprobs = []string{}, nil
	}
	q.MigrationLink, m.link = m.link, nil // each worker follows the one before it
	if n := len(m.generated); n > 0 {
		q.TokenIDs = slices.Concat(q.TokenIDs, m.generated)
		q.Stop.MaxTokens, q.Stop.MinTokens = less(q.Stop.MaxTokens, n), less(q.Stop.MinTokens, n)
	}
	describe(&c, &q, m.media, m.aimed)
	return &c
}

// less takes n off a budget, down to nothing.
func less(budget *uint32, n int) *uint32 {
	if budget == nil {
		return nil
	}
	left := uint32(max(int64(*budget)-int64(n), 0))
	return &left
}

// spent reports whether the worker was lost between its last token and saying so: the answer is as long as it may be, or
// as the model's context has room for. Nobody would take it for a prompt then.
func (m *move) spent() bool {
	if m.request == nil || len(m.generated) == 0 {
		return false
	}
	if most := m.request.Stop.MaxTokens; most != nil && len(m.generated) >= int(*most) {
		return true
	}
	return m.context > 0 && len(m.request.TokenIDs)+len(m.generated) >= m.context
}

// read reads an answer to its end, at as many workers as it takes.
func (p *Pipeline) read(ctx context.Context, req *Prepared, l *leg, stream router.Stream) error {
	for {
		l.instance, l.heard = stream.Instance(), false
		// All items are handled in here, on this goroutine; a slow sink slows the worker's stream and nobody else.
		err := stream.Each(l.item)
		if err == nil {
			// Only a complete stream is closed in good order.
			return l.end()
		}
		if ctx.Err() != nil || !isLost(err) {
			return err
		}
		// Every choice has its finish reason: nothing is missing but the end mark.
		if !l.raw && l.open == 0 {
			return l.end()
		}
		if l.move == nil {
			if l.stays != "" {
				p.log.Warn("answer broken off: it can't go on at another worker", "request_id", req.Meta.RequestID,
					"worker", l.instance.Hex(), "why", l.stays, "error", err)
				return brokenOff(err, l.stays)
			}
			return err
		}
		if l.move.spent() {
			return l.output(&worker.Output{FinishReason: worker.FinishLength})
		}
		// Told to stop and counted out before another has the request.
		_ = stream.Close()
		if stream, err = p.migrate(ctx, req, l, err); err != nil {
			return err
		}
		defer func(s router.Stream) { _ = s.Close() }(stream) // as many as the limit allows
	}
}

// brokenOff is the failure of an answer that can't go on at another worker, which the client is told the reason of.
func brokenOff(lost error, why string) error {
	f := *fault.From(lost)
	f.Message += "; the answer can't go on at another worker: " + why
	return f.Because(lost)
}

// migrate sends a request whose worker was lost to another one, and returns the stream of what is left of its answer.
func (p *Pipeline) migrate(ctx context.Context, req *Prepared, l *leg, lost error) (router.Stream, error) {
	m, began := l.move, time.Now()
	// A busy worker that gave a request up is as bad as a lost one: it would only do so again.
	m.full = m.full && fault.KindOf(lost) == fault.Overloaded
	if !l.heard && struck(lost) {
		l.toll.Struck++
	}
	who := l.instance
	if gone, ok := errors.AsType[*prefillLost](lost); ok {
		who = gone.instance // the decode worker is as good as before
		l.lostPrefill = append(l.lostPrefill, who.InstanceID)
		p.prefills.count(req.Model, prefillLostOutcome)
	} else {
		m.excluded = append(m.excluded, who.InstanceID)
	}
	if m.left == 0 {
		p.log.Warn("worker lost, and the request has moved often enough", "request_id", req.Meta.RequestID,
			"worker", who.Hex(), "tokens", len(m.generated), "error", lost)
		return nil, lost
	}
	m.left--
	stream, err := p.send(ctx, req, l, m.next(), m.media)
	p.migrations.ongoing(req.Model, outcomeOf(ctx, err), time.Since(began))
	if err != nil {
		p.log.Warn("worker lost, and no other goes on", "request_id", req.Meta.RequestID,
			"worker", who.Hex(), "tokens", len(m.generated), "error", lost, "others", err)
		if ctx.Err() != nil {
			return nil, err
		}
		return nil, m.abandoned(lost, err)
	}
	l.moved = len(m.generated)
	p.log.Warn("worker lost, another goes on", "request_id", req.Meta.RequestID, "worker", who.Hex(),
		"next", stream.Instance().Hex(), "tokens", l.moved, "error", lost)
	if l.span.IsRecording() {
		l.span.AddEvent("migrated", trace.WithAttributes(
			attribute.String("portico.worker.instance_id", stream.Instance().Hex()),
			attribute.Int("portico.tokens", l.moved)))
	}
	return stream, nil
}

// abandoned is the failure of a request that was to go on elsewhere and couldn't: lost is why, err what Dispatch says.
func (m *move) abandoned(lost, err error) error {
	why, others := fault.From(lost), fault.From(err)
	switch {
	case errors.Is(err, router.ErrStruck):
		return others
	case others.Kind == fault.Overloaded:
		return others.Because(errors.Join(lost, err)) // tells the client when to come back
	case m.full:
		return why
	}
	f := fault.New(fault.Unavailable, "%s, and no other worker is left to go on", why.Message)
	f.Origin = fault.FromTransport
	return f.Because(errors.Join(lost, err))
}

// struck reports whether a worker was lost, or silent for too long, in a way that the request itself may have brought
// about: no word of the worker's own says that it is about to stop.
func struck(err error) bool {
	f, ok := errors.AsType[*fault.Error](err)
	if _, said := errors.AsType[*worker.Error](err); said || !ok {
		return false
	}
	return f.Origin == fault.FromTransport
}

// isLost reports whether a failure is one of the worker that another worker may not share: a broken connection, a
// silence, or an engine that says that it is going down or can take no more.
func isLost(err error) bool {
	lost, barred := false, false
	// Failures form a tree: a fault has a cause, and joined errors several.
	for queue := []error{err}; len(queue) > 0; {
		e := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		switch e := e.(type) { //nolint:errorlint // the tree is walked here
		case *fault.Error:
			lost = lost || e.Origin == fault.FromTransport
		case *worker.Error:
			lost = lost || router.LostReason(e.Reason) || e.Reason == "capacity.worker_overloaded"
			barred = barred || barredReasons[e.Reason]
		}
		switch e := e.(type) { //nolint:errorlint // likewise
		case interface{ Unwrap() error }:
			if cause := e.Unwrap(); cause != nil {
				queue = append(queue, cause)
			}
		case interface{ Unwrap() []error }:
			queue = append(queue, e.Unwrap()...)
		}
	}
	return lost && !barred
}

// barredReasons are the worker protocol's reasons that forbid a move wherever they stand in the chain of causes.
var barredReasons = map[string]bool{
	"request.cancelled": true, "request.deadline_exceeded": true, "backend.cancelled": true,
	"capacity.exhausted": true, "capacity.pool_exhausted": true,
}
