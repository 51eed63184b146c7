// Package affinity remembers which worker a session's requests go to. A session is bound with its first request, and
// stays bound for as long as it isn't idle for too long, or until it is ended. Memory is bounded: of too many sessions
// those that have been idle for longest are forgotten.
//
//	Table (one endpoint) ─▶ Announce ─▶ Replicas ─▶ other frontends' Replicas ─▶ Apply ─▶ their Tables
//
// Frontends tell each other of their bindings. Of two that differ the later one holds, everywhere: changes are numbered,
// and whoever hears of a number counts on from there. A frontend that came too late for a binding hears of it when the
// others notice it, and with the session's use.
//
// A Table and Replicas are safe for concurrent use. A Table starts nothing: what has expired is forgotten when something
// else happens. Replicas own a goroutine for each endpoint's outlet, while Run runs.
package affinity

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/portico-llm/portico/api/worker"
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
	Max  int // sessions that are remembered; 0: 262,144, at about 200 bytes each

	// Announce is told of every change, and of uses now and then. It must not block. Nil: nobody is told.
	Announce func(*worker.SessionBinding)
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

const (
	// shards is how many locks the sessions share.
	shards = 16
	// reminders bounds the time between two announcements of a session in use, as does a share of its time to live.
	reminders = 10 * time.Second
	// maxName bounds the names that are announced, in bytes. Longer ones are kept as hashes alone.
	maxName = 512
	// maxSequence bounds the numbers that others may claim.
	maxSequence = 1 << 63
)

// Table keeps the sessions of one endpoint.
type Table struct {
	opts   Options
	writer uint64 // of its changes; random, so that no two are the same
	clock  atomic.Uint64
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

// session is one binding. It is known by its id's hash: ids are of any length, and two that share one share a worker.
type session struct {
	hash         uint64
	binding      worker.SessionBinding // WorkerID 0: it has ended
	used         time.Duration
	told         time.Duration // when it was last announced
	older, newer *session
}

// New returns a Table without sessions.
func New(opts Options) *Table {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: the runtime ends the program instead
	t := &Table{opts: opts.withDefaults(), writer: binary.BigEndian.Uint64(b[:]) | 1, seed: maphash.MakeSeed(), began: time.Now()}
	t.clock.Store(uint64(time.Now().UnixNano()))
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
	s, hash := t.shard(id)
	now := t.now()
	s.mu.Lock()
	s.expireLocked(now - t.opts.TTL)
	e := s.sessions[hash]
	if e == nil || e.binding.WorkerID == 0 {
		s.mu.Unlock()
		return 0, false
	}
	s.useLocked(e, now)
	b, due := e.binding, now-e.told >= min(t.opts.TTL/8, reminders)
	if due {
		e.told = now
	}
	s.mu.Unlock()
	if due {
		t.announce(b)
	}
	return b.WorkerID, true
}

// Bind binds a session to an instance and a rank there, nil for any, if it is bound to old or not at all: of requests
// that come together the first one decides. Old is what Find has returned; a session that wasn't bound has none.
func (t *Table) Bind(id string, old *uint64, instanceID uint64, rank *uint32) {
	s, hash := t.shard(id)
	now := t.now()
	s.mu.Lock()
	s.expireLocked(now - t.opts.TTL)
	e := s.sessions[hash]
	switch {
	case e == nil:
		e = t.addLocked(s, hash, now)
	case e.binding.WorkerID == 0:
	case old == nil || e.binding.WorkerID != *old || instanceID == *old:
		s.useLocked(e, now)
		s.mu.Unlock()
		return
	}
	s.useLocked(e, now)
	e.binding = t.next(id, instanceID, rank)
	e.told = now
	b := e.binding
	s.mu.Unlock()
	t.announce(b)
}

// End forgets a session, here and at other frontends.
func (t *Table) End(id string) {
	s, hash := t.shard(id)
	now := t.now()
	s.mu.Lock()
	s.expireLocked(now - t.opts.TTL)
	e := s.sessions[hash]
	if e == nil {
		// Another frontend may know it, and what it said may still be on the way.
		e = t.addLocked(s, hash, now)
	}
	// It stays for a while: what was said of it before must not revive it.
	e.binding = t.next(id, 0, nil)
	s.useLocked(e, now)
	b := e.binding
	s.mu.Unlock()
	t.announce(b)
}

// Apply takes another frontend's word, unless it knows better. What is said again is a use of the session.
func (t *Table) Apply(b *worker.SessionBinding) {
	if b.Session == "" || b.Sequence >= maxSequence {
		return
	}
	for known := t.clock.Load(); b.Sequence > known && !t.clock.CompareAndSwap(known, b.Sequence); known = t.clock.Load() {
	}
	s, hash := t.shard(b.Session)
	now := t.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expireLocked(now - t.opts.TTL)
	e := s.sessions[hash]
	if e != nil && e.binding.Later(b) {
		return
	}
	if e == nil {
		e = t.addLocked(s, hash, now)
	}
	e.binding, e.told = *b, now
	s.useLocked(e, now)
}

// Each calls f with the sessions that are bound, those of each shard used last first, until it returns false.
func (t *Table) Each(f func(*worker.SessionBinding) bool) {
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		s.expireLocked(t.now() - t.opts.TTL)
		list := make([]worker.SessionBinding, 0, len(s.sessions))
		for e := s.newest; e != nil; e = e.older {
			if e.binding.WorkerID != 0 && e.binding.Session != "" {
				list = append(list, e.binding)
			}
		}
		s.mu.Unlock()
		for j := range list {
			if !f(&list[j]) {
				return
			}
		}
	}
}

// Len returns the number of sessions that are bound, expired ones perhaps included.
func (t *Table) Len() (n int) {
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		for _, e := range s.sessions {
			if e.binding.WorkerID != 0 {
				n++
			}
		}
		s.mu.Unlock()
	}
	return n
}

// shard returns where a session is kept, and under which hash.
func (t *Table) shard(id string) (*shard, uint64) {
	hash := maphash.String(t.seed, id)
	return &t.shards[hash%shards], hash
}

// next is a change of a binding, later than all that are known.
func (t *Table) next(id string, instanceID uint64, rank *uint32) worker.SessionBinding {
	if len(id) > maxName {
		id = ""
	}
	return worker.SessionBinding{Session: id, WorkerID: instanceID, DPRank: rank, Sequence: t.clock.Add(1), Writer: t.writer}
}

// announce tells of a binding, if anybody wants to know and its name isn't too long.
func (t *Table) announce(b worker.SessionBinding) {
	if t.opts.Announce != nil && b.Session != "" {
		t.opts.Announce(&b)
	}
}

// now returns the time since the table was made, which no change of the wall clock moves.
func (t *Table) now() time.Duration { return time.Since(t.began) }

// addLocked makes room for a session and adds it.
func (t *Table) addLocked(s *shard, hash uint64, now time.Duration) *session {
	if len(s.sessions) >= max(t.opts.Max/shards, 1) {
		s.dropLocked(s.oldest)
	}
	e := &session{hash: hash, used: now}
	s.sessions[hash] = e
	s.pushLocked(e)
	return e
}

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
