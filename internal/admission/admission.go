// Package admission decides, before a prompt is rendered and tokenised, whether a request goes on now, waits, or is
// refused. It bounds how many requests of one model are on their way at a time, and how many wait for a place; those
// that wait are let in by priority. Requests also wait while a model's workers have as much to do as they should, and
// are refused at once when every one of them is overloaded.
//
//	Enter ─▶ workers overloaded? ─▶ place free? ─▶ queue (bounded, by rank) ─▶ Place … Leave
//
// A request that nothing holds up takes no lock. A client that leaves the queue frees its place at once. The Gate is safe
// for concurrent use; Run has to run for requests that wait for their workers, and everything else works on the callers'
// goroutines.
package admission

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/portico-llm/portico/internal/fault"
)

// State is what the workers of a model can take.
type State uint8

const (
	// Ready workers take more.
	Ready State = iota
	// Saturated workers have enough to do: requests wait here rather than there.
	Saturated
	// Overloaded workers take nothing more.
	Overloaded
)

// Request is what is known of a request that wants in. It is read until Enter returns.
type Request struct {
	Model    string // as the catalog calls it, so that there are few; aliases share a name
	Tokens   int    // length of the prompt, roughly
	Priority int32  // seconds that it may jump ahead, or has to stand back
	Strict   uint32 // higher goes first, whatever the rest says

	// Workers says what the model's workers can take once they have as many tokens more: those of requests that were let
	// in and haven't reached a worker yet. Nil is always Ready. It is called often, under a lock, and must be quick.
	Workers func(pending int64) State
}

// Options are what a Gate is built from. The zero value limits nothing but what the workers say.
type Options struct {
	Limit   int            // requests of one model at a time, from Enter to Leave; 0: no limit
	Limits  map[string]int // the same by model, in place of Limit; not changed afterwards
	Queue   int            // requests of one model that may wait; 0: 1024, negative: none
	MaxWait time.Duration  // of one request; 0: 30 s
	Order   Order          // of those that wait

	Registerer prometheus.Registerer // nil: metrics are kept but not registered
}

// withDefaults fills in what was left open.
func (o Options) withDefaults() Options {
	if o.Queue == 0 {
		o.Queue = 1024
	}
	if o.MaxWait <= 0 {
		o.MaxWait = 30 * time.Second
	}
	return o
}

// Gate lets requests in.
type Gate struct {
	opts    Options
	began   time.Time // instants are kept as distances from here
	models  sync.Map  // name → *model
	waiting atomic.Int64
	wake    chan struct{} // capacity 1: there is somebody who waits
	wait    prometheus.Histogram
}

// New returns a Gate. It starts nothing.
func New(opts Options) *Gate {
	g := &Gate{
		opts:  opts.withDefaults(),
		began: time.Now(),
		wake:  make(chan struct{}, 1), // one knock is as good as many
		wait:  newWait(),
	}
	if g.opts.Registerer != nil {
		g.opts.Registerer.MustRegister(g.wait, collector{g})
	}
	return g
}

// Place is a request's right to go on. A nil Place is one, too. Its methods may be called from any goroutine, and again.
type Place struct {
	gate   *Gate
	model  *model
	tokens int64
	since  time.Duration // when it was taken
	sent   atomic.Bool
	left   atomic.Bool
}

// place returns the place that r has taken.
func (g *Gate) place(m *model, r *Request) *Place {
	return &Place{gate: g, model: m, tokens: int64(r.Tokens), since: g.now()}
}

// Sent tells that the request has reached a worker, whose load it is part of from now on.
func (p *Place) Sent() {
	if p != nil && !p.sent.Swap(true) {
		p.model.pending.Add(-p.tokens)
	}
}

// Leave gives the place back.
func (p *Place) Leave() {
	if p == nil || p.left.Swap(true) {
		return
	}
	p.Sent()
	m := p.model
	m.held(p.gate.now() - p.since)
	m.running.Add(-1)
	// Whoever came to wait after this look finds the place free by itself.
	if m.waiting.Load() > 0 {
		m.mu.Lock()
		m.admitLocked(p.gate)
		m.mu.Unlock()
	}
}

