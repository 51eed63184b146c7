package executor_test

import (
	"context"
	"errors"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/native"
	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/prepost/executor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// model is what callers hold; its address is its identity.
type model struct {
	name string
	exec *executor.Executor
}

// source encodes a text as its length. It counts what is alive, so that a use after free shows.
type source struct {
	started chan string   // when not nil: gets the text of each job as it begins
	gate    chan struct{} // when not nil: each job waits for one value
	fail    error         // of NewEncoder

	encoders, made, frees, running, most atomic.Int64
}

func (s *source) NewEncoder() (executor.Encoder, error) {
	if s.fail != nil {
		return nil, s.fail
	}
	s.made.Add(1)
	s.encoders.Add(1)
	return &encoder{s}, nil
}

func (s *source) Close() error {
	if n := s.encoders.Load(); n != 0 {
		panic("freed under " + strconv.FormatInt(n, 10) + " encoders")
	}
	s.frees.Add(1)
	return nil
}

type encoder struct{ *source }

func (e *encoder) Encode(text string, addSpecial bool) ([]prepost.TokenID, error) {
	n := e.running.Add(1)
	defer e.running.Add(-1)
	for {
		most := e.most.Load()
		if n <= most || e.most.CompareAndSwap(most, n) {
			break
		}
	}
	if e.started != nil {
		e.started <- text
	}
	if e.gate != nil {
		<-e.gate
	}
	switch {
	case e.frees.Load() > 0:
		return nil, errors.New("encode after free")
	case text == "panic":
		panic(text)
	case text == "error":
		return nil, errors.New(text)
	}
	ids := []prepost.TokenID{prepost.TokenID(len(text))}
	if addSpecial {
		ids = append(ids, 1)
	}
	return ids, nil
}

func (e *encoder) Close() error { e.encoders.Add(-1); return nil }

func blocking() *source {
	return &source{started: make(chan string, 100), gate: make(chan struct{})}
}

func newRegistry(t *testing.T, o executor.Options) *executor.Registry {
	t.Helper()
	r := executor.NewRegistry(o)
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return r
}

func bind(t *testing.T, r *executor.Registry, m *model, s *source) *executor.Executor {
	t.Helper()
	e, bound, err := executor.Bind(r, m, s)
	if err != nil || !bound {
		t.Fatalf("Bind = %v, %v", bound, err)
	}
	m.exec = e
	return e
}

// eventually collects garbage until f holds.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for range 500 {
		if f() {
			return
		}
		runtime.GC()
		time.Sleep(2 * time.Millisecond)
	}
	t.Fatalf("never: %s", what)
}

