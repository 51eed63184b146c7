package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/router"
)

// send brings a leg's request to whoever is to answer it: one worker, or a prefill worker that reads the prompt and a
// decode worker that goes on from there, where the model's workers share the work like that. media is what
// the request says of images.
func (p *Pipeline) send(
	ctx context.Context, req *Prepared, l *leg, call *router.Call, media *loadedMedia,
) (router.Stream, error) {
	l.prefilled, l.prefillRank = nil, nil
	if call.Request == nil { // the client's own format, which workers share among themselves if at all
		return p.dispatch(ctx, call, p.stages.aggregated)
	}
	switch pool := req.Set.Prefill(); {
	case pool != nil:
		s := &sharing{req: req, leg: l, call: call, pool: pool, media: media}
		if p.bypass(ctx, s) {
			p.prefills.count(req.Model, prefillBypassed)
			return p.dispatch(ctx, call, p.stages.aggregated)
		}
		return p.share(ctx, s)
	case req.Set.NeedsPrefill():
		// The last prefill worker has gone since the model was looked up.
		return nil, errNoPrefill(req.Model)
	}
	stream, err := p.dispatch(ctx, call, p.stages.aggregated)
	if media.shrink(call.Request, err) {
		return p.dispatch(ctx, call, p.stages.aggregated)
	}
	return stream, err
}

// sharing is one attempt of a request whose prompt another worker reads.
type sharing struct {
	req  *Prepared
	leg  *leg
	call *router.Call     // to the decode worker, as if it read the prompt itself; not changed
	pool *catalog.Prefill // who may read it

	media *loadedMedia // what the request says of images; nil: nothing
}

// share lets a prefill worker read the prompt and returns the stream of the decode worker's answer. Prefill workers that
// are lost on the way are replaced by others as often as requests may move; when none is left, the decode worker reads
// the prompt itself, if it can.
func (p *Pipeline) share(ctx context.Context, s *sharing) (router.Stream, error) {
	begin := time.Now()
	for tries := p.migration.Limit; ; tries-- {
		stream, lost, err := p.prefill(ctx, s, begin)
		switch {
		case err == nil:
			return stream, nil
		case ctx.Err() != nil:
			p.prefills.count(s.req.Model, prefillCancelled)
			return nil, err
		case lost == nil: // the decode worker's failure, or what a prefill worker says of the request
			return nil, err
		}
		if lost.instance != nil {
			s.leg.lostPrefill = append(s.leg.lostPrefill, lost.instance.InstanceID)
			if struck(lost.err) {
				s.leg.toll.Struck++
			}
			p.prefills.count(s.req.Model, prefillLostOutcome)
			p.log.Warn("prefill worker lost", "request_id", s.req.Meta.RequestID, "worker", lost.instance.Hex(), "error", err)
			if tries > 0 && s.call.Request.Routing.PrefillWorkerID == nil {
				// Where workers that have come meanwhile are met is known to the latest pool only.
				if pool := s.req.Set.Prefill(); pool != nil {
					s.pool = pool
				}
				continue
			}
		}
		if s.req.Set.NeedsPrefill() {
			p.prefills.count(s.req.Model, prefillFailed)
			return nil, err
		}
		// Slower for the decode worker's other requests, but an answer.
		s.leg.prefilled, s.leg.prefillRank = nil, nil
		p.prefills.count(s.req.Model, prefillFallback)
		p.log.Warn("no prefill worker, the decode worker reads the prompt itself", "request_id", s.req.Meta.RequestID,
			"model", s.req.Model, "error", err)
		return p.dispatch(ctx, s.call, p.stages.aggregated)
	}
}

// bypass reports whether the decode worker had better read the prompt itself. A client that names a prefill worker has
// decided.
func (p *Pipeline) bypass(ctx context.Context, s *sharing) bool {
	if p.alone == nil || s.call.Request.Routing.PrefillWorkerID != nil || len(s.call.TokenIDs) == 0 {
		return false
	}
	return p.alone(s.call, func() *router.Call {
		leg := p.newPrefillLeg(ctx, s)
		leg.cancel() // nothing is sent
		return leg.call
	})
}

// prefillLost is the failure of a request whose prefill worker is lost, or can't be had, before the decode worker has
// begun to answer.
type prefillLost struct {
	instance *worker.Instance // nil: there was none to be tried
	err      error            // a *fault.Error
}

// Error returns what is known.
func (e *prefillLost) Error() string { return "prefill: " + e.err.Error() }

// Unwrap returns the fault.
func (e *prefillLost) Unwrap() error { return e.err }

