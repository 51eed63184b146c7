package dispatch_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/callhome"
	"github.com/portico-llm/portico/internal/router/dispatch"
	"github.com/portico-llm/portico/internal/router/plane/nats"
	"github.com/portico-llm/portico/internal/router/plane/tcp"
	"github.com/portico-llm/portico/internal/router/policy"
	"github.com/portico-llm/portico/internal/testkit"
)

var endpointID = worker.EndpointID{Namespace: "ns", Component: "c", Name: "e"}

// script is how a worker treats one request that it has accepted. It may close the connection or leave it open.
type script func(w *session)

// session is a worker's view of one request.
type session struct {
	tb      testing.TB
	control *worker.Control
	body    []byte

	mu   sync.Mutex
	over bool // guarded by mu: no new connection
	conn net.Conn
}

func (w *session) dial() {
	c, err := net.Dial("tcp", w.control.Conn.Address)
	if err != nil {
		return // the test is over
	}
	w.mu.Lock()
	if w.conn = c; w.over {
		c.Close()
	}
	w.mu.Unlock()
	w.write(worker.AppendHandshake(nil, w.control.Conn.Subject, worker.StreamResponse))
}

func (w *session) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	if w.conn != nil {
		w.conn.Close()
	}
}

func (w *session) write(b []byte) {
	if w.conn != nil {
		w.conn.Write(b)
	}
}

func (w *session) item(it *worker.Item) {
	b, err := worker.AppendItem(nil, w.control.Codec, it)
	if err != nil {
		w.tb.Error(err)
	}
	w.write(worker.AppendFrame(nil, nil, b))
}

func (w *session) tokens(ids ...uint32) {
	for _, id := range ids {
		w.item(&worker.Item{HasData: true, Output: worker.Output{TokenIDs: []uint32{id}}})
	}
}

func (w *session) end() {
	w.write(worker.AppendFrame(nil, nil, worker.AppendFinal(nil, w.control.Codec)))
	w.write(worker.AppendSignal(nil, worker.SignalSentinel))
	w.heard()
}

// heard returns what the frontend said until it closed.
func (w *session) heard() string {
	if w.conn == nil {
		return ""
	}
	w.conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	b, _ := io.ReadAll(w.conn)
	w.conn.Close()
	return string(b)
}

// answer is a worker that answers with some tokens.
func answer(ids ...uint32) script {
	return func(w *session) {
		w.dial()
		w.write(worker.AppendPrologue(nil, nil))
		w.tokens(ids...)
		w.end()
	}
}

// fleet is a discovery snapshot, a dispatcher, and workers.
type fleet struct {
	tb    testing.TB
	group *lifecycle.Group
	snap  atomic.Pointer[router.Snapshot]
	home  *callhome.Listener
	d     *dispatch.Dispatcher

	mu   sync.Mutex
	took []uint64 // ids of the instances that got a request
}

func newFleet(tb testing.TB, opts dispatch.Options) *fleet {
	tb.Helper()
	testkit.NoLeaks(tb)
	return makeFleet(tb, opts)
}

func makeFleet(tb testing.TB, opts dispatch.Options) *fleet {
	tb.Helper()
	f := &fleet{tb: tb, group: lifecycle.New(context.Background())}
	f.snap.Store(&router.Snapshot{})
	log := slog.New(slog.DiscardHandler)
	home, err := callhome.Listen(callhome.Options{Host: "127.0.0.1", Log: log})
	if err != nil {
		tb.Fatal(err)
	}
	f.home = home
	f.group.Go("callhome", home.Run)
	plane := tcp.New(tcp.Options{Log: log})
	opts.Snapshots, opts.CallHome, opts.TCP, opts.Log = f.snap.Load, home, plane, log
	if opts.Policy == nil {
		if opts.Policy, err = policy.New(policy.RoundRobin); err != nil {
			tb.Fatal(err)
		}
	}
	if opts.HandshakeTimeout == 0 {
		opts.HandshakeTimeout = 5 * time.Second
	}
	f.d = dispatch.New(opts)
	tb.Cleanup(func() {
		plane.Close()
		if n := f.d.InFlight(); n != 0 {
			tb.Errorf("%d requests still in flight", n)
		}
		if err := f.group.Stop(); err != nil {
			tb.Error(err)
		}
	})
	return f
}

