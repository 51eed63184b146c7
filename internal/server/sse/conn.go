package sse

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// maxKept is the largest gathering buffer that goes back to the pool.
const maxKept = 64 << 10

// corkBuffers holds buffers for the time of one Cork: an idle stream has none.
var corkBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 8<<10); return &b }}

// lastWrite bounds what Close sends of gathered bytes when there is no write time-out.
const lastWrite = time.Second

// Conn is a connection that can gather what net/http writes in several pieces (headers, chunk head, data, chunk tail)
// and send it with one system call. Without Cork it behaves as the connection inside it.
//
// It is used like a net.Conn: one writer at a time, while anybody may close it.
type Conn struct {
	net.Conn
	timeout time.Duration // for the last piece of an answer; 0: none
	ending  atomic.Bool   // the last piece of an answer is being sent
	mu      sync.Mutex
	buf     *[]byte // guarded by mu; non-nil while corked
}

// Cork makes following writes gather.
func (c *Conn) Cork() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.buf == nil {
		c.buf = corkBuffers.Get().(*[]byte)
	}
}

// Uncork sends what was gathered and ends the gathering. Without a Cork before it does nothing.
func (c *Conn) Uncork() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.uncorkLocked()
}

// uncorkLocked sends what was gathered, if anything was. It blocks as long as the connection's write does.
func (c *Conn) uncorkLocked() error {
	if c.buf == nil {
		return nil
	}
	b := c.buf
	c.buf = nil
	var err error
	if len(*b) > 0 {
		_, err = c.Conn.Write(*b)
	}
	// One large answer is not to keep its memory for good.
	if cap(*b) <= maxKept {
		*b = (*b)[:0]
		corkBuffers.Put(b)
	}
	return err
}

// Write gathers p, or sends it at once.
func (c *Conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.buf == nil {
		return c.Conn.Write(p)
	}
	*c.buf = append(*c.buf, p...)
	return len(p), nil
}

// finishLocked sends what was gathered within the time-out. The deadline of the answer's writer is gone by now: net/http
// clears it before it gives the connection back.
func (c *Conn) finishLocked(timeout time.Duration) error {
	if c.buf == nil {
		return nil
	}
	if timeout <= 0 {
		return c.uncorkLocked()
	}
	_ = c.Conn.SetWriteDeadline(time.Now().Add(timeout))
	err := c.uncorkLocked()
	_ = c.Conn.SetWriteDeadline(time.Time{})
	return err
}

// finish ends an answer on a connection that is kept. One that got only a part of it can't be used for another.
func (c *Conn) finish() {
	c.ending.Store(true)
	defer c.ending.Store(false)
	c.mu.Lock()
	err := c.finishLocked(c.timeout)
	c.mu.Unlock()
	if err != nil {
		_ = c.Conn.Close()
	}
}

// closing is how long a client has to take the last piece before its connection is closed.
func (c *Conn) closing() time.Duration {
	if c.timeout > 0 {
		return c.timeout
	}
	return lastWrite
}

// CloseWrite sends what was gathered and closes the writing side, where the connection can do that.
func (c *Conn) CloseWrite() error {
	c.mu.Lock()
	err := c.finishLocked(c.closing())
	c.mu.Unlock()
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return err
}

// Close sends what was gathered and closes the connection. A write in progress is broken off, not waited for, unless it
// is the end of an answer: a server that shuts down closes connections from the moment they count as idle, which is
// before that end has been sent.
func (c *Conn) Close() error {
	locked := c.mu.TryLock()
	if !locked && c.ending.Load() {
		_ = c.Conn.SetWriteDeadline(time.Now().Add(lastWrite))
		c.mu.Lock()
		locked = true
	}
	if locked {
		_ = c.finishLocked(c.closing()) // the peer may be gone; closing is what counts
		c.mu.Unlock()
	}
	return c.Conn.Close()
}

// Listener makes every accepted connection a *Conn.
type Listener struct {
	net.Listener
	// WriteTimeout is how long a client may take for the last piece of an answer, which leaves after the answer's
	// writer is done. 0: for ever, or a second when the connection is to be closed.
	WriteTimeout time.Duration
}

// Accept waits for the next connection.
func (l Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &Conn{Conn: c, timeout: l.WriteTimeout}, nil
}

// connKey is where a request's context holds its *Conn.
type connKey struct{}

// Install makes srv hand its connections to the writers of its handlers, and send the end of an answer, which net/http
// writes after the handler has returned, together with the answer's last piece. srv must serve a Listener; a TLS
// listener may be around it.
func Install(srv *http.Server) {
	srv.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		if conn := unwrap(c); conn != nil {
			return context.WithValue(ctx, connKey{}, conn)
		}
		return ctx
	}
	srv.ConnState = func(c net.Conn, state http.ConnState) {
		if state != http.StateIdle { // idle follows the end of every answer on a connection that is kept
			return
		}
		if conn := unwrap(c); conn != nil {
			conn.finish()
		}
	}
}

// unwrap finds the Conn in c, which may be a TLS connection around it.
func unwrap(c net.Conn) *Conn {
	for {
		switch v := c.(type) {
		case *Conn:
			return v
		case interface{ NetConn() net.Conn }:
			c = v.NetConn()
		default:
			return nil
		}
	}
}
