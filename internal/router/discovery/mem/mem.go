// Package mem is discovery inside one process: for the embedded default, where worker and frontend are one program,
// and for tests.
package mem

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/portico-llm/portico/internal/router"
)

// errClosed is the failure of a Put after Close.
var errClosed = errors.New("the registrar is closed")

// Source holds records and tells everybody who runs it of each change. The zero value is not usable; all methods are
// safe for concurrent use, and Run may run several times at once.
type Source struct {
	mu      sync.Mutex
	records map[string][]byte    // guarded by mu
	readers map[*reader]struct{} // guarded by mu
}

var _ router.Source = (*Source)(nil)

// reader is one Run. What it has not yet been told is kept by key, so that a slow reader costs no more than the
// records themselves.
type reader struct {
	pending map[string]step // guarded by Source.mu
	wake    chan struct{}   // holds one token: pending is not empty
}

// step is what happened to one key: perhaps removed, then perhaps put.
type step struct {
	removed, put bool
	value        []byte
}

// New returns an empty source.
func New() *Source {
	return &Source{records: map[string][]byte{}, readers: map[*reader]struct{}{}}
}

// Put publishes a record, or replaces it. The value is copied.
func (s *Source) Put(key string, value []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	value = slices.Clone(value)
	s.records[key] = value
	for r := range s.readers {
		st := r.pending[key]
		st.put, st.value = true, value
		r.note(key, st)
	}
}

// Remove takes a record away; a key that is not there is no error.
func (s *Source) Remove(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.records[key]; !ok {
		return
	}
	delete(s.records, key)
	for r := range s.readers {
		r.note(key, step{removed: true})
	}
}

// note keeps what happened to a key and wakes the reader. The lock of the Source must be held.
func (r *reader) note(key string, st step) {
	r.pending[key] = st
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run implements router.Source. It returns nil when ctx ends.
func (s *Source) Run(ctx context.Context, emit func(router.Change)) error {
	r := &reader{pending: map[string]step{}, wake: make(chan struct{}, 1)} // one token: there is something to take
	s.mu.Lock()
	full := router.Change{Full: true}
	for _, key := range slices.Sorted(maps.Keys(s.records)) {
		full.Put = append(full.Put, router.Record{Key: key, Value: s.records[key]})
	}
	// Registered under the same lock as the listing was made: no change falls between them.
	s.readers[r] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.readers, r)
	}()

	// Never under the lock: emit may take its time, and may itself put records.
	emit(full)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
			emit(s.take(r))
		}
	}
}

// take returns what happened since the last call.
func (s *Source) take(r *reader) router.Change {
	s.mu.Lock()
	defer s.mu.Unlock()
	var c router.Change
	for _, key := range slices.Sorted(maps.Keys(r.pending)) {
		st := r.pending[key]
		if st.removed {
			c.Removed = append(c.Removed, key)
		}
		if st.put {
			c.Put = append(c.Put, router.Record{Key: key, Value: st.value})
		}
	}
	clear(r.pending)
	return c
}

// Registrar publishes the records of one worker in a Source and takes them away when it is closed. Safe for concurrent
// use.
type Registrar struct {
	source *Source // shared with others
	id     uint64  // of the instance

	mu     sync.Mutex
	keys   map[string]struct{} // guarded by mu
	closed bool                // guarded by mu
}

// NewRegistrar returns a registrar with a random instance id.
func NewRegistrar(source *Source) *Registrar {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: the runtime ends the program instead
	return &Registrar{source: source, id: binary.BigEndian.Uint64(b[:]), keys: map[string]struct{}{}}
}

// InstanceID returns the id the worker is to register under.
func (r *Registrar) InstanceID(context.Context) (uint64, error) { return r.id, nil }

// Put publishes or replaces a record.
func (r *Registrar) Put(_ context.Context, key string, value []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return errClosed
	}
	r.keys[key] = struct{}{}
	r.source.Put(key, value)
	return nil
}

// Remove takes one of the registrar's records away.
func (r *Registrar) Remove(_ context.Context, key string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.keys, key)
	r.source.Remove(key)
	return nil
}

// Close takes all records away. It may be called again; Put fails after it.
func (r *Registrar) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for key := range r.keys {
		r.source.Remove(key)
	}
	clear(r.keys)
	return nil
}
