package admission_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/portico-llm/portico/internal/admission"
	"github.com/portico-llm/portico/internal/fault"
)

// crowd lets requests enter a gate on goroutines of their own, and notes who was let in.
type crowd struct {
	t    *testing.T
	gate *admission.Gate
	mu   sync.Mutex
	in   []string
	held map[string]*admission.Place
	errs map[string]error
}

func newCrowd(t *testing.T, o admission.Options) *crowd {
	return &crowd{t: t, gate: admission.New(o), held: map[string]*admission.Place{}, errs: map[string]error{}}
}

// enter starts a request under a name. It returns when the request is in, refused, or waiting.
func (c *crowd) enter(ctx context.Context, name string, r admission.Request) {
	c.t.Helper()
	if r.Model == "" {
		r.Model = "m"
	}
	go func() {
		p, err := c.gate.Enter(ctx, &r)
		c.mu.Lock()
		defer c.mu.Unlock()
		if err != nil {
			c.errs[name] = err
			return
		}
		c.in = append(c.in, name)
		c.held[name] = p
	}()
	synctest.Wait()
}

// leave gives a place back and waits until whoever gets it has it.
func (c *crowd) leave(name string) {
	c.mu.Lock()
	p := c.held[name]
	c.mu.Unlock()
	p.Leave()
	synctest.Wait()
}

// want compares who has been let in, in order, since the last call.
func (c *crowd) want(names ...string) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if d := cmp.Diff(names, c.in); d != "" {
		c.t.Errorf("let in (-want +got):\n%s", d)
	}
	c.in = nil
}

// refused checks a request's failure and returns what it asks the client to wait.
func (c *crowd) refused(name string, kind fault.Kind) time.Duration {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	f := fault.From(c.errs[name])
	if f == nil || f.Kind != kind {
		c.t.Errorf("%s: %v, want a failure of kind %v", name, c.errs[name], kind)
		return 0
	}
	return f.RetryAfter
}

// TestLimit: places are counted for each model by itself, and go to those that wait in the order they came.
func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, admission.Options{Limit: 2, Queue: 2})
		ctx := t.Context()
		for _, name := range []string{"a", "b", "c", "d"} {
			c.enter(ctx, name, admission.Request{})
		}
		c.enter(ctx, "other", admission.Request{Model: "n"})
		c.want("a", "b", "other")
		c.enter(ctx, "e", admission.Request{})
		if after := c.refused("e", fault.Overloaded); after < time.Second {
			t.Errorf("to come again after %v", after)
		}
		c.leave("b")
		c.want("c")
		c.leave("b") // again: nothing
		c.want()
		c.leave("a")
		c.leave("c")
		c.want("d")
		c.leave("d")
		c.enter(ctx, "f", admission.Request{})
		c.want("f")
	})
}

// TestNamedLimits: a model's own limit stands in place of the general one, 0 lifts it, and metrics show what holds.
func TestNamedLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewPedanticRegistry()
		c := newCrowd(t, admission.Options{
			Limit: 1, Limits: map[string]int{"large": 2, "free": 0}, Queue: -1, Registerer: reg})
		ctx := t.Context()
		for _, model := range []string{"other", "large", "large", "free", "free", "free"} {
			c.enter(ctx, model, admission.Request{Model: model})
		}
		c.want("other", "large", "large", "free", "free", "free")
		for _, model := range []string{"other", "large"} {
			c.enter(ctx, "more of "+model, admission.Request{Model: model})
			if after := c.refused("more of "+model, fault.Overloaded); after < time.Second {
				t.Errorf("%s: to come again after %v", model, after)
			}
		}
		if err := testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP portico_admission_limit_requests Requests that may be let in at a time; models without a limit have no series