func wantIDs(t *testing.T, e *executor.Executor, text string, want ...prepost.TokenID) {
	t.Helper()
	got, err := e.Encode(t.Context(), text, false)
	if err != nil {
		t.Fatalf("Encode(%q): %v", text, err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Encode(%q) (-want +got)\n%s", text, diff)
	}
}

func TestEqualTokenizersHaveSeparateExecutors(t *testing.T) {
	r := newRegistry(t, executor.Options{})
	a, b := &model{name: "same"}, &model{name: "same"}
	ea, eb := bind(t, r, a, &source{}), bind(t, r, b, &source{})
	if ea == eb {
		t.Error("two tokenizers share an executor")
	}
	if executor.Find(r, a) != ea || executor.Find(r, b) != eb {
		t.Error("Find returns another executor")
	}
	if e, bound, err := executor.Bind(r, a, &source{}); e != ea || bound || err != nil {
		t.Errorf("a second Bind = %p, %v, %v; want %p, false", e, bound, err, ea)
	}
	if n := r.Live(); n != 2 {
		t.Errorf("Live = %d", n)
	}
	runtime.KeepAlive(a)
	runtime.KeepAlive(b)
}

func TestCollectingATokenizerEvictsOnlyItsOwnExecutor(t *testing.T) {
	r := newRegistry(t, executor.Options{})
	sa, sb := &source{}, &source{}
	a, b := &model{name: "same"}, &model{name: "same"}
	wantIDs(t, bind(t, r, a, sa), "four", 4)
	eb := bind(t, r, b, sb)
	wantIDs(t, eb, "four", 4)
	runtime.KeepAlive(a)
	a = nil
	eventually(t, "a's executor evicted and its memory freed", func() bool { return r.Live() == 1 && sa.frees.Load() == 1 })
	if executor.Find(r, b) != eb || sb.frees.Load() != 0 {
		t.Error("b lost its executor")
	}
	wantIDs(t, eb, "still there", 11)
	runtime.KeepAlive(b)
	_ = a
}

// The executor, its workers and its queued jobs hold on to nothing that leads back to the tokenizer.
func TestNothingTheExecutorReachesKeepsTheTokenizerAlive(t *testing.T) {
	r := newRegistry(t, executor.Options{Workers: 1})
	s := blocking()
	collected := make(chan struct{})
	m := &model{name: "m"}
	runtime.AddCleanup(m, func(c chan struct{}) { close(c) }, collected)
	e := bind(t, r, m, s)
	var wg sync.WaitGroup
	for range 3 { // one running, two queued
		wg.Go(func() { wantIDs(t, e, "four", 4) })
	}
	<-s.started
	m = nil
	eventually(t, "collected while its jobs are there", func() bool {
		select {
		case <-collected:
			return true
		default:
			return false
		}
	})
	close(s.gate)
	wg.Wait()
	_ = m
}

func TestQueuedAndRunningJobsFinishAfterEviction(t *testing.T) {
	for _, how := range []string{"close", "collect"} {
		t.Run(how, func(t *testing.T) {
			r := newRegistry(t, executor.Options{Workers: 1})
			s := blocking()
			m := &model{}
			e := bind(t, r, m, s)
			var wg sync.WaitGroup
			for range 5 {
				wg.Go(func() { wantIDs(t, e, "seven!!", 7) })
			}
			<-s.started
			eventually(t, "four jobs queued", func() bool { return executor.Queued(e) == 4 })
			if how == "close" {
				e.Close()
			}
			runtime.KeepAlive(m)
			m = nil
			eventually(t, "evicted", func() bool { return r.Live() == 0 })
			if s.frees.Load() != 0 {
				t.Error("freed under a running job")
			}
			if _, err := e.Encode(t.Context(), "late", false); !errors.Is(err, executor.ErrClosed) {
				t.Errorf("Encode after eviction: %v", err)
			}
			close(s.gate)
			wg.Wait()
			eventually(t, "freed once", func() bool { return s.frees.Load() == 1 && s.encoders.Load() == 0 })
		})
	}
}

func TestCloseEvictsAtOnceAndIsIdempotent(t *testing.T) {
	r := newRegistry(t, executor.Options{})
	s := &source{}
	m := &model{}
	e := bind(t, r, m, s)
	for range 3 {
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		if n := r.Live(); n != 0 {
			t.Fatalf("Live = %d right after Close", n)
		}
	}
	if n := s.frees.Load(); n != 1 {
		t.Errorf("freed %d times", n)
	}
	_, err := e.Encode(t.Context(), "x", false)
	if !errors.Is(err, executor.ErrClosed) || fault.KindOf(err) != fault.Unavailable {
		t.Errorf("Encode after Close: %v", err)
	}
	runtime.KeepAlive(m)
}

func TestClosedAndThenCollectedIsFreedOnce(t *testing.T) {
	r := newRegistry(t, executor.Options{})
	s := &source{}
	func() {
		m := &model{}
		bind(t, r, m, s).Close()
	}()
	for range 5 {
		runtime.GC()
	}
	if n := s.frees.Load(); n != 1 {
		t.Errorf("freed %d times", n)
	}
}

func TestRegistryCloseWaitsForEverything(t *testing.T) {
	r := executor.NewRegistry(executor.Options{Workers: 2})
	s, pinned := blocking(), &source{}
	m := &model{}
	e := bind(t, r, m, s)
	if _, err := r.Pin("name", pinned); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() { wantIDs(t, e, "four", 4) })
	}
	<-s.started
	<-s.started
	eventually(t, "all there", func() bool { return executor.Queued(e) == 4 })
	closed := make(chan error, 1)
	wg.Go(func() { closed <- r.Close() })
	eventually(t, "closed", func() bool { return r.Live() == 0 })
	select {
	case <-closed:
		t.Error("Close returned while jobs were running")
	default:
	}
	close(s.gate)
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if s.frees.Load() != 1 || pinned.frees.Load() != 1 || r.Live() != 0 {
		t.Errorf("freed %d and %d times, %d live", s.frees.Load(), pinned.frees.Load(), r.Live())
	}
	wg.Wait()

	if _, _, err := executor.Bind(r, &model{}, &source{}); !errors.Is(err, executor.ErrClosed) {
		t.Errorf("Bind after Close: %v", err)
	}
	if _, err := r.Pin("other", &source{}); !errors.Is(err, executor.ErrClosed) {
		t.Errorf("Pin after Close: %v", err)
	}
	if err := errors.Join(r.Close(), e.Close()); err != nil {
		t.Errorf("a second Close: %v", err)
	}
	if n := s.frees.Load(); n != 1 {
		t.Errorf("freed %d times", n)
	}
	runtime.KeepAlive(m)
}

