// Package busy knows which workers are overloaded. Workers report their load (Report), routers that keep books of the
// requests at work tell theirs (Track), discovery says how much each worker holds (Follow), and thresholds, which may be
// changed at any time, say how much of it is too much. It also tells whether a model's workers can take more at all, which
// decides whether a request is let in (State).
//
//	reports, books, cards ─▶ Monitor ─▶ Checker: is this instance overloaded? (with every choice of a worker)
//	thresholds     ─▶         ─▶ State: can anybody take this request? (before it is tokenised)
//
// What is decided is a pure function of thresholds, capacity and load (limits.go). A Monitor is safe for concurrent use;
// it starts nothing, and looks take no lock.
package busy

import (
	"cmp"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/router"
)

// Options are what a Monitor is built from. The zero value has no thresholds: nobody is overloaded.
type Options struct {
	Thresholds worker.LoadThresholds // of models whose cards and operators don't say otherwise

	// Queue is the multiple of a batch's tokens beyond which a worker has enough to prefill; nil: there is no such bound.
	Queue *float64

	// Stale is how old a report may be and still keep a worker out: nobody is to be left out for ever because a report
	// was lost. 30 s when zero.
	Stale time.Duration

	Registerer prometheus.Registerer // nil: metrics are kept but not registered
	Log        *slog.Logger          // nil: slog.Default()
}

