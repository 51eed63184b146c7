package server_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/portico-llm/portico/internal/server"
	"github.com/portico-llm/portico/internal/server/sse"
	"github.com/portico-llm/portico/internal/testkit"
)

// noted is a connection that keeps what is read of it.
type noted struct {
	net.Conn
	mu   sync.Mutex
	read bytes.Buffer // guarded by mu
}

// Read implements io.Reader.
func (c *noted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read.Write(p[:n])
	return n, err
}

// lint checks what was read of an answer, as far as it came.
func (c *noted) lint(t *testing.T, asked testkit.Asked) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	res, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(c.read.Bytes())), nil)
	if err != nil { // the client left ahead of the answer
		return
	}
	testkit.LintResponse(t, asked, res)
	_, _ = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
}

// open starts a chat and returns its answer unread, with the connection to hang up.
func (s *stack) open(t *testing.T, body string) (*bufio.Reader, net.Conn) {
	t.Helper()
	dialled, err := net.Dial("tcp", strings.TrimPrefix(s.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	c := &noted{Conn: dialled}
	t.Cleanup(func() {
		_ = c.Close()
		c.lint(t, testkit.Asked{Path: "/v1/chat/completions", Body: []byte(body)})
	})
	fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		len(body), body)
	return bufio.NewReader(c), c
}

// TestClientGone checks that a worker is told to stop exactly once, whenever its client leaves.
func TestClientGone(t *testing.T) {
	tests := []struct{ name, script, body string }{
		{"before the first byte", `[{"_wait":true}]`, chatStream},
		{"in the middle", `[{"token_ids":[65]},{"_wait":true}]`, chatStream},
		{"unary", `[{"token_ids":[65]},{"_wait":true}]`, chatBody},
		{"busy", `[{"token_ids":[65]},{"_sleep":0.05},{"token_ids":[65]},{"_sleep":0.05},{"token_ids":[65]},{"_wait":true}]`, chatStream},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := testkit.Play(testkit.Items(tt.script))
			s := start(t, d, nil)
			answer, c := s.open(t, tt.body)
			eventually(t, "the worker begins", func() bool { return len(d.Calls()) == 1 })
			if strings.Contains(tt.script, `[{"token_ids"`) && tt.body == chatStream {
				if _, err := answer.ReadString('}'); err != nil {
					t.Fatal(err)
				}
			}
			c.Close()
			call := d.Calls()[0]
			begin := time.Now()
			eventually(t, "the worker is told", func() bool { return call.Closed.Load() })
			if took := time.Since(begin); call.Stops.Load() != 1 || took > time.Second {
				t.Errorf("told %d times, after %v", call.Stops.Load(), took)
			}
			eventually(t, "the request is released", func() bool {
				return s.metric(t, `dynamo_frontend_inflight_requests{model="m"}`) == "0"
			})
			if got := s.metric(t, `dynamo_frontend_disconnected_clients`); got != "1" {
				t.Errorf("disconnected clients: %q", got)
			}
		})
	}
}

// TestSlowClient checks that a client that doesn't read is given up, and its worker told.
func TestSlowClient(t *testing.T) {
	long := `{"token_ids":[65],"text":"` + strings.Repeat("x", 256<<10) + `"},`
	d := testkit.Play(testkit.Items(`[` + strings.Repeat(long, 64) + `{"_wait":true}]`))
	s := start(t, d, func(o *server.Options) { o.Stream = sse.Options{WriteTimeout: 200 * time.Millisecond} })
	_, _ = s.open(t, chatStream)
	eventually(t, "the worker is told", func() bool {
		calls := d.Calls()
		return len(calls) == 1 && calls[0].Closed.Load()
	})
	if call := d.Calls()[0]; call.Stops.Load() != 1 || call.Ended.Load() {
		t.Errorf("told %d times, ended: %t", call.Stops.Load(), call.Ended.Load())
	}
	eventually(t, "it counts as gone", func() bool {
		return s.metric(t, `dynamo_frontend_disconnected_clients`) == "1"
	})
}