// prefill makes one attempt with one prefill worker. A failure that another prefill worker may not share comes with lost
// set.
func (p *Pipeline) prefill(ctx context.Context, s *sharing, begin time.Time) (_ router.Stream, lost *prefillLost, err error) {
	spanned, span := p.tracer.Start(ctx, "prefill", trace.WithSpanKind(trace.SpanKindInternal))
	defer span.End()
	leg := p.newPrefillLeg(spanned, s)
	if err = leg.begin(p, s); err != nil {
		leg.close()
		// Those that were tried are excluded by now, and a worker that the client insists on has no stand-in.
		if s.call.Request.Routing.PrefillWorkerID == nil && isAway(err) {
			lost = &prefillLost{err: err}
		}
		return nil, lost, err
	}
	s.leg.prefilled, s.leg.prefillRank = leg.stream.Instance(), leg.chosen
	if span.IsRecording() {
		span.SetAttributes(attribute.String("portico.worker.instance_id", s.leg.prefilled.Hex()),
			attribute.Bool("portico.prefill.bootstrap", leg.meets != nil))
	}
	if leg.meets == nil {
		defer leg.close()
		err = leg.await(p)
		p.prefills.took.Observe(time.Since(begin).Seconds())
		if err != nil {
			if isLost(err) {
				lost = &prefillLost{s.leg.prefilled, err}
			}
			return nil, lost, err
		}
		p.prefills.count(s.req.Model, prefillAwaited)
		stream, err := p.dispatch(ctx, s.decode(leg), p.stages.decode)
		return stream, nil, err
	}
	stream, err := p.meet(ctx, s, leg, begin)
	lost, _ = errors.AsType[*prefillLost](err)
	return stream, lost, err
}

// isAway reports whether a failure to dispatch means that there was no worker, as opposed to none with room, or one that
// reports a failure.
func isAway(err error) bool {
	f, ok := errors.AsType[*fault.Error](err)
	return ok && f.Kind == fault.Unavailable && f.Origin != fault.FromWorker
}

// errNoPrefill is the failure of a request whose model has no prefill worker left. It asks to come again: what is
// deployed like this is meant to have some.
func errNoPrefill(model string) *fault.Error {
	return &fault.Error{
		Kind: fault.Unavailable, RetryAfter: time.Second,
		Message: "No prefill worker is available for model `" + model + "`",
	}
}

// prefillLeg is a request's way through a prefill worker.
type prefillLeg struct {
	request worker.Request // as the prefill worker gets it
	call    *router.Call
	cancel  context.CancelFunc // ends the stream, as close does
	ctx     context.Context    // of the stream
	stream  router.Stream      // nil until begun

	meets *worker.Bootstrap // where both workers meet; nil: the result goes through here
	rank  *uint32           // of the prefill worker, where the router or the client has chosen one
	// chosen is the router's choice of a rank, if there was one.
	chosen *uint32

	// What the worker has handed over; set by the reader of its stream.
	params  json.RawMessage
	cached  *int
	outputs int
}

// newPrefillLeg describes the request to the router as the prefill worker is to get it: whole, but for one token of
// answer, which nobody reads. What the client wants of its workers it wants of the prefill worker, too.
func (p *Pipeline) newPrefillLeg(ctx context.Context, s *sharing) *prefillLeg {
	leg := &prefillLeg{request: *s.call.Request, rank: s.call.Request.Routing.PrefillDPRank}
	leg.ctx, leg.cancel = context.WithCancel(ctx)
	q := &leg.request
	q.Stop.MaxTokens, q.Stop.MinTokens = new(uint32(1)), nil
	// Hints for the decode worker mean nothing in this pool.
	pin := q.Routing.PrefillWorkerID
	q.Routing.BackendInstanceID, q.Routing.DPRank = nil, leg.rank
	call := *s.call
	leg.call = &call
	call.Endpoint, call.Serves, call.Factor, call.Pin = s.pool.Endpoint, s.pool.Serves, nil, pin
	p.narrow(&call, s.req)
	call.Exclude, call.Request = s.leg.lostPrefill, q
	call.Failed = func(id uint64, err error) {
		if fault.KindOf(err) != fault.Overloaded && !errors.Is(err, router.ErrPlaneDown) {
			s.leg.lostPrefill = append(s.leg.lostPrefill, id)
		}
	}
	call.Body = func(dst []byte, codec worker.Codec, to router.Target) ([]byte, error) {
		leg.aim(s.pool, to)
		s.media.told()
		return q.Append(dst, codec)
	}
	return leg
}

// aim completes the request for the worker that the router has chosen.
func (leg *prefillLeg) aim(pool *catalog.Prefill, to router.Target) {
	h := &leg.request.Routing
	leg.chosen = to.Rank
	if to.Rank != nil {
		leg.rank, h.PrefillDPRank, h.DPRank = to.Rank, to.Rank, to.Rank
	}
	h.PrefillWorkerID = &to.Instance.InstanceID
	leg.meets = nil
	// A worker that has just left the pool hands over the other way, which all can.
	if c := pool.Config(to.Instance.InstanceID); c != nil {
		leg.meets = newMeeting(c, leg.rank)
	}
	leg.request.BootstrapInfo = leg.meets
}

