package loadgen

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strconv"
	"time"
)

// client makes requests to one server. Safe for concurrent use; a conn is for one goroutine.
type client struct {
	address   string        // to dial
	host      string        // for the Host header
	path      string        // of the request line
	timeout   time.Duration // of dialling, and again of the request itself
	keepAlive bool
}

// newClient takes the server's address apart once. It doesn't connect.
func newClient(o *Options) (*client, error) {
	u, err := url.Parse(o.URL)
	if err != nil {
		return nil, fmt.Errorf("loadgen: url: %w", err)
	}
	// The path of the URL is kept, so that a server behind a prefix can be measured.
	address := u.Host
	if u.Port() == "" {
		address = net.JoinHostPort(u.Hostname(), "80")
	}
	return &client{
		address: address, host: u.Host, path: u.Path + "/v1/chat/completions",
		timeout: o.Timeout, keepAlive: o.KeepAlive,
	}, nil
}

// conn is one connection and the buffers of the requests on it. It dials when there is something to send, and again
// after a failure: the buffers stay. For one goroutine.
type conn struct {
	client *client
	nc     net.Conn // nil: not connected
	out    []byte   // the request, head and body
	buf    []byte   // received bytes are buf[r:w]
	r, w   int
	stop   func() bool // detaches the connection from the run's context
	body   body
}

// close ends the connection, if there is one.
func (c *conn) close() {
	if c.nc != nil {
		c.stop()
		c.nc.Close()
		c.nc = nil
	}
}

// open dials unless the connection of an earlier request is there. The end of ctx makes every wait on it return.
func (c *conn) open(ctx context.Context) error {
	if c.nc != nil {
		return nil
	}
	// Keep-alive probes would cost system calls and tell nothing: every request has a deadline.
	d := net.Dialer{Timeout: c.client.timeout, KeepAlive: -1}
	nc, err := d.DialContext(ctx, "tcp", c.client.address)
	if err != nil {
		return &failure{Dial, err.Error()}
	}
	c.nc, c.r, c.w = nc, 0, 0
	// A deadline in the past wakes readers and writers without closing what they still use.
	c.stop = context.AfterFunc(ctx, func() { nc.SetDeadline(time.Unix(1, 0)) })
	// Room for many events of a token each, so that a burst is one read.
	if c.buf == nil {
		c.buf = make([]byte, 16<<10)
	}
	return nil
}

// request sends a body and feeds the answer's bytes to onData. It returns the status, 0 when there was none. It blocks
// for the client's time-out at most, once for dialling and once for the rest. Errors are failures with a kind, but for
// those of the network, and those of onData.
func (c *conn) request(ctx context.Context, payload []byte, onData func(b []byte, now time.Time) error) (int, error) {
	if err := c.open(ctx); err != nil {
		return 0, err
	}
	c.nc.SetDeadline(time.Now().Add(c.client.timeout))
	if ctx.Err() != nil { // the run may have ended between the two deadlines
		c.nc.SetDeadline(time.Unix(1, 0))
	}
	status, reusable, err := c.exchange(payload, onData)
	// After an error nobody knows where on the connection the next answer would begin.
	if err != nil || !reusable || !c.client.keepAlive {
		c.close()
	}
	// The end of ctx looks the same here; the requester tells them apart by ctx itself.
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return status, &failure{TimedOut, err.Error()}
	}
	return status, err
}

// exchange writes a request in one piece, as a client library does, and reads the answer to its end. reusable tells
// whether the connection can take another request.
func (c *conn) exchange(payload []byte, onData func([]byte, time.Time) error) (status int, reusable bool, err error) {
	// No more headers than a server needs: what is measured is the answer.
	c.out = append(c.out[:0], "POST "...)
	c.out = append(c.out, c.client.path...)
	c.out = append(c.out, " HTTP/1.1\r\nHost: "...)
	c.out = append(c.out, c.client.host...)
	c.out = append(c.out, "\r\nContent-Type: application/json\r\nAccept: text/event-stream\r\nContent-Length: "...)
	c.out = strconv.AppendInt(c.out, int64(len(payload)), 10)
	if !c.client.keepAlive {
		c.out = append(c.out, "\r\nConnection: close"...)
	}
	c.out = append(c.out, "\r\n\r\n"...)
	c.out = append(c.out, payload...)
	if _, err := c.nc.Write(c.out); err != nil {
		return 0, false, err
	}
	status, now, err := c.head()
	if err != nil {
		return 0, false, err
	}
	for {
		// What came together with the head, then read by read; one time for all tokens of a read.
		n, done, err := c.body.feed(c.buf[c.r:c.w], now, onData)
		c.r += n
		if err != nil {
			return status, false, err
		}
		if done {
			return status, !c.body.untilEOF && !c.body.close, nil
		}
		if now, err = c.fill(); err != nil {
			if errors.Is(err, io.EOF) {
				if c.body.untilEOF {
					return status, false, nil
				}
				return status, false, &failure{Truncated, "connection closed inside the body"}
			}
			return status, false, err
		}
	}
}

// fill reads once more, keeping what is unread, and returns the time after the read: all bytes of it arrived then, as
// far as this client can tell.
func (c *conn) fill() (time.Time, error) {
	// Space is made at the front when there is none behind. A head that fills the whole buffer is no head.
	if c.r == c.w {
		c.r, c.w = 0, 0
	} else if c.w == len(c.buf) {
		copy(c.buf, c.buf[c.r:c.w])
		c.r, c.w = 0, c.w-c.r
		if c.w == len(c.buf) {
			return time.Time{}, &failure{BadHTTP, "a head or chunk size line beyond the buffer"}
		}
	}
	n, err := c.nc.Read(c.buf[c.w:])
	c.w += n
	if n > 0 {
		err = nil // an EOF comes again
	}
	return time.Now(), err
}

// head reads the status line and headers and prepares the body, whose first bytes may have come with them: now is when.
// It looks from the start after every read, which is one read nearly always.
func (c *conn) head() (status int, now time.Time, err error) {
	for {
		if i := bytes.Index(c.buf[c.r:c.w], []byte("\r\n\r\n")); i >= 0 {
			head := c.buf[c.r : c.r+i+2]
			c.r += i + 4
			status, err = c.body.start(head)
			return status, now, err
		}
		if now, err = c.fill(); err != nil {
			return 0, now, err
		}
	}
}
