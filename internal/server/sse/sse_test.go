package sse_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/portico-llm/portico/internal/server/sse"
	"github.com/portico-llm/portico/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// counted counts the writes of a connection, each a system call, and remembers them.
type counted struct {
	net.Conn
	mu     sync.Mutex
	writes []string
	failed atomic.Bool // a write has been given up
}

func (c *counted) Write(p []byte) (int, error) {
	c.mu.Lock()
	c.writes = append(c.writes, string(p))
	c.mu.Unlock()
	n, err := c.Conn.Write(p)
	if err != nil {
		c.failed.Store(true)
	}
	return n, err
}

type countedListener struct {
	net.Listener
	conns chan *counted
}

func (l countedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	cc := &counted{Conn: c}
	l.conns <- cc
	return cc, nil
}

// serve runs h behind a corked listener and returns the address and the connections.
func serve(t *testing.T, h http.HandlerFunc) (string, chan *counted) {
	t.Helper()
	return serveWithin(t, h, 0)
}

// serveWithin is serve with a time-out for the last piece of an answer.
func serveWithin(t *testing.T, h http.HandlerFunc, timeout time.Duration) (string, chan *counted) {
	t.Helper()
	testkit.NoLeaks(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	conns := make(chan *counted, 16)
	srv := &http.Server{Handler: h, ReadHeaderTimeout: time.Second}
	sse.Install(srv)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(sse.Listener{Listener: countedListener{ln, conns}, WriteTimeout: timeout})
	}()
	t.Cleanup(func() { _ = srv.Close(); <-done })
	return ln.Addr().String(), conns
}

func get(t *testing.T, addr string, headers string) string {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: x\r\n%s\r\n", headers)
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestOneWritePerPiece checks that each piece, however long, leaves with one system call: the first with the headers,
// the last with the end of the body.
func TestOneWritePerPiece(t *testing.T) {
	long := strings.Repeat("x", 20_000)
	for _, headers := range []string{"", "Connection: close\r\n"} {
		addr, conns := serve(t, func(w http.ResponseWriter, r *http.Request) {
			s := sse.NewWriter(w, r, sse.Options{WriteTimeout: time.Minute})
			defer s.Close()
			for range 2 {
				s.SetBuffer(append(s.Buffer(), "data: "+long+"\n\n"...))
				if err := s.FlushAndHold(); err != nil {
					t.Error(err)
				}
			}
			s.SetBuffer(append(s.Buffer(), "data: "+long+"\n\n"...))
			if err := s.Finish(); err != nil {
				t.Error(err)
			}
		})
		want := strings.Repeat("data: "+long+"\n\n", 3) + "data: [DONE]\n\n"
		if got := get(t, addr, headers); got != want {
			t.Fatalf("got %d bytes, want %d", len(got), len(want))
		}
		c := <-conns
		c.mu.Lock()
		if len(c.writes) != 3 || !strings.HasPrefix(c.writes[0], "HTTP/1.1 200") || !strings.HasSuffix(c.writes[2], "0\r\n\r\n") {
			t.Errorf("%d writes", len(c.writes))
		}
		c.mu.Unlock()
	}
}

// TestKeptAlive checks that a connection serves its next request as well, streamed or not.
func TestKeptAlive(t *testing.T) {
	addr, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/plain" {
			fmt.Fprint(w, "plain")
			return
		}
		s := sse.NewWriter(w, r, sse.Options{})
		defer s.Close()
		s.SetBuffer(append(s.Buffer(), "data: 1\n\n"...))
		_ = s.Finish()
	})
	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}}
	defer client.CloseIdleConnections()
	for i := range 6 {
		path, want := "/", "data: 1\n\ndata: [DONE]\n\n"
		if i%2 == 1 {
			path, want = "/plain", "plain"
		}
		res, err := client.Get("http://" + addr + path)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if string(b) != want {
			t.Errorf("got %q", b)
		}
	}
}