// publish replaces the instances.
func (f *fleet) publish(list ...*worker.Instance) {
	slices.SortFunc(list, func(a, b *worker.Instance) int { return int(a.InstanceID) - int(b.InstanceID) })
	f.snap.Store(&router.Snapshot{
		Version: f.snap.Load().Version + 1, Instances: map[worker.EndpointID][]*worker.Instance{endpointID: list},
	})
}

func instance(id uint64) *worker.Instance {
	return &worker.Instance{
		Namespace: endpointID.Namespace, Component: endpointID.Component, Endpoint: endpointID.Name, InstanceID: id,
		CodecName: "msgpack",
	}
}

// worker starts a TCP worker. ack is its answer to every request: empty accepts it, and s plays.
func (f *fleet) worker(id uint64, ack string, s script) *worker.Instance {
	f.tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.tb.Fatal(err)
	}
	f.tb.Cleanup(func() { ln.Close() })
	f.group.Go("worker", func(ctx context.Context) error {
		for {
			c, err := ln.Accept()
			if err != nil {
				return nil
			}
			stop := context.AfterFunc(ctx, func() { c.Close() })
			f.group.Go("requests", func(context.Context) error {
				defer stop()
				defer c.Close()
				for {
					envelope, err := readEnvelope(c)
					if err != nil {
						return nil
					}
					f.note(id)
					c.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(ack))), ack...))
					if ack == "" {
						f.play(envelope, s)
					}
				}
			})
		}
	})
	in := instance(id)
	in.Transport.TCP = ln.Addr().String() + "/" + in.Path()
	return in
}

func (f *fleet) note(id uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.took = append(f.took, id)
}

func (f *fleet) asked() []uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.took)
}

func (f *fleet) play(envelope []byte, s script) {
	header, body, _, err := worker.ParseFrame(envelope)
	if err != nil {
		f.tb.Error(err)
		return
	}
	control, err := worker.ParseControl(header)
	if err != nil {
		f.tb.Error(err)
		return
	}
	w := &session{tb: f.tb, control: control, body: slices.Clone(body)}
	f.group.Go("session", func(ctx context.Context) error {
		stop := context.AfterFunc(ctx, w.close)
		defer stop()
		s(w)
		return nil
	})
}