// withDefaults fills in what was left open.
func (o Options) withDefaults() Options {
	if o.Stale <= 0 {
		o.Stale = 30 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}

// Monitor keeps the loads of all workers.
type Monitor struct {
	opts  Options
	began time.Time // instants are kept as distances from here

	fleets atomic.Pointer[map[worker.EndpointID]*fleet] // never nil; the map is never changed

	mu  sync.Mutex
	set map[string]worker.LoadThresholds // guarded by mu: by model, as operators have set them
}

// fleet is the workers of one endpoint. The map is never changed.
type fleet struct {
	model   string                // display name of what they serve
	card    worker.LoadThresholds // as its card has them
	limited atomic.Bool           // some threshold is set
	workers map[uint64]*load      // by instance id
}

// load is what is known of one worker. It outlives snapshots.
type load struct {
	capacity Capacity // of its card; never changed
	ranks    uint32   // data-parallel ranks, at least 1

	over    atomic.Bool  // its last reports, or what it was sent, are beyond the limits, on all ranks
	at      atomic.Int64 // when the last report came: a time.Duration
	sent    atomic.Bool  // what it was sent is beyond them by itself
	tracked atomic.Int64 // tokens in prefill of what it was sent, of its least loaded rank; negative: nobody keeps books
	prefill atomic.Int64 // tokens that it last reported to have in prefill, of its least loaded rank
	limit   atomic.Int64 // of tokens in prefill for each rank; negative: none

	// Guarded by Monitor.mu.
	limits   Limits
	reported map[uint32]*rankLoad // by rank
}

// rankLoad is the load of one rank.
type rankLoad struct {
	load    Load // as the worker reports it
	sent    Load // as a router has it in its books
	latched bool // beyond the decode limit by either, and not yet back
}

// both is the load by reports and books alike: a report may be late, and books know nothing of other frontends, unless
// those tell.
func (r *rankLoad) both() Load {
	return Load{Decode: most(r.load.Decode, r.sent.Decode), Prefill: most(r.load.Prefill, r.sent.Prefill), Used: r.load.Used}
}

// most returns the larger of two numbers that need not be there.
func most(a, b *uint64) *uint64 {
	if a == nil || b != nil && *b > *a {
		return b
	}
	return a
}

// New returns a Monitor that knows no workers.
func New(opts Options) *Monitor {
	m := &Monitor{opts: opts.withDefaults(), began: time.Now(), set: map[string]worker.LoadThresholds{}}
	m.fleets.Store(&map[worker.EndpointID]*fleet{})
	if m.opts.Registerer != nil {
		m.opts.Registerer.MustRegister(collector{m})
	}
	return m
}

// now returns the time since the monitor was made, which no change of the wall clock moves.
func (m *Monitor) now() time.Duration { return time.Since(m.began) }

// Follow takes in a snapshot of discovery. Workers that are gone are forgotten, with what operators have set for models
// that nobody serves any more.
func (m *Monitor) Follow(snap *router.Snapshot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := *m.fleets.Load()
	next := map[worker.EndpointID]*fleet{}
	for _, rec := range snap.Models {
		// An adapter's workers are its base model's.
		if rec.Suffix != "" || !present(snap.Instances[rec.ID()], rec.InstanceID) {
			continue
		}
		f := next[rec.ID()]
		if f == nil {
			f = &fleet{model: rec.Card.DisplayName, workers: map[uint64]*load{}}
			next[rec.ID()] = f
			cfg, err := rec.Card.Router()
			if err == nil {
				err = Check(cfg.Thresholds)
			}
			if err != nil {
				m.opts.Log.Debug("thresholds of a card can't be used", "model", f.model, "error", err)
			} else {
				f.card = cfg.Thresholds
			}
		}
		f.workers[rec.InstanceID] = m.carryLocked(old[rec.ID()], rec)
	}
	for _, f := range next {
		m.applyLocked(f)
	}
	m.fleets.Store(&next)
	maps.DeleteFunc(m.set, func(model string, _ worker.LoadThresholds) bool { return !m.knowsLocked(model) })
}

// present finds an instance, which snapshots have in the order of ids.
func present(instances []*worker.Instance, id uint64) bool {
	_, ok := slices.BinarySearchFunc(instances, id, func(i *worker.Instance, id uint64) int {
		return cmp.Compare(i.InstanceID, id)
	})
	return ok
}

// carryLocked returns the load of a record's worker, with what was known of it.
func (m *Monitor) carryLocked(before *fleet, rec *worker.ModelRecord) *load {
	c, ranks := CapacityOf(&rec.Card), max(rec.Card.RuntimeConfig.DataParallelSize, 1)
	if before != nil {
		if l := before.workers[rec.InstanceID]; l != nil && l.capacity == c && l.ranks == ranks {
			return l
		}
	}
	l := &load{capacity: c, ranks: ranks, reported: map[uint32]*rankLoad{}}
	l.tracked.Store(-1)
	return l
}

// thresholdsLocked returns what holds for a fleet: the operator's word, then the card's, then the default.
func (m *Monitor) thresholdsLocked(f *fleet) worker.LoadThresholds {
	return m.opts.Thresholds.Over(f.card).Over(m.set[f.model])
}

// applyLocked judges a fleet by the thresholds of now.
func (m *Monitor) applyLocked(f *fleet) {
	t := m.thresholdsLocked(f)
	for _, l := range f.workers {
		l.limits = LimitsOf(t, l.capacity)
		l.limit.Store(-1)
		if p := l.limits.Prefill; p != nil {
			l.limit.Store(int64(*p))
		}
		for _, r := range l.reported {
			r.latched = l.limits.Latch(r.latched, r.both())
		}
		l.judge()
	}
	// Last, so that whoever sees it finds the limits in place.
	f.limited.Store(!t.IsZero())
}

// judge sums up the ranks: a worker is overloaded when every one of them is. A rank of which nothing is known isn't.
func (l *load) judge() {
	over, prefill, tracked := len(l.reported) >= int(l.ranks), int64(-1), int64(-1)
	sent, books := over, false
	for _, r := range l.reported {
		over = over && (r.latched || l.limits.Prefilling(r.both()))
		sent = sent && (l.limits.Latch(false, Load{Decode: r.sent.Decode}) || l.limits.Prefilling(r.sent))
		prefill, tracked = least(prefill, r.load.Prefill), least(tracked, r.sent.Prefill)
		books = books || r.sent.Prefill != nil
	}
	l.over.Store(over)
	l.sent.Store(sent)
	l.prefill.Store(max(prefill, 0))
	switch {
	case !books:
		tracked = -1
	case len(l.reported) < int(l.ranks):
		tracked = 0 // the others have nothing
	}
	l.tracked.Store(tracked)
}

// least returns the smaller of a number, which isn't there when negative, and one that is 0 when it isn't there.
func least(a int64, b *uint64) int64 {
	var n int64
	if b != nil {
		n = int64(min(*b, 1<<62))
	}
	if a < 0 || n < a {
		return n
	}
	return a
}

// Report takes a worker's report on one of its ranks. What it doesn't say is as it was. Reports of unknown workers are
// dropped.
func (m *Monitor) Report(endpoint worker.EndpointID, instanceID uint64, rank uint32, r Load) {
	m.update(endpoint, instanceID, rank, func(l *load, known *rankLoad) {
		known.load = known.load.with(r)
		l.at.Store(int64(m.now()))
	})
}

// Track takes what the requests at work at a worker's rank come to in the books of a router that keeps some: all of it,
// Used excepted. Unlike reports, books don't get old. Where they tell of prefill, they stand in place of what the callers
// of Checker and State know of it.
func (m *Monitor) Track(endpoint worker.EndpointID, instanceID uint64, rank uint32, sent Load) {
	m.update(endpoint, instanceID, rank, func(_ *load, known *rankLoad) { known.sent = sent })
}

// update changes what is known of a rank, if its worker is known.
func (m *Monitor) update(endpoint worker.EndpointID, instanceID uint64, rank uint32, change func(*load, *rankLoad)) {
	f := (*m.fleets.Load())[endpoint]
	if f == nil {
		return
	}
	l := f.workers[instanceID]
	if l == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	// A worker has as many ranks as it has announced, and a report may name any.
	known := l.reported[rank]
	if known == nil {
		if len(l.reported) >= int(l.ranks) {
			return
		}
		known = &rankLoad{}
		l.reported[rank] = known
	}
	change(l, known)
	known.latched = l.limits.Latch(known.latched, known.both())
	l.judge()
}

// Checker returns a function that says whether an instance of the endpoint is overloaded, given how many tokens of this
// frontend's requests it has in prefill. Nil: none is.
func (m *Monitor) Checker(endpoint worker.EndpointID) func(instanceID uint64, prefill int64) bool {
	f := (*m.fleets.Load())[endpoint]
	if f == nil || !f.limited.Load() {
		return nil
	}
	now := m.now()
	return func(instanceID uint64, prefill int64) bool {
		l := f.workers[instanceID]
		return l != nil && l.overloaded(now, m.opts.Stale, prefill)
	}
}

// overloaded reports whether the worker is beyond a limit, by its own reports or by what it was sent.
func (l *load) overloaded(now, stale time.Duration, prefill int64) bool {
	if l.sent.Load() || l.over.Load() && now-time.Duration(l.at.Load()) < stale {
		return true
	}
	if l.tracked.Load() >= 0 { // it has been looked at, rank by rank
		return false
	}
	limit := l.limit.Load()
	return limit >= 0 && prefill/int64(l.ranks) > limit
}