# TYPE portico_admission_limit_requests gauge
portico_admission_limit_requests{model="large"} 2
portico_admission_limit_requests{model="other"} 1
`), "portico_admission_limit_requests"); err != nil {
			t.Error(err)
		}
		c.gate.Retain(func(model string) bool { return model == "large" })
		c.leave("other")
		c.gate.Retain(func(model string) bool { return model == "large" })
		if n, err := testutil.GatherAndCount(reg, "portico_admission_limit_requests"); err != nil || n != 1 {
			t.Errorf("%d series are left, %v", n, err)
		}
	})
}

// TestPriorities: who waits is let in by rank.
func TestPriorities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, admission.Options{Limit: 1, Order: admission.WSPT})
		ctx := t.Context()
		c.enter(ctx, "first", admission.Request{Tokens: 10})
		c.enter(ctx, "long", admission.Request{Tokens: 1000})
		c.enter(ctx, "short", admission.Request{Tokens: 10})
		c.enter(ctx, "middle", admission.Request{Tokens: 100})
		c.enter(ctx, "strict", admission.Request{Tokens: 5000, Strict: 1})
		for _, name := range []string{"first", "strict", "short", "middle"} {
			c.leave(name)
		}
		c.want("first", "strict", "short", "middle", "long")
	})
}

// TestClientLeaves: a client that leaves frees its place in the queue at once, and never gets one of the places.
func TestClientLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, admission.Options{Limit: 1, Queue: 1})
		ctx, cancel := context.WithCancelCause(t.Context())
		c.enter(t.Context(), "a", admission.Request{})
		c.enter(ctx, "b", admission.Request{})
		cancel(fault.New(fault.Unavailable, "stopping"))
		synctest.Wait()
		c.refused("b", fault.Unavailable) // the cause, whatever it is
		c.enter(t.Context(), "c", admission.Request{})
		c.leave("a")
		c.want("a", "c")
		c.leave("c")
		if n := testutil.ToFloat64(only(c.gate, "portico_admission_running_requests")); n != 0 {
			t.Errorf("%v places are still taken", n)
		}
	})
}

// TestWaitsTooLong: the wait has an end, and the client is told how long the queue takes.
func TestWaitsTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, admission.Options{Limit: 1, Queue: 20, MaxWait: 5 * time.Second})
		ctx := t.Context()
		c.enter(ctx, "warm", admission.Request{})
		time.Sleep(3 * time.Second)
		c.leave("warm") // held for 3 s
		c.enter(ctx, "a", admission.Request{})
		c.enter(ctx, "b", admission.Request{})
		time.Sleep(time.Second)
		for i := range 9 {
			c.enter(ctx, string(rune('c'+i)), admission.Request{})
		}
		time.Sleep(4*time.Second + time.Millisecond)
		c.want("warm", "a")
		if after := c.refused("b", fault.Overloaded); after != 30*time.Second {
			t.Errorf("to come again after %v", after)
		}
		time.Sleep(time.Second)
		c.leave("a")
		c.want()
		c.refused("k", fault.Overloaded)
	})
}

// TestWorkers: overloaded workers refuse, saturated ones make requests wait, and those that were let in together don't
// all count on the same room.
func TestWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, admission.Options{})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.gate.Run(ctx) }()
		// Workers take 100 tokens at a time, and say what they do when they are full.
		var load atomic.Int64
		full := admission.Saturated
		workers := func(pending int64) admission.State {
			if load.Load()+pending >= 100 {
				return full
			}
			return admission.Ready
		}
		r := admission.Request{Tokens: 60, Workers: workers}
		c.enter(ctx, "a", r)
		c.enter(ctx, "b", r)
		c.enter(ctx, "c", r)
		c.want("a", "b") // the third finds what the two will bring
		time.Sleep(time.Second)
		c.want()
		load.Store(120) // they have arrived
		c.held["a"].Sent()
		c.held["a"].Sent()
		c.held["b"].Sent()
		time.Sleep(time.Second)
		c.want()
		load.Store(0) // their prefill is over
		time.Sleep(time.Second)
		c.want("c")
		full = admission.Overloaded
		load.Store(100)
		c.enter(ctx, "d", r)
		if after := c.refused("d", fault.Overloaded); after != time.Second {
			t.Errorf("to come again after %v", after)
		}
		for _, name := range []string{"a", "b", "c"} {
			c.leave(name)
		}
		// Nothing pending is left behind by those that never reached a worker.
		load.Store(99)
		c.enter(ctx, "e", admission.Request{Tokens: 1, Workers: workers})
		c.want("e")
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestNothingToDo: without limits nothing is counted, and the nil place works.
func TestNothingToDo(t *testing.T) {
	g := admission.New(admission.Options{})
	p, err := g.Enter(context.Background(), &admission.Request{Model: "m"})
	if p != nil || err != nil {
		t.Errorf("%v, %v", p, err)
	}
	p.Sent()
	p.Leave()
	if n := testing.AllocsPerRun(100, func() {
		_, _ = g.Enter(context.Background(), &admission.Request{Model: "m"})
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestNeverMoreThanTheLimit has many requests come, give up and leave at random.
func TestNeverMoreThanTheLimit(t *testing.T) {
	const limit = 3
	g := admission.New(admission.Options{Limit: limit, Queue: 8, MaxWait: 2 * time.Millisecond})
	var running, most, served atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 200 {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rand.IntN(3000))*time.Microsecond)
				p, err := g.Enter(ctx, &admission.Request{Model: "m", Priority: int32(rand.IntN(5)), Tokens: 1})
				if err == nil {
					n := running.Add(1)
					for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
					}
					time.Sleep(time.Duration(rand.IntN(200)) * time.Microsecond)
					running.Add(-1)
					served.Add(1)
					p.Leave()
				} else if _, ok := errors.AsType[*fault.Error](err); !ok {
					t.Errorf("%v is no fault", err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if most.Load() > limit || served.Load() == 0 {
		t.Errorf("%d at a time, %d served", most.Load(), served.Load())
	}
	// All places and the whole queue are free again.
	for range limit {
		if _, err := g.Enter(context.Background(), &admission.Request{Model: "m"}); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"portico_admission_waiting_requests"} {
		if n := testutil.ToFloat64(only(g, name)); n != 0 {
			t.Errorf("%s: %v", name, n)
		}
	}
}

// TestMetrics: a model's series go with it, unless it has requests.
func TestMetrics(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	g := admission.New(admission.Options{Limit: 1, Queue: -1, Registerer: reg})
	enter := func(model string) *admission.Place {
		p, err := g.Enter(context.Background(), &admission.Request{Model: model})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	enter("gone").Leave()
	enter("stays").Leave()
	busy := enter("busy")
	if _, err := g.Enter(context.Background(), &admission.Request{Model: "busy"}); fault.KindOf(err) != fault.Overloaded {
		t.Error(err)
	}
	g.Retain(func(model string) bool { return model == "stays" })
	err := testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP portico_admission_running_requests Requests that were let in and aren't over; counted where there is a limit or a queue
# TYPE portico_admission_running_requests gauge
portico_admission_running_requests{model="busy"} 1
portico_admission_running_requests{model="stays"} 0
# HELP portico_admission_refused_total Requests that were not let in, by reason
# TYPE portico_admission_refused_total counter
portico_admission_refused_total{model="busy",reason="client_left"} 0
portico_admission_refused_total{model="busy",reason="queue_full"} 1
portico_admission_refused_total{model="busy",reason="waited_too_long"} 0
portico_admission_refused_total{model="busy",reason="workers_busy"} 0
portico_admission_refused_total{model="stays",reason="client_left"} 0
portico_admission_refused_total{model="stays",reason="queue_full"} 0
portico_admission_refused_total{model="stays",reason="waited_too_long"} 0
portico_admission_refused_total{model="stays",reason="workers_busy"} 0
`), "portico_admission_running_requests", "portico_admission_refused_total")
	if err != nil {
		t.Error(err)
	}
	busy.Leave()
	g.Retain(func(string) bool { return false })
	if n, err := testutil.GatherAndCount(reg, "portico_admission_refused_total"); err != nil || n != 0 {
		t.Errorf("%d series are left, %v", n, err)
	}
}

// only is a collector with one metric of the gate's.
func only(g *admission.Gate, name string) prometheus.Collector { return single{g.Collector(), name} }

type single struct {
	prometheus.Collector
	name string
}

func (s single) Collect(out chan<- prometheus.Metric) {
	all := make(chan prometheus.Metric, 64)
	s.Collector.Collect(all)
	close(all)
	for m := range all {
		if strings.Contains(m.Desc().String(), `"`+s.name+`"`) {
			out <- m
		}
	}
}
