package pipeline_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/callhome"
	"github.com/portico-llm/portico/internal/router/constraint"
	"github.com/portico-llm/portico/internal/router/discovery"
	"github.com/portico-llm/portico/internal/router/discovery/mem"
	"github.com/portico-llm/portico/internal/router/dispatch"
	"github.com/portico-llm/portico/internal/router/plane/tcp"
	"github.com/portico-llm/portico/internal/router/policy"
	"github.com/portico-llm/portico/internal/server"
	"github.com/portico-llm/portico/internal/simworker"
	"github.com/portico-llm/portico/internal/testkit"
)

// pools is a server with prefill and decode workers that come and go, joined by the real parts from discovery on.
type pools struct {
	farm
	t       *testing.T
	group   *lifecycle.Group
	source  *mem.Source
	catalog *catalog.Catalog
	metrics *prometheus.Registry
	rooms   bool     // prefill workers have a meeting place
	alone   bool     // decode workers can do without prefill
	taints  []string // of workers that are added from now on
	tainted constraint.Index
	judge   func(decode *router.Call, prefill func() *router.Call) bool // of Options.Alone; nil: never
}

// part is one worker of a pool.
type part struct {
	*simworker.Worker
	mu     sync.Mutex
	engine simworker.Engine  // guarded by mu, as is the next
	seen   []*worker.Request // what it was asked, in order
	ended  chan struct{}     // closed when it has ended, in whichever way
	stop   func()            // ends it as a shutdown does; a call of Abort ends it as a crash
}

// asked returns the requests so far.
func (w *part) asked() []*worker.Request {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]*worker.Request(nil), w.seen...)
}

// set puts another engine in place of the worker's, before it is asked anything.
func (w *part) set(e simworker.Engine) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.engine = e
}

// watched notes requests on their way to an engine.
type watched struct{ at *part }

// engine returns the worker's engine.
func (e watched) engine() simworker.Engine {
	e.at.mu.Lock()
	defer e.at.mu.Unlock()
	return e.at.engine
}

// Generate implements simworker.Engine.
func (e watched) Generate(ctx context.Context, req *simworker.Request, out simworker.Output) error {
	return e.engine().Generate(ctx, req, out)
}

// Admit notes the request and passes it on.
func (e watched) Admit(req *simworker.Request) error {
	e.at.mu.Lock()
	e.at.seen = append(e.at.seen, req.Tokens)
	e.at.mu.Unlock()
	if a, ok := e.engine().(simworker.Admitter); ok {
		return a.Admit(req)
	}
	return nil
}

// newPools starts the server; it serves nothing yet.
func newPools(t *testing.T, rooms, alone bool) *pools {
	t.Helper()
	return newPoolsFor(t, rooms, alone, dispatch.Options{})
}

