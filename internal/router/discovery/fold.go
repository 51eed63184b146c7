package discovery

import (
	"bytes"
	"cmp"
	"errors"
	"hash/maphash"
	"log/slog"
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/router"
)

// errMutated refuses a card that changed under its key.
var errMutated = errors.New("a card may not change while its worker lives")

// fold keeps the records of a store by key. It is used by one goroutine.
type fold struct {
	log     *slog.Logger       // is told of refused values
	refused prometheus.Counter // counts them

	instances map[string]entry[*worker.Instance]    // by key
	models    map[string]entry[*worker.ModelRecord] // by key
	broken    map[string]uint64                     // key → hash of the last refused value, so that each is logged once
	seed      maphash.Seed                          // of broken's hashes
}

// entry is a record that could be read.
type entry[T any] struct {
	raw   []byte // our own copy, never written to
	value T      // parsed; immutable, and the same pointer for as long as raw is the same
}

// newFold returns a fold that knows nothing.
func newFold(log *slog.Logger, refused prometheus.Counter) *fold {
	return &fold{
		log: log, refused: refused,
		instances: map[string]entry[*worker.Instance]{},
		models:    map[string]entry[*worker.ModelRecord]{},
		broken:    map[string]uint64{},
		seed:      maphash.MakeSeed(),
	}
}

// delta is what one change touches: only that is rebuilt.
type delta struct {
	endpoints map[worker.EndpointID]struct{} // whose list of instances changes
	models    bool                           // the list of models changes
}

// apply folds one change in and returns the snapshot that follows prev, or nil when nothing changed. Within a change,
// removals come before puts: a key in both was replaced.
func (f *fold) apply(prev *router.Snapshot, c router.Change) *router.Snapshot {
	d := delta{endpoints: map[worker.EndpointID]struct{}{}}
	for _, key := range c.Removed {
		f.remove(key, &d)
	}
	// A full listing is compared with what is known, so that after an outage only real changes are published.
	if c.Full {
		f.removeAllBut(c.Put, &d)
	}
	for _, r := range c.Put {
		f.put(r, &d)
	}
	if len(d.endpoints) == 0 && !d.models {
		return nil
	}
	return f.snapshot(prev, d)
}

// removeAllBut removes what a full listing doesn't hold. A record that is listed but broken stays at its last good
// value.
func (f *fold) removeAllBut(listed []router.Record, d *delta) {
	keep := make(map[string]struct{}, len(listed))
	for _, r := range listed {
		keep[r.Key] = struct{}{}
	}
	gone := func(key string) bool { _, ok := keep[key]; return !ok }
	for key := range f.instances {
		if gone(key) {
			f.remove(key, d)
		}
	}
	for key := range f.models {
		if gone(key) {
			f.remove(key, d)
		}
	}
	maps.DeleteFunc(f.broken, func(key string, _ uint64) bool { return gone(key) })
}

// remove forgets a key, refused values included; one that isn't known is no news.
func (f *fold) remove(key string, d *delta) {
	delete(f.broken, key)
	if old, ok := f.instances[key]; ok {
		delete(f.instances, key)
		d.endpoints[old.value.ID()] = struct{}{}
	}
	if _, ok := f.models[key]; ok {
		delete(f.models, key)
		d.models = true
	}
}

// put takes a record over if it is new, readable and in its place.
func (f *fold) put(r router.Record, d *delta) {
	switch {
	case inBucket(r.Key, router.BucketInstances):
		if old, ok := f.instances[r.Key]; ok && bytes.Equal(old.raw, r.Value) {
			break // the same value keeps the same pointer
		}
		value := slices.Clone(r.Value) // the parsed record may alias it
		inst, err := parseInstance(router.Record{Key: r.Key, Value: value})
		if err != nil {
			f.refuse(r, err)
			return
		}
		f.instances[r.Key] = entry[*worker.Instance]{value, inst}
		d.endpoints[inst.ID()] = struct{}{}
	case inBucket(r.Key, router.BucketModels):
		old, known := f.models[r.Key]
		if known && bytes.Equal(old.raw, r.Value) {
			break
		}
		value := slices.Clone(r.Value)
		rec, err := parseModel(router.Record{Key: r.Key, Value: value})
		// The text of the model has been built from the card: workers with another card need a key of their own.
		if err == nil && known && !sameCard(old.raw, value) {
			err = errMutated
		}
		if err != nil {
			f.refuse(r, err)
			return
		}
		f.models[r.Key] = entry[*worker.ModelRecord]{value, rec}
		d.models = true
	default:
		return // other buckets are not ours
	}
	delete(f.broken, r.Key)
}

// refuse logs a value that can't be used, once for as long as it stays the same.
func (f *fold) refuse(r router.Record, err error) {
	// A hash in place of the value: broken records may be of any size.
	h := maphash.Bytes(f.seed, r.Value)
	if last, ok := f.broken[r.Key]; ok && last == h {
		return
	}
	f.broken[r.Key] = h
	f.refused.Inc()
	f.log.Warn("discovery record refused, its last good value stays", "key", r.Key, "error", err)
}

// snapshot returns prev with what d touches built anew. Everything else is shared with prev, which readers still hold.
func (f *fold) snapshot(prev *router.Snapshot, d delta) *router.Snapshot {
	next := &router.Snapshot{Version: prev.Version + 1, Instances: prev.Instances, Models: prev.Models}
	if len(d.endpoints) > 0 {
		next.Instances = f.regroup(prev.Instances, d.endpoints)
	}
	if d.models {
		// The order by key is part of the contract: it decides which of several cards goes first.
		keys := slices.Sorted(maps.Keys(f.models))
		next.Models = make([]*worker.ModelRecord, len(keys))
		for i, key := range keys {
			next.Models[i] = f.models[key].value
		}
	}
	return next
}

// regroup copies prev with the touched endpoints built anew; the lists of the others are shared.
func (f *fold) regroup(prev map[worker.EndpointID][]*worker.Instance,
	touched map[worker.EndpointID]struct{},
) map[worker.EndpointID][]*worker.Instance {
	next := maps.Clone(prev)
	for ep := range touched {
		// Not truncated: the old list belongs to prev. An endpoint without instances has no list.
		delete(next, ep)
	}
	for _, e := range f.instances {
		ep := e.value.ID()
		if _, ok := touched[ep]; ok {
			next[ep] = append(next[ep], e.value)
		}
	}
	for ep := range touched {
		slices.SortFunc(next[ep], func(a, b *worker.Instance) int { return cmp.Compare(a.InstanceID, b.InstanceID) })
	}
	return next
}
