package tcp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/router"
)

// conn is one connection. Requests are written under writing; the order of outstanding is the order on the wire.
// Answers carry no name: the oldest outstanding request is the one that is answered. One goroutine, read, takes them
// in; it ends when the connection is dead, and a dead connection stays so.
type conn struct {
	host *host
	nc   net.Conn

	writing chan struct{} // one slot: held by whoever sends, from acquire to the end of send
	large   atomic.Bool   // a large message is being written
	waiting atomic.Int32  // how many are outstanding, to be read without mu
	lost    chan struct{} // closed by read: the worker has gone, see Plane.Start

	mu          sync.Mutex
	outstanding []request // guarded by mu, from head on
	head        int       // guarded by mu
	used        time.Time // guarded by mu: when the last request was sent
	wake        time.Time // guarded by mu: the read deadline that is set
	err         error     // guarded by mu: why the connection is dead
}

// request is one that has been sent and not been answered. done is called once, by the connection's reader.
type request struct {
	done func(error)
	sent time.Time // AckTimeout counts from here
}

const (
	// crowdedAt is how many outstanding requests make a further connection worth its cost.
	crowdedAt = 64
	// largeMessage is the size from which a message is written from where it stands instead of being copied behind its
	// head, and from which others had better take another connection.
	largeMessage = 64 << 10
	// maxAnswer bounds the text of a refusal.
	maxAnswer = 64 << 10
)

// errIdle is why a connection ends that nobody needs. It never reaches a request, as there is none outstanding then.
var errIdle = errors.New("connection closed after being idle")

// broken is why a connection ends that this side would have kept: the worker, or the network, has ended it.
type broken struct{ error }

// Unwrap returns what the socket said.
func (b broken) Unwrap() error { return b.error }

// newConn takes over a connection that was just dialled. It starts nothing: the caller starts read.
func newConn(h *host, nc net.Conn) *conn {
	c := &conn{host: h, nc: nc, writing: make(chan struct{}, 1), lost: make(chan struct{}), used: time.Now()}
	c.wake = c.used.Add(h.plane.opts.IdleTimeout)
	nc.SetReadDeadline(c.wake)
	return c
}

// tryLock takes writing if nobody holds it.
func (c *conn) tryLock() bool {
	select {
	case c.writing <- struct{}{}:
		return true
	default:
		return false
	}
}

// lock takes writing, which may be held for long when the worker reads nothing. It fails when ctx ends first.
func (c *conn) lock(ctx context.Context) error {
	select {
	case c.writing <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// unlock releases writing.
func (c *conn) unlock() { <-c.writing }

// crowded reports whether a request had better take another connection. It is a hint: both may change at once.
func (c *conn) crowded() bool { return c.large.Load() || c.waiting.Load() >= crowdedAt }

// send writes one message, with writing held, and releases it. It reports false, and has not sent anything, when the
// connection is dead. Afterwards every failure reaches done by way of the reader. It blocks while the worker reads
// nothing; a worker that doesn't answer in time ends the connection, and the write with it.
func (c *conn) send(head *[]byte, envelope []byte, done func(error)) bool {
	defer c.unlock()
	if !c.enqueue(done) {
		return false
	}
	var (
		n   int64
		err error
	)
	if len(envelope) < largeMessage {
		// One write, one packet in most cases. The grown buffer goes back to the pool it came from.
		*head = append(*head, envelope...)
		var written int
		written, err = c.nc.Write(*head)
		n = int64(written)
	} else {
		c.large.Store(true)
		// One system call for both parts, without a copy.
		parts := net.Buffers{*head, envelope}
		n, err = parts.WriteTo(c.nc)
		c.large.Store(false)
	}
	c.host.plane.metrics.sent.Add(float64(n))
	if err != nil {
		c.fail(broken{fmt.Errorf("send request: %w", err)})
	}
	return true
}

// enqueue notes a request as sent, before it is written: its answer may come before the write has returned. It reports
// false when the connection is dead, whose reader may have failed all there was already.
func (c *conn) enqueue(done func(error)) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return false
	}
	now := time.Now()
	c.outstanding = append(c.outstanding, request{done, now})
	c.waiting.Add(1)
	c.used = now
	// A steady connection sets one deadline for each time-out, not one for each request.
	if till := now.Add(c.host.plane.opts.AckTimeout); c.wake.After(till) {
		c.wake = till
		c.nc.SetReadDeadline(till)
	}
	return true
}

// pop takes the oldest outstanding request. For the reader.
func (c *conn) pop() (q request, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.head == len(c.outstanding) {
		return q, false
	}
	q = c.outstanding[c.head]
	// What done holds on to is not kept by the slice.
	c.outstanding[c.head] = request{}
	c.head++
	c.waiting.Add(-1)
	// The slice is used again: emptied when all are answered, moved to its front when half of a long one is. On a
	// connection that is never idle it would grow for ever otherwise.
	switch {
	case c.head == len(c.outstanding):
		c.outstanding, c.head = c.outstanding[:0], 0
	case c.head >= 4*crowdedAt && 2*c.head >= len(c.outstanding):
		c.outstanding = append(c.outstanding[:0], c.outstanding[c.head:]...)
		c.head = 0
	}
	return q, true
}