// newPoolsFor starts it with settings of the dispatcher's.
func newPoolsFor(t *testing.T, rooms, alone bool, opts dispatch.Options) *pools {
	t.Helper()
	testkit.NoLeaks(t)
	log := slog.New(slog.DiscardHandler)
	f := &pools{t: t, source: mem.New(), group: lifecycle.New(context.Background()), rooms: rooms, alone: alone,
		metrics: prometheus.NewRegistry()}
	f.client = testkit.Client(t)
	store := discovery.NewStore(f.source, discovery.Options{Log: log})
	f.catalog = catalog.New(catalog.Options{Store: store, Log: log,
		Sum: func(c *worker.Card) string { return c.DisplayName + c.WorkerType },
		Load: func(context.Context, *worker.ModelRecord) (*catalog.Text, error) {
			m := testkit.ByteModel("m")
			return &catalog.Text{Renderer: m.Renderer, Tokenizer: m.Tokenizer, EOS: m.EOS}, nil
		}})
	home, err := callhome.Listen(callhome.Options{Host: "127.0.0.1", Log: log})
	if err != nil {
		t.Fatal(err)
	}
	plane := tcp.New(tcp.Options{Log: log})
	choose, err := policy.New(policy.RoundRobin)
	if err != nil {
		t.Fatal(err)
	}
	opts.Snapshots, opts.Policy, opts.TCP, opts.CallHome, opts.Log = store.Snapshot, choose, plane, home, log
	d := dispatch.New(opts)
	srv, err := server.New(server.Options{Catalog: f.catalog, Log: log, Registerer: f.metrics, Instances: func() (all []*worker.Instance) {
		for _, at := range store.Snapshot().Instances {
			all = append(all, at...)
		}
		return all
	}, Pipeline: pipeline.New(pipeline.Options{
		Dispatcher: d, Migration: pipeline.Migration{Limit: 3}, Taints: &f.tainted, Log: log,
		Alone: func(decode *router.Call, prefill func() *router.Call) bool {
			return f.judge != nil && f.judge(decode, prefill)
		},
		Registerer: f.metrics})})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.url = "http://" + ln.Addr().String()
	t.Cleanup(store.Watch(f.tainted.Follow))
	f.group.Go("callhome", home.Run)
	f.group.Go("store", store.Run)
	f.group.Go("catalog", f.catalog.Run)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(context.Background(), ln) }()
	t.Cleanup(func() {
		f.client.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = srv.Shutdown(ctx)
		err := errors.Join(<-served, plane.Close(), f.group.Stop())
		if err != nil || d.InFlight() != 0 {
			t.Errorf("%v; %d requests in flight", err, d.InFlight())
		}
	})
	return f
}

// add starts a worker of a kind with an engine, and a plan of faults that may be nil.
func (f *pools) add(kind string, engine simworker.Engine, plan func(*simworker.Request) simworker.Fault) *part {
	f.t.Helper()
	card := *testkit.ByteModel("m").Card
	card.WorkerType, card.Needs = kind, map[string][][]string{"prefill": {{"decode"}}, "decode": {{"prefill"}}}[kind]
	card.RuntimeConfig.Taints = f.taints
	if kind == "prefill" {
		card.ModelType = ""
	}
	if kind == "decode" && f.alone {
		card.Needs = nil
	}
	g := lifecycle.New(f.group.Context())
	if p, ok := engine.(*simworker.Prefiller); ok && f.rooms {
		rooms, err := simworker.ListenRooms("127.0.0.1:0")
		if err != nil {
			f.t.Fatal(err)
		}
		host, port := rooms.Address()
		card.RuntimeConfig.DisaggregatedEndpoint = fmt.Appendf(nil, `{"bootstrap_host":%q,"bootstrap_port":%d}`, host, port)
		p.Rooms = rooms
		g.Go("rooms", rooms.Run)
	}
	w := &part{engine: engine, ended: make(chan struct{})}
	registrar := mem.NewRegistrar(f.source)
	id, _ := registrar.InstanceID(f.t.Context())
	sim, err := simworker.New(simworker.Options{
		Endpoint:   worker.EndpointID{Namespace: "test", Component: kind, Name: "generate"},
		InstanceID: id, Codec: worker.Msgpack, Registrar: registrar, Card: &card, Engine: watched{w}, Fault: plan,
		CloseWait: time.Second, Grace: 100 * time.Millisecond, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.t.Fatal(err)
	}
	w.Worker = sim
	g.Go("worker", func(ctx context.Context) error {
		defer close(w.ended)
		return sim.Run(ctx)
	})
	w.stop = sync.OnceFunc(func() {
		if err := g.Stop(); err != nil {
			f.t.Error(err)
		}
	})
	f.t.Cleanup(w.stop)
	<-sim.Ready()
	// A crash takes the place of hand-overs with it.
	if rooms, ok := engine.(*simworker.Prefiller); ok && rooms.Rooms != nil {
		f.group.Go("crash", func(ctx context.Context) error {
			select {
			case <-w.ended:
			case <-ctx.Done():
			}
			_ = g.Stop()
			return nil
		})
	}
	return w
}

// wait waits until the model can be asked, or no longer can.
func (f *pools) wait(ready bool) {
	f.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); f.catalog.Ready() != ready; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			f.t.Fatalf("ready is still %v", !ready)
		}
	}
}

