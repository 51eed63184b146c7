package server_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/portico-llm/portico/internal/server"
	"github.com/portico-llm/portico/internal/server/sse"
	"github.com/portico-llm/portico/internal/testkit"
)

// speakHTTP2 makes the client speak HTTP/2 without asking first. It returns how many connections the client has opened.
func (s *stack) speakHTTP2(tb testing.TB) *atomic.Int32 {
	dials := new(atomic.Int32)
	var dialer net.Dialer
	tr := &http.Transport{
		Protocols:       new(http.Protocols),
		MaxConnsPerHost: 1, // whoever comes while it is being opened waits for it
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			dials.Add(1)
			return dialer.DialContext(ctx, network, address)
		},
	}
	tr.Protocols.SetUnencryptedHTTP2(true)
	s.Client.Transport = testkit.LintTransport{RoundTripper: tr, TB: tb}
	return dials
}

// ask begins a chat and returns its answer, whose body has not been read.
func (s *stack) ask(ctx context.Context, body string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	return s.Client.Do(req)
}

// TestHTTP2 checks that streams share a connection without getting in each other's way, and that failures have their
// status.
func TestHTTP2(t *testing.T) {
	s := start(t, testkit.Play(hello), nil)
	dials := s.speakHTTP2(t)
	if res, body := s.do(t, http.MethodGet, "/v1/models", ""); res.ProtoMajor != 2 || res.StatusCode != 200 {
		t.Fatalf("%s %d %s", res.Proto, res.StatusCode, body)
	}
	var running sync.WaitGroup
	for range 20 {
		running.Go(func() {
			res, err := s.ask(t.Context(), chatStream)
			if err != nil {
				t.Error(err)
				return
			}
			defer res.Body.Close()
			body, err := io.ReadAll(res.Body)
			if err != nil || !strings.HasSuffix(string(body), "data: [DONE]\n\n") {
				t.Errorf("%v: %s", err, body)
			}
		})
	}
	running.Wait()
	if res, body := s.do(t, http.MethodPost, "/v1/chat/completions", `{"model":"m"}`); res.StatusCode != 400 {
		t.Errorf("%d %s", res.StatusCode, body)
	}
	if n := dials.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// TestHTTP2ClientGone checks that a stream that its client resets stops its worker, and no other stream's.
func TestHTTP2ClientGone(t *testing.T) {
	d := testkit.Play(testkit.Items(`[{"token_ids":[65]},{"_wait":true}]`))
	s := start(t, d, nil)
	dials := s.speakHTTP2(t)
	begin := func() context.CancelFunc {
		ctx, reset := context.WithCancel(t.Context())
		res, err := s.ask(ctx, chatStream)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { reset(); _ = res.Body.Close() })
		if _, err := io.ReadFull(res.Body, make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		return reset
	}
	resetFirst := begin()
	resetSecond := begin()
	first, second := d.Calls()[0], d.Calls()[1]
	resetSecond()
	eventually(t, "the worker is told", func() bool { return second.Closed.Load() })
	if n := second.Stops.Load(); n != 1 {
		t.Errorf("told %d times", n)
	}
	if first.Closed.Load() || dials.Load() != 1 {
		t.Error("the other stream of the connection ended, too")
	}
	resetFirst()
	eventually(t, "the other worker is told", func() bool { return first.Closed.Load() })
}

// TestHTTP2SlowClient checks that a stream that nobody reads is given up while others of its connection go on.
func TestHTTP2SlowClient(t *testing.T) {
	long := `{"token_ids":[65],"text":"` + strings.Repeat("x", 256<<10) + `"},`
	d := testkit.Play(testkit.Items(`[` + strings.Repeat(long, 64) + `{"_wait":true}]`))
	s := start(t, d, func(o *server.Options) { o.Stream = sse.Options{WriteTimeout: 200 * time.Millisecond} })
	s.speakHTTP2(t)
	res, err := s.ask(t.Context(), chatStream)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the worker is told", func() bool { return d.Calls()[0].Closed.Load() })
	if n := d.Calls()[0].Stops.Load(); n != 1 {
		t.Errorf("told %d times", n)
	}
	if res, _ := s.do(t, http.MethodGet, "/live", ""); res.StatusCode != 200 {
		t.Error(res.Status)
	}
	if _, err := io.Copy(io.Discard, res.Body); err == nil {
		t.Error("the stream ended as if it were complete")
	}
	_ = res.Body.Close()
}

// TestHTTP2Shutdown checks that running streams finish, and that what outlives the grace period is told.
func TestHTTP2Shutdown(t *testing.T) {
	for _, tt := range []struct {
		name, script, last string
		grace              time.Duration
		broken             bool
	}{
		{"finishes", `[{"token_ids":[65]},{"_sleep":0.2},{"token_ids":[66],"finish_reason":"stop"}]`, `"finish_reason":"stop"`, 5 * time.Second, false},
		{"broken off", `[{"token_ids":[65]},{"_wait":true}]`, "The server is shutting down", 50 * time.Millisecond, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := start(t, testkit.Play(testkit.Items(tt.script)), nil)
			s.speakHTTP2(t)
			res, err := s.ask(t.Context(), chatStream)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			if _, err := io.ReadFull(res.Body, make([]byte, 10)); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), tt.grace)
			defer cancel()
			if err := s.Shutdown(ctx); errors.Is(err, context.DeadlineExceeded) != tt.broken {
				t.Error(err)
			}
			body, err := io.ReadAll(res.Body)
			if err != nil || !strings.Contains(string(body), tt.last) || !strings.HasSuffix(string(body), "data: [DONE]\n\n") {
				t.Errorf("%v: %s", err, body)
			}
		})
	}
}