// Enter returns a place as soon as there is one, which has to be left again. It fails with a fault of kind Overloaded
// that says when to come again: at once when the workers are overloaded or the queue is full, or after MaxWait. When ctx
// ends first, the failure is its cause.
func (g *Gate) Enter(ctx context.Context, r *Request) (*Place, error) {
	// Nothing to count and nothing to wait for.
	if r.Workers == nil && g.limit(r.Model) <= 0 {
		return nil, nil
	}
	m := g.model(r.Model)
	state := m.state(r.Workers)
	if state == Overloaded {
		m.refused[refusedBusy].Add(1)
		return nil, errBusy(minPatience)
	}
	if state == Ready && m.waiting.Load() == 0 && m.take(r.Tokens) {
		return g.place(m, r), nil
	}
	return g.queue(ctx, m, r)
}

// queue waits for a place.
func (g *Gate) queue(ctx context.Context, m *model, r *Request) (*Place, error) {
	begin := g.now()
	w := &waiter{rank: rankOf(g.opts.Order, r, begin), tokens: r.Tokens, workers: r.Workers, ready: make(chan struct{})}
	if !m.join(g, w) {
		m.refused[refusedFull].Add(1)
		return nil, errFull(m.patience())
	}
	select {
	case g.wake <- struct{}{}:
	default:
	}
	timer := time.NewTimer(g.opts.MaxWait)
	defer timer.Stop()
	var err error
	select {
	case <-w.ready:
	case <-ctx.Done():
		err = fault.From(context.Cause(ctx))
	case <-timer.C:
		err = errWaited(m.patience())
	}
	g.wait.Observe((g.now() - begin).Seconds())
	if err == nil {
		return g.place(m, r), nil
	}
	if !m.leave(g, w) {
		// It was let in at the same moment: the place goes to the next.
		g.place(m, r).Leave()
	}
	if fault.KindOf(err) == fault.Overloaded {
		m.refused[refusedLate].Add(1)
	} else {
		m.refused[refusedGone].Add(1)
	}
	return nil, err
}

// tick is how often workers are asked again on behalf of those that wait for them.
const tick = 20 * time.Millisecond

// Run lets those in whose workers have become ready, until ctx ends. It rests while nobody waits.
func (g *Gate) Run(ctx context.Context) error {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		if g.waiting.Load() == 0 {
			select {
			case <-ctx.Done():
				return nil
			case <-g.wake:
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			g.kick()
		}
	}
}

// kick lets in who can be let in.
func (g *Gate) kick() {
	for _, v := range g.models.Range {
		m := v.(*model)
		if m.waiting.Load() == 0 {
			continue
		}
		m.mu.Lock()
		m.admitLocked(g)
		m.mu.Unlock()
	}
}

// Retain forgets the models for which keep is false, but for those with requests. It is called when models go.
func (g *Gate) Retain(keep func(model string) bool) {
	for k, v := range g.models.Range {
		m := v.(*model)
		if !keep(k.(string)) && m.running.Load() == 0 && m.waiting.Load() == 0 {
			g.models.Delete(k)
		}
	}
}

// model returns the state of a model.
func (g *Gate) model(name string) *model {
	if m, ok := g.models.Load(name); ok {
		return m.(*model)
	}
	m, _ := g.models.LoadOrStore(name, &model{limit: g.limit(name)})
	return m.(*model)
}

// limit is how many requests of a model there may be at a time; 0: any number.
func (g *Gate) limit(model string) int {
	if n, ok := g.opts.Limits[model]; ok {
		return n
	}
	return g.opts.Limit
}

// now returns the time since the gate was made, which no change of the wall clock moves.
func (g *Gate) now() time.Duration { return time.Since(g.began) }

// errBusy is the failure of a request whose workers are overloaded.
func errBusy(after time.Duration) *fault.Error {
	return overloaded(after, "All workers are busy, please try again later")
}

// errFull is the failure of a request that found too many others waiting.
func errFull(after time.Duration) *fault.Error {
	return overloaded(after, "Too many requests are waiting for this model, please try again later")
}

// errWaited is the failure of a request that waited for too long.
func errWaited(after time.Duration) *fault.Error {
	return overloaded(after, "The request waited too long for its turn, please try again later")
}

// overloaded is a fault that says when to come again.
func overloaded(after time.Duration, message string) *fault.Error {
	f := fault.New(fault.Overloaded, "%s", message)
	f.RetryAfter = after
	return f
}