// until waits until the model can be asked and something is so.
func (f *pools) until(what string, ok func(*catalog.Set) bool) {
	f.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		if set, err := f.catalog.Lookup("m"); err == nil && ok(set) {
			return
		}
		if time.Now().After(deadline) {
			f.t.Fatalf("waited too long for %s", what)
		}
	}
}

// waitPrefill waits until the decode workers have prefill workers, which those that can do without may get later.
func (f *pools) waitPrefill() {
	f.t.Helper()
	f.until("prefill workers", func(set *catalog.Set) bool { return set.Prefill() != nil })
}

// outcomes returns what became of prompts so far, by outcome.
func (f *pools) outcomes() map[string]int {
	f.t.Helper()
	families, err := f.metrics.Gather()
	if err != nil {
		f.t.Fatal(err)
	}
	out := map[string]int{}
	for _, family := range families {
		if family.GetName() != "portico_prefill_total" {
			continue
		}
		for _, m := range family.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "outcome" {
					out[l.GetValue()] = int(m.GetCounter().GetValue())
				}
			}
		}
	}
	return out
}

// words are an engine whose answers go on where they were cut.
func words() simworker.Engine {
	return &simworker.Generator{Source: simworker.Walk{IDs: bytesOf("abcdefghijklmnop")}}
}

// decoder is the engine of a decode worker.
func (f *pools) decoder() simworker.Engine {
	return &simworker.Decoder{Engine: words(), Alone: f.alone}
}

// both runs a test with and without a meeting place.
func both(t *testing.T, f func(t *testing.T, rooms bool)) {
	for name, rooms := range map[string]bool{"handed over": false, "met": true} {
		t.Run(name, func(t *testing.T) { f(t, rooms) })
	}
}

const twelve = conversation + `,"max_tokens":12,"nvext":{"extra_fields":["worker_id"]}`

// TestPools follows one request through both workers.
func TestPools(t *testing.T) {
	both(t, func(t *testing.T, rooms bool) {
		f := newPools(t, rooms, false)
		pre, dec := f.add("prefill", &simworker.Prefiller{}, nil), f.add("decode", f.decoder(), nil)
		f.wait(true)
		got := f.ask(t, chatPath, twelve+`,"min_tokens":3}`)
		var whole struct {
			NVExt struct {
				Worker struct {
					Prefill uint64 `json:"prefill_worker_id"`
					Decode  uint64 `json:"decode_worker_id"`
				} `json:"worker_id"`
			} `json:"nvext"`
			Usage struct {
				Completion int `json:"completion_tokens"`
			} `json:"usage"`
		}
		_, text, _ := strings.Cut(got, "\n")
		if err := json.Unmarshal([]byte(text), &whole); err != nil || !strings.HasPrefix(got, "200\n") {
			t.Fatalf("%s %v", got, err)
		}
		if n := whole.NVExt.Worker; n.Prefill != pre.Instance().InstanceID || n.Decode != dec.Instance().InstanceID {
			t.Errorf("workers %+v, want %d and %d", n, pre.Instance().InstanceID, dec.Instance().InstanceID)
		}
		if whole.Usage.Completion != 12 {
			t.Errorf("%d tokens: the prefill worker's own doesn't count", whole.Usage.Completion)
		}
		checkShared(t, pre.asked(), dec.asked(), pre.Instance().InstanceID, rooms)
		waitCompleted(t, pre, 1)
		waitCompleted(t, dec, 1)
		want := map[string]int{"handed_over": 1}
		if rooms {
			want = map[string]int{"bootstrap": 1}
		}
		if diff := cmp.Diff(want, f.outcomes()); diff != "" {
			t.Errorf("outcomes (-want +got):\n%s", diff)
		}
	})
}

