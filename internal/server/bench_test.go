package server_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/prepost/msgparse"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/server"
	"github.com/portico-llm/portico/internal/testkit"
)

// steady is a dispatcher that costs next to nothing: its streams repeat one item.
type steady struct {
	tokens int
	batch  int // items that have been received together
	wait   <-chan struct{}
}

func (s *steady) Dispatch(ctx context.Context, call *router.Call) (router.Stream, error) {
	if _, err := call.Body(nil, worker.Msgpack, router.Target{}); err != nil {
		return nil, err
	}
	return &steadyStream{steady: s, ctx: ctx}, nil
}

type steadyStream struct {
	*steady
	ctx context.Context
}

var steadyInstance worker.Instance

func (*steadyStream) Instance() *worker.Instance { return &steadyInstance }
func (*steadyStream) Close() error               { return nil }

func (s *steadyStream) Each(f func(*worker.Item, bool) error) error {
	it := worker.Item{HasData: true, Output: worker.Output{TokenIDs: []uint32{'a'}}}
	for i := range s.tokens {
		last := i == s.tokens-1
		if last && s.wait != nil {
			select {
			case <-s.wait:
			case <-s.ctx.Done():
				return s.ctx.Err()
			}
		}
		if last {
			it.Output.FinishReason = worker.FinishStop
		}
		if err := f(&it, (i+1)%s.batch != 0 || last); err != nil { // after the last item the end mark has been received
			return err
		}
	}
	return nil
}

func benchServer(tb testing.TB, d router.Dispatcher) *server.Server {
	tb.Helper()
	reg := prometheus.NewRegistry()
	log := slog.New(slog.DiscardHandler)
	srv, err := server.New(server.Options{
		Pipeline: pipeline.New(pipeline.Options{Dispatcher: d, Registerer: reg, Log: log}),
		Catalog:  testkit.Models{"m": testkit.ByteModel("m")}, Registerer: reg, Log: log,
	})
	if err != nil {
		tb.Fatal(err)
	}
	return srv
}

// discard is a ResponseWriter that keeps nothing.
type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
func (d *discard) WriteHeader(int)             {}
func (d *discard) Flush()                      {}

func request(tb testing.TB, body string) *http.Request {
	req := httptest.NewRequestWithContext(tb.Context(), http.MethodPost, "/v1/chat/completions", strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	return req
}

// BenchmarkHandler is a request from its decoded headers to its last event: 64 tokens, as one burst or one by one.
func BenchmarkHandler(b *testing.B) {
	for _, batch := range []int{64, 1} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			h := benchServer(b, &steady{tokens: 64, batch: batch}).Handler()
			b.ReportAllocs()
			for b.Loop() {
				h.ServeHTTP(&discard{http.Header{}}, request(b, chatStream))
			}
		})
	}
}

// BenchmarkSocket is the same over loopback, with net/http on both sides: the server's share is what an idle client
// leaves. The metric is the process's CPU time, client included.
func BenchmarkSocket(b *testing.B) {
	for _, batch := range []int{64, 1} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			srv := benchServer(b, &steady{tokens: 64, batch: batch})
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- srv.Serve(context.Background(), ln) }()
			defer func() { _ = srv.Shutdown(context.Background()); <-done }()
			raw := fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
				len(chatStream), chatStream)
			c, err := net.Dial("tcp", ln.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			buf := make([]byte, 64<<10)
			before := cpu()
			for b.Loop() {
				if _, err := io.WriteString(c, raw); err != nil {
					b.Fatal(err)
				}
				for { // the end of the body ends a piece: the server sends it with one write
					n, err := c.Read(buf)
					if err != nil {
						b.Fatal(err)
					}
					if n >= 5 && string(buf[n-5:n]) == "0\r\n\r\n" {
						break
					}
				}
			}
			b.ReportMetric(float64(cpu()-before)/float64(b.N)/1e3, "cpu-µs/op")
		})
	}
}