func readEnvelope(r io.Reader) ([]byte, error) {
	var b []byte
	for _, width := range []int{2, 2, 4} {
		n := make([]byte, 4)
		if _, err := io.ReadFull(r, n[4-width:]); err != nil {
			return nil, err
		}
		b = make([]byte, binary.BigEndian.Uint32(n))
		if _, err := io.ReadFull(r, b); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// prompt is every call's. It isn't made anew: the benchmark counts allocations.
var prompt = []uint32{1, 2, 3}

func body(dst []byte, codec worker.Codec, to router.Target) ([]byte, error) {
	q := worker.Request{Model: "m", TokenIDs: prompt}
	q.Routing.DPRank = to.Rank
	return q.Append(dst, codec)
}

func newCall() *router.Call {
	return &router.Call{RequestID: "id", Endpoint: endpointID, TokenIDs: []uint32{1, 2, 3}, Body: body}
}

// collect reads a stream to its end.
func collect(s router.Stream) (ids []uint32, err error) {
	defer s.Close()
	err = s.Each(func(it *worker.Item, _ bool) error {
		ids = append(ids, it.Output.TokenIDs...)
		return nil
	})
	return ids, err
}

func (f *fleet) ask(call *router.Call) ([]uint32, error) {
	s, err := f.d.Dispatch(context.Background(), call)
	if err != nil {
		return nil, err
	}
	return collect(s)
}

func wantFault(t *testing.T, err error, kind fault.Kind, origin fault.Origin) *fault.Error {
	t.Helper()
	f, ok := errors.AsType[*fault.Error](err)
	if !ok {
		t.Fatalf("error %v", err)
	}
	if f.Kind != kind || f.Origin != origin {
		t.Errorf("%v of origin %d: %v", f.Kind, f.Origin, f)
	}
	return f
}

func TestDispatch(t *testing.T) {
	reg := prometheus.NewRegistry()
	f := newFleet(t, dispatch.Options{Registerer: reg})
	sessions := make(chan *session, 1)
	in := f.worker(1, "", func(w *session) { sessions <- w; answer(5, 6, 7)(w) })
	f.publish(in)
	call := newCall()
	call.Metadata = map[string]string{"k": "v"}
	s, err := f.d.Dispatch(t.Context(), call)
	if err != nil {
		t.Fatal(err)
	}
	if s.Instance().InstanceID != 1 || f.d.InFlight() != 1 {
		t.Errorf("instance %v, %d in flight", s.Instance(), f.d.InFlight())
	}
	ids, err := collect(s)
	if err != nil || !slices.Equal(ids, []uint32{5, 6, 7}) {
		t.Errorf("%v, %v", ids, err)
	}
	s.Close()
	got := <-sessions
	want := worker.Connection{
		Transport: worker.TransportTCP, Address: f.home.Address(), Subject: got.control.Conn.Subject, Context: "id",
		StreamType: worker.StreamResponse,
	}
	if diff := cmp.Diff(want, got.control.Conn); diff != "" {
		t.Errorf("connection:\n%s", diff)
	}
	q, err := worker.DecodeRequest(got.control.Codec, got.body)
	if err != nil || q.Model != "m" || got.control.Metadata["k"] != "v" || got.control.Codec != worker.Msgpack {
		t.Errorf("request %+v, %v, control %+v", q, err, got.control)
	}
	if n, err := testutil.GatherAndCount(reg, "dynamo_request_plane_roundtrip_ttft_seconds", "dynamo_request_plane_send_seconds"); n != 2 || err != nil {
		t.Errorf("%d metrics, %v", n, err)
	}
}

func TestRoundRobin(t *testing.T) {
	f := newFleet(t, dispatch.Options{})
	f.publish(f.worker(1, "", answer(1)), f.worker(2, "", answer(2)), f.worker(3, "", answer(3)))
	for range 6 {
		if _, err := f.ask(newCall()); err != nil {
			t.Fatal(err)
		}
	}
	if got := f.asked(); !slices.Equal(got, []uint64{1, 2, 3, 1, 2, 3}) {
		t.Errorf("order %v", got)
	}
	call := newCall()
	call.Serves = func(id uint64) bool { return id == 2 }
	for range 3 {
		if ids, err := f.ask(call); err != nil || ids[0] != 2 {
			t.Errorf("%v, %v", ids, err)
		}
	}
}

func TestLeastLoaded(t *testing.T) {
	least, err := policy.New(policy.LeastLoad)
	if err != nil {
		t.Fatal(err)
	}
	f := newFleet(t, dispatch.Options{Policy: least})
	f.publish(f.worker(1, "", answer(1)), f.worker(2, "", answer(2)))
	counts := map[uint64]int{}
	var open []router.Stream
	for range 10 {
		s, err := f.d.Dispatch(t.Context(), newCall())
		if err != nil {
			t.Fatal(err)
		}
		counts[s.Instance().InstanceID]++
		open = append(open, s)
	}
	if counts[1] != 5 || counts[2] != 5 {
		t.Errorf("spread %v", counts)
	}
	for _, s := range open {
		s.Close()
	}
}

func TestNobody(t *testing.T) {
	f := newFleet(t, dispatch.Options{})
	_, err := f.ask(newCall())
	if e := wantFault(t, err, fault.Unavailable, fault.FromRequest); strings.Contains(e.Message, endpointID.Namespace) ||
		!strings.Contains(e.Error(), endpointID.String()) {
		t.Errorf("clients are told %q, the log %q", e.Message, e)
	}
	f.publish()
	_, err = f.ask(newCall())
	wantFault(t, err, fault.Unavailable, fault.FromRequest)
	nats := instance(1)
	nats.Transport.NATS = "x" // no such plane here
	f.publish(nats)
	_, err = f.ask(newCall())
	wantFault(t, err, fault.Unavailable, fault.FromTransport)
}

// dead is an instance whose address nobody listens on.
func (f *fleet) dead(id uint64) *worker.Instance {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.tb.Fatal(err)
	}
	in := instance(id)
	in.Transport.TCP = ln.Addr().String() + "/x"
	ln.Close()
	return in
}

// TestRetry puts a good worker beside one that fails before it begins, in a way that says nothing of the request:
// clients notice nothing, whichever is asked first.
func TestRetry(t *testing.T) {
	for name, bad := range map[string]func(*fleet) *worker.Instance{
		"unreachable": func(f *fleet) *worker.Instance { return f.dead(1) },
		"unknown":     func(f *fleet) *worker.Instance { return f.worker(1, "Server unavailable: unknown endpoint", nil) },
		"at capacity": func(f *fleet) *worker.Instance { return f.worker(1, "Server overloaded: worker at capacity", nil) },
		"hangs up":    func(f *fleet) *worker.Instance { return f.worker(1, "", func(w *session) { w.dial(); w.conn.Close() }) },
		"can't begin": func(f *fleet) *worker.Instance { return f.worker(1, "", refuse("Internal", "backend.unknown")) },
		"is going": func(f *fleet) *worker.Instance {
			return f.worker(1, "", refuse("Unavailable", "backend.engine_shutdown"))
		},
		"unknown text": func(f *fleet) *worker.Instance { return f.worker(1, "Invalid endpoint path", nil) },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, dispatch.Options{})
			f.publish(bad(f), f.worker(2, "", answer(2)))
			for range 3 {
				if ids, err := f.ask(newCall()); err != nil || !slices.Equal(ids, []uint32{2}) {
					t.Errorf("%v, %v", ids, err)
				}
			}
		})
	}
}

