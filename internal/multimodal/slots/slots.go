// Package slots keeps memory that workers read images from: mapped outside Go's heap, registered with the transport
// once and used again and again, in classes of powers of two, and bounded in bytes.
//
// A reader may come at any time while it knows of a slot, also long after its request has ended, and nothing can call it
// back. So a slot is used again only when its reader has said that it is done (Return). One whose reader never said so
// is retired: deregistered, its pages given back, and its addresses covered with zeros that nobody writes to, for good.
// A reader that comes then sees zeros; it sees no other request's bytes, and doesn't bring the process down.
//
// A Pool is safe for concurrent use; a Slot belongs to one goroutine at a time. With the build tag invariants, free
// slots are scribbled over and checked when they are taken, and a slot that is given up twice panics.
package slots

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Registrar makes memory readable for others.
type Registrar interface {
	// Register makes mem readable until the result is called. It is called under the pool's lock, one call at a time.
	Register(mem []byte) (deregister func() error, err error)
}

// Options configure a Pool. Registrar is required.
type Options struct {
	Bytes      int64         // bound of all slots together, free ones included; 0 is 1 GiB
	Wait       time.Duration // how long Take waits for others to return what it needs; 0 is 250 ms
	Registrar  Registrar
	Registerer prometheus.Registerer // nil: metrics are kept but not registered
	Log        *slog.Logger          // nil: slog.Default()
}

// withDefaults fills in what was left open.
func (o Options) withDefaults() Options {
	o.Bytes = cmp.Or(o.Bytes, 1<<30)
	o.Wait = cmp.Or(o.Wait, 250*time.Millisecond)
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}

// least is the size of the smallest class: what is smaller isn't worth a registration of its own.
const least = 64 << 10

var (
	// ErrFull is the failure of a Take that waited in vain.
	ErrFull = errors.New("the slots are all in use")
	// ErrTooLarge is the failure of a Take of more than all slots together may have.
	ErrTooLarge = errors.New("more than the pool may hold")
	// ErrClosed is the failure of a Take after Close.
	ErrClosed = errors.New("the pool is closed")
)

// Pool hands out slots.
type Pool struct {
	opts    Options
	metrics *metrics

	mu      sync.Mutex
	free    map[int][]*Slot // by class; the latest returned last
	bytes   int64           // of all slots that have pages, free and taken
	taken   map[*Slot]struct{}
	waiters []*waiter // in the order they came
	closed  bool
}

// waiter is a Take that waits for its turn.
type waiter struct{ turn chan struct{} } // holds one token when it is worth trying again

// Slot is a piece of memory that one request has.
type Slot struct {
	pool       *Pool
	mem        []byte // the whole class
	size       int    // of it in use
	deregister func() error
	freed      time.Time // when it was returned last
	state      state
}

// New returns an empty pool.
func New(opts Options) *Pool {
	opts = opts.withDefaults()
	p := &Pool{opts: opts, free: map[int][]*Slot{}, taken: map[*Slot]struct{}{}}
	p.metrics = newMetrics(opts.Registerer, p)
	return p
}

// class returns the size of the slots that n bytes go into.
func class(n int) int { return max(least, 1<<bits.Len(uint(max(n, 1)-1))) }

// Take takes a slot for each size, all or none, so that two requests never wait for each other's. When the pool is full
// it waits, in turn, until others have returned enough: at most Options.Wait, or until ctx ends. Then it is ErrFull.
func (p *Pool) Take(ctx context.Context, sizes []int) ([]*Slot, error) {
	var need int64
	for _, n := range sizes {
		need += int64(class(n))
	}
	if need > p.opts.Bytes {
		return nil, ErrTooLarge
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waiters) == 0 {
		if out, err := p.tryLocked(sizes); out != nil || err != nil {
			return out, err
		}
	}
	return p.waitLocked(ctx, sizes)
}

