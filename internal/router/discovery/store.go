// Package discovery folds the changes of a router.Source into immutable snapshots and publishes them.
//
//	mem, file, etcd ──Change──▶ Store ──*router.Snapshot──▶ catalog, dispatcher
//
// One goroutine (that of Store.Run) owns the state; readers take a snapshot from an atomic pointer and never lock.
// A record that can't be read doesn't take a worker away: the last good value stays until the key goes or becomes good
// again, and the log says so once.
package discovery

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/router"
)

// Options of a Store. The zero value works.
type Options struct {
	Log        *slog.Logger          // nil: slog.Default()
	Registerer prometheus.Registerer // nil: no metrics
}

// withDefaults fills in what was left open.
func (o Options) withDefaults() Options {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}

// Store holds what discovery knows. Run is called once; all other methods are safe for concurrent use, before, during
// and after it.
type Store struct {
	source  router.Source // run by Run
	log     *slog.Logger
	metrics metrics                         // moved with every snapshot
	current atomic.Pointer[router.Snapshot] // never nil

	mu       sync.Mutex // held while watchers are called, so that each sees snapshots in order
	watchers []*watcher // guarded by mu
}

// watcher is a function with an identity: functions can't be compared.
type watcher struct{ f func(*router.Snapshot) }

// NewStore returns a store over source, with an empty snapshot until the source has listed its records.
func NewStore(source router.Source, opts Options) *Store {
	opts = opts.withDefaults()
	s := &Store{source: source, log: opts.Log, metrics: newMetrics(opts.Registerer)}
	s.current.Store(&router.Snapshot{Instances: map[worker.EndpointID][]*worker.Instance{}})
	return s
}

// Run follows the source until ctx ends, and returns what the source returned.
func (s *Store) Run(ctx context.Context) error {
	// The fold belongs to this goroutine: sources call emit from one at a time.
	f := newFold(s.log, s.metrics.broken)
	return s.source.Run(ctx, func(c router.Change) {
		if next := f.apply(s.current.Load(), c); next != nil {
			s.publish(next)
		}
	})
}

// Snapshot returns the latest snapshot. It is never nil.
func (s *Store) Snapshot() *router.Snapshot { return s.current.Load() }

// Watch calls f with the current snapshot before it returns, and from then on with every new one, from Run's goroutine
// and never concurrently. f must return soon and must not call Watch or cancel. Once cancel has returned f is not
// running and won't be called again; cancel may be called more than once.
func (s *Store) Watch(f func(*router.Snapshot)) (cancel func()) {
	w := &watcher{f}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watchers = append(s.watchers, w)
	f(s.current.Load())
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for i, have := range s.watchers {
			if have == w {
				s.watchers = append(s.watchers[:i], s.watchers[i+1:]...)
				return
			}
		}
	}
}

// publish makes next the current snapshot and tells the watchers, in the order in which they came. A watcher added
// meanwhile waits for the lock and then gets next itself.
func (s *Store) publish(next *router.Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current.Store(next)
	instances := 0
	for _, list := range next.Instances {
		instances += len(list)
	}
	s.metrics.instances.Set(float64(instances))
	s.metrics.models.Set(float64(len(next.Models)))
	for _, w := range s.watchers {
		w.f(next)
	}
}

// metrics are usable without a registry: then nobody reads them.
type metrics struct {
	instances, models prometheus.Gauge   // in the current snapshot
	broken            prometheus.Counter // values refused, ever
}

// newMetrics makes the metrics and registers them; nil registers none.
func newMetrics(reg prometheus.Registerer) metrics {
	m := metrics{
		instances: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "dynamo_frontend_discovery_instances",
			Help: "Worker instances known from discovery, over all endpoints",
		}),
		models: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "dynamo_frontend_discovery_model_records",
			Help: "Model records known from discovery, one for each model and instance",
		}),
		broken: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "dynamo_frontend_discovery_broken_records_total",
			Help: "Discovery records refused because they could not be read or changed what may not change",
		}),
	}
	if reg != nil {
		reg.MustRegister(m.instances, m.models, m.broken)
	}
	return m
}
