package simworker_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/simworker"
)

// echo answers with the prompt.
func echo() *simworker.Generator { return &simworker.Generator{Source: simworker.Echo{}} }

// slow answers with the prompt, a token every few milliseconds.
func slow() *simworker.Generator {
	return &simworker.Generator{Source: simworker.Echo{}, Timing: simworker.Timing{ITL: 5 * time.Millisecond}}
}

func TestWorkerAnswers(t *testing.T) {
	for _, codec := range []worker.Codec{worker.JSON, worker.Msgpack} {
		t.Run(codec.String(), func(t *testing.T) {
			w := start(t, simworker.Options{Engine: echo(), Card: &worker.Card{DisplayName: "m", ModelInput: "Tokens"}})
			f := newFrontend(t)
			f.send(w, "a", codec, request(3, 5, 6, 7))
			c := f.accept()
			if c.subject != "s-a" {
				t.Errorf("subject %q", c.subject)
			}
			if e := c.prologue(); e != nil {
				t.Fatalf("refused: %v", e)
			}
			a := c.rest(codec)
			if diff := cmp.Diff([]uint32{5, 6, 7}, a.tokens[0]); diff != "" {
				t.Errorf("tokens (-want +got):\n%s", diff)
			}
			if a.finish[0] != worker.FinishLength || !a.final || a.end != "sentinel" {
				t.Errorf("finish %q, final %v, end %s", a.finish[0], a.final, a.end)
			}
			waitStats(t, w, func(s simworker.Stats) bool { return s.Completed == 1 && s.Active == 0 && s.Tokens == 3 })
		})
	}
}

func TestWorkerRegisters(t *testing.T) {
	w := start(t, simworker.Options{
		Engine: echo(), InstanceID: 0xabc, Codec: worker.Msgpack, Card: &worker.Card{DisplayName: "m", ModelInput: "Tokens"},
	})
	w.records.mu.Lock()
	instance, err := worker.ParseInstance([]byte(w.records.all["v1/instances/dynamo/backend/generate/abc"]))
	if err != nil {
		t.Errorf("endpoint record: %v in %v", err, w.records.all)
	} else if instance.CodecName != "msgpack" || !strings.HasSuffix(instance.Transport.TCP, "/abc/dynamo/backend/generate") {
		t.Errorf("endpoint record %+v", instance)
	}
	model, err := worker.ParseModel([]byte(w.records.all["v1/mdc/dynamo/backend/generate/abc"]))
	if err != nil || model.Card.DisplayName != "m" || model.InstanceID != 0xabc {
		t.Errorf("model record %+v, %v", model, err)
	}
	w.records.mu.Unlock()
	w.stop(t)
	if keys := w.records.keys(); len(keys) != 0 {
		t.Errorf("records left: %v", keys)
	}
}

func TestWorkerRegistrationFails(t *testing.T) {
	refused := errors.New("refused")
	w, err := simworker.New(simworker.Options{Engine: echo(), Registrar: &records{fail: refused}})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Run(t.Context()); !errors.Is(err, refused) {
		t.Errorf("Run: %v", err)
	}
}

func TestWorkerAbortLeavesRecords(t *testing.T) {
	w := start(t, simworker.Options{Engine: slow(), Card: &worker.Card{DisplayName: "m"}})
	f := newFrontend(t)
	f.send(w, "a", worker.JSON, endless(1000))
	c := f.accept()
	w.Abort()
	if a := c.rest(worker.JSON); a.final || a.end == "sentinel" {
		t.Errorf("a clean end of a crashed worker: %+v", a)
	}
	if err := <-w.done; err != nil {
		t.Errorf("Run: %v", err)
	}
	w.done <- nil
	if n := len(w.records.keys()); n != 2 {
		t.Errorf("%d records left, want 2", n)
	}
}

