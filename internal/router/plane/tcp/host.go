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
	turn    atomic.Uint32 // counts choices among busy connections

	mu   sync.Mutex
	dead bool // guarded by mu: the plane has forgotten it
}

// newHost returns a host without connections; the first acquire dials.
func newHost(p *Plane, address string) *host {
	h := &host{plane: p, address: address, dialing: make(chan struct{}, 1)}
	h.conns.Store(&[]*conn{})
	return h
}

// acquire returns a connection that is locked for writing. It returns neither connection nor error when the plane has
// forgotten the host and the caller is to start anew. It waits for a dial that is under way, and for a lock that is
// held while a message is written; ctx ends the first.
func (h *host) acquire(ctx context.Context) (*conn, error) {
	for {
		conns := *h.conns.Load()
		crowded := true
		for _, c := range conns {
			if c.crowded() {
				continue
			}
			crowded = false
			if c.writing.TryLock() {
				return c, nil
			}
		}
		if len(conns) > 0 && (!crowded || len(conns) >= h.plane.opts.PoolSize) {
			// All are being written to, which takes microseconds.
			c := conns[int(h.turn.Add(1))%len(conns)]
			c.writing.Lock()
			return c, nil
		}
		// A further connection is worth a dial only when all are crowded, so that a burst doesn't open one for each
		// request.
		select {
		case h.dialing <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if len(*h.conns.Load()) != len(conns) {
			<-h.dialing
			continue // somebody else has dialled meanwhile
		}
		// The slot is held while dialling: those behind find the new connection, instead of dialling one each.
		c, err := h.open(ctx)
		<-h.dialing
		return c, err
	}
}

// open dials and returns the new connection, locked: the caller's message is the first on it. Without a connection and
// without an error the host has died meanwhile. A dial that fails drops the host if it has no other connection.
func (h *host) open(ctx context.Context) (*conn, error) {
	nc, err := h.plane.dial(ctx, h.address)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		h.forget(nil)
		return nil, fault.Lost(err, "The worker can't be reached")
	}
	c := newConn(h, nc)
	c.writing.Lock()
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
		c.writing.Unlock()
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