func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestTokenBudget bounds what the token path allocates: nothing for a token, and a fixed sum for a request.
func TestTokenBudget(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	allocs := func(tokens, batch int) float64 {
		h := benchServer(t, &steady{tokens: tokens, batch: batch}).Handler()
		return testing.AllocsPerRun(200, func() { h.ServeHTTP(&discard{http.Header{}}, request(t, chatStream)) })
	}
	for _, batch := range []int{1, 1000} {
		few, many := allocs(64, batch), allocs(1064, batch)
		if each := (many - few) / 1000; each > 0.01 {
			t.Errorf("batches of %d: %.3f allocations a token", batch, each)
		}
		t.Logf("batches of %d: %.0f allocations a request", batch, few)
		if few > 110 {
			t.Errorf("batches of %d: %.0f allocations a request", batch, few)
		}
	}
}

// TestParsedTokenBudget is the same for answers that go through both parsers: each gives its pieces as strings.
func TestParsedTokenBudget(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	set := testkit.ByteModel("m")
	set.ToolParser, set.ReasoningParser = "hermes", "qwen3"
	log := slog.New(slog.DiscardHandler)
	allocs := func(tokens int) float64 {
		srv, err := server.New(server.Options{
			Pipeline: pipeline.New(pipeline.Options{
				Dispatcher: &steady{tokens: tokens, batch: 1}, Log: log, Answers: msgparse.Plan}),
			Catalog: testkit.Models{"m": set}, Log: log,
		})
		if err != nil {
			t.Fatal(err)
		}
		h := srv.Handler()
		return testing.AllocsPerRun(200, func() {
			h.ServeHTTP(&discard{http.Header{}}, request(t, strings.TrimSuffix(chatStream, "}")+
				`,"tools":[{"type":"function","function":{"name":"f"}}]}`))
		})
	}
	if each := (allocs(1064) - allocs(64)) / 1000; each > 2.01 {
		t.Errorf("%.3f allocations a token", each)
	}
}

// TestOpenStreams holds many streams open and bounds the memory of each, connection and handler included.
func TestOpenStreams(t *testing.T) {
	streams := 5000
	if testing.Short() || raceEnabled {
		streams = 500
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || limit.Cur < uint64(2*streams+100) {
		t.Skipf("%d descriptors are not enough for %d streams", limit.Cur, streams)
	}
	testkit.NoLeaks(t)
	release := make(chan struct{})
	srv := benchServer(t, &steady{tokens: 2, batch: 1, wait: release})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(context.Background(), ln) }()
	defer func() { _ = srv.Shutdown(context.Background()); <-done }()

	raw := fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		len(chatStream), chatStream)
	conns := make([]net.Conn, streams)
	before := footprint()
	buf := make([]byte, 4096)
	for i := range conns {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns[i] = c
		if _, err := io.WriteString(c, raw); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(buf); err != nil { // the first token: the stream is open, and idle from here on
			t.Fatal(err)
		}
	}
	each := (footprint() - before) / int64(streams)
	t.Logf("%d streams: %d KiB each, %d goroutines", streams, each>>10, runtime.NumGoroutine())
	if each > 40<<10 && !raceEnabled { // the client's end of the connection is in it; the worker's is not
		t.Errorf("%d KiB a stream", each>>10)
	}
	close(release)
	var wg sync.WaitGroup
	for _, c := range conns {
		wg.Go(func() {
			b := make([]byte, 4096)
			var all []byte
			for !strings.HasSuffix(string(all), "0\r\n\r\n") {
				n, err := c.Read(b)
				if err != nil {
					t.Error(err)
					return
				}
				all = append(all, b[:n]...)
			}
			if !strings.Contains(string(all), "data: [DONE]") {
				t.Errorf("a stream ended with %q", all)
			}
		})
	}
	wg.Wait()
}

// footprint is the memory the process holds for its heap and its stacks, after a collection.
func footprint() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}