// TestPipelined sends many requests on one connection: acknowledgements come in their order, answers to all.
func TestPipelined(t *testing.T) {
	w := start(t, simworker.Options{Engine: echo()})
	f := newFrontend(t)
	c, path := dial(t, w)
	const n = 50
	var out []byte
	for i := range n {
		out = append(out, tcpFrame(path, f.envelope(fmt.Sprint(i), worker.Msgpack, request(2, uint32(i), 1)))...)
	}
	out = append(out, tcpFrame("elsewhere", []byte("x"))...)
	go c.Write(out)
	r := bufio.NewReader(c)
	for i := range n {
		if ack := readAck(t, r); ack != "" {
			t.Fatalf("acknowledgement %d: %q", i, ack)
		}
	}
	if ack := readAck(t, r); !strings.HasPrefix(ack, "Server unavailable: unknown endpoint") {
		t.Errorf("wrong path: %q", ack)
	}
	for range n {
		c := f.accept()
		c.prologue()
		if a := c.rest(worker.Msgpack); "s-"+fmt.Sprint(a.tokens[0][0]) != c.subject || !a.final {
			t.Errorf("subject %s: %+v", c.subject, a)
		}
	}
}

// TestStopAndKill ends a long answer from the frontend's side in every way there is. Each has its own count, and none
// gets end marks.
func TestStopAndKill(t *testing.T) {
	for _, c := range []struct {
		name  string
		do    func(*call)
		count func(simworker.Stats) uint64
	}{
		{"stop", func(c *call) { c.signal(worker.SignalStop) }, func(s simworker.Stats) uint64 { return s.Stopped }},
		{"kill", func(c *call) { c.signal(worker.SignalKill) }, func(s simworker.Stats) uint64 { return s.Killed }},
		{"sentinel", func(c *call) { c.signal(worker.SignalSentinel) }, func(s simworker.Stats) uint64 { return s.Killed }},
		{"close", func(c *call) { c.conn.Close() }, func(s simworker.Stats) uint64 { return s.Lost }},
		{"garbage", func(c *call) { c.conn.Write([]byte(strings.Repeat("\xff", 64))) }, func(s simworker.Stats) uint64 { return s.Killed }},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := start(t, simworker.Options{Engine: slow()})
			f := newFrontend(t)
			f.send(w, "a", worker.Msgpack, endless(100_000))
			call := f.accept()
			call.prologue()
			if _, _, err := call.frame(); err != nil {
				t.Fatal(err)
			}
			c.do(call)
			if a := call.rest(worker.Msgpack); a.end == "sentinel" || a.final {
				t.Errorf("end marks after %s: %+v", c.name, a)
			}
			waitStats(t, w, func(s simworker.Stats) bool { return c.count(s) == 1 && s.Active == 0 })
		})
	}
}

func TestUnreadableRequest(t *testing.T) {
	w := start(t, simworker.Options{Engine: echo()})
	f := newFrontend(t)
	c, path := dial(t, w)
	if _, err := c.Write(tcpFrame(path, []byte("no envelope at all, and long enough for a head"))); err != nil {
		t.Fatal(err)
	}
	if ack := readAck(t, c); ack != "" {
		t.Errorf("acknowledgement %q", ack)
	}
	waitStats(t, w, func(s simworker.Stats) bool { return s.Undecoded == 1 && s.Active == 0 })
	f.noCall(50 * time.Millisecond)
}

func TestCapacity(t *testing.T) {
	release := make(chan struct{})
	engine := simworker.EngineFunc(func(ctx context.Context, _ *simworker.Request, _ simworker.Output) error {
		select {
		case <-release:
		case <-ctx.Done():
		}
		return nil
	})
	w := start(t, simworker.Options{Engine: engine, MaxActive: 1, MaxQueued: 1})
	f := newFrontend(t)
	c, path := dial(t, w)
	for i, want := range []string{"", "", "Server overloaded: worker at capacity"} {
		if _, err := c.Write(tcpFrame(path, f.envelope(fmt.Sprint(i), worker.JSON, request(1, 1)))); err != nil {
			t.Fatal(err)
		}
		if ack := readAck(t, c); ack != want {
			t.Errorf("acknowledgement %d: %q, want %q", i, ack, want)
		}
	}
	first := f.accept()
	f.noCall(50 * time.Millisecond) // the second request waits for the first
	close(release)
	first.prologue()
	first.rest(worker.JSON)
	f.accept().rest(worker.JSON)
	if s := w.Stats(); s.Refused != 1 || s.Received != 2 {
		t.Errorf("stats %+v", s)
	}
}