func refuse(class, reason string) script {
	return func(w *session) {
		w.dial()
		if class == "Internal" {
			reason = "runtime.internal"
		}
		w.write(worker.AppendPrologue(nil, &worker.Error{Class: class, Reason: reason, Message: "secret"}))
		w.heard()
	}
}

// TestPrologueErrors has two workers that refuse alike. What the request is to blame for, and what a full engine says,
// is final; anything else is tried on the second, too.
func TestPrologueErrors(t *testing.T) {
	for _, tc := range []struct {
		class, reason string
		kind          fault.Kind
		origin        fault.Origin
		tries         int
	}{
		{"InvalidRequest", "request.invalid", fault.BadRequest, fault.FromWorker, 1},
		{"Cancelled", "request.cancelled", fault.Cancelled, fault.FromWorker, 1},
		{"CapacityExhausted", "capacity.exhausted", fault.Overloaded, fault.FromWorker, 1},
		{"NotFound", "request.not_found", fault.Unavailable, fault.FromTransport, 2},
		{"Internal", "runtime.internal", fault.Unavailable, fault.FromTransport, 2},
	} {
		t.Run(tc.class, func(t *testing.T) {
			f := newFleet(t, dispatch.Options{})
			f.publish(f.worker(1, "", refuse(tc.class, tc.reason)), f.worker(2, "", refuse(tc.class, tc.reason)))
			_, err := f.ask(newCall())
			e := wantFault(t, err, tc.kind, tc.origin)
			if e.Message == "secret" {
				t.Error("a private text is shown")
			}
			if n := len(f.asked()); n != tc.tries {
				t.Errorf("tried %d times", n)
			}
		})
	}
}

