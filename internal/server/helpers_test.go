package server_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/server"
	"github.com/portico-llm/portico/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stack is a server on a real socket over a scripted dispatcher. Client lints every stream that it reads to the end.
type stack struct {
	*server.Server
	URL      string
	Registry *prometheus.Registry
	Client   *http.Client
	served   chan error
	ended    sync.Map // addresses of the clients whose connections the server has closed
}

func start(tb testing.TB, d router.Dispatcher, change func(*server.Options)) *stack {
	tb.Helper()
	testkit.NoLeaks(tb)
	reg := prometheus.NewRegistry()
	log := slog.New(slog.DiscardHandler)
	opts := server.Options{
		Pipeline: pipeline.New(pipeline.Options{Dispatcher: d, Registerer: reg, Log: log}),
		Catalog: testkit.Models{
			"m": testkit.ByteModel("m"), "org/m": testkit.ByteModel("org/m"), "text": testkit.TextModel("text"), "cold": nil,
		},
		Registerer: reg, Gatherer: reg, Log: log,
	}
	if change != nil {
		change(&opts)
	}
	srv, err := server.New(opts)
	if err != nil {
		tb.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	s := &stack{
		Server: srv, URL: "http://" + ln.Addr().String(), Registry: reg,
		Client: testkit.Client(tb),
		served: make(chan error, 1),
	}
	go func() { s.served <- srv.Serve(context.Background(), listener{ln, &s.ended}) }()
	tb.Cleanup(func() {
		s.Client.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = srv.Shutdown(ctx)
		if err := <-s.served; err != nil {
			tb.Errorf("Serve: %v", err)
		}
	})
	return s
}

// listener notes whose connections the server has closed. Clients notice late, or never, when they are busy writing.
type listener struct {
	net.Listener
	ended *sync.Map
}

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return accepted{c.(*net.TCPConn), l.ended}, nil
}

type accepted struct {
	*net.TCPConn
	ended *sync.Map
}

func (c accepted) Close() error {
	defer c.ended.Store(c.RemoteAddr().String(), true)
	return c.TCPConn.Close()
}

// hasClosed reports whether the server has closed a client's connection.
func (s *stack) hasClosed(c net.Conn) bool {
	_, ok := s.ended.Load(c.LocalAddr().String())
	return ok
}

// do sends one request and reads the whole answer.
func (s *stack) do(tb testing.TB, method, path, body string, headers ...string) (*http.Response, string) {
	tb.Helper()
	req, err := http.NewRequestWithContext(tb.Context(), method, s.URL+path, strings.NewReader(body))
	if err != nil {
		tb.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := s.Client.Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		tb.Fatal(err)
	}
	return res, string(b)
}

// metric returns the value of one series as /metrics writes it; empty without it.
func (s *stack) metric(tb testing.TB, series string) string {
	tb.Helper()
	_, body := s.do(tb, http.MethodGet, "/metrics", "")
	for line := range strings.Lines(body) {
		if v, ok := strings.CutPrefix(line, series+" "); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// eventually waits for a condition that another goroutine brings about.
func eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if ok() {
			return
		}
	}
	tb.Fatalf("not in time: %s", what)
}

const (
	chatBody   = `{"model":"m","messages":[{"role":"user","content":"hi"}]}`
	chatStream = `{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}`
)

var hello = testkit.Items(`[{"token_ids":[72,101]},{"token_ids":[108,108,111],"finish_reason":"stop"}]`)

func events(tb testing.TB, body string) []testkit.Event {
	tb.Helper()
	ev, err := testkit.Events([]byte(body))
	if err != nil {
		tb.Fatal(err)
	}
	return ev
}