func recorder(t *testing.T, opts sse.Options) (*sse.Writer, *httptest.ResponseRecorder) {
	t.Helper()
	res := httptest.NewRecorder()
	return sse.NewWriter(res, httptest.NewRequestWithContext(context.Background(), http.MethodPost, "/", nil), opts), res
}

func put(s *sse.Writer, text string) { s.SetBuffer(append(s.Buffer(), text...)) }

// TestHeartbeat checks that comments come while the stream is idle, after whole events only, and not after its end.
func TestHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, res := recorder(t, sse.Options{Heartbeat: time.Second})
		s.Begin()
		put(s, "data: half") // not flushed: a heartbeat must not send it
		time.Sleep(2500 * time.Millisecond)
		put(s, "\n\n")
		if err := s.FlushAndHold(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(900 * time.Millisecond)
		put(s, "data: two\n\n")
		if err := s.FlushAndHold(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(1100 * time.Millisecond)
		if err := s.Finish(); err != nil {
			t.Fatal(err)
		}
		s.Close()
		time.Sleep(10 * time.Second)
		const beat = ": keep-alive\n\n"
		want := beat + beat + "data: half\n\n" + "data: two\n\n" + beat + "data: [DONE]\n\n"
		if got := res.Body.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// TestAbandon checks that a stream of which nothing was sent leaves the response to others.
func TestAbandon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, res := recorder(t, sse.Options{Heartbeat: time.Second})
		s.Begin()
		put(s, "data: 1\n\n")
		if !s.Abandon() {
			t.Fatal("nothing was sent")
		}
		s.Close()
		time.Sleep(5 * time.Second)
		if res.Body.Len() != 0 || len(res.Header()) != 0 {
			t.Errorf("sent %q %v", res.Body, res.Header())
		}
		if err := s.Finish(); !errors.Is(err, sse.ErrClosed) {
			t.Errorf("Finish after the end: %v", err)
		}

		s, _ = recorder(t, sse.Options{Heartbeat: time.Second})
		s.Begin()
		time.Sleep(1500 * time.Millisecond)
		if s.Abandon() {
			t.Error("a heartbeat has been sent")
		}
		s.Close()
	})
}

// TestHoldBack checks who waits: busy streams whose writes come close together, when there are several.
func TestHoldBack(t *testing.T) {
	tests := []struct {
		name    string
		streams int64
		gap     time.Duration
		busy    bool
		want    time.Duration
	}{
		{"alone", 1, 0, true, 0},
		{"few", 4, 0, true, 0},
		{"many", 41, 0, true, 2 * time.Millisecond},
		{"very many", 5000, 0, true, 5 * time.Millisecond},
		{"many but slow", 41, 10 * time.Millisecond, true, 0},
		{"at its end", 41, 0, false, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var open atomic.Int64
				open.Store(tt.streams - 1)
				s, _ := recorder(t, sse.Options{HoldBack: 5 * time.Millisecond, HoldBackUnit: 50 * time.Microsecond, Open: &open})
				defer s.Close()
				put(s, "data: 1\n\n")
				_ = s.FlushAndHold()
				time.Sleep(tt.gap)
				begin := time.Now()
				put(s, "data: 2\n\n")
				if tt.busy {
					_ = s.FlushAndHold()
				} else {
					_ = s.Flush()
				}
				if got := time.Since(begin); got != tt.want {
					t.Errorf("waited %v, want %v", got, tt.want)
				}
			})
		})
	}
}

// TestOpenCount checks that every stream is counted once, however it ends.
func TestOpenCount(t *testing.T) {
	var open atomic.Int64
	s, _ := recorder(t, sse.Options{Open: &open})
	if open.Load() != 1 {
		t.Errorf("open: %d", open.Load())
	}
	s.Abandon()
	s.Close()
	s.Close()
	if open.Load() != 0 {
		t.Errorf("open: %d", open.Load())
	}
}