func TestCloseRacesEncode(t *testing.T) {
	r := newRegistry(t, executor.Options{Workers: 2})
	for range 30 {
		s := &source{}
		m := &model{}
		e := bind(t, r, m, s)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for {
					if _, err := e.Encode(t.Context(), "x", false); err != nil {
						if !errors.Is(err, executor.ErrClosed) {
							t.Error(err)
						}
						return
					}
				}
			})
		}
		time.Sleep(time.Millisecond)
		wg.Go(func() { e.Close() })
		wg.Go(func() { e.Close() })
		wg.Wait()
		eventually(t, "freed", func() bool { return s.frees.Load() == 1 })
		runtime.KeepAlive(m)
	}
}

func TestAbandonedJobsAreDropped(t *testing.T) {
	r := newRegistry(t, executor.Options{Workers: 1})
	s := blocking()
	m := &model{}
	e := bind(t, r, m, s)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, text := range []string{"running", "queued"} {
		wg.Go(func() {
			if ids, err := e.Encode(ctx, text, false); !errors.Is(err, context.Canceled) {
				t.Errorf("Encode(%q) = %v, %v", text, ids, err)
			}
		})
		if text == "running" {
			<-s.started
		}
	}
	eventually(t, "queued", func() bool { return executor.Queued(e) == 1 })
	cancel()
	wg.Wait() // the callers have left though the worker is still busy
	close(s.gate)
	wantIDs(t, e, "next", 4)
	if got := <-s.started; got != "next" {
		t.Errorf("the worker ran %q, which nobody waited for", got)
	}
	if _, err := e.Encode(ctx, "x", false); !errors.Is(err, context.Canceled) {
		t.Errorf("Encode with an ended context: %v", err)
	}
	runtime.KeepAlive(m)
}

func TestFullQueueIsOverloaded(t *testing.T) {
	reg := prometheus.NewRegistry()
	r := newRegistry(t, executor.Options{Workers: 1, Queue: 2, Registerer: reg})
	s := blocking()
	m := &model{}
	e := bind(t, r, m, s)
	var wg sync.WaitGroup
	wg.Go(func() { wantIDs(t, e, "running", 7) })
	<-s.started
	for range 2 {
		wg.Go(func() { wantIDs(t, e, "queued", 6) })
	}
	eventually(t, "two queued", func() bool { return executor.Queued(e) == 2 })
	_, err := e.Encode(t.Context(), "too many", false)
	if fault.KindOf(err) != fault.Overloaded {
		t.Errorf("Encode on a full queue: %v", err)
	}
	if got := gather(t, reg)["portico_executor_queue_depth"]; got != 2 {
		t.Errorf("queue depth = %v", got)
	}
	close(s.gate)
	wg.Wait()
	wantIDs(t, e, "again", 5)
	if got := gather(t, reg)["portico_executor_refused_total"]; got != 1 {
		t.Errorf("refused = %v", got)
	}
	runtime.KeepAlive(m)
}

func TestGateBoundsAllExecutors(t *testing.T) {
	r := newRegistry(t, executor.Options{Workers: 4, Gate: native.NewGate(2)})
	started, gate := make(chan string, 100), make(chan struct{})
	var models []*model
	var wg sync.WaitGroup
	for range 3 {
		m := &model{}
		e := bind(t, r, m, &source{started: started, gate: gate})
		models = append(models, m)
		for range 4 {
			wg.Go(func() { wantIDs(t, e, "x", 1) })
		}
	}
	<-started
	<-started
	time.Sleep(20 * time.Millisecond)
	if n := len(started); n != 0 {
		t.Errorf("%d encodes run beyond the two that may", n)
	}
	close(gate)
	wg.Wait()
	runtime.KeepAlive(models)
}

func TestWorkersStartWithWorkAndAreBounded(t *testing.T) {
	r := newRegistry(t, executor.Options{Workers: 3})
	s := &source{}
	m := &model{}
	before := runtime.NumGoroutine()
	e := bind(t, r, m, s)
	if n := runtime.NumGoroutine(); n > before {
		t.Errorf("an idle executor has %d goroutines", n-before)
	}
	for range 50 {
		wantIDs(t, e, "one after the other", 19)
	}
	if n := s.made.Load(); n != 1 {
		t.Errorf("%d encoders for one job at a time", n)
	}
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() { wantIDs(t, e, "x", 1) })
	}
	wg.Wait()
	if made, most := s.made.Load(), s.most.Load(); made > 3 || most > 3 {
		t.Errorf("%d encoders, %d at the same time; want at most 3", made, most)
	}
	runtime.KeepAlive(m)
}