// checkShared compares what both workers were asked.
func checkShared(t *testing.T, pre, dec []*worker.Request, id uint64, rooms bool) {
	t.Helper()
	if len(pre) != 1 || len(dec) != 1 {
		t.Fatalf("%d and %d requests", len(pre), len(dec))
	}
	p, d := pre[0], dec[0]
	if *p.Stop.MaxTokens != 1 || p.Stop.MinTokens != nil || *d.Stop.MaxTokens != 12 || *d.Stop.MinTokens != 3 {
		t.Errorf("budgets: prefill %+v, decode %+v", p.Stop, d.Stop)
	}
	for name, q := range map[string]*worker.Request{"prefill": p, "decode": d} {
		if q.Routing.PrefillWorkerID == nil || *q.Routing.PrefillWorkerID != id {
			t.Errorf("%s: prefill worker %v", name, q.Routing.PrefillWorkerID)
		}
	}
	override := `{"overlap_score_credit":0.0,"prefill_load_scale":null,"router_temperature":null,"assume_kv_reuse":false,` +
		`"track_prefill_tokens":false,"shared_cache_multiplier":null}`
	if p.RouterOverride != nil || !equalJSON(t, d.RouterOverride, override) {
		t.Errorf("router settings: prefill %s, decode %s", p.RouterOverride, d.RouterOverride)
	}
	if diff := cmp.Diff(p.BootstrapInfo, d.BootstrapInfo); diff != "" || (p.BootstrapInfo != nil) != rooms {
		t.Errorf("meeting place %+v (-prefill +decode):\n%s", p.BootstrapInfo, diff)
	}
	if b := p.BootstrapInfo; rooms && (b.Room >= 1<<63 || b.Handoff == [16]byte{} || b.Port == 0 || d.PrefillResult != nil) {
		t.Errorf("meeting place %+v, result %s", b, d.PrefillResult)
	}
	if !rooms && !strings.Contains(string(d.PrefillResult), `"prompt_tokens_details":{"audio_tokens":null,"cached_tokens":0}`) {
		t.Errorf("result %s", d.PrefillResult)
	}
	if diff := cmp.Diff(p.TokenIDs, d.TokenIDs); diff != "" {
		t.Errorf("prompts (-prefill +decode):\n%s", diff)
	}
}

// equalJSON compares two JSON objects.
func equalJSON(t *testing.T, got []byte, want string) bool {
	t.Helper()
	var a, b any
	if err := errors.Join(json.Unmarshal(got, &a), json.Unmarshal([]byte(want), &b)); err != nil {
		t.Errorf("%v in %s", err, got)
	}
	return cmp.Equal(a, b)
}

// until waits for something that is about to happen.
func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("never: " + what)
		}
	}
}

// reads waits until prompts may go to a prefill worker, and to no other of those given.
func (f *pools) reads(w *part, gone ...*part) {
	f.t.Helper()
	until(f.t, "the pool has changed", func() bool {
		set, err := f.catalog.Lookup("m")
		if err != nil || set.Prefill() == nil || !set.Prefill().Serves(w.Instance().InstanceID) {
			return false
		}
		for _, g := range gone {
			if set.Prefill().Serves(g.Instance().InstanceID) {
				return false
			}
		}
		return true
	})
}

// waitEnded waits until workers have nothing left to do.
func waitEnded(t *testing.T, workers ...*part) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	for _, w := range workers {
		for w.Stats().Active > 0 {
			if time.Now().After(deadline) {
				t.Fatalf("still at work: %+v", w.Stats())
			}
			time.Sleep(time.Millisecond)
		}
	}
}