// newMeeting draws a room at the worker's meeting place; nil when it has none. Workers find the rank in the number.
func newMeeting(c *worker.RuntimeConfig, rank *uint32) *worker.Bootstrap {
	host, port, ok := c.BootstrapAddress()
	if !ok {
		return nil
	}
	b := &worker.Bootstrap{Host: host, Port: port, Room: rand.Uint64() >> 1} // 63 bits: some engines' are signed
	if size := uint64(c.DataParallelSize); rank != nil && size > 1 {
		b.Room -= b.Room % size
		if b.Room += uint64(*rank) % size; b.Room >= 1<<63 {
			b.Room -= size
		}
	}
	for i := range b.Handoff {
		b.Handoff[i] = byte(rand.Uint32()) //nolint:gosec // an id, not a secret
	}
	b.Handoff[6], b.Handoff[8] = b.Handoff[6]&0x0f|0x40, b.Handoff[8]&0x3f|0x80 // a UUID of version 4
	return b
}

// begin sends the request to a prefill worker and returns once that has begun.
func (leg *prefillLeg) begin(p *Pipeline, s *sharing) (err error) {
	insisted := leg.call.Pin != nil
	leg.stream, err = p.dispatch(leg.ctx, leg.call, p.stages.prefill)
	// A stream may last long, and the prompt isn't needed for it.
	leg.call, leg.request = nil, worker.Request{}
	if f, ok := errors.AsType[*fault.Error](err); ok && isAway(err) && f.Origin == fault.FromRequest && !insisted {
		return errNoPrefill(s.req.Model).Because(err)
	}
	return err
}

// close ends the stream, if it was begun, and tells a worker that isn't done to stop. It may be called again.
func (leg *prefillLeg) close() {
	if leg.stream != nil {
		_ = leg.stream.Close()
	}
	leg.cancel()
}

// await reads the worker's answer to its end. What it hands over is in the leg then.
func (leg *prefillLeg) await(p *Pipeline) error {
	p.stages.prefill.awaiting.Inc()
	defer p.stages.prefill.awaiting.Dec()
	err := leg.stream.Each(leg.item)
	if err != nil && leg.ctx.Err() != nil && !isFault(err) {
		return fault.From(context.Cause(leg.ctx))
	}
	if err == nil && len(leg.params) == 0 && leg.meets == nil {
		return errNoResult
	}
	return err
}

// errNoResult is the failure of a prefill worker whose answer has nothing to go on from. It is never changed.
var errNoResult = &fault.Error{
	Kind: fault.BadGateway, Origin: fault.FromWorker, Message: "The prefill worker handed nothing over",
}

// item takes what matters of one item. The token that comes with it is the decode worker's to make again.
func (leg *prefillLeg) item(it *worker.Item, _ bool) error {
	if it.Err != nil || it.Event == "error" {
		return workerFault(it, leg.outputs == 0)
	}
	if !it.HasData {
		return nil
	}
	leg.outputs++
	o := &it.Output
	if o.FinishReason == worker.FinishError {
		return engineFault(o.FinishError, leg.outputs == 1)
	}
	if len(o.DisaggregatedParams) > 0 {
		leg.params = append(leg.params[:0], o.DisaggregatedParams...) // the item's memory is used again
	}
	if o.Usage != nil && o.Usage.CachedTokens != nil {
		cached := *o.Usage.CachedTokens
		leg.cached = &cached
	}
	return nil
}

// decode describes the rest of the request: the decode worker learns who has read the prompt and how to get at the
// result, and the router that nothing of the prompt will be computed there.
func (s *sharing) decode(leg *prefillLeg) *router.Call {
	q := *s.call.Request
	id := s.leg.prefilled.InstanceID
	q.Routing.PrefillWorkerID, q.Routing.PrefillDPRank = &id, leg.rank
	q.RouterOverride = decodeOverride(q.RouterOverride)
	if q.BootstrapInfo = leg.meets; leg.meets == nil {
		q.PrefillResult = leg.result()
	}
	call := *s.call
	describe(&call, &q, s.media, &s.leg.aimed)
	return &call
}

// result is prefill_result.
func (leg *prefillLeg) result() json.RawMessage {
	b := append([]byte(`{"disaggregated_params":`), leg.params...)
	if leg.cached != nil {
		b = append(b, `,"prompt_tokens_details":{"audio_tokens":null,"cached_tokens":`...)
		b = append(strconv.AppendInt(b, int64(*leg.cached), 10), '}')
	}
	return append(b, '}')
}

// plainOverride is decodeOverride of nothing, with all keys that Dynamo's routers know.
const plainOverride = `{"overlap_score_credit":0.0,"prefill_load_scale":null,"router_temperature":null,` +
	`"assume_kv_reuse":false,"track_prefill_tokens":false,"shared_cache_multiplier":null}`

// decodeOverride adds to a client's router settings that a decode worker computes nothing of the prompt: cached prefixes
// are worth nothing there, and the prompt is no load.
func decodeOverride(asked json.RawMessage) json.RawMessage {
	settings := map[string]json.RawMessage{}
	if len(asked) == 0 || json.Unmarshal(asked, &settings) != nil || len(settings) == 0 {
		return json.RawMessage(plainOverride)
	}
	settings["overlap_score_credit"] = json.RawMessage("0.0")
	settings["assume_kv_reuse"] = json.RawMessage("false")
	settings["track_prefill_tokens"] = json.RawMessage("false")
	b, err := json.Marshal(settings)
	if err != nil { // values that were read can be written
		return json.RawMessage(plainOverride)
	}
	return b
}
