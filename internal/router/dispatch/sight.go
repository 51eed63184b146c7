package dispatch

import (
	"time"

	"github.com/portico-llm/portico/api/worker"
)

// Sight is one instance as the Dispatcher sees it.
type Sight struct {
	Instance *worker.Instance
	InFlight int64 // requests of this Dispatcher now at the instance
	Prefill  int64 // prompt tokens of those whose answer hasn't begun
	Full     bool  // it has just said that it is at capacity; it is left aside for a moment
}

// Sights appends to dst the instances of an endpoint that serve something and aren't left aside as lost, full ones
// included. Nil serves is all.
func (d *Dispatcher) Sights(dst []Sight, id worker.EndpointID, serves func(instanceID uint64) bool) []Sight {
	ep := d.current().endpoints[id]
	if ep == nil {
		return dst
	}
	now := d.now()
	for _, in := range ep.instances {
		if (serves != nil && !serves(in.record.InstanceID)) || in.aside(&in.quarantined, now) {
			continue
		}
		dst = append(dst, Sight{
			Instance: in.record, InFlight: in.inFlight.Load(), Prefill: in.load.prefill.Load(),
			Full: in.aside(&in.overloaded, now),
		})
	}
	return dst
}

// AnyFull reports whether any instance may be full at the moment. It is quick, for use with every request: nearly always
// none is.
func (d *Dispatcher) AnyFull() bool { return d.fullUntil.Load() > int64(d.now()) }

// full reports whether an instance is at capacity, by what it said of a request or by its load. busy may be nil.
func (in *instance) full(now time.Duration, busy func(instanceID uint64, prefill int64) bool) bool {
	return in.aside(&in.overloaded, now) || (busy != nil && busy(in.record.InstanceID, in.load.prefill.Load()))
}

// busy returns what knows which instances of an endpoint are overloaded; nil: none is.
func (d *Dispatcher) busy(id worker.EndpointID) func(instanceID uint64, prefill int64) bool {
	if d.opts.Busy == nil {
		return nil
	}
	return d.opts.Busy(id)
}