// A worker that is lost is left aside until the time is over or discovery says something new of it.
func TestQuarantine(t *testing.T) {
	f := newFleet(t, dispatch.Options{QuarantineFor: 200 * time.Millisecond})
	var lose atomic.Bool
	lose.Store(true)
	in := f.worker(1, "", func(w *session) {
		w.dial()
		w.write(worker.AppendPrologue(nil, nil))
		w.tokens(1)
		if lose.Load() {
			w.conn.Close()
			return
		}
		w.end()
	})
	f.publish(in)
	ids, err := f.ask(newCall())
	if e := wantFault(t, err, fault.Unavailable, fault.FromTransport); len(ids) != 1 || e.Message != "Stream ended before generation completed" {
		t.Errorf("%v, %v", ids, err)
	}
	_, err = f.ask(newCall())
	wantFault(t, err, fault.Unavailable, fault.FromRequest)

	other := instance(2)
	other.Transport.TCP = "127.0.0.1:1/x"
	call := newCall()
	call.Serves = func(id uint64) bool { return id == 1 }
	f.publish(in, other) // a change, but not of the one that was lost
	_, err = f.ask(call)
	wantFault(t, err, fault.Unavailable, fault.FromRequest)

	lose.Store(false)
	changed := *in
	changed.DeviceType = "cpu"
	f.publish(&changed)
	if _, err := f.ask(newCall()); err != nil {
		t.Errorf("after a change: %v", err)
	}
	lose.Store(true)
	if _, err = f.ask(newCall()); err == nil {
		t.Error("not lost")
	}
	lose.Store(false)
	if _, err = f.ask(newCall()); err == nil {
		t.Error("not left aside")
	}
	time.Sleep(220 * time.Millisecond)
	if _, err := f.ask(newCall()); err != nil {
		t.Errorf("after the time: %v", err)
	}
}

// Errors that an engine reports may say as much.
func TestErrorItems(t *testing.T) {
	for _, tc := range []struct {
		reason string
		aside  bool
	}{{"backend.engine_shutdown", true}, {"backend.unavailable", false}} {
		f := newFleet(t, dispatch.Options{})
		f.publish(f.worker(1, "", func(w *session) {
			w.dial()
			w.write(worker.AppendPrologue(nil, nil))
			w.item(&worker.Item{Event: "error", Err: &worker.Error{Class: "Unavailable", Reason: tc.reason}})
			w.end()
		}))
		s, err := f.d.Dispatch(t.Context(), newCall())
		if err != nil {
			t.Fatal(err)
		}
		reported := errors.New("reported")
		err = s.Each(func(it *worker.Item, _ bool) error {
			if it.Err == nil || it.Err.Reason != tc.reason {
				t.Errorf("item %+v", it)
			}
			return reported
		})
		if !errors.Is(err, reported) {
			t.Errorf("%v", err)
		}
		s.Close()
		s, err = f.d.Dispatch(t.Context(), newCall())
		if got := err != nil; got != tc.aside {
			t.Errorf("%s: left aside %v (%v)", tc.reason, got, err)
		}
		if err == nil {
			s.Close()
		}
	}
}

func TestOverloaded(t *testing.T) {
	f := newFleet(t, dispatch.Options{OverloadedFor: 100 * time.Millisecond})
	f.publish(f.worker(1, "Server overloaded: worker at capacity", nil))
	_, err := f.ask(newCall())
	wantFault(t, err, fault.Overloaded, fault.FromTransport)
	_, err = f.ask(newCall())
	if e := wantFault(t, err, fault.Overloaded, fault.FromRequest); e.RetryAfter <= 0 {
		t.Errorf("retry after %v", e.RetryAfter)
	}
	call := newCall()
	call.Pin = new(uint64(1))
	_, err = f.ask(call)
	wantFault(t, err, fault.Overloaded, fault.FromRequest)
	if n := len(f.asked()); n != 1 {
		t.Errorf("asked %d times while it was full", n)
	}
	time.Sleep(120 * time.Millisecond)
	f.ask(newCall())
	if n := len(f.asked()); n != 2 {
		t.Errorf("asked %d times", n)
	}
}

