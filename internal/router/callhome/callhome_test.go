package callhome_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/router/callhome"
	"github.com/portico-llm/portico/internal/testkit"
)

const patience = 5 * time.Second

func listen(t *testing.T, opts callhome.Options) *callhome.Listener {
	t.Helper()
	testkit.NoLeaks(t)
	if opts.Host == "" {
		opts.Host = "127.0.0.1"
	}
	opts.Log = slog.New(slog.DiscardHandler)
	l, err := callhome.Listen(opts)
	if err != nil {
		t.Fatal(err)
	}
	g := lifecycle.New(t.Context())
	g.Go("run", l.Run)
	t.Cleanup(func() {
		if err := g.Stop(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// peer is the worker's end of a connection.
type peer struct {
	t *testing.T
	*net.TCPConn
}

func dial(t *testing.T, l *callhome.Listener) peer {
	t.Helper()
	c, err := net.Dial("tcp", l.Address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	return peer{t, c.(*net.TCPConn)}
}

func (p peer) send(b ...[]byte) peer {
	p.t.Helper()
	all := bytes.Join(b, nil)
	if len(all) == 0 {
		return p
	}
	if _, err := p.Write(all); err != nil {
		p.t.Errorf("worker writes: %v", err)
	}
	return p
}

// heard reads what the frontend says until it closes.
func (p peer) heard() string {
	p.t.Helper()
	b, err := io.ReadAll(p)
	if err != nil && len(b) == 0 && !isReset(err) {
		p.t.Errorf("worker reads: %v", err)
	}
	return string(b)
}

func isReset(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && !op.Timeout()
}

func call(s *callhome.Stream) []byte {
	return worker.AppendHandshake(nil, s.Subject(), worker.StreamResponse)
}

func data(bodies ...string) (b []byte) {
	for _, body := range bodies {
		b = worker.AppendFrame(b, nil, []byte(body))
	}
	return b
}

var (
	begun    = worker.AppendPrologue(nil, nil)
	sentinel = worker.AppendSignal(nil, worker.SignalSentinel)
	cancel   = string(worker.AppendSignal(worker.AppendSignal(nil, worker.SignalStop), worker.SignalKill))
)

// final is the body that these tests take as the end mark.
const final = "END"

type read struct {
	Body string
	More bool
}

func drainStream(s *callhome.Stream) (got []read, err error) {
	err = s.Each(0, func(body []byte, more bool) (bool, error) {
		if string(body) == final {
			return true, nil
		}
		got = append(got, read{string(body), more})
		return false, nil
	})
	return got, err
}

func begin(ctx context.Context, t *testing.T, l *callhome.Listener, rest ...[]byte) (*callhome.Stream, peer) {
	t.Helper()
	s := new(callhome.Stream)
	l.Expect(s)
	t.Cleanup(s.Close)
	p := dial(t, l).send(call(s), begun, bytes.Join(rest, nil))
	if typed, err := s.Await(ctx, patience); typed != nil || err != nil {
		t.Fatalf("await: %v, %v", typed, err)
	}
	return s, p
}

func TestWholeAnswer(t *testing.T) {
	l := listen(t, callhome.Options{})
	s, p := begin(t.Context(), t, l, data("a", "b", final), sentinel)
	got, err := drainStream(s)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]read{{"a", true}, {"b", true}}, got); diff != "" {
		t.Errorf("items:\n%s", diff)
	}
	s.Close()
	s.Close()
	if said := p.heard(); said != "" {
		t.Errorf("worker was told %q", said)
	}
	if again, err := drainStream(s); again != nil || err != nil {
		t.Errorf("after its end the stream has %v, %v", again, err)
	}
}

// Every split of the bytes over packets gives the same items.
func TestSplits(t *testing.T) {
	l := listen(t, callhome.Options{})
	answer := bytes.Join([][]byte{begun, data("one", "two", final), sentinel}, nil)
	for cut := range len(answer) + 1 {
		s := new(callhome.Stream)
		l.Expect(s)
		p := dial(t, l)
		p.send(call(s), answer[:cut])
		sent := make(chan struct{})
		g := lifecycle.New(t.Context())
		g.Go("worker", func(context.Context) error {
			defer close(sent)
			time.Sleep(time.Duration(cut%3) * time.Millisecond)
			p.send(answer[cut:])
			return nil
		})
		if typed, err := s.Await(t.Context(), patience); typed != nil || err != nil {
			t.Fatalf("cut %d: %v, %v", cut, typed, err)
		}
		got, err := drainStream(s)
		if err != nil || len(got) != 2 || got[0].Body != "one" || got[1].Body != "two" {
			t.Fatalf("cut %d: %v, %v", cut, got, err)
		}
		s.Close()
		<-sent
		if said := p.heard(); said != "" {
			t.Fatalf("cut %d: worker was told %q", cut, said)
		}
		g.Stop()
	}
}

// The end mark ends the stream; the sentinel may come later and must not be met by a reset.
func TestLateSentinel(t *testing.T) {
	l := listen(t, callhome.Options{})
	s, p := begin(t.Context(), t, l, data(final))
	if _, err := drainStream(s); err != nil {
		t.Fatal(err)
	}
	s.Close()
	time.Sleep(20 * time.Millisecond)
	p.send(sentinel)
	if b, err := io.ReadAll(p); err != nil || len(b) > 0 {
		t.Errorf("worker heard %q, %v", b, err)
	}
}

// TestBrokenAnswers tells answers that stop too early, which are a lost worker's and may be tried elsewhere, from those
// that break the protocol.
func TestBrokenAnswers(t *testing.T) {
	lost := fault.Error{Kind: fault.Unavailable, Origin: fault.FromTransport}
	broken := fault.Error{Kind: fault.BadGateway, Origin: fault.FromWorker}
	for name, tc := range map[string]struct {
		answer []byte
		want   fault.Error
	}{
		"nothing":                {nil, lost},
		"some items":             {data("a", "b"), lost},
		"cut inside a frame":     {data("a", "bcd")[:50], lost},
		"sentinel alone":         {sentinel, lost},
		"sentinel after an item": {bytes.Join([][]byte{data("a"), sentinel}, nil), lost},
		"data after the end":     {data("a", final, "b"), broken},
		"stop from a worker":     {worker.AppendSignal(nil, worker.SignalStop), broken},
		"kill from a worker":     {worker.AppendSignal(nil, worker.SignalKill), broken},
		"unknown control":        {worker.AppendFrame(nil, []byte(`{"x":1}`), nil), broken},
		"header with data":       {worker.AppendFrame(nil, []byte(`{}`), []byte("a")), broken},
		"empty frame":            {worker.AppendFrame(nil, nil, nil), broken},
		"too large":              {[]byte("\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\x00\x00\x00\x00\x00\x00\x00\x00"), broken},
		"no frames":              {[]byte("HTTP/1.1 400 Bad Request\r\n\r\n"), broken},
	} {
		t.Run(name, func(t *testing.T) {
			l := listen(t, callhome.Options{})
			s, p := begin(t.Context(), t, l, tc.answer)
			p.CloseWrite()
			_, err := drainStream(s)
			f, ok := errors.AsType[*fault.Error](err)
			if !ok || f.Kind != tc.want.Kind || f.Origin != tc.want.Origin {
				t.Errorf("error %#v", err)
			}
			s.Close()
		})
	}
}

// A worker that dies together with its last data leaves no edge behind for the poller: the stream must notice anyway.
func TestEndComesWithData(t *testing.T) {
	l := listen(t, callhome.Options{})
	for range 4 {
		s, p := begin(t.Context(), t, l)
		seen := false
		g := lifecycle.New(t.Context())
		ready := make(chan struct{})
		g.Go("worker", func(context.Context) error {
			<-ready
			p.Write(data("a"))
			p.SetLinger(0)
			return p.CloseWrite()
		})
		start := time.Now()
		close(ready)
		err := s.Each(0, func([]byte, bool) (bool, error) {
			seen = true
			time.Sleep(time.Millisecond) // the end arrives while the item is handled
			return false, nil
		})
		if fault.KindOf(err) != fault.Unavailable || !seen {
			t.Fatalf("seen %v, %v", seen, err)
		}
		if took := time.Since(start); took > 2*time.Second {
			t.Fatalf("noticed after %v", took)
		}
		s.Close()
		g.Stop()
	}
}

func TestPrologueErrors(t *testing.T) {
	l := listen(t, callhome.Options{})
	s := new(callhome.Stream)
	l.Expect(s)
	defer s.Close()
	want := &worker.Error{Class: "InvalidRequest", Reason: "request.invalid", Message: "no"}
	p := dial(t, l).send(call(s), worker.AppendPrologue(nil, want))
	typed, err := s.Await(t.Context(), patience)
	if err != nil || cmp.Diff(want, typed) != "" {
		t.Fatalf("%v, %v", typed, err)
	}
	s.Close()
	p.CloseWrite()
	if said := p.heard(); said != "" {
		t.Errorf("a worker that had ended was told %q", said)
	}
	// Whatever comes in place of a prologue is a broken protocol.
	for name, first := range map[string][]byte{
		"data": data("a"), "nonsense": worker.AppendFrame(nil, []byte(`{"a":1}`), nil), "sentinel": sentinel,
	} {
		s := new(callhome.Stream)
		l.Expect(s)
		dial(t, l).send(call(s), first)
		if _, err := s.Await(t.Context(), patience); fault.KindOf(err) != fault.BadGateway {
			t.Errorf("%s: %v", name, err)
		}
		s.Close()
	}
}

func TestAwaitFails(t *testing.T) {
	l := listen(t, callhome.Options{})
	t.Run("nobody calls", func(t *testing.T) {
		s := new(callhome.Stream)
		l.Expect(s)
		_, err := s.Await(t.Context(), 30*time.Millisecond)
		if f, ok := errors.AsType[*fault.Error](err); !ok || f.Kind != fault.Timeout || f.Origin != fault.FromWorker || !errors.Is(err, callhome.ErrSilent) {
			t.Errorf("%v", err)
		}
		// A worker that calls after all is told to drop the request.
		late := dial(t, l).send(call(s))
		s.Close()
		if said := late.heard(); said != cancel {
			t.Errorf("late worker heard %q", said)
		}
	})
	t.Run("late call after close", func(t *testing.T) {
		s := new(callhome.Stream)
		l.Expect(s)
		s.Close()
		if said := dial(t, l).send(call(s)).heard(); said != cancel {
			t.Errorf("late worker heard %q", said)
		}
	})
	t.Run("no prologue", func(t *testing.T) {
		s := new(callhome.Stream)
		l.Expect(s)
		defer s.Close()
		p := dial(t, l).send(call(s))
		if _, err := s.Await(t.Context(), 50*time.Millisecond); fault.KindOf(err) != fault.Timeout {
			t.Errorf("%v", err)
		}
		s.Close()
		if said := p.heard(); said != cancel {
			t.Errorf("worker heard %q", said)
		}
	})
	t.Run("failed from outside", func(t *testing.T) {
		s := new(callhome.Stream)
		l.Expect(s)
		defer s.Close()
		why := errors.New("gone")
		s.Fail(why)
		s.Fail(errors.New("too late"))
		if _, err := s.Await(t.Context(), patience); !errors.Is(err, why) {
			t.Errorf("%v", err)
		}
	})
	t.Run("worker lost", func(t *testing.T) {
		s := new(callhome.Stream)
		l.Expect(s)
		lost := make(chan struct{})
		s.Watch(lost)
		time.AfterFunc(20*time.Millisecond, func() { close(lost) })
		if _, err := s.Await(t.Context(), patience); fault.From(err).Origin != fault.FromTransport {
			t.Errorf("%v", err)
		}
		s.Close()
		// It was there after all.
		if said := dial(t, l).send(call(s)).heard(); said != cancel {
			t.Errorf("late worker heard %q", said)
		}
	})
	t.Run("worker lost after its call", func(t *testing.T) {
		// More than once, as either could be seen first.
		for range 20 {
			s := new(callhome.Stream)
			l.Expect(s)
			why := errors.New("first")
			s.Fail(why)
			lost := make(chan struct{})
			close(lost)
			s.Watch(lost)
			if _, err := s.Await(t.Context(), patience); !errors.Is(err, why) {
				t.Errorf("%v", err)
			}
			s.Close()
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		s := new(callhome.Stream)
		l.Expect(s)
		defer s.Close()
		ctx, stop := context.WithCancel(t.Context())
		stop()
		if _, err := s.Await(ctx, patience); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	})
	t.Run("worker hangs up", func(t *testing.T) {
		s := new(callhome.Stream)
		l.Expect(s)
		defer s.Close()
		dial(t, l).send(call(s)).Close()
		if _, err := s.Await(t.Context(), patience); fault.From(err).Origin != fault.FromTransport {
			t.Errorf("%v", err)
		}
	})
}

// However a stream ends early, the worker is told once, and soon.
func TestCancel(t *testing.T) {
	l := listen(t, callhome.Options{})
	told := func(t *testing.T, p peer, since time.Time) {
		t.Helper()
		buf := make([]byte, len(cancel))
		if _, err := io.ReadFull(p, buf); err != nil || string(buf) != cancel {
			t.Errorf("worker heard %q, %v", buf, err)
		}
		if took := time.Since(since); took > time.Second {
			t.Errorf("told after %v", took)
		}
	}
	check := func(t *testing.T, p peer, since time.Time) {
		t.Helper()
		told(t, p, since)
		p.CloseWrite()
		if said := p.heard(); said != "" {
			t.Errorf("worker was told more: %q", said)
		}
	}
	t.Run("idle", func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		s, p := begin(ctx, t, l)
		g := lifecycle.New(t.Context())
		var left time.Time
		g.Go("client", func(context.Context) error {
			time.Sleep(30 * time.Millisecond)
			left = time.Now()
			stop()
			return nil
		})
		if _, err := drainStream(s); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		g.Wait()
		s.Close()
		check(t, p, left)
	})
	t.Run("while the client is slow", func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		s, p := begin(ctx, t, l, data("a", "b"))
		calls := 0
		err := s.Each(0, func([]byte, bool) (bool, error) {
			calls++
			stop()
			told(t, p, time.Now()) // although this call hasn't returned
			return false, nil
		})
		if !errors.Is(err, context.Canceled) || calls != 1 {
			t.Errorf("%d calls, %v", calls, err)
		}
		s.Close()
		p.CloseWrite()
		if said := p.heard(); said != "" {
			t.Errorf("worker was told more: %q", said)
		}
	})
	t.Run("by the reader", func(t *testing.T) {
		s, p := begin(t.Context(), t, l, data("a"))
		enough := errors.New("enough")
		if err := s.Each(0, func([]byte, bool) (bool, error) { return false, enough }); !errors.Is(err, enough) {
			t.Errorf("%v", err)
		}
		s.Close()
		check(t, p, time.Now())
	})
	t.Run("unread", func(t *testing.T) {
		s, p := begin(t.Context(), t, l, data("a"))
		s.Close()
		check(t, p, time.Now())
	})
	t.Run("after the end", func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		s, p := begin(ctx, t, l, data(final), sentinel)
		if _, err := drainStream(s); err != nil {
			t.Fatal(err)
		}
		stop()
		s.Close()
		if said := p.heard(); said != "" {
			t.Errorf("worker was told %q", said)
		}
	})
}

func TestIdleTimeout(t *testing.T) {
	l := listen(t, callhome.Options{})
	s, p := begin(t.Context(), t, l)
	g := lifecycle.New(t.Context())
	g.Go("worker", func(context.Context) error {
		for range 4 {
			time.Sleep(60 * time.Millisecond)
			p.send(data("a"))
		}
		return nil
	})
	items := 0
	start := time.Now()
	err := s.Each(150*time.Millisecond, func([]byte, bool) (bool, error) { items++; return false, nil })
	f := fault.From(err)
	if f.Kind != fault.Timeout || f.Origin != fault.FromTransport || items != 4 {
		t.Errorf("%d items, %v", items, err)
	}
	if took := time.Since(start); took < 380*time.Millisecond || took > 2*time.Second {
		t.Errorf("ended after %v", took)
	}
	s.Close()
	g.Stop()
}

func TestLargeFrames(t *testing.T) {
	l := listen(t, callhome.Options{})
	s, p := begin(t.Context(), t, l)
	var want []string
	for _, n := range []int{100, 16<<10 - worker.FrameHead, 16 << 10, 40000, 5 << 20, 10} {
		want = append(want, string(bytes.Repeat([]byte{byte('a' + len(want))}, n)))
	}
	g := lifecycle.New(t.Context())
	g.Go("worker", func(context.Context) error {
		p.send(data(want...), data(final), sentinel)
		return nil
	})
	got, err := drainStream(s)
	if err != nil || len(got) != len(want) {
		t.Fatalf("%d items, %v", len(got), err)
	}
	for i := range want {
		if got[i].Body != want[i] {
			t.Errorf("item %d of %d bytes differs", i, len(want[i]))
		}
	}
	g.Stop()
	s.Close()
}

// A caller that doesn't read makes its own worker wait.
func TestBackpressure(t *testing.T) {
	l := listen(t, callhome.Options{})
	s, p := begin(t.Context(), t, l)
	chunk := data(string(bytes.Repeat([]byte("x"), 64<<10)))
	p.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
	sent := 0
	for sent < 64<<20 {
		n, err := p.Write(chunk)
		sent += n
		if err != nil {
			break
		}
	}
	if sent >= 64<<20 {
		t.Error("64 MiB went to a stream that nobody reads")
	}
	s.Close()
}

// TestRefusals connects with everything but a handshake that is waited for. All peers are closed, for three reasons: an
// unknown subject, a malformed handshake, none in time. Whoever names a stream is told to stop.
func TestRefusals(t *testing.T) {
	reg := prometheus.NewRegistry()
	l := listen(t, callhome.Options{HandshakeTimeout: 200 * time.Millisecond, Registerer: reg})
	handshake := func(subject, kind string) []byte { return worker.AppendHandshake(nil, subject, kind) }
	s := new(callhome.Stream)
	l.Expect(s)
	for name, hello := range map[string][]byte{
		"unknown subject": handshake("b138ce59-5f97-4342-96e0-2b113f24c71b", worker.StreamResponse),
		"not a subject":   handshake("x", worker.StreamResponse),
		"request stream":  handshake(s.Subject(), worker.StreamRequest),
		"with data":       worker.AppendFrame(nil, []byte(`{}`), []byte("x")),
		"not a frame":     []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		"half a frame":    handshake("x", "y")[:30],
		"silence":         nil,
	} {
		p := dial(t, l)
		p.send(hello)
		want := ""
		if name == "unknown subject" { // a request of long ago, or of somebody else: its worker had better stop
			want = cancel
		}
		if said := p.heard(); said != want {
			t.Errorf("%s: heard %q", name, said)
		}
	}
	// The stream is still there for its own worker.
	dial(t, l).send(call(s), begun, data(final), sentinel)
	if _, err := s.Await(t.Context(), patience); err != nil {
		t.Error(err)
	}
	s.Close()
	if n := testutil.CollectAndCount(reg, "portico_callhome_refused_total"); n != 3 {
		t.Errorf("%d reasons for refusals", n)
	}
}

// Peers that say nothing must not hold up those that do.
func TestSilentPeersHoldUpNobody(t *testing.T) {
	l := listen(t, callhome.Options{HandshakeTimeout: 3 * time.Second})
	for i := range 50 {
		p := dial(t, l)
		if i%2 == 0 {
			p.send([]byte{0})
		}
	}
	start := time.Now()
	s, _ := begin(t.Context(), t, l, data(final), sentinel)
	if _, err := drainStream(s); err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took > time.Second {
		t.Errorf("took %v behind silent peers", took)
	}
	s.Close()
}

// TestListenHosts has the forms of a host that can be listened on. What is advertised is an address in every case.
func TestListenHosts(t *testing.T) {
	for host, ok := range map[string]bool{
		"": true, "127.0.0.1": true, "::1": true, "0.0.0.0": true, "*": true, "lo": true, "no-such-interface": false,
	} {
		l, err := callhome.Listen(callhome.Options{Host: host})
		if (err == nil) != ok {
			t.Errorf("host %q: %v", host, err)
		}
		if err != nil {
			continue
		}
		at, _, err := net.SplitHostPort(l.Address())
		if ip := net.ParseIP(at); err != nil || ip == nil || ip.IsUnspecified() {
			t.Errorf("host %q advertises %q", host, l.Address())
		}
		l.Close()
	}
	l, err := callhome.Listen(callhome.Options{Host: "127.0.0.1", AdvertiseHost: "frontend.example"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if host, _, _ := net.SplitHostPort(l.Address()); host != "frontend.example" {
		t.Errorf("advertises %q", l.Address())
	}
}

// A worker that obeys closes at once. Its stream ends as cancelled, not as lost, whichever is noticed first.
func TestCancelRacesWithClose(t *testing.T) {
	l := listen(t, callhome.Options{})
	for range 200 {
		ctx, stop := context.WithCancel(t.Context())
		s, p := begin(ctx, t, l)
		g := lifecycle.New(t.Context())
		g.Go("worker", func(context.Context) error {
			p.Read(make([]byte, 1))
			p.Close()
			return nil
		})
		g.Go("client", func(context.Context) error { stop(); return nil })
		if _, err := drainStream(s); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		s.Close()
		g.Stop()
	}
}

// A stream that waits costs little: neither a goroutine nor a buffer of its own.
func TestIdleStreamMemory(t *testing.T) {
	const streams = 500
	l := listen(t, callhome.Options{})
	var before, after runtime.MemStats
	var open []*callhome.Stream
	start := func() {
		s, _ := begin(t.Context(), t, l)
		open = append(open, s)
	}
	start()
	runtime.GC()
	runtime.ReadMemStats(&before)
	for len(open) < streams {
		start()
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	per := (int64(after.HeapAlloc+after.StackInuse) - int64(before.HeapAlloc+before.StackInuse)) / streams
	t.Logf("%d bytes for an idle stream, with the worker's end of its connection", per)
	if per > 8<<10 {
		t.Errorf("%d bytes for an idle stream", per)
	}
	for _, s := range open {
		s.Close()
	}
}

// TestIdleTimeoutWaitsForTheUser checks that the time a stream's user takes isn't held against the worker, whether the
// items in question had come with the one before or come meanwhile.
func TestIdleTimeoutWaitsForTheUser(t *testing.T) {
	for _, at := range []int{1, 2} {
		l := listen(t, callhome.Options{})
		s, p := begin(t.Context(), t, l)
		p.send(data("a"))
		items := 0
		err := s.Each(100*time.Millisecond, func(body []byte, _ bool) (bool, error) {
			items++
			if items == at {
				time.Sleep(250 * time.Millisecond)
			}
			if items == 1 {
				p.send(data("b"))
			}
			if items == 2 {
				p.send(data(final), sentinel)
			}
			return string(body) == final, nil
		})
		if err != nil || items != 3 {
			t.Errorf("slow at item %d: %d items, %v", at, items, err)
		}
		s.Close()
	}
}
