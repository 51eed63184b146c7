package sse

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

// maxKept is the largest gathering buffer that goes back to the pool.
const maxKept = 64 << 10

// corkBuffers holds buffers for the time of one Cork: an idle stream has none.
var corkBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 8<<10); return &b }}

// lastWrite bounds what Close sends of gathered bytes.
const lastWrite = time.Second

// Conn is a connection that can gather what net/http writes in several pieces (headers, chunk head, data, chunk tail)
// and send it with one system call. Without Cork it behaves as the connection inside it.
//
// It is used like a net.Conn: one writer at a time, while anybody may close it.
type Conn struct {
	net.Conn
	mu  sync.Mutex
	buf *[]byte // guarded by mu; non-nil while corked
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

// CloseWrite sends what was gathered and closes the writing side, where the connection can do that.
func (c *Conn) CloseWrite() error {
	err := c.Uncork()
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return err
}

// Close sends what was gathered and closes the connection. A write in progress is broken off, not waited for.
func (c *Conn) Close() error {
	if c.mu.TryLock() {
		if c.buf != nil {
			_ = c.Conn.SetWriteDeadline(time.Now().Add(lastWrite))
			_ = c.uncorkLocked() // the peer may be gone; closing is what counts
		}
		c.mu.Unlock()
	}
	return c.Conn.Close()
}

// Listener makes every accepted connection a *Conn.
type Listener struct{ net.Listener }

// Accept waits for the next connection.
func (l Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &Conn{Conn: c}, nil
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
			_ = conn.Uncork() // a failure shows on the next read
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