func TestFailuresReachTheCaller(t *testing.T) {
	r := newRegistry(t, executor.Options{Workers: 1})
	m := &model{}
	e := bind(t, r, m, &source{})
	for _, text := range []string{"panic", "error"} {
		if ids, err := e.Encode(t.Context(), text, false); err == nil {
			t.Errorf("Encode(%q) = %v", text, ids)
		}
	}
	wantIDs(t, e, "the worker goes on", 18)

	broken := &model{}
	eb := bind(t, r, broken, &source{fail: errors.New("no memory")})
	if _, err := eb.Encode(t.Context(), "x", false); err == nil {
		t.Error("no encoder, and no error")
	}
	if _, _, err := executor.Bind(r, &model{}, nil); err == nil {
		t.Error("Bind without a source")
	}
	runtime.KeepAlive(m)
	runtime.KeepAlive(broken)
}

func TestPinnedTokenizersAreKeptBoundedAndUnpinned(t *testing.T) {
	r := newRegistry(t, executor.Options{MaxPinned: 2})
	type value struct{ n int }
	s := &source{}
	e, err := r.Pin(value{1}, s)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Pin(value{2}, &source{}); err != nil {
		t.Fatal(err)
	}
	for what, tokenizer := range map[string]any{
		"the same again": value{1}, "one too many": value{3}, "without identity": []int{1}, "nil": nil,
	} {
		if _, err := r.Pin(tokenizer, &source{}); err == nil {
			t.Errorf("Pin of %s succeeded", what)
		}
	}
	for range 5 {
		runtime.GC()
	}
	wantIDs(t, e, "kept", 4)
	if r.Unpin(value{9}) || r.Unpin([]int{1}) || r.Unpin(nil) {
		t.Error("Unpin of what isn't pinned")
	}
	if !r.Unpin(value{1}) || r.Unpin(value{1}) || r.Live() != 1 {
		t.Errorf("Unpin, with %d live", r.Live())
	}
	eventually(t, "freed", func() bool { return s.frees.Load() == 1 })
	if _, err := e.Encode(t.Context(), "x", false); !errors.Is(err, executor.ErrClosed) {
		t.Errorf("Encode after Unpin: %v", err)
	}
	if _, err := r.Pin(value{3}, &source{}); err != nil {
		t.Errorf("no room after Unpin: %v", err)
	}
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	r := executor.NewRegistry(executor.Options{Registerer: reg})
	a, b := &model{}, &model{}
	ea := bind(t, r, a, &source{})
	bind(t, r, b, &source{})
	bindAndDrop(t, r)
	eventually(t, "dropped one collected", func() bool { return r.Live() == 2 })
	wantIDs(t, ea, "x", 1)
	ea.Close()
	want := map[string]float64{
		"portico_executors": 1, "portico_executor_queue_depth": 0, "portico_executor_refused_total": 0,
		"portico_executor_queue_wait_seconds":      1,
		"portico_executor_evicted_total:closed":    1,
		"portico_executor_evicted_total:collected": 1,
		"portico_executor_evicted_total:shutdown":  0,
	}
	if diff := cmp.Diff(want, gather(t, reg)); diff != "" {
		t.Errorf("metrics (-want +got)\n%s", diff)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if got := gather(t, reg)["portico_executor_evicted_total:shutdown"]; got != 1 {
		t.Errorf("evicted by shutdown = %v", got)
	}
	runtime.KeepAlive(a)
	runtime.KeepAlive(b)
}

func bindAndDrop(t *testing.T, r *executor.Registry) {
	t.Helper()
	bind(t, r, &model{}, &source{})
}

// gather returns the values of all metrics, histograms by their count.
func gather(t *testing.T, g prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += ":" + l.GetValue()
			}
			values[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return values
}

func BenchmarkHandOver(b *testing.B) {
	r := executor.NewRegistry(executor.Options{Gate: native.NewGate(2)})
	defer r.Close()
	m := &model{}
	e, _, err := executor.Bind(r, m, quickSource{})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := e.Encode(ctx, "x", false); err != nil {
			b.Fatal(err)
		}
	}
	runtime.KeepAlive(m)
}

// quickSource does nothing, so that the hand-over is all there is.
type quickSource struct{}

func (q quickSource) NewEncoder() (executor.Encoder, error)        { return q, nil }
func (quickSource) Encode(string, bool) ([]prepost.TokenID, error) { return nil, nil }
func (quickSource) Close() error                                   { return nil }
