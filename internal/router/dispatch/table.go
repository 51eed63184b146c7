package dispatch

import (
	"cmp"
	"errors"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/callhome"
)

// table is what a Dispatcher knows of the instances of one snapshot. It is never changed once it is in place, but for
// the atomics and the loads in it.
type table struct {
	snapshot  *router.Snapshot // nil in the first table, before there was any
	endpoints map[worker.EndpointID]*endpoint
}

// endpoint lists the instances of one endpoint, by id. A nil endpoint has none.
type endpoint struct {
	instances []*instance
	route     Route         // its Policy is never nil
	ordinal   atomic.Uint64 // counts choices
}

// instance is one worker at one endpoint and what this frontend knows of it. It outlives snapshots.
type instance struct {
	record *worker.Instance
	load   *load

	inFlight    *atomic.Int64
	quarantined atomic.Int64 // until when, as a time.Duration since the dispatcher began
	overloaded  atomic.Int64 // likewise
}

// load holds what survives a changed record: the requests that the worker has, whatever it says of itself now.
type load struct {
	inFlight atomic.Int64 // requests of this frontend, from the try to the stream's end
	prefill  atomic.Int64 // prompt tokens of those whose answer hasn't begun

	mu      sync.Mutex
	pending map[*callhome.Stream]struct{} // guarded by mu: streams whose worker hasn't called yet
	gone    bool                          // guarded by mu: discovery has removed the instance
}

// newInstance returns an instance that is not left aside.
func newInstance(record *worker.Instance, l *load) *instance {
	return &instance{record: record, load: l, inFlight: &l.inFlight}
}

// setAside leaves the instance aside for one of two reasons, quarantined or overloaded, until a time. The last call
// counts.
func (in *instance) setAside(what *atomic.Int64, till time.Duration) { what.Store(int64(till)) }

// aside reports whether the instance is left aside for a reason now.
func (in *instance) aside(what *atomic.Int64, now time.Duration) bool {
	return what.Load() > int64(now)
}

// errGone is the failure of a request whose worker left discovery before it began to answer.
func errGone() *fault.Error {
	return fault.Lost(errors.New("removed from discovery"), "The worker disconnected before it began to answer")
}

// expect notes a stream that waits for the instance to call, so that remove finds it. It fails when that has happened.
func (l *load) expect(s *callhome.Stream) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone {
		return errGone()
	}
	l.pending[s] = struct{}{}
	return nil
}

// met forgets a stream: its worker has called, or the wait is over.
func (l *load) met(s *callhome.Stream) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.pending, s)
}

// remove fails the streams that wait for an instance that has gone. Those whose answer has begun go on: their
// connection says when it ends, and a worker that shuts down in good order still finishes them.
func (l *load) remove() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gone = true
	for s := range l.pending {
		s.Fail(errGone())
	}
}

// current returns the table of the current snapshot. Nearly always that is the one at hand, and no lock is taken.
func (d *Dispatcher) current() *table {
	t := d.table.Load()
	if snap := d.opts.Snapshots(); snap != t.snapshot {
		return d.rebuild()
	}
	return t
}

// Refresh takes in the current snapshot. Dispatch does so by itself; whoever follows discovery calls Refresh with every
// change, so that requests that wait for a worker that has gone fail at once.
func (d *Dispatcher) Refresh() { d.current() }

// rebuild makes the table of the current snapshot, once for all who find theirs old. Instances that were known keep
// what was known of them. The new table is in place before the streams of removed instances fail: their next try must
// not find them again.
func (d *Dispatcher) rebuild() *table {
	d.mu.Lock()
	defer d.mu.Unlock()
	old, snap := d.table.Load(), d.opts.Snapshots()
	// Somebody else has done it, maybe with a later snapshot.
	if snap == old.snapshot || (old.snapshot != nil && snap.Version < old.snapshot.Version) {
		return old
	}
	t := &table{snapshot: snap, endpoints: make(map[worker.EndpointID]*endpoint, len(snap.Instances))}
	for id, records := range snap.Instances {
		ep := &endpoint{instances: make([]*instance, 0, len(records)), route: d.route(id, snap)}
		before := old.endpoints[id]
		// Policies that take turns go on where they were.
		if before != nil {
			ep.ordinal.Store(before.ordinal.Load())
		}
		for _, record := range records {
			ep.instances = append(ep.instances, before.carry(record))
		}
		t.endpoints[id] = ep
	}
	d.table.Store(t)
	for id, before := range old.endpoints {
		for _, in := range before.instances {
			if !t.endpoints[id].has(in.record.InstanceID) {
				in.load.remove()
			}
		}
	}
	return t
}

// route is how the instances of an endpoint are chosen.
func (d *Dispatcher) route(id worker.EndpointID, snap *router.Snapshot) (r Route) {
	if d.opts.Route != nil {
		r = d.opts.Route(id, snap)
	}
	if r.Policy == nil {
		r.Policy = d.opts.Policy
	}
	return r
}

// carry returns the instance for record, with what was known of it. A record that changed begins anew: whatever
// changed may have mended it.
func (ep *endpoint) carry(record *worker.Instance) *instance {
	in := ep.find(record.InstanceID)
	switch {
	case in == nil:
		return newInstance(record, &load{pending: map[*callhome.Stream]struct{}{}})
	// Snapshots share the records that haven't changed; a record that was read again is equal to its old self.
	case in.record == record || reflect.DeepEqual(in.record, record):
		return in
	}
	return newInstance(record, in.load)
}

// find returns the instance of an id, or nil.
func (ep *endpoint) find(id uint64) *instance {
	if ep == nil {
		return nil
	}
	i, ok := slices.BinarySearchFunc(ep.instances, id, func(in *instance, id uint64) int {
		return cmp.Compare(in.record.InstanceID, id)
	})
	if !ok {
		return nil
	}
	return ep.instances[i]
}

// has reports whether an instance is there.
func (ep *endpoint) has(id uint64) bool { return ep.find(id) != nil }