// waitLocked waits for the caller's turn, without the lock, until there is room.
func (p *Pool) waitLocked(ctx context.Context, sizes []int) ([]*Slot, error) {
	w := &waiter{turn: make(chan struct{}, 1)} // a second reason to try again adds nothing to the first
	p.waiters = append(p.waiters, w)
	// Whoever leaves lets the next one try: its needs may be smaller.
	defer p.leaveLocked(w)
	p.metrics.waits.Inc()
	timer := time.NewTimer(p.opts.Wait)
	defer timer.Stop()
	for {
		p.mu.Unlock()
		var err error
		select {
		case <-w.turn:
		case <-timer.C:
			err = ErrFull
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		p.mu.Lock()
		if err != nil {
			return nil, err
		}
		// Only the first of the line tries, so that a large request isn't passed by small ones for ever.
		if p.waiters[0] != w && !p.closed {
			continue
		}
		if out, err := p.tryLocked(sizes); out != nil || err != nil {
			return out, err
		}
	}
}

// leaveLocked takes a waiter out of the line.
func (p *Pool) leaveLocked(w *waiter) {
	for i := range p.waiters {
		if p.waiters[i] == w {
			p.waiters = append(p.waiters[:i], p.waiters[i+1:]...)
			break
		}
	}
	p.wakeLocked()
}

// wakeLocked lets the first of the line try again; all of them once the pool is closed.
func (p *Pool) wakeLocked() {
	for _, w := range p.waiters {
		select {
		case w.turn <- struct{}{}:
		default:
		}
		if !p.closed {
			return
		}
	}
}

// tryLocked takes all slots at once, or nothing when there is no room.
func (p *Pool) tryLocked(sizes []int) ([]*Slot, error) {
	if p.closed {
		return nil, ErrClosed
	}
	// What has to be made new, beside what is free.
	want := map[int]int{}
	for _, n := range sizes {
		want[class(n)]++
	}
	var need int64
	for c, n := range want {
		need += int64(c) * int64(max(n-len(p.free[c]), 0))
	}
	if !p.roomLocked(need, want) {
		return nil, nil
	}
	out := make([]*Slot, 0, len(sizes))
	for _, n := range sizes {
		s, err := p.oneLocked(class(n))
		if err != nil {
			// Nobody has been told of the others.
			for _, s := range out {
				p.returnLocked(s)
			}
			return nil, err
		}
		s.size = n
		s.take()
		p.taken[s] = struct{}{}
		out = append(out, s)
	}
	return out, nil
}

// roomLocked makes room for need more bytes, at the cost of free slots that aren't wanted. It reports whether there is.
func (p *Pool) roomLocked(need int64, want map[int]int) bool {
	var spare int64
	for c, list := range p.free {
		spare += int64(c) * int64(max(len(list)-want[c], 0))
	}
	if p.bytes+need-spare > p.opts.Bytes {
		return false
	}
	for c, list := range p.free {
		// The first of the list have been unused for longest.
		for p.bytes+need > p.opts.Bytes && len(list) > want[c] {
			_ = p.retireLocked(list[0]) // what fails is logged there
			list = list[1:]
		}
		p.free[c] = list
	}
	return true
}

// oneLocked takes a free slot of a class, or makes one.
func (p *Pool) oneLocked(c int) (*Slot, error) {
	if list := p.free[c]; len(list) > 0 {
		s := list[len(list)-1] // its pages are most likely still in some cache
		p.free[c] = list[:len(list)-1]
		return s, nil
	}
	mem, err := mapMemory(c)
	if err != nil {
		return nil, fmt.Errorf("map a slot of %d bytes: %w", c, err)
	}
	deregister, err := p.opts.Registrar.Register(mem)
	if err != nil {
		unmap(mem) // nobody knows of it
		return nil, fmt.Errorf("register a slot of %d bytes: %w", c, err)
	}
	p.bytes += int64(c)
	p.metrics.made.Inc()
	return &Slot{pool: p, mem: mem, deregister: deregister}, nil
}

// Bytes returns the memory, as long as was asked for. What it holds at first is undefined. It must not be used after
// Return or Retire.
func (s *Slot) Bytes() []byte { return s.mem[:s.size:s.size] }

// Return gives the slot back for others to use. Only for a slot that nobody was told of, or whose reader is done.
func (s *Slot) Return() {
	p := s.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.taken[s]; !ok {
		s.twice()
		return
	}
	delete(p.taken, s)
	p.returnLocked(s)
	p.wakeLocked()
}

func (p *Pool) returnLocked(s *Slot) {
	delete(p.taken, s)
	s.give()
	if p.closed {
		_ = p.retireLocked(s)
		return
	}
	c := len(s.mem)
	s.freed = time.Now()
	p.free[c] = append(p.free[c], s)
}

// Retire gives the slot up for good: a reader may still come. Its error is that of the deregistration; the memory is
// safe in any case.
func (s *Slot) Retire() error {
	p := s.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.taken[s]; !ok {
		s.twice()
		return nil
	}
	delete(p.taken, s)
	err := p.retireLocked(s)
	p.wakeLocked()
	return err
}

// retireLocked deregisters a slot and covers its addresses.
func (p *Pool) retireLocked(s *Slot) error {
	err := s.deregister()
	if err != nil {
		p.opts.Log.Warn("a transfer slot could not be deregistered", "bytes", len(s.mem), "error", err)
	}
	if coverErr := cover(s.mem); coverErr != nil {
		// Its pages stay, and so do its bytes in the books: nobody else gets them.
		p.opts.Log.Warn("a transfer slot could not be retired", "bytes", len(s.mem), "error", coverErr)
		return errors.Join(err, coverErr)
	}
	p.bytes -= int64(len(s.mem))
	p.metrics.retired.Inc()
	return err
}

// Trim retires the slots that have been free for some time, so that a quiet server's memory goes back to the system.
func (p *Pool) Trim(idle time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trimLocked(time.Now().Add(-idle))
}

// trimLocked retires the slots that were returned before a time.
func (p *Pool) trimLocked(before time.Time) {
	for c, list := range p.free {
		// In the order they were returned.
		for len(list) > 0 && !list[0].freed.After(before) {
			_ = p.retireLocked(list[0]) // logged
			list = list[1:]
		}
		if p.free[c] = list; len(list) == 0 {
			delete(p.free, c)
		}
	}
}

// Stats is what a pool has at a moment.
type Stats struct {
	Bytes       int64 // of all slots that have pages
	Free, Taken int   // slots
}

// Stats counts.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := Stats{Bytes: p.bytes, Taken: len(p.taken)}
	for _, list := range p.free {
		st.Free += len(list)
	}
	return st
}

// Close retires the free slots and ends the waits of Take. Slots that are still taken are retired when they are given
// up, whichever way.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.trimLocked(time.Now())
	p.wakeLocked()
}