// waitCompleted waits until a worker has answered n requests and is done.
func waitCompleted(t *testing.T, w *part, n int) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	for w.Stats().Active > 0 || w.Stats().Completed < uint64(n) {
		if time.Now().After(deadline) {
			t.Fatalf("%d requests are to be answered: %+v", n, w.Stats())
		}
		time.Sleep(time.Millisecond)
	}
	if s := w.Stats(); s.Completed != uint64(n) {
		t.Errorf("%d requests were to be answered: %+v", n, s)
	}
}

// TestPoolsPrefillFails has the first prefill worker break each request in its own way; another is there to take its
// place, or isn't.
func TestPoolsPrefillFails(t *testing.T) {
	says := func(e worker.Error) simworker.Engine {
		return simworker.EngineFunc(func(context.Context, *simworker.Request, simworker.Output) error { return &e })
	}
	nothing := simworker.EngineFunc(func(_ context.Context, _ *simworker.Request, out simworker.Output) error {
		return out.Send(&worker.Item{HasData: true, Output: worker.Output{TokenIDs: []uint32{1}, FinishReason: worker.FinishLength}})
	})
	plan := func(kind simworker.FaultKind) func(*simworker.Request) simworker.Fault {
		return func(*simworker.Request) simworker.Fault { return simworker.Fault{Kind: kind} }
	}
	for name, tc := range map[string]struct {
		engine simworker.Engine // nil: a prefiller
		plan   func(*simworker.Request) simworker.Fault
		lost   bool   // another may do better
		want   string // of the failure, when there is no other
	}{
		"dies":              {nil, plan(simworker.DieAfter), true, `503`},
		"refuses":           {nil, plan(simworker.Unknown), true, `503`},
		"can't begin":       {nil, plan(simworker.ErrorPrologue), true, `503`},
		"hangs up":          {nil, plan(simworker.HandshakeOnly), true, `503`},
		"is full":           {nil, plan(simworker.Overloaded), true, `529`},
		"speaks nonsense":   {nil, plan(simworker.GarbageAfter), false, `502`},
		"shuts down":        {says(worker.Error{Class: "Unavailable", Reason: "backend.engine_shutdown"}), nil, true, `503`},
		"raises":            {says(worker.Error{Class: "Internal", Reason: "backend.unknown", Message: "x"}), nil, false, `500`},
		"blames the client": {says(worker.Error{Class: "InvalidRequest", Reason: "request.invalid", PublicType: "message", Public: "no"}), nil, false, `400`},
		"has no result":     {nothing, nil, false, `502`},
	} {
		for _, other := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, another %v", name, other), func(t *testing.T) {
				f := newPools(t, false, false)
				if tc.engine == nil {
					tc.engine = &simworker.Prefiller{}
				}
				f.add("prefill", tc.engine, tc.plan)
				if other {
					f.add("prefill", &simworker.Prefiller{}, nil)
				}
				dec := f.add("decode", f.decoder(), nil) // the last: who sees it sees all
				f.wait(true)
				// Workers take turns: of two requests one meets the bad one first.
				statuses := map[string]int{}
				for range 2 {
					got := f.ask(t, chatPath, twelve+`}`)
					status, text, _ := strings.Cut(got, "\n")
					statuses[status]++
					if status != "200" && !strings.Contains(text, `"message":"`) {
						t.Errorf("answer %s", got)
					}
					if !other {
						break
					}
				}
				want := map[string]int{"200": 2}
				switch {
				case !other:
					want = map[string]int{tc.want: 1}
				case !tc.lost:
					want = map[string]int{"200": 1, tc.want: 1}
				}
				if diff := cmp.Diff(want, statuses); diff != "" {
					t.Errorf("statuses (-want +got):\n%s", diff)
				}
				waitCompleted(t, dec, statuses["200"])
			})
		}
	}
}

