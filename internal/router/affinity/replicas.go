package affinity

import (
	"context"
	"log/slog"
	"sync"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/router/events"
)

// ReplicasOptions are what Replicas are built from. The zero value keeps tables and tells nobody.
type ReplicasOptions struct {
	// Registrar makes outlets known to other frontends. Nil: there is no discovery to be found by, and nobody is told.
	Registrar events.Registrar
	ZMQ       bool   // publish on sockets of this process; otherwise on NATS
	EventHost string // of the sockets
	NATS      func(...natsgo.Option) (*natsgo.Conn, error)

	Registerer prometheus.Registerer // nil: metrics are kept but not registered
	Log        *slog.Logger          // nil: slog.Default()
}

// Replicas keep the tables of endpoints, and tell other frontends of their bindings.
type Replicas struct {
	opts ReplicasOptions

	mu     sync.Mutex
	shared map[worker.EndpointID]*shared // guarded by mu

	// A leaf of the order of mutexes: goroutines are begun with mu held.
	queue   sync.Mutex
	group   *lifecycle.Group // guarded by queue; nil while Run isn't running
	waiting []task           // guarded by queue: what is to run as soon as it is
}

// shared is one endpoint's table.
type shared struct {
	table  *Table
	mode   Mode
	ttl    time.Duration
	outlet *events.Outlet // nil: nobody is told
	quit   chan struct{}  // closed when the table is closed

	met     map[uint64]struct{} // guarded by Replicas.mu: publishers that have been noticed
	welcome bool                // guarded by Replicas.mu: all is about to be told
}

// task is something that a goroutine of its own does.
type task struct {
	name string
	run  func(ctx context.Context) error
}

// NewReplicas returns Replicas without tables. It starts nothing.
func NewReplicas(opts ReplicasOptions) *Replicas {
	if opts.Log == nil {
		opts.Log = slog.Default()
	}
	r := &Replicas{opts: opts, shared: map[worker.EndpointID]*shared{}}
	if opts.Registerer != nil {
		opts.Registerer.MustRegister(collector{r})
	}
	return r
}

// Run tells and hears other frontends until ctx ends; then it returns nil. It is called once.
func (r *Replicas) Run(ctx context.Context) error {
	g := lifecycle.New(ctx)
	r.queue.Lock()
	r.group = g
	for _, t := range r.waiting {
		g.Go(t.name, t.run)
	}
	r.waiting = nil
	r.queue.Unlock()
	<-ctx.Done()
	return g.Stop()
}

// start runs f on a goroutine of its own, now or as soon as Run runs. After Run's end it runs nothing.
func (r *Replicas) start(name string, f func(ctx context.Context) error) {
	r.queue.Lock()
	defer r.queue.Unlock()
	if r.group != nil {
		r.group.Go(name, f)
		return
	}
	r.waiting = append(r.waiting, task{name, f})
}

// Table returns the sessions of an endpoint, which are kept for as long as their time and mode stay the same.
func (r *Replicas) Table(id worker.EndpointID, ttl time.Duration, mode Mode) *Table {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.shared[id]; s != nil {
		if s.ttl == ttl && s.mode == mode {
			return s.table
		}
		r.closeLocked(id)
	}
	s := &shared{ttl: ttl, mode: mode, quit: make(chan struct{}), met: map[uint64]struct{}{}}
	opts := Options{TTL: ttl, Mode: mode}
	if s.outlet = r.newOutlet(id); s.outlet != nil {
		opts.Announce = s.publish
		r.start("session affinity", func(ctx context.Context) error { return r.serve(ctx, id, s) })
	}
	s.table = New(opts)
	r.shared[id] = s
	return s.table
}

// publish tells other frontends of a binding.
func (s *shared) publish(b *worker.SessionBinding) {
	s.outlet.Publish(worker.AppendSessionBinding(nil, b))
}

// newOutlet makes an endpoint's outlet; nil when nobody can be told.
func (r *Replicas) newOutlet(id worker.EndpointID) *events.Outlet {
	if r.opts.Registrar == nil {
		return nil
	}
	return events.NewOutlet(events.OutletOptions{
		Registrar: r.opts.Registrar, Scope: worker.EndpointScope(id), Topic: worker.TopicSessionAffinity,
		ZMQ: r.opts.ZMQ, Host: r.opts.EventHost, NATS: r.opts.NATS, Log: r.opts.Log,
	})
}

// serve publishes what an endpoint's table announces until that is closed.
func (r *Replicas) serve(ctx context.Context, id worker.EndpointID, s *shared) error {
	g := lifecycle.New(ctx)
	g.Go("outlet", s.outlet.Run)
	select {
	case <-ctx.Done():
	case <-g.Context().Done(): // it can't publish
	case <-s.quit:
	}
	if err := g.Stop(); err != nil {
		r.opts.Log.Error("other frontends aren't told of sessions", "endpoint", id.String(), "error", err)
	}
	return nil
}