// TestSlowClient checks that a client that reads nothing is given up after the write time-out.
func TestSlowClient(t *testing.T) {
	failed := make(chan error, 1)
	addr, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		s := sse.NewWriter(w, r, sse.Options{WriteTimeout: 200 * time.Millisecond})
		defer s.Close()
		event := "data: " + strings.Repeat("x", 256<<10) + "\n\n"
		for {
			put(s, event)
			if err := s.FlushAndHold(); err != nil {
				failed <- err
				return
			}
		}
	})
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	select {
	case err := <-failed:
		var timeout net.Error
		if !errors.As(err, &timeout) || !timeout.Timeout() {
			t.Errorf("got %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("still writing")
	}
}

// TestLastPiece checks that a client has the write time-out for the last piece, too, which leaves after the handler:
// whether the connection is kept or not, no more than that and no less.
func TestLastPiece(t *testing.T) {
	const size = 32 << 20 // more than the sockets hold
	for _, tt := range []struct {
		name, headers  string
		timeout, pause time.Duration // no pause: until the client is given up
		whole          bool
	}{
		{"kept, too slow", "", 100 * time.Millisecond, 0, false},
		{"closed, too slow", "Connection: close\r\n", 100 * time.Millisecond, 0, false},
		{"kept, in time", "", 10 * time.Second, 1300 * time.Millisecond, true},
		{"closed, in time", "Connection: close\r\n", 10 * time.Second, 1300 * time.Millisecond, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			addr, conns := serveWithin(t, func(w http.ResponseWriter, r *http.Request) {
				s := sse.NewWriter(w, r, sse.Options{WriteTimeout: tt.timeout})
				defer s.Close()
				put(s, "data: "+strings.Repeat("x", size)+"\n\n")
				_ = s.Finish()
			}, tt.timeout)
			c, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(20 * time.Second))
			fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: x\r\n%s\r\n", tt.headers)
			time.Sleep(tt.pause)
			served := <-conns
			for end := time.Now().Add(15 * time.Second); !tt.whole && !served.failed.Load(); time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("the client is waited for")
				}
			}
			res, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil && !tt.whole {
				return // not even the beginning has come
			}
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			n, err := io.Copy(io.Discard, res.Body)
			if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
				t.Error("the connection is held for ever")
			}
			if whole := err == nil && n > size; whole != tt.whole {
				t.Errorf("%d bytes, %v", n, err)
			}
		})
	}
}

// gated is a connection whose writes wait for its gate, and fail once it is closed.
type gated struct {
	net.Conn
	entered, gate chan struct{}
	closed        atomic.Bool
	sent          atomic.Bool
}

func (c *gated) Write(p []byte) (int, error) {
	c.entered <- struct{}{}
	<-c.gate
	if c.closed.Load() {
		return 0, net.ErrClosed
	}
	c.sent.Store(true)
	return len(p), nil
}

func (c *gated) Close() error { c.closed.Store(true); return c.Conn.Close() }

type oneConn struct {
	net.Listener
	conn net.Conn
}

func (l oneConn) Accept() (net.Conn, error) { return l.conn, nil }

// TestCloseLetsTheLastPieceOut closes a connection, as a server that shuts down does, while the end of an answer is
// being sent because the connection has become idle.
func TestCloseLetsTheLastPieceOut(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	inner := &gated{Conn: near, entered: make(chan struct{}), gate: make(chan struct{})}
	accepted, err := sse.Listener{Listener: oneConn{conn: inner}}.Accept()
	if err != nil {
		t.Fatal(err)
	}
	conn := accepted.(*sse.Conn)
	conn.Cork()
	if _, err := conn.Write([]byte("the end")); err != nil {
		t.Fatal(err)
	}
	var srv http.Server
	sse.Install(&srv)
	var wg sync.WaitGroup
	wg.Go(func() { srv.ConnState(conn, http.StateIdle) })
	<-inner.entered // the end is on its way
	wg.Go(func() { conn.Close() })
	time.Sleep(20 * time.Millisecond) // time enough to break it off
	close(inner.gate)
	wg.Wait()
	if !inner.sent.Load() {
		t.Error("the connection was closed under the end of an answer")
	}
	if !inner.closed.Load() {
		t.Error("the connection is still open")
	}
}