// TestGrace ends the worker under a running stream: the stream is finished first.
func TestGrace(t *testing.T) {
	w := start(t, simworker.Options{Engine: slow()})
	f := newFrontend(t)
	f.send(w, "a", worker.Msgpack, endless(20))
	c := f.accept()
	w.cancel()
	c.prologue()
	if a := c.rest(worker.Msgpack); !a.final || len(a.tokens[0]) != 20 {
		t.Errorf("cut off: %+v", a)
	}
}

// TestEngineError sees that an engine's own kind of error travels as it is, and any other as an internal one. Both end
// in good order.
func TestEngineError(t *testing.T) {
	told := &worker.Error{Class: "RateLimited", Reason: "request.rate_limited", Message: "slow down", PublicType: "message", Public: "slow down"}
	for _, c := range []struct {
		name  string
		err   error
		class string
	}{{"typed", told, "RateLimited"}, {"plain", errors.New("broken"), "Internal"}} {
		t.Run(c.name, func(t *testing.T) {
			w := start(t, simworker.Options{Engine: simworker.EngineFunc(
				func(context.Context, *simworker.Request, simworker.Output) error { return c.err })})
			f := newFrontend(t)
			f.send(w, "a", worker.JSON, request(1, 1))
			call := f.accept()
			call.prologue()
			a := call.rest(worker.JSON)
			if len(a.errs) != 1 || a.errs[0].Class != c.class || !a.final {
				t.Errorf("answer %+v", a)
			}
		})
	}
}

func startNATS(t *testing.T) string {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("no NATS server")
	}
	return s.ClientURL()
}

func TestNATS(t *testing.T) {
	url := startNATS(t)
	w := start(t, simworker.Options{Engine: echo(), NATSURL: url, InstanceID: 0xf00})
	if s := w.Instance().Transport.NATS; s != "dynamo_backend.generate-f00" {
		t.Fatalf("subject %q", s)
	}
	conn, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	f := newFrontend(t)
	reply, err := conn.Request(w.Instance().Transport.NATS, f.envelope("a", worker.Msgpack, request(2, 8, 9)), 5*time.Second)
	if err != nil || len(reply.Data) != 0 {
		t.Fatalf("acknowledgement %v, %v", reply, err)
	}
	c := f.accept()
	c.prologue()
	if a := c.rest(worker.Msgpack); !a.final || len(a.tokens[0]) != 2 {
		t.Errorf("answer %+v", a)
	}
	w.stop(t)
	if _, err := conn.Request(w.Instance().Transport.NATS, nil, 5*time.Second); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("after the end: %v", err)
	}
}

func TestTextModel(t *testing.T) {
	var got string
	engine := simworker.EngineFunc(func(_ context.Context, r *simworker.Request, out simworker.Output) error {
		got = string(r.JSON)
		return out.SendJSON([]byte(`{"data":{"token_ids":[7]}}`))
	})
	w := start(t, simworker.Options{Engine: engine, Card: &worker.Card{DisplayName: "m", ModelInput: "Text"}})
	f := newFrontend(t)
	f.send(w, "a", worker.Msgpack, request(1, 1))
	c := f.accept()
	c.prologue()
	a := c.rest(worker.Msgpack)
	if !strings.HasPrefix(got, `{"model":"m"`) {
		t.Errorf("the engine saw %s", got)
	}
	if diff := cmp.Diff([]uint32{7}, a.tokens[0]); diff != "" {
		t.Errorf("tokens (-want +got):\n%s", diff)
	}
}

// TestOptionsRefused has one mistake in each case.
func TestOptionsRefused(t *testing.T) {
	for name, o := range map[string]simworker.Options{
		"no registrar": {Engine: echo()},
		"no engine":    {Registrar: &records{}},
		"two planes":   {Engine: echo(), Registrar: &records{}, NATS: &nats.Conn{}, NATSURL: "nats://x"},
		"negative":     {Engine: echo(), Registrar: &records{}, MaxActive: -1},
	} {
		if _, err := simworker.New(o); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