// Retain closes the tables of endpoints for which keep is false.
func (r *Replicas) Retain(keep func(worker.EndpointID) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.shared {
		if !keep(id) {
			r.closeLocked(id)
		}
	}
}

// closeLocked forgets an endpoint's table.
func (r *Replicas) closeLocked(id worker.EndpointID) {
	close(r.shared[id].quit)
	delete(r.shared, id)
}

// of returns what is kept of an endpoint, or nil.
func (r *Replicas) of(id worker.EndpointID) *shared {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.shared[id]
}

// Topic is what Replicas want to hear of an events.Hub.
func (r *Replicas) Topic() events.Topic {
	return events.Topic{Name: worker.TopicSessionAffinity, Wants: r.wants, Handler: (*bindingEvents)(r)}
}

// wants reports whether a publisher is another frontend with sessions of the same workers.
func (r *Replicas) wants(ch *worker.EventChannel) bool {
	if ch.Scope.Kind != worker.ScopeEndpoint {
		return false
	}
	s := r.of(ch.Scope.ID)
	return s != nil && s.outlet != nil && s.outlet.Publisher() != ch.Publisher
}

// bindingEvents are Replicas as they hear other frontends.
type bindingEvents Replicas

var _ events.Handler = (*bindingEvents)(nil)

// Event implements events.Handler.
func (h *bindingEvents) Event(ch *worker.EventChannel, e *worker.Event) {
	r := (*Replicas)(h)
	s := r.of(ch.Scope.ID)
	if s == nil {
		return
	}
	b, err := worker.ParseSessionBinding(e.Payload)
	if err != nil {
		r.opts.Log.Warn("another frontend's session could not be read", "publisher", ch.Publisher, "error", err)
		return
	}
	s.table.Apply(&b)
}

const (
	// hearing is how long a frontend that has just been noticed is given to listen.
	hearing = time.Second
	// round bounds the sessions that it is told of, and between pauses.
	round, batch, pause = 1 << 16, 256, 10 * time.Millisecond
)

// Missed implements events.Handler. A publisher that is heard for the first time is a frontend that has come later, as a
// rule: it is told of what is bound.
func (h *bindingEvents) Missed(ch *worker.EventChannel) {
	r := (*Replicas)(h)
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.shared[ch.Scope.ID]
	if s == nil || s.outlet == nil {
		return
	}
	if _, met := s.met[ch.Publisher]; met {
		return
	}
	s.met[ch.Publisher] = struct{}{}
	if s.welcome {
		return // it hears what is about to be told, or is told with uses
	}
	s.welcome = true
	r.start("session affinity, all", func(ctx context.Context) error { return r.tellAll(ctx, s) })
}

// Gone implements events.Handler. What a frontend has bound stays bound.
func (h *bindingEvents) Gone(ch *worker.EventChannel) {
	r := (*Replicas)(h)
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.shared[ch.Scope.ID]; s != nil {
		delete(s.met, ch.Publisher)
	}
}

// tellAll announces what is bound, slowly.
func (r *Replicas) tellAll(ctx context.Context, s *shared) error {
	wait := func(d time.Duration) bool {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
			return true
		case <-ctx.Done():
		case <-s.quit:
		}
		return false
	}
	if !wait(hearing) {
		return nil
	}
	r.mu.Lock()
	s.welcome = false // who comes from now on may have missed the first
	r.mu.Unlock()
	n := 0
	s.table.Each(func(b *worker.SessionBinding) bool {
		s.publish(b)
		n++
		return n < round && (n%batch != 0 || wait(pause))
	})
	return nil
}

// sessionsDesc is read from the tables when it is asked: an endpoint that is gone leaves no series behind.
var sessionsDesc = prometheus.NewDesc("portico_sessions",
	"Sessions that are bound to workers, by endpoint; those of other frontends included", []string{"endpoint"}, nil)

// collector is the metrics of Replicas.
type collector struct{ r *Replicas }

var _ prometheus.Collector = collector{}

// Describe implements prometheus.Collector.
func (collector) Describe(out chan<- *prometheus.Desc) { out <- sessionsDesc }

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) {
	c.r.mu.Lock()
	tables := make(map[string]*Table, len(c.r.shared))
	for id, s := range c.r.shared {
		tables[id.String()] = s.table
	}
	c.r.mu.Unlock()
	for endpoint, t := range tables {
		out <- prometheus.MustNewConstMetric(sessionsDesc, prometheus.GaugeValue, float64(t.Len()), endpoint)
	}
}