// TestPoolsFallBack takes the prefill workers away: decode workers that can read prompts do, others aren't asked.
func TestPoolsFallBack(t *testing.T) {
	both(t, func(t *testing.T, rooms bool) {
		for _, alone := range []bool{false, true} {
			t.Run(fmt.Sprintf("decode alone %v", alone), func(t *testing.T) {
				f := newPools(t, rooms, alone)
				pre, dec := f.add("prefill", &simworker.Prefiller{}, nil), f.add("decode", f.decoder(), nil)
				f.wait(true)
				want := f.ask(t, completionPath, `{"model":"m","prompt":"p","max_tokens":9}`)
				pre.Abort() // its records stay
				<-pre.ended
				for range 2 { // the first finds out, the second finds it left aside
					got := f.ask(t, completionPath, `{"model":"m","prompt":"p","max_tokens":9}`)
					if alone && got != want {
						t.Errorf("answer %s, want %s", got, want)
					}
					if !alone && (!strings.HasPrefix(got, "503\n") || dec.Stats().Received != 1) {
						t.Errorf("answer %s, %+v", got, dec.Stats())
					}
				}
				if alone && f.outcomes()["fallback"] != 2 || !alone && f.outcomes()["failure"] != 2 {
					t.Errorf("outcomes %v", f.outcomes())
				}
				for _, bucket := range []string{"instances", "mdc"} {
					f.source.Remove("v1/" + bucket + "/" + pre.Instance().Path())
				}
				f.wait(alone)
				got := f.ask(t, completionPath, `{"model":"m","prompt":"p","max_tokens":9}`)
				if alone && got != want || !alone && !strings.Contains(got, "is not ready to serve requests yet") {
					t.Errorf("answer %s", got)
				}
				f.reads(f.add("prefill", &simworker.Prefiller{}, nil))
				if got := f.ask(t, completionPath, `{"model":"m","prompt":"p","max_tokens":9}`); got != want {
					t.Errorf("with another: %s, want %s", got, want)
				}
			})
		}
	})
}

// TestPoolsPrefillDies crashes a prefill worker while it reads, with a decode worker waiting for it or not.
func TestPoolsPrefillDies(t *testing.T) {
	both(t, func(t *testing.T, rooms bool) {
		f := newPools(t, rooms, false)
		dec := f.add("decode", f.decoder(), nil)
		good := f.add("prefill", &simworker.Prefiller{}, nil)
		f.wait(true)
		want := f.ask(t, chatPath, twelve+`}`)
		good.stop()
		bad := f.add("prefill", &simworker.Prefiller{Timing: simworker.Timing{TTFT: time.Minute}}, nil)
		f.reads(bad, good)
		answer := make(chan string, 1)
		go func() { answer <- f.ask(t, chatPath, twelve+`}`) }()
		until(t, "the prompt is being read", func() bool {
			return len(bad.asked()) > 0 && (!rooms || len(dec.asked()) == 2)
		})
		next := f.add("prefill", &simworker.Prefiller{}, nil)
		f.reads(next)
		bad.Abort()
		got := <-answer
		want = strings.Replace(want, fmt.Sprint(good.Instance().InstanceID), fmt.Sprint(next.Instance().InstanceID), 1)
		if got != want {
			t.Errorf("answer %s, want %s", got, want)
		}
		waitCompleted(t, next, 1)
		waitCompleted(t, dec, 2)
		if b := next.asked()[0].BootstrapInfo; (b != nil) != rooms {
			t.Errorf("the next prefill worker is met at %+v", b)
		}
		if s := dec.Stats(); rooms && (s.Received != 3 || s.Stopped+s.Killed != 1) {
			t.Errorf("the decode worker: %+v", s)
		}
		if n := f.outcomes()["lost"]; n != 1 {
			t.Errorf("outcomes %v", f.outcomes())
		}
	})
}

// handingOver is a prefill engine that hands over, waits, and dies.
type handingOver struct {
	*simworker.Prefiller
	until <-chan struct{}
}

