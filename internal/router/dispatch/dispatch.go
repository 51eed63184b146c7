// Package dispatch brings one request to one worker: it picks an instance out of what discovery knows, delivers the
// request over the plane that the instance asks for, and waits until the instance has dialled back and begun. An
// instance that can't be reached is left aside for a while and another is tried, as long as nothing has been answered.
//
//	candidates ─▶ policy or chooser ─▶ plane.Start ─▶ callhome.Await ─▶ Stream
//
// A Dispatcher is safe for concurrent use and runs everything on its callers' goroutines. What is known of instances
// (load, quarantine) is kept for each one in atomics; requests share no lock but for the moment after a change in
// discovery.
package dispatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/callhome"
)

// Options are what a Dispatcher is built from. Snapshots, Policy, CallHome and one plane are required.
type Options struct {
	Snapshots func() *router.Snapshot // the current one; called with every request, so it must be quick
	Policy    router.Policy           // chooses among candidates, from many goroutines at a time
	// Route says how the instances of an endpoint are chosen, as of a snapshot. It is called for each endpoint whenever
	// discovery has changed, and must be quick. Nil: all by Policy.
	Route func(id worker.EndpointID, snap *router.Snapshot) Route
	// Busy returns a function that says whether an instance of an endpoint is overloaded, given how many tokens of this
	// Dispatcher's requests it has in prefill; nil, or a nil result: none is. It is called with every choice.
	Busy func(id worker.EndpointID) func(instanceID uint64, prefill int64) bool

	NATS, TCP router.Plane       // nil: instances that ask for it can't be reached
	CallHome  *callhome.Listener // runs while requests are dispatched

	// HandshakeTimeout is how long a worker that accepted a request has to begin before another is tried. Workers that
	// are full queue what they accept, so it is generous: 30 s when zero.
	HandshakeTimeout time.Duration
	// StreamTimeout bounds the time between two items of a stream; zero is no bound.
	StreamTimeout time.Duration
	// QuarantineFor is how long an instance that was lost is left aside; 5 s when zero, negative for not at all.
	QuarantineFor time.Duration
	// OverloadedFor is how long an instance that was at capacity is left aside; 1 s when zero.
	OverloadedFor time.Duration
	// MaxAttempts bounds how many instances one request is tried on; 3 when zero.
	MaxAttempts int
	// StartTimeout bounds the wait for a worker to begin over all tries of a request, those of earlier calls included
	// (router.Toll). One minute when zero, negative for no bound; never less than HandshakeTimeout.
	StartTimeout time.Duration
	// MaxStruck is how many workers in a row a request may strike, as router.Toll has it; 2 when zero, negative for any
	// number.
	MaxStruck int

	Registerer prometheus.Registerer // nil: metrics are kept but not registered
	Log        *slog.Logger          // nil: slog.Default()
}

// Route is how the instances of one endpoint are chosen: by the Chooser, else by the Policy, else by Options.Policy.
type Route struct {
	Policy   router.Policy
	Chooser  router.Chooser
	Sessions Sessions // nil: a request's session has no influence
}

// Sessions remembers which instance a session's requests go to. Safe for concurrent use; methods must be quick.
type Sessions interface {
	// Find returns the instance that a session is bound to.
	Find(session string) (instanceID uint64, ok bool)
	// Bind binds a session that is bound to old, or to none. The rank may be nil.
	Bind(session string, old *uint64, instanceID uint64, rank *uint32)
	// End forgets a session.
	End(session string)
	// Hard reports whether a session's request is refused, rather than sent elsewhere, while its instance is full.
	Hard() bool
}