func TestPin(t *testing.T) {
	f := newFleet(t, dispatch.Options{})
	f.publish(f.worker(1, "", answer(1)), f.worker(2, "", answer(2)), f.dead(3))
	call := newCall()
	call.Pin = new(uint64(2))
	for range 3 {
		if ids, err := f.ask(call); err != nil || ids[0] != 2 {
			t.Errorf("%v, %v", ids, err)
		}
	}
	call.Pin = new(uint64(9))
	_, err := f.ask(call)
	wantFault(t, err, fault.Unavailable, fault.FromRequest)
	call.Pin = new(uint64(3))
	_, err = f.ask(call)
	wantFault(t, err, fault.Unavailable, fault.FromTransport)
	_, err = f.ask(call) // left aside now, and nobody takes its place
	wantFault(t, err, fault.Unavailable, fault.FromRequest)
}

func TestAttemptsAreBounded(t *testing.T) {
	f := newFleet(t, dispatch.Options{MaxAttempts: 2})
	full := "Server overloaded: worker at capacity"
	f.publish(f.worker(1, full, nil), f.worker(2, full, nil), f.worker(3, full, nil))
	_, err := f.ask(newCall())
	wantFault(t, err, fault.Overloaded, fault.FromTransport)
	if got := f.asked(); len(got) != 2 || got[0] == got[1] {
		t.Errorf("tried %v", got)
	}
}

var cancel = string(worker.AppendSignal(worker.AppendSignal(nil, worker.SignalStop), worker.SignalKill))

// A worker that leaves discovery fails the requests that wait for it at once, and only those.
func TestRemovedWhilePending(t *testing.T) {
	f := newFleet(t, dispatch.Options{HandshakeTimeout: 10 * time.Second})
	asked := make(chan struct{}, 1)
	slow := f.worker(1, "", func(*session) { asked <- struct{}{} })
	f.publish(slow)
	failed := make(chan error, 1)
	f.group.Go("client", func(context.Context) error {
		_, err := f.ask(newCall())
		failed <- err
		return nil
	})
	<-asked
	f.publish()
	start := time.Now()
	f.d.Refresh()
	wantFault(t, <-failed, fault.Unavailable, fault.FromTransport)
	if took := time.Since(start); took > time.Second {
		t.Errorf("after %v", took)
	}
}

func TestRemovedWhileStreaming(t *testing.T) {
	f := newFleet(t, dispatch.Options{})
	goOn := make(chan struct{})
	f.publish(f.worker(1, "", func(w *session) {
		w.dial()
		w.write(worker.AppendPrologue(nil, nil))
		<-goOn
		w.tokens(1)
		w.end()
	}))
	s, err := f.d.Dispatch(t.Context(), newCall())
	if err != nil {
		t.Fatal(err)
	}
	f.publish()
	f.d.Refresh()
	close(goOn)
	if ids, err := collect(s); err != nil || len(ids) != 1 {
		t.Errorf("%v, %v", ids, err)
	}
}

