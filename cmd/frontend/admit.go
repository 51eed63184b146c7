package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/admission"
	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/config"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/busy"
	"github.com/portico-llm/portico/internal/router/constraint"
	"github.com/portico-llm/portico/internal/router/dispatch"
	"github.com/portico-llm/portico/internal/router/events"
)

// overload is what keeps requests from piling up, here and at the workers.
type overload struct {
	entrance *admission.Gate  // lets requests in before they are tokenised
	loads    *busy.Monitor    // which workers are overloaded
	taints   constraint.Index // which workers have which
	// workers is what the gate asks of a model's workers.
	workers func(*catalog.Set) func(pending int64) admission.State
}

// letIn makes the gate that requests pass before they are tokenised.
func (a *app) letIn() error {
	c := a.cfg.Admission
	order, err := admission.ParseOrder(c.Order)
	if err != nil {
		return fmt.Errorf("router-queue-policy: %w", err)
	}
	queue := c.MaxQueued
	if queue == 0 {
		queue = -1 // the option's zero is its default
	}
	a.entrance = admission.New(admission.Options{
		Limit: c.MaxRequests, Limits: c.MaxRequestsOf, Queue: queue, MaxWait: c.MaxWait, Order: order, Registerer: a.registry})
	a.run("admission", a.entrance.Run)
	return nil
}

// follow has f follow discovery until the app is closed.
func (a *app) follow(f func(*router.Snapshot)) {
	cancel := a.store.Watch(f)
	a.onClose(func(context.Context) error { cancel(); return nil })
}

// watchLoads makes what knows the workers' loads. Discovery tells it what they hold; loadReports, how much of it
// they use.
func (a *app) watchLoads() {
	a.loads = busyMonitor(a)
	a.follow(func(s *router.Snapshot) {
		a.loads.Follow(s)
		a.taints.Follow(s)
	})
}

// busyMonitor makes what knows the workers' loads, by the settings.
func busyMonitor(a *app) *busy.Monitor {
	l := &a.cfg.Loads
	return busy.New(busy.Options{
		Thresholds: loadThresholds(l), Queue: l.Queue, Registerer: a.registry, Log: a.target("router")})
}

// loadReports is what workers publish of their load.
func (a *app) loadReports() events.Topic {
	return events.Topic{Name: worker.TopicKVMetrics, Handler: a.loads}
}

// loadThresholds are the settings as workers' cards have them.
func loadThresholds(l *config.Loads) worker.LoadThresholds {
	t := worker.LoadThresholds{DecodeBlocks: l.DecodeBlocks, PrefillFraction: l.PrefillFraction}
	if l.PrefillTokens != nil {
		n := uint64(*l.PrefillTokens)
		t.PrefillTokens = &n
	}
	return t
}

// sights keeps the memory of looks at a model's workers.
var sights = sync.Pool{New: func() any { return new(looks) }}

type looks struct {
	seen   []dispatch.Sight
	judged []busy.Sight
}

// workersOf returns what the gate asks of the workers of a set; nil when there is nothing to ask, as nearly always.
func (a *app) workersOf(d *dispatch.Dispatcher) func(*catalog.Set) func(int64) admission.State {
	return func(set *catalog.Set) func(int64) admission.State {
		if !a.loads.Queues() && !d.AnyFull() && a.loads.Checker(set.Endpoint) == nil {
			return nil
		}
		return func(pending int64) admission.State {
			l := sights.Get().(*looks)
			defer sights.Put(l)
			l.seen, l.judged = d.Sights(l.seen[:0], set.Endpoint, set.Serves), l.judged[:0]
			for i := range l.seen {
				s := &l.seen[i]
				l.judged = append(l.judged, busy.Sight{
					InstanceID: s.Instance.InstanceID, Prefill: s.Prefill, Full: s.Full})
			}
			clear(l.seen) // records aren't kept alive by the pool
			switch a.loads.State(set.Endpoint, l.judged, pending) {
			case busy.Overloaded:
				return admission.Overloaded
			case busy.Saturated:
				return admission.Saturated
			}
			return admission.Ready
		}
	}
}

// thresholds are the monitor as operators see it.
type thresholds struct{ loads *busy.Monitor }

func (t thresholds) List() any { return t.loads.Thresholds() }

func (t thresholds) Of(model string) (worker.LoadThresholds, bool) {
	return t.loads.ThresholdsOf(model)
}

func (t thresholds) Set(model string, set worker.LoadThresholds) (worker.LoadThresholds, bool, error) {
	return t.loads.SetThresholds(model, set)
}