// TestHeartbeat checks that an idle stream begins with comments when it is told to.
func TestHeartbeat(t *testing.T) {
	d := testkit.Play(testkit.Items(`[{"_sleep":0.2},{"token_ids":[65]},{"_sleep":0.2},{"token_ids":[66],"finish_reason":"stop"}]`))
	s := start(t, d, func(o *server.Options) { o.Stream.Heartbeat = 50 * time.Millisecond })
	_, body := s.do(t, http.MethodPost, "/v1/chat/completions", chatStream)
	if err := testkit.Lint([]byte(body), testkit.LintOptions{Chat: true}); err != nil {
		t.Error(err)
	}
	if !strings.HasPrefix(body, ": keep-alive\n\n") || strings.Count(body, ": keep-alive\n\n") < 4 {
		t.Errorf("got %s", body)
	}
}

// TestHeartbeatThenFailure checks that after a heartbeat a failure is an event: the status is out.
func TestHeartbeatThenFailure(t *testing.T) {
	d := testkit.Play(testkit.Items(`[{"_sleep":0.2},{"_raise":"x"}]`))
	s := start(t, d, func(o *server.Options) { o.Stream.Heartbeat = 50 * time.Millisecond })
	res, body := s.do(t, http.MethodPost, "/v1/chat/completions", chatStream)
	if res.StatusCode != 200 || !strings.Contains(body, `data: {"error":`) || !strings.HasSuffix(body, "data: [DONE]\n\n") {
		t.Errorf("%d %s", res.StatusCode, body)
	}
}

// TestDrain checks that a draining server refuses new requests, says that it isn't ready, and lets streams finish.
func TestDrain(t *testing.T) {
	d := testkit.Play(testkit.Items(`[{"token_ids":[65]},{"_sleep":0.3},{"token_ids":[66],"finish_reason":"stop"}]`))
	s := start(t, d, nil)
	running, _ := s.open(t, chatStream)
	if _, err := running.ReadString('}'); err != nil {
		t.Fatal(err)
	}
	s.Drain()
	for path, want := range map[string]int{"/ready": 503, "/health": 503, "/live": 200, "/v1/models/m/ready": 503, "/v1/models": 200} {
		if res, body := s.do(t, http.MethodGet, path, ""); res.StatusCode != want {
			t.Errorf("%s: %d %s", path, res.StatusCode, body)
		}
	}
	res, body := s.do(t, http.MethodPost, "/v1/chat/completions", chatBody)
	if res.StatusCode != 503 || res.Header.Get("Retry-After") == "" || !strings.Contains(body, "Service is not ready") {
		t.Errorf("%d %v %s", res.StatusCode, res.Header, body)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	rest, _ := io.ReadAll(running)
	if !strings.Contains(string(rest), `"finish_reason":"stop"`) || !strings.Contains(string(rest), "data: [DONE]") {
		t.Errorf("the running stream ended with %s", rest)
	}
	if n := d.Calls()[0].Stops.Load(); n != 0 {
		t.Errorf("its worker was told to stop %d times", n)
	}
}

// TestShutdownGrace checks what becomes of streams that don't finish in time: they are told, and their workers too.
func TestShutdownGrace(t *testing.T) {
	d := testkit.Play(testkit.Items(`[{"token_ids":[65]},{"_wait":true}]`))
	s := start(t, d, nil)
	running, _ := s.open(t, chatStream)
	if _, err := running.ReadString('}'); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	begin := time.Now()
	if err := s.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) > 2*time.Second {
		t.Errorf("%v after %v", err, time.Since(begin))
	}
	rest, _ := io.ReadAll(running)
	if !strings.Contains(string(rest), "The server is shutting down") || !strings.Contains(string(rest), "data: [DONE]") {
		t.Errorf("the running stream ended with %s", rest)
	}
	if n := d.Calls()[0].Stops.Load(); n != 1 {
		t.Errorf("its worker was told to stop %d times", n)
	}
}

// TestServeEnds checks that the end of Serve's context ends everything.
func TestServeEnds(t *testing.T) {
	testkit.NoLeaks(t)
	srv, err := server.New(server.Options{Pipeline: newPipeline(testkit.Play(hello)), Catalog: testkit.Models{}})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx, ln) }()
	time.Sleep(10 * time.Millisecond)
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Serve: %v", err)
	}
	if err := srv.Shutdown(t.Context()); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
}

// TestSlowBody checks that a client that doesn't finish its request is given up.
func TestSlowBody(t *testing.T) {
	s := start(t, testkit.Play(hello), func(o *server.Options) { o.BodyTimeout = 100 * time.Millisecond })
	c, err := net.Dial("tcp", strings.TrimPrefix(s.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
	_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusRequestTimeout { // not a server's failure, and clients try it again
		t.Errorf("got %d", res.StatusCode)
	}
}