// Generate implements simworker.Engine.
func (e handingOver) Generate(ctx context.Context, req *simworker.Request, _ simworker.Output) error {
	if err := e.Prefiller.Generate(ctx, req, &unheard{}); err != nil {
		return err
	}
	<-e.until
	return simworker.ErrDie
}

// unheard is an Output that nobody hears.
type unheard struct{}

func (unheard) Send(*worker.Item) error { return nil }
func (unheard) SendJSON([]byte) error   { return nil }

// TestPoolsLatePrefillFailure has a prefill worker die behind its hand-over, when the decode worker has begun: the answer
// goes on.
func TestPoolsLatePrefillFailure(t *testing.T) {
	f := newPools(t, true, false)
	begun, died := make(chan struct{}), make(chan struct{})
	prefill := &simworker.Prefiller{}
	pre := f.add("prefill", prefill, nil)
	pre.set(handingOver{prefill, begun})
	dec := f.add("decode", &simworker.Decoder{Engine: simworker.EngineFunc(
		func(ctx context.Context, req *simworker.Request, out simworker.Output) error {
			it := worker.Item{HasData: true, Output: worker.Output{TokenIDs: []uint32{'<'}}}
			if err := out.Send(&it); err != nil {
				return err
			}
			<-died
			return words().Generate(ctx, req, out)
		})}, nil)
	f.wait(true)
	res := f.start(t.Context(), t, chatPath, twelve+`,"stream":true}`)
	defer res.Body.Close()
	body := bufio.NewReader(res.Body)
	if line, err := body.ReadString('\n'); err != nil || !strings.Contains(line, `"content":"<"`) {
		t.Fatalf("%q %v", line, err)
	}
	close(begun)
	until(t, "the prefill worker has died", func() bool { return pre.Stats().Failed > 0 })
	time.Sleep(20 * time.Millisecond) // the frontend notices
	close(died)
	rest, err := io.ReadAll(body)
	if err != nil || strings.Contains(string(rest), `"error"`) || !strings.Contains(string(rest), `"finish_reason":"length"`) {
		t.Errorf("%v in %s", err, rest)
	}
	waitCompleted(t, dec, 1)
}

// TestPoolsClientLeaves cancels a request while its prompt is being read, and while it is answered: every worker that
// has it is told, once.
func TestPoolsClientLeaves(t *testing.T) {
	both(t, func(t *testing.T, rooms bool) {
		for _, early := range []bool{true, false} {
			t.Run(fmt.Sprintf("early %v", early), func(t *testing.T) {
				f := newPools(t, rooms, false)
				prefill := &simworker.Prefiller{}
				if early {
					prefill.Timing.TTFT = time.Minute
				}
				engine := words().(*simworker.Generator)
				engine.Timing.ITL = 10 * time.Millisecond
				pre, dec := f.add("prefill", prefill, nil), f.add("decode", &simworker.Decoder{Engine: engine}, nil)
				f.wait(true)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				left := make(chan struct{})
				go func() {
					defer close(left)
					req, _ := http.NewRequestWithContext(ctx, http.MethodPost, f.url+chatPath,
						strings.NewReader(conversation+`,"stream":true,"max_tokens":10000}`))
					req.Header.Set("Content-Type", "application/json")
					if res, err := f.client.Do(req); err == nil {
						<-ctx.Done()
						res.Body.Close()
					}
				}()
				busy := pre
				if !early || rooms {
					busy = dec
				}
				until(t, "it is under way", func() bool { return len(busy.asked()) > 0 })
				time.Sleep(30 * time.Millisecond)
				cancel()
				<-left
				began := time.Now()
				waitEnded(t, pre, dec)
				if took := time.Since(began); took > time.Second {
					t.Errorf("told after %s", took)
				}
				told := func(w *part) uint64 { s := w.Stats(); return s.Stopped + s.Killed }
				wantPre, wantDec := uint64(0), uint64(1)
				if early {
					wantPre = 1
					if !rooms {
						wantDec = 0
					}
				}
				if told(pre) != wantPre || told(dec) != wantDec || pre.Stats().Lost+dec.Stats().Lost > 0 {
					t.Errorf("prefill %+v, decode %+v", pre.Stats(), dec.Stats())
				}
			})
		}
	})
}