func TestClientGone(t *testing.T) {
	f := newFleet(t, dispatch.Options{})
	heard := make(chan string, 1)
	began := make(chan struct{}, 1)
	var silent atomic.Bool
	f.publish(f.worker(1, "", func(w *session) {
		if silent.Load() {
			began <- struct{}{}
			time.Sleep(50 * time.Millisecond)
			w.dial()
			heard <- w.heard()
			return
		}
		w.dial()
		w.write(worker.AppendPrologue(nil, nil))
		w.tokens(1)
		began <- struct{}{}
		b := make([]byte, len(cancel))
		io.ReadFull(w.conn, b)
		w.conn.(*net.TCPConn).CloseWrite()
		heard <- string(b) + w.heard()
	}))
	leave := func() error {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		f.group.Go("client", func(context.Context) error {
			<-began
			time.Sleep(10 * time.Millisecond)
			stop()
			return nil
		})
		s, err := f.d.Dispatch(ctx, newCall())
		if err != nil {
			return err
		}
		defer s.Close()
		return s.Each(func(*worker.Item, bool) error { return nil })
	}
	for _, quiet := range []bool{false, true} {
		silent.Store(quiet)
		if err := leave(); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		if got := <-heard; got != cancel {
			t.Errorf("worker heard %q", got)
		}
	}
}

func TestStop(t *testing.T) {
	f := newFleet(t, dispatch.Options{})
	heard := make(chan string, 1)
	f.publish(f.worker(1, "", func(w *session) {
		w.dial()
		w.write(worker.AppendPrologue(nil, nil))
		w.tokens(1, 2, 3)
		b := make([]byte, len(cancel))
		io.ReadFull(w.conn, b)
		w.conn.(*net.TCPConn).CloseWrite()
		heard <- string(b) + w.heard()
	}))
	s, err := f.d.Dispatch(t.Context(), newCall())
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	if err := s.Each(func(*worker.Item, bool) error { n++; return router.ErrStop }); err != nil || n != 1 {
		t.Errorf("%d items, %v", n, err)
	}
	s.Close()
	if got := <-heard; got != cancel {
		t.Errorf("worker heard %q", got)
	}
}

func TestStreamTimeout(t *testing.T) {
	f := newFleet(t, dispatch.Options{StreamTimeout: 60 * time.Millisecond})
	f.publish(f.worker(1, "", func(w *session) {
		w.dial()
		w.write(worker.AppendPrologue(nil, nil))
		w.tokens(1)
		w.heard()
	}))
	_, err := f.ask(newCall())
	wantFault(t, err, fault.Timeout, fault.FromTransport)
	_, err = f.ask(newCall())
	wantFault(t, err, fault.Unavailable, fault.FromRequest) // left aside
}

func TestBadItems(t *testing.T) {
	f := newFleet(t, dispatch.Options{})
	f.publish(f.worker(1, "", func(w *session) {
		w.dial()
		w.write(worker.AppendPrologue(nil, nil))
		w.write(worker.AppendFrame(nil, nil, []byte("\x80")))
		w.heard()
	}))
	for range 2 { // the second time because the worker isn't left aside
		_, err := f.ask(newCall())
		wantFault(t, err, fault.BadGateway, fault.FromWorker)
	}
}

func TestUnencodable(t *testing.T) {
	f := newFleet(t, dispatch.Options{})
	f.publish(f.worker(1, "", answer(1)))
	call := newCall()
	call.Body = func(dst []byte, _ worker.Codec, _ router.Target) ([]byte, error) { return dst, errors.New("no") }
	_, err := f.ask(call)
	wantFault(t, err, fault.Internal, fault.FromRequest)
	call = newCall()
	call.Metadata = map[string]string{"k": string(make([]byte, worker.MaxControl))}
	_, err = f.ask(call)
	wantFault(t, err, fault.HeaderTooLarge, fault.FromRequest)
	call = newCall()
	call.Body = func(dst []byte, _ worker.Codec, _ router.Target) ([]byte, error) {
		return append(dst, make([]byte, 33<<20)...), nil
	}
	_, err = f.ask(call)
	wantFault(t, err, fault.TooLarge, fault.FromRequest)
	if n := len(f.asked()); n != 0 {
		t.Errorf("%d requests arrived", n)
	}
}

