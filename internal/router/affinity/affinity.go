// Package affinity remembers which worker a session's requests go to. A session is bound with its first request, and
// stays bound for as long as it isn't idle for too long. Memory is bounded: of too many sessions those that have been
// idle for longest are forgotten.
//
// A Table is safe for concurrent use. It starts nothing: what has expired is forgotten when something else happens.
package affinity

import (
	"fmt"
	"hash/maphash"
	"sync"
	"time"
)

// Mode says how strongly a session is bound. The zero value is Hard.
type Mode uint8

const (
	// Hard sessions go to their worker, and are refused while it is overloaded. One whose worker is gone is bound anew.
	Hard Mode = iota
	// Soft sessions prefer their worker; when it can't take a request, they are bound to the one that does.
	Soft
)

// ParseMode returns the mode of a name, hard or soft; the empty name is hard.
func ParseMode(name string) (Mode, error) {
	switch name {
	case "", "hard":
		return Hard, nil
	case "soft":
		return Soft, nil
	}
	return Hard, fmt.Errorf("unknown session affinity mode %q; known: hard, soft", name)
}

// Options are what a Table is built from.
type Options struct {
	TTL  time.Duration // idle time after which a session is forgotten; 0: 10 min
	Mode Mode
	Max  int // sessions that are remembered; 0: 262,144, at about 100 bytes each
}

// withDefaults fills in what was left open.
func (o Options) withDefaults() Options {
	if o.TTL <= 0 {
		o.TTL = 10 * time.Minute
	}
	if o.Max <= 0 {
		o.Max = 1 << 18
	}
	return o
}

// shards is how many locks the sessions share.
const shards = 16

// Table keeps the sessions of one endpoint.
type Table struct {
	opts   Options
	seed   maphash.Seed
	began  time.Time // instants are kept as distances from here
	shards [shards]shard
}

// shard holds the sessions of some hashes. As all have the same time to live, the order of their last use is that of
// their end.
type shard struct {
	mu       sync.Mutex
	sessions map[uint64]*session // guarded by mu, as is all below
	oldest   *session
	newest   *session
}

// session is one binding. Its id is only kept as a hash: ids are of any length, and two that share one share a worker.
type session struct {
	hash         uint64
	instance     uint64
	used         time.Duration
	older, newer *session
}

// New returns a Table without sessions.
func New(opts Options) *Table {
	t := &Table{opts: opts.withDefaults(), seed: maphash.MakeSeed(), began: time.Now()}
	for i := range t.shards {
		t.shards[i].sessions = map[uint64]*session{}
	}
	return t
}

// Hard reports whether sessions are refused rather than sent elsewhere.
func (t *Table) Hard() bool { return t.opts.Mode == Hard }

// Find returns the instance that a session is bound to; ok is false when it isn't. A session that is looked for isn't
// idle.
func (t *Table) Find(id string) (instanceID uint64, ok bool) {
	hash := maphash.String(t.seed, id)
	s, now := &t.shards[hash%shards], t.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expireLocked(now - t.opts.TTL)
	e := s.sessions[hash]
	if e == nil {
		return 0, false
	}
	s.useLocked(e, now)
	return e.instance, true
}

// Bind binds a session to an instance, if it is bound to old or not at all: of requests that come together the first
// one decides. Old is what Find has returned; a session that wasn't bound has none.
func (t *Table) Bind(id string, old *uint64, instanceID uint64) {
	hash := maphash.String(t.seed, id)
	s, now := &t.shards[hash%shards], t.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expireLocked(now - t.opts.TTL)
	e := s.sessions[hash]
	switch {
	case e == nil:
		if len(s.sessions) >= max(t.opts.Max/shards, 1) {
			s.dropLocked(s.oldest)
		}
		e = &session{hash: hash, instance: instanceID, used: now}
		s.sessions[hash] = e
		s.pushLocked(e)
		return
	case old != nil && e.instance == *old:
		e.instance = instanceID
	}
	s.useLocked(e, now)
}

// Len returns the number of sessions, expired ones perhaps included.
func (t *Table) Len() (n int) {
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		n += len(s.sessions)
		s.mu.Unlock()
	}
	return n
}

// now returns the time since the table was made, which no change of the wall clock moves.
func (t *Table) now() time.Duration { return time.Since(t.began) }

// expireLocked forgets what was last used at or before an instant.
func (s *shard) expireLocked(until time.Duration) {
	for s.oldest != nil && s.oldest.used <= until {
		s.dropLocked(s.oldest)
	}
}

// useLocked makes e the newest.
func (s *shard) useLocked(e *session, now time.Duration) {
	e.used = now
	if s.newest == e {
		return
	}
	s.unlinkLocked(e)
	s.pushLocked(e)
}

// dropLocked forgets e.
func (s *shard) dropLocked(e *session) {
	s.unlinkLocked(e)
	delete(s.sessions, e.hash)
}

// pushLocked puts e behind the newest.
func (s *shard) pushLocked(e *session) {
	e.older, e.newer = s.newest, nil
	if s.newest != nil {
		s.newest.newer = e
	} else {
		s.oldest = e
	}
	s.newest = e
}

// unlinkLocked takes e out of the order.
func (s *shard) unlinkLocked(e *session) {
	if e.older != nil {
		e.older.newer = e.newer
	} else {
		s.oldest = e.newer
	}
	if e.newer != nil {
		e.newer.older = e.older
	} else {
		s.newest = e.older
	}
	e.older, e.newer = nil, nil
}
