package nats_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/plane/nats"
	"github.com/portico-llm/portico/internal/testkit"
)

func startServer(t *testing.T, opts server.Options) *server.Server {
	t.Helper()
	opts.Host, opts.NoSigs, opts.NoLog = "127.0.0.1", true, true
	if opts.Port == 0 {
		opts.Port = server.RANDOM_PORT
	}
	s, err := server.NewServer(&opts)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(5 * time.Second) {
		t.Fatal("NATS server isn't ready")
	}
	t.Cleanup(func() { stopServer(s) })
	return s
}

func stopServer(s *server.Server) { s.Shutdown(); s.WaitForShutdown() }

func port(t *testing.T, s *server.Server) int {
	t.Helper()
	var n int
	for _, c := range s.ClientURL()[strings.LastIndexByte(s.ClientURL(), ':')+1:] {
		n = n*10 + int(c-'0')
	}
	return n
}

func newPlane(t *testing.T, opts nats.Options) *nats.Plane {
	t.Helper()
	opts.Log = slog.New(slog.DiscardHandler)
	p, err := nats.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

const subject = "ns_c.e-ff"

func message(envelope []byte) *router.Message {
	return &router.Message{
		Instance:  &worker.Instance{Transport: worker.Transport{NATS: subject}},
		RequestID: "id", Envelope: envelope, Traceparent: "00-a-b-01", Tracestate: "s", XRequestID: "x",
	}
}

// serve answers requests as a worker does; nil: not at all.
func serve(t *testing.T, url string, answer func(*natsgo.Msg) []byte) {
	t.Helper()
	nc, err := natsgo.Connect(url, natsgo.MaxReconnects(-1), natsgo.ReconnectWait(20*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	closed := nc.StatusChanged(natsgo.CLOSED)
	t.Cleanup(func() { nc.Close(); <-closed })
	if _, err := nc.QueueSubscribe(subject, "q", func(m *natsgo.Msg) {
		if b := answer(m); b != nil {
			m.Respond(b)
		}
	}); err != nil {
		t.Fatal(err)
	}
	nc.Flush()
}

func accept(*natsgo.Msg) []byte { return []byte{} }

func TestDeliver(t *testing.T) {
	testkit.NoLeaks(t)
	s := startServer(t, server.Options{})
	got := make(chan *natsgo.Msg, 1)
	serve(t, s.ClientURL(), func(m *natsgo.Msg) []byte { got <- m; return []byte{} })
	p := newPlane(t, nats.Options{URL: s.ClientURL()})
	if p.Connected() {
		t.Error("connected before its first use")
	}
	envelope := bytes.Repeat([]byte{7}, 100000)
	if err := testkit.Deliver(t.Context(), p, message(envelope)); err != nil {
		t.Fatal(err)
	}
	m := <-got
	if !bytes.Equal(m.Data, envelope) {
		t.Errorf("%d bytes arrived", len(m.Data))
	}
	for name, want := range map[string]string{"request-id": "id", "traceparent": "00-a-b-01", "tracestate": "s", "x-request-id": "x"} {
		if v := m.Header[name]; len(v) != 1 || v[0] != want {
			t.Errorf("header %s is %q", name, v)
		}
	}
	if len(m.Header["x-frontend-send-ts-ns"]) != 1 {
		t.Errorf("headers %v", m.Header)
	}
	if !p.Connected() {
		t.Error("not connected after use")
	}
}

func TestManyAtOnce(t *testing.T) {
	testkit.NoLeaks(t)
	s := startServer(t, server.Options{})
	serve(t, s.ClientURL(), func(m *natsgo.Msg) []byte {
		if m.Data[0]%2 == 1 {
			return []byte("Server overloaded: worker at capacity")
		}
		return []byte{}
	})
	p := newPlane(t, nats.Options{URL: s.ClientURL()})
	g := lifecycle.New(t.Context())
	for i := range 300 {
		g.Go("client", func(ctx context.Context) error {
			err := testkit.Deliver(ctx, p, message([]byte{byte(i)}))
			if i%2 == 0 && err != nil || i%2 == 1 && fault.KindOf(err) != fault.Overloaded {
				t.Errorf("request %d: %v", i, err)
			}
			return nil
		})
	}
	g.Wait()
}

func TestFailures(t *testing.T) {
	testkit.NoLeaks(t)
	s := startServer(t, server.Options{MaxPayload: 100000})
	p := newPlane(t, nats.Options{URL: s.ClientURL(), RequestTimeout: 100 * time.Millisecond})
	lost := func(name string, err error, within time.Duration, start time.Time) {
		t.Helper()
		f, ok := errors.AsType[*fault.Error](err)
		if !ok || f.Kind != fault.Unavailable || f.Origin != fault.FromTransport {
			t.Errorf("%s: %v", name, err)
		}
		if took := time.Since(start); took > within {
			t.Errorf("%s after %v", name, took)
		}
	}
	if err := p.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	lost("no responders", testkit.Deliver(t.Context(), p, message(nil)), 90*time.Millisecond, start)

	var delivered atomic.Int32
	serve(t, s.ClientURL(), func(m *natsgo.Msg) []byte {
		delivered.Add(1)
		if len(m.Data) == 1 {
			return []byte("Server unavailable: unknown endpoint")
		}
		return nil
	})
	start = time.Now()
	lost("no answer", testkit.Deliver(t.Context(), p, message(nil)), time.Second, start)
	lost("refused", testkit.Deliver(t.Context(), p, message([]byte{1})), time.Second, time.Now())
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer stop()
	if err := testkit.Deliver(ctx, p, message(nil)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("cancelled: %v", err)
	}

	before := delivered.Load()
	for _, size := range []int{100001, 99950} { // the second only together with its headers
		f := fault.From(testkit.Deliver(t.Context(), p, message(make([]byte, size))))
		if f == nil || f.Kind != fault.TooLarge || f.Details["limit"] != int64(100000) ||
			!strings.Contains(f.Message, "at most 100000 bytes") {
			t.Errorf("%d bytes: %v", size, f)
		}
	}
	if delivered.Load() != before || !p.Connected() {
		t.Error("a message that is too large was sent")
	}
}

// While the server is away requests fail at once; when it is back they pass.
func TestServerAway(t *testing.T) {
	testkit.NoLeaks(t)
	s := startServer(t, server.Options{})
	url, at := s.ClientURL(), port(t, s)
	got := make(chan struct{}, 10)
	var back atomic.Bool
	serve(t, url, func(m *natsgo.Msg) []byte {
		if back.Load() {
			return []byte{}
		}
		got <- struct{}{}
		return nil
	})
	p := newPlane(t, nats.Options{URL: url, DownWait: 50 * time.Millisecond})
	g := lifecycle.New(t.Context())
	g.Go("client", func(ctx context.Context) error {
		if f := fault.From(testkit.Deliver(ctx, p, message(nil))); f == nil || f.Origin != fault.FromTransport || !errors.Is(f, router.ErrPlaneDown) {
			t.Errorf("outstanding: %v", f)
		}
		return nil
	})
	<-got
	start := time.Now()
	stopServer(s)
	g.Wait()
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("outstanding request failed after %v", took)
	}
	start = time.Now()
	if f := fault.From(testkit.Deliver(t.Context(), p, message(nil))); f == nil || f.Origin != fault.FromTransport || !errors.Is(f, router.ErrPlaneDown) {
		t.Errorf("away: %v", f)
	}
	if took := time.Since(start); took > time.Second {
		t.Errorf("failed after %v", took)
	}
	back.Store(true)
	startServer(t, server.Options{Port: at})
	deadline := time.Now().Add(5 * time.Second)
	for {
		err := testkit.Deliver(t.Context(), p, message(nil))
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("still away: %v", err)
		}
	}
}

// Workers may find a server that is back later than the plane does: for a while nothing is said of those that aren't there.
func TestWorkersComeBackLater(t *testing.T) {
	testkit.NoLeaks(t)
	s := startServer(t, server.Options{})
	at := port(t, s)
	p := newPlane(t, nats.Options{URL: s.ClientURL(), ReturnTime: time.Second})
	deliver := func() *fault.Error { return fault.From(testkit.Deliver(t.Context(), p, message(nil))) }
	lost := func(f *fault.Error) bool {
		return errors.Is(f, natsgo.ErrNoResponders) && !errors.Is(f, router.ErrPlaneDown)
	}
	if f := deliver(); !lost(f) {
		t.Errorf("at first: %v", f)
	}
	stopServer(s)
	began := time.Now()
	startServer(t, server.Options{Port: at})
	for away := began; ; away = time.Now() { // the server may be back since then
		f := deliver()
		if time.Since(began) > 10*time.Second {
			t.Fatalf("the server isn't found: %v", f)
		}
		if !errors.Is(f, natsgo.ErrNoResponders) {
			continue
		}
		if lost(f) && time.Since(away) < time.Second {
			t.Error("a worker that has had no time to come back counts as lost")
		}
		break
	}
	for f := deliver(); !lost(f); f = deliver() {
		if time.Since(began) > 20*time.Second {
			t.Fatalf("never lost: %v", f)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// A server that starts after us is found.
func TestServerStartsLater(t *testing.T) {
	testkit.NoLeaks(t)
	s := startServer(t, server.Options{})
	url, at := s.ClientURL(), port(t, s)
	stopServer(s)
	p := newPlane(t, nats.Options{URL: url, DownWait: 3 * time.Second})
	start := time.Now()
	ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	if err := testkit.Deliver(ctx, p, message(nil)); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > time.Second {
		t.Errorf("%v", err)
	}
	startServer(t, server.Options{Port: at})
	serve(t, url, accept)
	if err := testkit.Deliver(t.Context(), p, message(nil)); err != nil {
		t.Errorf("a server that came within the wait: %v", err)
	}
}

// TestAwait: the wait for the first connection ends with its context, and with a server that comes meanwhile.
func TestAwait(t *testing.T) {
	testkit.NoLeaks(t)
	s := startServer(t, server.Options{})
	url, at := s.ClientURL(), port(t, s)
	stopServer(s)
	p := newPlane(t, nats.Options{URL: url})
	ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	if err := p.Await(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no server: %v", err)
	}
	startServer(t, server.Options{Port: at})
	ctx, stop = context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	if err := p.Await(ctx); err != nil || !p.Connected() {
		t.Errorf("a server that came: %v", err)
	}
}

func TestAuth(t *testing.T) {
	testkit.NoLeaks(t)
	s := startServer(t, server.Options{Username: "user", Password: "user"})
	defaults := newPlane(t, nats.Options{URL: s.ClientURL(), DownWait: 50 * time.Millisecond})
	if err := testkit.Deliver(t.Context(), defaults, message(nil)); !errors.Is(err, natsgo.ErrNoResponders) {
		t.Errorf("default user: %v", err)
	}
	wrong := newPlane(t, nats.Options{URL: s.ClientURL(), Username: "a", Password: "b", DownWait: 50 * time.Millisecond})
	if f := fault.From(testkit.Deliver(t.Context(), wrong, message(nil))); f == nil || f.Origin != fault.FromTransport || wrong.Connected() {
		t.Errorf("wrong user: %v", f)
	}
	s = startServer(t, server.Options{Authorization: "secret"})
	token := newPlane(t, nats.Options{URL: s.ClientURL(), Token: "secret"})
	if err := testkit.Deliver(t.Context(), token, message(nil)); !errors.Is(err, natsgo.ErrNoResponders) {
		t.Errorf("token: %v", err)
	}
	pair, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, _ := pair.PublicKey()
	seed, _ := pair.Seed()
	s = startServer(t, server.Options{Nkeys: []*server.NkeyUser{{Nkey: public}}})
	signed := newPlane(t, nats.Options{URL: s.ClientURL(), NKeySeed: string(seed)})
	if err := testkit.Deliver(t.Context(), signed, message(nil)); !errors.Is(err, natsgo.ErrNoResponders) {
		t.Errorf("nkey: %v", err)
	}
}

func TestOptions(t *testing.T) {
	for _, url := range []string{"http://x", "localhost:4222", "://", "nats://a,http://b"} {
		if _, err := nats.New(nats.Options{URL: url}); err == nil || !strings.Contains(err.Error(), "NATS server") {
			t.Errorf("%q: %v", url, err)
		}
	}
	if _, err := nats.New(nats.Options{NKeySeed: "not a seed"}); err == nil {
		t.Error("something that is no seed was taken for one")
	}
}

func TestSharedConnection(t *testing.T) {
	testkit.NoLeaks(t)
	s := startServer(t, server.Options{})
	serve(t, s.ClientURL(), accept)
	nc, err := natsgo.Connect(s.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	closed := nc.StatusChanged(natsgo.CLOSED)
	p, err := nats.New(nats.Options{Conn: nc})
	if err != nil {
		t.Fatal(err)
	}
	if err := testkit.Deliver(t.Context(), p, message(nil)); err != nil {
		t.Error(err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if !nc.IsConnected() {
		t.Error("the plane closed a connection that isn't its own")
	}
	if err := testkit.Deliver(t.Context(), p, message(nil)); !errors.Is(err, router.ErrPlaneDown) {
		t.Errorf("after close: %v", err) // nothing is sent, and no answer awaited
	}
	nc.Close()
	<-closed
}
