package busy

import (
	"time"

	"github.com/portico-llm/portico/api/worker"
)

// Sight is one instance as the router sees it, of those that a request may go to.
type Sight struct {
	InstanceID uint64
	Prefill    int64 // tokens of this frontend's requests that are in prefill there
	Full       bool  // it has just said that it is at capacity
}

// Verdict is what a model's workers can take.
type Verdict uint8

const (
	// Ready workers take more.
	Ready Verdict = iota
	// Saturated workers have enough to prefill: what comes should wait.
	Saturated
	// Overloaded workers take nothing.
	Overloaded
)

// Queues reports whether there is a bound of prefill beyond which requests should wait.
func (m *Monitor) Queues() bool { return m.opts.Queue != nil }

// State says what the workers in sight can take, once they have pending tokens more. No workers at all are Ready: what
// is wrong then is for the router to say.
func (m *Monitor) State(endpoint worker.EndpointID, sights []Sight, pending int64) Verdict {
	f := (*m.fleets.Load())[endpoint]
	check := m.Checker(endpoint)
	free := 0
	for i := range sights {
		s := &sights[i]
		if !s.Full && (check == nil || !check(s.InstanceID, s.Prefill)) {
			free++
		}
	}
	switch {
	case len(sights) == 0:
		return Ready
	case free == 0:
		return Overloaded
	case m.opts.Queue == nil:
		return Ready
	}
	// What is pending goes to all that are free, by equal shares.
	share := float64(pending) / float64(free)
	for i := range sights {
		s := &sights[i]
		if s.Full || (check != nil && check(s.InstanceID, s.Prefill)) {
			continue
		}
		capacity, ranks, prefill := Capacity{}, float64(1), float64(s.Prefill)
		if f != nil && f.workers[s.InstanceID] != nil {
			l := f.workers[s.InstanceID]
			capacity, ranks = l.capacity, float64(l.ranks)
			if n := l.tracked.Load(); n >= 0 {
				prefill = float64(n) * ranks
			}
			// Its own word counts others' requests as well, and comes later. An old one says nothing.
			if m.now()-time.Duration(l.at.Load()) < m.opts.Stale {
				prefill = max(prefill, float64(l.prefill.Load())*ranks)
			}
		}
		if (prefill+share)/ranks <= *m.opts.Queue*capacity.batch() {
			return Ready
		}
	}
	return Saturated
}