func TestRaw(t *testing.T) {
	f := newFleet(t, dispatch.Options{})
	in := f.worker(1, "", func(w *session) {
		w.dial()
		w.write(worker.AppendPrologue(nil, nil))
		w.item(&worker.Item{HasData: true, Raw: []byte(`{"id":"x","n":1}`)})
		w.end()
	})
	for _, codec := range []string{"msgpack", ""} {
		changed := *in
		changed.CodecName = codec
		f.publish(&changed)
		call := newCall()
		call.Raw = true
		s, err := f.d.Dispatch(t.Context(), call)
		if err != nil {
			t.Fatal(err)
		}
		var got string
		if err := s.Each(func(it *worker.Item, _ bool) error { got = string(it.Raw); return nil }); err != nil {
			t.Error(err)
		}
		s.Close()
		if got != `{"id":"x","n":1}` {
			t.Errorf("codec %q: %s", codec, got)
		}
	}
}

func TestOverNATS(t *testing.T) {
	testkit.NoLeaks(t)
	ns, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	ns.Start()
	if !ns.ReadyForConnections(5 * time.Second) {
		t.Fatal("NATS server isn't ready")
	}
	t.Cleanup(func() { ns.Shutdown(); ns.WaitForShutdown() })
	p, err := nats.New(nats.Options{URL: ns.ClientURL(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	nc, err := natsgo.Connect(ns.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	closed := nc.StatusChanged(natsgo.CLOSED)
	t.Cleanup(func() { nc.Close(); <-closed })
	f := makeFleet(t, dispatch.Options{NATS: p})
	if _, err := nc.Subscribe("ns_c.e-1", func(m *natsgo.Msg) {
		f.note(1)
		m.Respond(nil)
		f.play(m.Data, answer(4, 5))
	}); err != nil {
		t.Fatal(err)
	}
	nc.Flush()
	there, gone := instance(1), instance(2)
	there.Transport.NATS, gone.Transport.NATS = "ns_c.e-1", "ns_c.e-2"
	f.publish(there, gone)
	for range 4 {
		if ids, err := f.ask(newCall()); err != nil || !slices.Equal(ids, []uint32{4, 5}) {
			t.Errorf("%v, %v", ids, err)
		}
	}
	call := newCall()
	call.Body = func(dst []byte, _ worker.Codec, _ router.Target) ([]byte, error) {
		return append(dst, make([]byte, 2<<20)...), nil
	}
	_, err = f.ask(call)
	wantFault(t, err, fault.TooLarge, fault.FromRequest)
}

// Workers come and go, some fail, clients leave: every request ends, and nothing stays behind.
func TestStorm(t *testing.T) {
	f := newFleet(t, dispatch.Options{QuarantineFor: 5 * time.Millisecond, HandshakeTimeout: 3 * time.Second})
	good, bad := f.worker(1, "", answer(1, 2, 3)), f.worker(2, "", func(w *session) { w.dial(); w.conn.Close() })
	full := f.worker(3, "Server overloaded: worker at capacity", nil)
	f.publish(good, bad, full)
	var ok atomic.Int32
	g := lifecycle.New(t.Context())
	for i := range 200 {
		g.Go("client", func(ctx context.Context) error {
			patience := time.Duration(1+i%7*20) * time.Millisecond
			if i%10 == 0 {
				patience = 30 * time.Second // these have time for an answer however slow the machine is
			}
			ctx, stop := context.WithTimeout(ctx, patience)
			defer stop()
			s, err := f.d.Dispatch(ctx, newCall())
			if err != nil {
				return nil
			}
			if ids, err := collect(s); err == nil {
				if !slices.Equal(ids, []uint32{1, 2, 3}) {
					t.Errorf("answer %v", ids)
				}
				ok.Add(1)
			}
			return nil
		})
		switch i % 50 {
		case 25:
			f.publish(good, full)
			f.d.Refresh()
		case 49:
			f.publish(good, bad, full)
		}
	}
	g.Wait()
	if ok.Load() == 0 {
		t.Error("not one request was answered")
	}
	if n := f.d.InFlight(); n != 0 {
		t.Errorf("%d in flight", n)
	}
}
