package tcp

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/portico-llm/portico/internal/fault"
)

// host holds the connections to one address. A connection is chosen without a lock that requests share: the list is a
// snapshot, replaced whenever a connection comes or goes. A host that is dead never gets connections again; whoever
// still holds it asks the plane for its successor.
type host struct {
	plane   *Plane
	address string
	dialing chan struct{} // one slot: one dial at a time
	conns   atomic.Pointer[[]*conn]
	turn    atomic.Uint32               // counts choices among busy connections
	failure atomic.Pointer[dialFailure] // of the last dial that failed; nil: none has

	mu   sync.Mutex
	dead bool // guarded by mu: the plane has forgotten it
}

// dialFailure is a dial that failed. Its address stands for the dial: who finds another than before has waited for it.
type dialFailure struct{ err error }

// newHost returns a host without connections; the first acquire dials.
func newHost(p *Plane, address string) *host {
	h := &host{plane: p, address: address, dialing: make(chan struct{}, 1)}
	h.conns.Store(&[]*conn{})
	return h
}

// acquire returns a connection that is locked for writing. It returns neither connection nor error when the caller is to
// look again: the plane has forgotten the host, or others have dialled meanwhile. It waits for a dial that is under way,
// whose failure is the caller's, too, and for a lock that is held while a message is written; ctx ends both.
func (h *host) acquire(ctx context.Context) (*conn, error) {
	before := h.failure.Load()
	conns := *h.conns.Load()
	crowded := true
	for _, c := range conns {
		if c.crowded() {
			continue
		}
		crowded = false
		if c.tryLock() {
			return c, nil
		}
	}
	if len(conns) > 0 && (!crowded || len(conns) >= h.plane.opts.PoolSize) {
		return h.await(ctx, conns)
	}
	// A further connection is worth a dial only when all are crowded, so that a burst doesn't open one for each
	// request.
	select {
	case h.dialing <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	c, err := h.grow(ctx, before, len(conns))
	<-h.dialing
	// A further connection would have been a gain; those there are do.
	if conns = *h.conns.Load(); err != nil && len(conns) > 0 {
		return h.await(ctx, conns)
	}
	return c, err
}

// grow dials, with the dialing slot held, unless that has happened since the caller saw the failure before and had
// connections: those who wait for a dial share its outcome instead of dialling each. A worker that answers nothing
// would let the last of them wait for as many time-outs as there are.
func (h *host) grow(ctx context.Context, before *dialFailure, had int) (*conn, error) {
	if f := h.failure.Load(); f != before {
		return nil, f.err
	}
	// Somebody else has dialled, or the host was forgotten, and the caller looks again.
	if len(*h.conns.Load()) != had || h.isDead() {
		return nil, nil
	}
	return h.open(ctx)
}

// await takes one of conns, all of which are being written to. That takes microseconds, but for a worker that reads
// nothing.
func (h *host) await(ctx context.Context, conns []*conn) (*conn, error) {
	c := conns[int(h.turn.Add(1))%len(conns)]
	if err := c.lock(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

// isDead reports whether the plane has forgotten the host.
func (h *host) isDead() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.dead
}

// open dials and returns the new connection, locked: the caller's message is the first on it. Without a connection and
// without an error the host has died meanwhile. A dial that fails drops the host if it has no other connection, and is
// noted for those who wait for it; one that the caller has given up says nothing of the worker, and isn't.
func (h *host) open(ctx context.Context) (*conn, error) {
	nc, err := h.plane.dial(ctx, h.address)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		h.forget(nil)
		f := &dialFailure{fault.Lost(err, "The worker can't be reached")}
		h.failure.Store(f)
		return nil, f.err
	}
	c := newConn(h, nc)
	c.tryLock() // nobody else has it yet
	h.mu.Lock()
	dead := h.dead
	if !dead {
		list := append(slices.Clone(*h.conns.Load()), c)
		h.conns.Store(&list)
	}
	h.mu.Unlock()
	// Without a reader nobody would fail what is sent on it.
	if dead || !h.plane.group.Go("read answers", c.read) {
		h.forget(c)
		c.fail(errClosed)
		c.unlock()
		return nil, nil
	}
	return c, nil
}

// forget removes c. A host without connections is dropped: workers come back under other ports.
func (h *host) forget(c *conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	// A copy: the old list may be being read. A c that isn't in it changes nothing.
	list := slices.DeleteFunc(slices.Clone(*h.conns.Load()), func(x *conn) bool { return x == c })
	h.conns.Store(&list)
	if len(list) == 0 && !h.dead {
		h.dead = true
		h.plane.hosts.CompareAndDelete(h.address, h)
	}
}

// close ends all connections, as a part of Plane.Close. Their readers fail what is outstanding, and are waited for
// there.
func (h *host) close() {
	h.mu.Lock()
	h.dead = true
	conns := *h.conns.Load()
	h.mu.Unlock()
	for _, c := range conns {
		c.fail(errClosed)
	}
}