// TestPoolsDecodeDies kills the decode worker behind every token: the other one's prompt, with the answer so far, is read
// by a prefill worker again, and the client's text is that of an unfailed run.
func TestPoolsDecodeDies(t *testing.T) {
	both(t, func(t *testing.T, rooms bool) {
		// The workers come back at once, so none is left aside.
		f := newPoolsFor(t, rooms, false, dispatch.Options{QuarantineFor: -1})
		var cut atomic.Int64
		cut.Store(-1)
		dying := func(*simworker.Request) simworker.Fault {
			// The first to come dies, whichever it is.
			if k := cut.Swap(-1); k >= 0 {
				return simworker.Fault{Kind: simworker.DieAfter, After: int(k)}
			}
			return simworker.Fault{}
		}
		for range 3 {
			f.add("decode", f.decoder(), dying)
		}
		f.reads(f.add("prefill", &simworker.Prefiller{}, nil))
		const request = conversation + `,"max_tokens":10,"stream":true}`
		want := f.ask(t, chatPath, request)
		for k := range 11 {
			cut.Store(int64(k))
			if diff := cmp.Diff(want, f.ask(t, chatPath, request)); diff != "" {
				t.Errorf("killed after %d (-unfailed +got):\n%s", k, diff)
			}
			if cut.Load() >= 0 {
				t.Error("nobody has died")
			}
		}
	})
}

// TestPoolsBatch sends several prompts at once.
func TestPoolsBatch(t *testing.T) {
	both(t, func(t *testing.T, rooms bool) {
		f := newPools(t, rooms, false)
		f.add("prefill", &simworker.Prefiller{}, nil)
		f.add("decode", f.decoder(), nil)
		f.wait(true)
		one := func(prompt string) string {
			got := f.ask(t, completionPath, `{"model":"m","prompt":"`+prompt+`","max_tokens":8}`)
			_, got, _ = strings.Cut(got, `"text":"`)
			got, _, _ = strings.Cut(got, `"`)
			return got
		}
		got := f.ask(t, completionPath, `{"model":"m","prompt":["x","y","z"],"max_tokens":8}`)
		for _, prompt := range []string{"x", "y", "z"} {
			if text := one(prompt); len(text) != 8 || !strings.Contains(got, `"text":"`+text+`"`) {
				t.Errorf("no %q for %s in %s", text, prompt, got)
			}
		}
	})
}

// TestPoolsPinned names the prefill worker: no other takes its place.
func TestPoolsPinned(t *testing.T) {
	f := newPools(t, false, true)
	workers := []*part{f.add("prefill", &simworker.Prefiller{}, nil), f.add("prefill", &simworker.Prefiller{}, nil)}
	f.add("decode", f.decoder(), nil)
	f.wait(true)
	ask := func(id uint64) string {
		return f.ask(t, chatPath, fmt.Sprintf(`%s,"max_tokens":2,"nvext":{"prefill_worker_id":%d}}`, conversation, id))
	}
	for i, w := range workers {
		for range 3 {
			if got := ask(w.Instance().InstanceID); !strings.HasPrefix(got, "200\n") {
				t.Fatal(got)
			}
		}
		if n := w.Stats().Received; n != 3 {
			t.Errorf("worker %d got %d requests", i, n)
		}
	}
	if got := ask(7); !strings.HasPrefix(got, "503\n") || !strings.Contains(got, "Worker 7 is not available") {
		t.Errorf("answer %s", got)
	}
}