// withDefaults returns o with every option set that has a default.
func (o Options) withDefaults() Options {
	if o.HandshakeTimeout <= 0 {
		o.HandshakeTimeout = 30 * time.Second
	}
	if o.QuarantineFor == 0 {
		o.QuarantineFor = 5 * time.Second
	}
	if o.OverloadedFor <= 0 {
		o.OverloadedFor = time.Second
	}
	if o.MaxAttempts <= 0 {
		o.MaxAttempts = 3
	}
	if o.StartTimeout == 0 {
		o.StartTimeout = time.Minute
	}
	if o.StartTimeout > 0 {
		o.StartTimeout = max(o.StartTimeout, o.HandshakeTimeout)
	}
	if o.MaxStruck == 0 {
		o.MaxStruck = 2
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}

// Dispatcher is a router.Dispatcher.
type Dispatcher struct {
	opts    Options
	metrics *metrics
	began   time.Time // instants are kept as distances from here

	table    atomic.Pointer[table] // never nil; replaced as a whole
	mu       sync.Mutex            // held while a table is made
	inFlight atomic.Int64          // from Dispatch to its failure or the stream's Close

	fullUntil atomic.Int64 // when the last instance that was at capacity is no longer left aside
}

var _ router.Dispatcher = (*Dispatcher)(nil)

// New returns a Dispatcher. It starts nothing.
func New(opts Options) *Dispatcher {
	d := &Dispatcher{opts: opts.withDefaults(), metrics: newMetrics(opts.Registerer), began: time.Now()}
	d.table.Store(&table{})
	return d
}

// InFlight returns the number of requests that are being dispatched or answered. It may be old as soon as it is read.
func (d *Dispatcher) InFlight() int64 { return d.inFlight.Load() }

// now returns the time since the dispatcher began: a number that atomics hold, and that no change of the wall clock
// moves.
func (d *Dispatcher) now() time.Duration { return time.Since(d.began) }

// attempt is the memory that one request needs until its stream begins, used again by others. Nothing of it may be kept
// by planes, policies or streams.
type attempt struct {
	envelope   []byte         // control header and body, framed
	message    router.Message // around the envelope
	query      router.Query
	candidates []router.Candidate
	states     []*instance   // of candidates
	chosen     router.Choice // of the try at hand
	tried      []*instance   // in the order of the tries
	toll       router.Toll   // of calls that have none
	until      time.Time     // when the last try is to have begun; zero: any time
}

// attempts keeps the memory of requests that have ended.
var attempts = sync.Pool{New: func() any { return new(attempt) }}

// maxPooled is the largest envelope whose memory is kept for another request.
const maxPooled = 1 << 20

// release gives the memory back. What it points to is let go: an idle pool shall not keep old snapshots alive.
func (a *attempt) release() {
	if cap(a.envelope) > maxPooled {
		a.envelope = nil
	}
	clear(a.candidates)
	clear(a.states)
	clear(a.tried)
	*a = attempt{
		envelope: a.envelope[:0], candidates: a.candidates[:0], states: a.states[:0], tried: a.tried[:0],
	}
	attempts.Put(a)
}

// Dispatch implements router.Dispatcher. It blocks until a worker has begun to answer, every worker that may be tried
// has failed, or ctx ends. Each try takes HandshakeTimeout at most, beside the plane's own times. The caller closes the
// stream; until then the request counts as in flight.
func (d *Dispatcher) Dispatch(ctx context.Context, call *router.Call) (router.Stream, error) {
	entered := time.Now()
	d.inFlight.Add(1)
	d.metrics.inFlight.Inc()
	a := attempts.Get().(*attempt)
	s, err := d.dispatch(ctx, call, a, entered)
	a.release()
	if err != nil {
		d.left()
		return nil, err
	}
	return s, nil
}

// left notes that a request is over, once for each that was counted.
func (d *Dispatcher) left() {
	d.inFlight.Add(-1)
	d.metrics.inFlight.Dec()
}

// dispatch tries one instance after another until one begins. It gives up when the failure is the request's own, when
// ctx has ended, when the client insists on one worker, after MaxAttempts, or when the request has cost too much; the last
// failure is the outcome.
func (d *Dispatcher) dispatch(ctx context.Context, call *router.Call, a *attempt, entered time.Time) (*stream, error) {
	toll := call.Toll
	if toll == nil {
		toll = &a.toll
	}
	if d.opts.StartTimeout > 0 {
		a.until = entered.Add(d.opts.StartTimeout - toll.Waited)
	}
	defer func() { toll.Waited += time.Since(entered) }()
	var last error
	for len(a.tried) < d.opts.MaxAttempts {
		if ctx.Err() != nil { // before the first try, or by the hand of call.Failed
			return nil, ctx.Err()
		}
		if err := d.spent(toll, a, last); err != nil {
			return nil, err
		}
		in, err := d.pick(ctx, call, a)
		if err != nil {
			// What the instances tried said tells more than that there are no others.
			if last != nil {
				err = last
			}
			return nil, err
		}
		a.tried = append(a.tried, in)
		s, err := d.try(ctx, call, a, in, entered)
		if err == nil {
			return s, nil
		}
		last = err
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if strikes(err) {
			toll.Struck++
		}
		// The caller is told of every try, so that it can exclude the instance when the request comes again.
		if call.Failed != nil {
			call.Failed(in.record.InstanceID, err)
		}
		if !d.blame(in, err) || call.Pin != nil {
			break
		}
		d.metrics.retries.Inc()
		d.opts.Log.Warn("request not delivered, trying another worker",
			"request_id", call.RequestID, "worker", in.record.Hex(), "error", err)
	}
	return nil, last
}

// strikes reports whether a try's failure is one that the request may have brought about: the worker had it and was lost,
// or never said a word.
func strikes(err error) bool {
	return errors.Is(err, callhome.ErrBroken) || errors.Is(err, callhome.ErrSilent)
}

// spent is why a request isn't tried on a further worker; last is the failure of the try before, if there was one.
func (d *Dispatcher) spent(toll *router.Toll, a *attempt, last error) error {
	switch {
	case d.opts.MaxStruck > 0 && toll.Struck >= d.opts.MaxStruck:
		d.metrics.struck.Inc()
		return errStruck(toll.Struck, last)
	case !a.until.IsZero() && time.Until(a.until) <= 0:
		if last != nil && !errors.Is(last, callhome.ErrSilent) {
			return last
		}
		return fault.New(fault.Timeout, "No worker began to answer within %v", d.opts.StartTimeout).Because(last)
	}
	return nil
}

// errStruck is the failure of a request that has struck too many workers. Asking again would only cost more of them.
func errStruck(workers int, last error) *fault.Error {
	f := fault.New(fault.Internal, "The request was given up: the last %d workers that had it were lost, or never began "+
		"to answer", workers)
	if errors.Is(last, callhome.ErrSilent) {
		f.Kind = fault.Timeout
	}
	f.NoRetry = true
	return f.WithCode("request_given_up").Because(errors.Join(router.ErrStruck, last))
}

// patience is how long the next try may wait for its worker to begin.
func (d *Dispatcher) patience(a *attempt) time.Duration {
	if a.until.IsZero() {
		return d.opts.HandshakeTimeout
	}
	return min(d.opts.HandshakeTimeout, max(time.Until(a.until), time.Millisecond))
}

// blame leaves in aside if err says that it was lost or is full, and reports whether another may be tried: also when
// nothing was heard of it. What a worker itself says of a request would be said by any other, so that is final.
func (d *Dispatcher) blame(in *instance, err error) bool {
	f, ok := errors.AsType[*fault.Error](err)
	switch {
	case !ok:
		return false
	case f.Kind == fault.Overloaded && f.Origin == fault.FromTransport:
		till := d.now() + d.opts.OverloadedFor
		in.setAside(&in.overloaded, till)
		d.fullUntil.Store(int64(till))
		return true
	// A plane that doesn't tell of lost workers leaves it to the time-out, and another may be there. As it may be the
	// request that is to blame, the worker isn't.
	case errors.Is(err, callhome.ErrSilent):
		return true
	case f.Origin == fault.FromTransport:
		// Without its plane no worker can be reached: setting them aside would make a blip last for all of QuarantineFor.
		if !errors.Is(err, errBeginning) && !errors.Is(err, router.ErrPlaneDown) {
			d.quarantine(in, f)
		}
		return true
	}
	return false
}

// errBeginning marks the failure of a worker that was reached and couldn't begin: others may, but it isn't lost.
var errBeginning = errors.New("worker could not begin")

// quarantine leaves in aside for a while. It counts from now each time: an instance that stays lost stays aside.
func (d *Dispatcher) quarantine(in *instance, why error) {
	if d.opts.QuarantineFor <= 0 {
		return
	}
	now := d.now()
	// All streams of a worker break off with it: the first tells of it, the others only put off the end.
	if before := in.quarantined.Swap(int64(now + d.opts.QuarantineFor)); before > int64(now) {
		return
	}
	d.metrics.quarantines.Inc()
	d.opts.Log.Warn("worker left aside", "endpoint", in.record.ID().String(), "worker", in.record.Hex(),
		"for", d.opts.QuarantineFor, "error", why)
}

// pick chooses an instance that has not been tried. Its failures say why there is none: the endpoint has none, all are
// full, or the policy refuses. What is known of instances may change right after; that is found out by trying. After
// success a.chosen has to be settled: its ticket, if there is one, is the caller's to end.
func (d *Dispatcher) pick(ctx context.Context, call *router.Call, a *attempt) (*instance, error) {
	a.chosen = router.Choice{}
	ep := d.current().endpoints[call.Endpoint]
	if ep == nil {
		return nil, errNoWorkers(call.Endpoint)
	}
	if call.Session != "" && call.Pin == nil && ep.route.Sessions != nil {
		return d.bound(ctx, ep, call, a)
	}
	if call.Pin != nil {
		in, err := d.pinned(ep, call)
		if err != nil {
			return nil, err
		}
		return d.choose(ctx, ep, call, a, in)
	}
	return d.choose(ctx, ep, call, a, nil)
}

// choose asks whoever chooses for one of the candidates, or tells it of the only one. A policy has nothing to say of
// that.
func (d *Dispatcher) choose(
	ctx context.Context, ep *endpoint, call *router.Call, a *attempt, only *instance,
) (*instance, error) {
	switch {
	case only != nil && ep.route.Chooser == nil:
		return only, nil
	case only != nil:
		a.candidates = append(a.candidates[:0], router.Candidate{Instance: only.record, InFlight: only.inFlight.Load()})
		a.states = append(a.states[:0], only)
	default:
		if err := d.gather(ep, call, a); err != nil {
			return nil, err
		}
	}
	// Ordinals count tries, so that a second one moves on in a policy that takes turns.
	a.query = router.Query{
		RequestID: call.RequestID, TokenIDs: call.TokenIDs, Request: call.Request, Pin: call.Pin, Memo: a.query.Memo,
		Ordinal: ep.ordinal.Add(1) - 1, Random: rand.IntN,
	}
	var err error
	if ep.route.Chooser != nil {
		a.chosen, err = ep.route.Chooser.Choose(ctx, &a.query, a.candidates)
	} else {
		a.chosen.Index, err = ep.route.Policy.Pick(&a.query, a.candidates)
	}
	if err != nil {
		return nil, err
	}
	return a.states[a.chosen.Index], nil
}

// gather lists the candidates: the instances of the endpoint that serve the call, are not left aside, were not tried.
func (d *Dispatcher) gather(ep *endpoint, call *router.Call, a *attempt) error {
	a.candidates, a.states = a.candidates[:0], a.states[:0]
	// full counts those that would do but for their load: their failure is another, and asks to come again.
	now, full := d.now(), 0
	busy := d.busy(call.Endpoint)
	for _, in := range ep.instances {
		switch {
		case call.Serves != nil && !call.Serves(in.record.InstanceID), a.has(in),
			slices.Contains(call.Exclude, in.record.InstanceID), in.aside(&in.quarantined, now):
			continue
		case in.full(now, busy):
			full++
			continue
		}
		c := router.Candidate{Instance: in.record, InFlight: in.inFlight.Load()}
		if call.Factor != nil {
			c.Factor = call.Factor(in.record.InstanceID)
		}
		a.candidates, a.states = append(a.candidates, c), append(a.states, in)
	}
	switch {
	case len(a.candidates) > 0:
		return nil
	case full > 0:
		return d.errBusy("All workers are busy, please try again later")
	}
	return errNoWorkers(call.Endpoint)
}

// has reports whether an instance was tried, under this record or an earlier one. The list is short.
func (a *attempt) has(in *instance) bool {
	for _, t := range a.tried {
		if t == in || t.record.InstanceID == in.record.InstanceID {
			return true
		}
	}
	return false
}

// pinned returns the instance that the client insists on, or why it can't be had: no other is taken in its place.
func (d *Dispatcher) pinned(ep *endpoint, call *router.Call) (*instance, error) {
	in, now := ep.find(*call.Pin), d.now()
	switch {
	case in == nil, call.Serves != nil && !call.Serves(*call.Pin), slices.Contains(call.Exclude, *call.Pin),
		in.aside(&in.quarantined, now):
		return nil, fault.New(fault.Unavailable, "Worker %d is not available", *call.Pin)
	case in.full(now, d.busy(call.Endpoint)):
		return nil, d.errBusy("The selected worker is busy, please try again later")
	}
	return in, nil
}

// errNoWorkers is the failure of a request that no instance could be tried for. Where they would be is for the log alone.
func errNoWorkers(id worker.EndpointID) *fault.Error {
	return fault.New(fault.Unavailable, "No workers available").Because(fmt.Errorf("at endpoint %s", id))
}

// errBusy is the failure of a request whose workers are all full. It asks to come again when they are no longer left
// aside, since sooner nothing would have changed.
func (d *Dispatcher) errBusy(message string) *fault.Error {
	e := fault.New(fault.Overloaded, "%s", message)
	e.RetryAfter = d.opts.OverloadedFor
	return e
}