// fail marks the connection dead and closes it. Its reader then fails what is outstanding. The first reason stays; fail
// may be called from any goroutine, and again.
func (c *conn) fail(err error) {
	c.mu.Lock()
	if c.err == nil {
		c.err = err
	}
	c.mu.Unlock()
	c.nc.Close()
}

// read reads answers until the connection is dead or ctx ends, then fails exactly those requests that were outstanding
// on it. Those that were answered before are told by way of lost, a little later.
func (c *conn) read(ctx context.Context) error {
	// A connection that was opened while the plane closed may belong to a host that Close hasn't seen.
	stop := context.AfterFunc(ctx, func() { c.fail(errClosed) })
	defer stop()
	c.fail(c.answers())
	c.host.forget(c)
	c.mu.Lock()
	why := c.err
	c.mu.Unlock()
	// Idle and closed are ends of this side's own choosing.
	if !errors.Is(why, errIdle) && !errors.Is(why, errClosed) {
		c.host.plane.opts.Log.Debug("worker connection lost", "address", c.host.address, "error", why)
	}
	// Nothing is added any more: enqueue looks at err under the same lock.
	for {
		q, ok := c.pop()
		if !ok {
			break
		}
		c.host.plane.metrics.errors.Inc()
		q.done(lost(why))
	}
	if _, ok := errors.AsType[broken](why); ok {
		c.mourn(ctx)
	}
	return nil
}

// mourn tells those who still wait for what the worker accepted over c that it has gone, after LossGrace: a worker that
// is well and closes a connection that it thinks idle has begun with what it accepted by then, so nobody waits. While
// the plane closes nobody is told.
func (c *conn) mourn(ctx context.Context) {
	t := time.NewTimer(c.host.plane.opts.LossGrace)
	defer t.Stop()
	select {
	case <-t.C:
		close(c.lost)
	case <-ctx.Done():
	}
}

// lost is what a request gets whose connection died. A reason that is a fault, such as a time-out, says more than that.
func lost(why error) error {
	if e, ok := errors.AsType[*fault.Error](why); ok {
		return e
	}
	return fault.Lost(why, "The connection to the worker was lost")
}

// answers reads until the connection ends and returns why. A read deadline that passes is no end in itself: overdue
// decides. The buffer grows with the longest refusal, up to maxAnswer and its length.
func (c *conn) answers() error {
	buf := make([]byte, 4<<10)
	have := 0
	for {
		n, err := c.nc.Read(buf[have:])
		have += n
		c.host.plane.metrics.received.Add(float64(n))
		used, bad := c.consume(buf[:have])
		if bad != nil {
			return bad
		}
		have = copy(buf, buf[used:have])
		if have == len(buf) {
			buf = slices.Grow(buf, len(buf))
			buf = buf[:cap(buf)]
		}
		switch {
		case err == nil:
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return broken{fmt.Errorf("read answer: %w", err)}
		default:
			if err := c.overdue(); err != nil {
				return err
			}
		}
	}
}

// consume handles the whole answers in b and returns their size. An answer is a length of four bytes, big-endian, and
// so much text. Errors mean that the two sides no longer agree on where answers begin.
func (c *conn) consume(b []byte) (used int, err error) {
	for len(b)-used >= 4 {
		size := int(binary.BigEndian.Uint32(b[used:]))
		if size > maxAnswer {
			return used, fmt.Errorf("answer of %d bytes", size)
		}
		if len(b)-used < 4+size {
			return used, nil
		}
		text := string(b[used+4 : used+4+size])
		used += 4 + size
		q, ok := c.pop()
		if !ok {
			return used, errors.New("answer without a request")
		}
		q.done(router.Acceptance(text))
	}
	return used, nil
}

// overdue is called when the read deadline has passed. That is moved earlier by requests but never later by answers, so
// it may well pass with nothing overdue. It returns why the connection is to be closed, or sets the next
// deadline. Answers come in order, so none will come behind one that doesn't.
func (c *conn) overdue() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	opts := &c.host.plane.opts
	now := time.Now()
	if c.head < len(c.outstanding) {
		// The oldest request decides: the others were sent later and have more time left.
		c.wake = c.outstanding[c.head].sent.Add(opts.AckTimeout)
		if !now.Before(c.wake) {
			c.err = router.Unaccepted(opts.AckTimeout)
			return c.err
		}
	} else {
		c.wake = c.used.Add(opts.IdleTimeout)
		if !now.Before(c.wake) {
			c.err = errIdle // under the lock: no request may come in between
			return c.err
		}
	}
	c.nc.SetReadDeadline(c.wake)
	return nil
}
