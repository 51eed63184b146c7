package discovery

import (
	"bytes"
	"cmp"
	"errors"
	"hash/maphash"
	"iter"
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

	instances map[string]entry[*worker.Instance]     // by key
	models    map[string]entry[*worker.ModelRecord]  // by key
	channels  map[string]entry[*worker.EventChannel] // by key
	sources   map[string]entry[*worker.EventSource]  // by key
	broken    map[string]uint64                      // key → hash of the last refused value, so that each is logged once
	seed      maphash.Seed                           // of broken's hashes
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
		channels:  map[string]entry[*worker.EventChannel]{},
		sources:   map[string]entry[*worker.EventSource]{},
		broken:    map[string]uint64{},
		seed:      maphash.MakeSeed(),
	}
}

// delta is what one change touches: only that is rebuilt.
type delta struct {
	endpoints map[worker.EndpointID]struct{} // whose list of instances changes
	models    bool                           // the list of models changes
	channels  bool                           // likewise
	sources   bool                           // likewise
}

// empty reports whether nothing changes.
func (d *delta) empty() bool { return len(d.endpoints) == 0 && !d.models && !d.channels && !d.sources }

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
	if d.empty() {
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
	for _, keys := range []iter.Seq[string]{
		maps.Keys(f.instances), maps.Keys(f.models), maps.Keys(f.channels), maps.Keys(f.sources),
	} {
		for key := range keys {
			if gone(key) {
				f.remove(key, d)
			}
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
	d.models = drop(f.models, key) || d.models
	d.channels = drop(f.channels, key) || d.channels
	d.sources = drop(f.sources, key) || d.sources
}

// drop deletes a key and reports whether it was there.
func drop[T any](m map[string]entry[T], key string) bool {
	_, ok := m[key]
	delete(m, key)
	return ok
}

// put takes a record over if it is new, readable and in its place.
func (f *fold) put(r router.Record, d *delta) {
	var changed bool
	var err error
	switch {
	case inBucket(r.Key, router.BucketInstances):
		if changed, err = take(f.instances, r, parseInstance); changed {
			d.endpoints[f.instances[r.Key].value.ID()] = struct{}{}
		}
	case inBucket(r.Key, router.BucketModels):
		old, known := f.models[r.Key]
		changed, err = take(f.models, r, func(r router.Record) (*worker.ModelRecord, error) {
			rec, err := parseModel(r)
			// The text of the model has been built from the card: workers with another card need a key of their own.
			if err == nil && known && !sameCard(old.raw, r.Value) {
				err = errMutated
			}
			return rec, err
		})
		d.models = d.models || changed
	case inBucket(r.Key, router.BucketChannels):
		changed, err = take(f.channels, r, parseChannel)
		d.channels = d.channels || changed
	case inBucket(r.Key, router.BucketSources):
		changed, err = take(f.sources, r, parseSource)
		d.sources = d.sources || changed
	default:
		return // other buckets are not ours
	}
	if err != nil {
		f.refuse(r, err)
		return
	}
	delete(f.broken, r.Key)
}

// take reads a record and keeps it, unless it is what is known already: the same value keeps the same pointer.
func take[T any](known map[string]entry[T], r router.Record, parse func(router.Record) (T, error)) (changed bool, err error) {
	if old, ok := known[r.Key]; ok && bytes.Equal(old.raw, r.Value) {
		return false, nil
	}
	raw := slices.Clone(r.Value) // the parsed record may alias it
	value, err := parse(router.Record{Key: r.Key, Value: raw})
	if err != nil {
		return false, err
	}
	known[r.Key] = entry[T]{raw, value}
	return true, nil
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
	next := *prev
	next.Version++
	if len(d.endpoints) > 0 {
		next.Instances = f.regroup(prev.Instances, d.endpoints)
	}
	if d.models {
		next.Models = ordered(f.models)
	}
	if d.channels {
		next.Channels = ordered(f.channels)
	}
	if d.sources {
		next.Sources = ordered(f.sources)
	}
	return &next
}

// ordered lists records by key. The order is part of the contract: it decides which of several cards goes first.
func ordered[T any](m map[string]entry[T]) []T {
	keys := slices.Sorted(maps.Keys(m))
	out := make([]T, len(keys))
	for i, key := range keys {
		out[i] = m[key].value
	}
	return out
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
