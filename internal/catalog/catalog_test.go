package catalog_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/discovery"
	"github.com/portico-llm/portico/internal/router/discovery/mem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tokenizer is told apart by its address and by the card it was loaded for.
type tokenizer struct {
	prepost.Tokenizer
	model string
}

// loader is a scripted Load.
type loader struct {
	mu      sync.Mutex
	calls   map[string]int   // guarded by mu; by model name
	fail    map[string]error // guarded by mu
	delay   time.Duration
	opened  atomic.Int64
	closed  atomic.Int64
	running atomic.Int64
	most    atomic.Int64 // loads at the same time

	override catalog.LoadFunc // in place of load; set before the first worker
}

func newLoader() *loader { return &loader{calls: map[string]int{}, fail: map[string]error{}} }

func (l *loader) load(ctx context.Context, rec *worker.ModelRecord) (*catalog.Text, error) {
	n := l.running.Add(1)
	defer l.running.Add(-1)
	for old := l.most.Load(); n > old && !l.most.CompareAndSwap(old, n); old = l.most.Load() {
	}
	l.mu.Lock()
	l.calls[rec.Card.DisplayName]++
	err := l.fail[rec.Card.DisplayName]
	l.mu.Unlock()
	if err != nil && err.Error() == "panic" {
		panic("scripted")
	}
	if err != nil && err.Error() == "hang" {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if l.delay > 0 {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(l.delay):
		}
	}
	if err != nil {
		return nil, err
	}
	l.opened.Add(1)
	return &catalog.Text{
		Tokenizer: &tokenizer{model: rec.Card.DisplayName}, EOS: []uint32{7},
		Close: func() error { l.closed.Add(1); return nil },
	}, nil
}

func (l *loader) script(model string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fail[model] = err
}

func (l *loader) count(model string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls[model]
}

// stack is a catalog over an in-process source.
type stack struct {
	t      *testing.T
	source *mem.Source
	*catalog.Catalog
	*loader
	stop func()
}

func sum(c *worker.Card) string { return "sum-" + c.DisplayName + "-" + c.SourcePath }

func start(t *testing.T, opts catalog.Options) *stack {
	t.Helper()
	s := &stack{t: t, source: mem.New(), loader: newLoader()}
	store := discovery.NewStore(s.source, discovery.Options{Log: slog.New(slog.DiscardHandler)})
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	opts.Store, opts.Sum = store, sum
	opts.Load = func(ctx context.Context, rec *worker.ModelRecord) (*catalog.Text, error) {
		if s.override != nil {
			return s.override(ctx, rec)
		}
		return s.load(ctx, rec)
	}
	s.Catalog = catalog.New(opts)
	g := lifecycle.New(t.Context())
	g.Go("store", store.Run)
	g.Go("catalog", s.Catalog.Run)
	s.stop = sync.OnceFunc(func() {
		if err := g.Stop(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(s.stop)
	return s
}

// card is a chat model for tokens; f changes it.
func card(name string, f func(*worker.Card)) worker.Card {
	c := worker.Card{DisplayName: name, SourcePath: "src", ModelType: "Chat | Completions", ModelInput: "Tokens", WorkerType: "aggregated"}
	if f != nil {
		f(&c)
	}
	return c
}

// at names an endpoint by ns, or by ns/endpoint.
func at(where string) worker.EndpointID {
	ns, ep, ok := strings.Cut(where, "/")
	if !ok {
		ep = "generate"
	}
	return worker.EndpointID{Namespace: ns, Component: "backend", Name: ep}
}

func (s *stack) instance(where string, id uint64) (string, []byte) {
	ep := at(where)
	in := worker.Instance{
		Namespace: ep.Namespace, Component: ep.Component, Endpoint: ep.Name, InstanceID: id, Transport: worker.Transport{NATS: "x"},
	}
	value, err := in.Record()
	if err != nil {
		s.t.Fatal(err)
	}
	return router.BucketInstances + "/" + in.Path(), value
}

func (s *stack) record(where string, id uint64, suffix string, c worker.Card) (string, []byte) {
	ep := at(where)
	m := worker.ModelRecord{
		Namespace: ep.Namespace, Component: ep.Component, Endpoint: ep.Name, InstanceID: id, Card: c, Suffix: suffix,
	}
	value, err := m.Record()
	if err != nil {
		s.t.Fatal(err)
	}
	return router.BucketModels + "/" + m.Path(), value
}

// up brings a worker up with one card; down takes it away. Both wait until the catalog has seen it.
func (s *stack) up(where string, id uint64, c worker.Card) {
	s.source.Put(s.record(where, id, "", c))
	s.source.Put(s.instance(where, id))
	synctest.Wait()
}

func (s *stack) adapter(where string, id uint64, suffix string, c worker.Card) {
	s.source.Put(s.record(where, id, suffix, c))
	synctest.Wait()
}

func (s *stack) down(where string, id uint64) {
	key, _ := s.record(where, id, "", worker.Card{DisplayName: "x"})
	s.source.Remove(key)
	key, _ = s.instance(where, id)
	s.source.Remove(key)
	synctest.Wait()
}

func (s *stack) mustLookup(model string) *catalog.Set {
	s.t.Helper()
	set, err := s.Lookup(model)
	if err != nil {
		s.t.Fatalf("%s: %v", model, err)
	}
	return set
}

// state is ok, the fault's code, or its kind.
func (s *stack) state(model string) string {
	_, err := s.Lookup(model)
	if err == nil {
		return "ok"
	}
	f, ok := errors.AsType[*fault.Error](err)
	if !ok {
		return err.Error()
	}
	return f.Code
}

func (s *stack) want(model, state string) {
	s.t.Helper()
	if got := s.state(model); got != state {
		s.t.Errorf("%s: %s, want %s", model, got, state)
	}
}

const (
	ok       = "ok"
	missing  = "model_not_found"
	notReady = "model_not_ready"
)

func TestLifeOfAModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, catalog.Options{})
		synctest.Wait()
		s.want("m", missing)
		if s.Ready() || len(s.Models()) != 0 {
			t.Error("an empty catalog is ready")
		}
		began := time.Now()
		s.source.Put(s.record("a", 1, "", card("m", func(c *worker.Card) { c.Aliases = []string{"alias", "m"} })))
		synctest.Wait()
		s.want("m", notReady) // no instance yet
		s.source.Put(s.instance("a", 1))
		synctest.Wait()
		if took := time.Since(began); took >= time.Second {
			t.Errorf("served after %s", took)
		}
		set := s.mustLookup("m")
		if s.mustLookup("alias") != set {
			t.Error("the alias has another set")
		}
		if set.MDCSum != "sum-m-src" || set.Endpoint != at("a") || set.Card.DisplayName != "m" || set.Tokenizer == nil || set.TakesText() {
			t.Errorf("set: %+v", set)
		}
		if !set.Serves(1) || set.Serves(2) {
			t.Error("serves the wrong instances")
		}
		info := catalog.ModelInfo{ID: "alias", Created: began.Unix(), Root: "m", Endpoints: []string{"chat", "completions"}, Ready: true}
		other := info
		other.ID = "m"
		if d := cmp.Diff([]catalog.ModelInfo{info, other}, s.Models()); d != "" {
			t.Errorf("models (-want +got):\n%s", d)
		}

		s.up("a", 2, card("m", func(c *worker.Card) { c.Aliases = []string{"alias", "m"} }))
		if s.mustLookup("m") != set || !set.Serves(2) || s.count("m") != 1 {
			t.Error("a second worker made another set")
		}
		s.down("a", 1)
		s.want("m", ok)
		s.down("a", 2)
		s.want("m", missing)
		s.want("alias", missing)
		if len(s.Models()) != 0 || set.Serves(2) || set.Tokenizer == nil {
			t.Error("retired, but not quite")
		}
		runtime.KeepAlive(set)
	})
}

// A worker whose instance is gone but whose card lingers leaves a model that is known and not ready.
func TestInstanceGoneRecordStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, catalog.Options{})
		s.up("a", 1, card("m", nil))
		key, _ := s.instance("a", 1)
		s.source.Remove(key)
		synctest.Wait()
		s.want("m", notReady)
		if models := s.Models(); len(models) != 1 || models[0].Ready || s.Ready() {
			t.Errorf("models: %+v", models)
		}
		s.source.Put(s.instance("a", 1))
		synctest.Wait()
		s.want("m", ok)
		if s.count("m") != 1 {
			t.Error("loaded twice")
		}
	})
}

// Workers with another card wait until the present ones have drained, and never get requests meanwhile.
func TestOtherCardWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		reg := prometheus.NewRegistry()
		s := start(t, catalog.Options{Registerer: reg, Log: slog.New(slog.NewTextHandler(&log, nil))})
		newer := card("m", func(c *worker.Card) { c.SourcePath = "new" })
		s.up("a", 5, card("m", nil))
		s.up("a", 1, newer) // before the incumbent in order, but later in time
		s.up("a", 2, newer)
		old := s.mustLookup("m")
		if old.MDCSum != "sum-m-src" || old.Serves(1) || old.Serves(2) || !old.Serves(5) {
			t.Errorf("the newcomers were mixed in: %+v", old)
		}
		if n := strings.Count(log.String(), "another card waits"); n != 1 {
			t.Errorf("logged %d times", n)
		}
		gauge := func(want float64) {
			t.Helper()
			text := fmt.Sprintf("# HELP dynamo_frontend_model_waiting_workers Workers whose card differs from the one being served: "+
				"they wait until the present ones have gone\n# TYPE dynamo_frontend_model_waiting_workers gauge\n"+
				"dynamo_frontend_model_waiting_workers{model=\"m\"} %v\n", want)
			if err := testutil.GatherAndCompare(reg, strings.NewReader(text), "dynamo_frontend_model_waiting_workers"); err != nil {
				t.Error(err)
			}
		}
		gauge(2)
		s.down("a", 5)
		set := s.mustLookup("m")
		if set.MDCSum != "sum-m-new" || !set.Serves(1) || !set.Serves(2) {
			t.Errorf("after draining: %+v", set)
		}
		gauge(0)
		runtime.KeepAlive(old)
	})
}

func TestFailedLoadIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, catalog.Options{Loaders: 1, LoadTimeout: 5 * time.Second})
		s.script("bad", errors.New("no such file"))
		s.script("panics", errors.New("panic"))
		s.script("hangs", errors.New("hang"))
		for i, name := range []string{"bad", "panics", "hangs", "good"} {
			s.up(name, uint64(i+1), card(name, nil))
		}
		time.Sleep(6 * time.Second) // past the deadline of the one that hangs
		s.want("good", ok)
		for _, name := range []string{"bad", "panics", "hangs"} {
			s.want(name, notReady)
		}
		s.script("bad", nil)
		s.script("panics", nil)
		time.Sleep(45 * time.Second)
		s.want("bad", ok)
		s.want("panics", ok)
		s.want("hangs", notReady)
		if n := s.count("hangs"); n < 3 || n > 8 {
			t.Errorf("%d attempts: not backing off", n)
		}
		// Another card is tried at once.
		s.script("hangs", nil)
		s.down("hangs", 3)
		s.up("hangs", 3, card("hangs", func(c *worker.Card) { c.SourcePath = "other" }))
		time.Sleep(5 * time.Second)
		s.want("hangs", ok)
	})
}

func TestLoadsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, catalog.Options{Loaders: 3})
		s.loader.delay = time.Second
		for i := range 12 {
			s.up("a", uint64(i+1), card(fmt.Sprint("m", i), nil))
		}
		time.Sleep(3500 * time.Millisecond)
		ready := 0
		for _, m := range s.Models() {
			if m.Ready {
				ready++
			}
		}
		if ready != 9 || s.most.Load() != 3 {
			t.Errorf("%d ready, at most %d at a time", ready, s.most.Load())
		}
	})
}

// What is loaded for a model that went meanwhile is closed again.
func TestRetiredWhileLoading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, catalog.Options{})
		s.loader.delay = time.Second
		s.up("a", 1, card("m", nil))
		s.down("a", 1)
		time.Sleep(2 * time.Second)
		s.want("m", missing)
		s.up("a", 1, card("m", nil))
		s.stop()
		if s.opened.Load() != s.closed.Load() {
			t.Errorf("opened %d, closed %d", s.opened.Load(), s.closed.Load())
		}
	})
}

func TestAdapters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, catalog.Options{})
		lora := card("m-lora", func(c *worker.Card) { c.LoRA = &worker.LoRA{Name: "style"} })
		s.adapter("a", 1, "style", lora) // before its base: loads by itself
		s.down("a", 1)
		key, _ := s.record("a", 1, "style", lora)
		s.source.Remove(key)
		synctest.Wait()

		s.up("a", 1, card("m", nil))
		s.up("a", 2, card("m", nil))
		s.adapter("a", 2, "style", lora)
		set, base := s.mustLookup("m-lora"), s.mustLookup("m")
		if set.LoRA != "style" || set.Tokenizer != base.Tokenizer || set.Serves(1) || !set.Serves(2) || !base.Serves(1) {
			t.Errorf("adapter: %+v", set)
		}
		i := slices.IndexFunc(s.Models(), func(m catalog.ModelInfo) bool { return m.ID == "m-lora" })
		if i < 0 || s.Models()[i].Parent != "m" {
			t.Errorf("models: %+v", s.Models())
		}
		if n := s.count("m-lora"); n != 1 {
			t.Errorf("the adapter was loaded %d times", n)
		}
		s.down("a", 1)
		s.down("a", 2)
		s.want("m", missing)
		s.source.Put(s.instance("a", 2))
		synctest.Wait()
		if s.mustLookup("m-lora").Tokenizer != base.Tokenizer {
			t.Error("the adapter lost its base's text")
		}
		runtime.KeepAlive(base)
	})
}

// One name in two namespaces: traffic follows the number of workers.
func TestSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, catalog.Options{})
		s.up("a", 1, card("m", nil))
		for id := range uint64(3) {
			s.up("b", 10+id, card("m", nil))
		}
		hits := map[string]int{}
		const n = 4000
		for range n {
			hits[s.mustLookup("m").Endpoint.Namespace]++
		}
		if got := float64(hits["b"]) / n; got < 0.70 || got > 0.80 {
			t.Errorf("b got %.2f of the traffic, want 0.75", got)
		}
		if len(s.Models()) != 1 {
			t.Errorf("models: %+v", s.Models())
		}
		s.down("a", 1)
		for range 100 {
			if ns := s.mustLookup("m").Endpoint.Namespace; ns != "b" {
				t.Fatalf("drawn from %s", ns)
			}
		}
	})
}

// A name goes before an alias, and the first of two claims to an alias has it.
func TestAliasConflicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		s := start(t, catalog.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
		s.up("a", 1, card("one", func(c *worker.Card) { c.Aliases = []string{"two", "both"} }))
		s.want("two", ok)
		s.up("b", 2, card("two", func(c *worker.Card) { c.Aliases = []string{"both"} }))
		for name, want := range map[string]string{"one": "one", "two": "two", "both": "one"} {
			if got := s.mustLookup(name).Card.DisplayName; got != want {
				t.Errorf("%s is served by %s, want %s", name, got, want)
			}
		}
		s.up("c", 3, card("three", nil))
		if n := strings.Count(log.String(), "alias belongs to another"); n != 2 { // one's two, and two's both
			t.Errorf("logged %d times:\n%s", n, log.String())
		}
		s.down("a", 1)
		if got := s.mustLookup("both").Card.DisplayName; got != "two" {
			t.Errorf("both is served by %s", got)
		}
	})
}

// Chat and completions go before sets that offer other things under the same name.
func TestOtherOffers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, catalog.Options{})
		s.up("a/embed", 1, card("m", func(c *worker.Card) { c.ModelType = "Embedding" }))
		s.want("m", ok)
		s.up("a/chat", 2, card("m", nil))
		for range 50 {
			if ep := s.mustLookup("m").Endpoint.Name; ep != "chat" {
				t.Fatalf("drawn: %s", ep)
			}
		}
	})
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewPedanticRegistry()
		s := start(t, catalog.Options{Registerer: reg})
		n := uint64(256)
		s.up("a", 1, card("m", func(c *worker.Card) {
			length := uint32(4096)
			c.ContextLength, c.KVCacheBlockSize, c.RuntimeConfig.MaxNumSeqs = &length, 16, &n
		}))
		const want = `
# HELP dynamo_frontend_model_context_length Maximum context length in tokens for a worker serving the model
# TYPE dynamo_frontend_model_context_length gauge
dynamo_frontend_model_context_length{model="m"} 4096
# HELP dynamo_frontend_model_kv_cache_block_size KV cache block size in tokens for a worker serving the model
# TYPE dynamo_frontend_model_kv_cache_block_size gauge
dynamo_frontend_model_kv_cache_block_size{model="m"} 16
# HELP dynamo_frontend_model_max_num_seqs Maximum number of sequences for a worker serving the model
# TYPE dynamo_frontend_model_max_num_seqs gauge
dynamo_frontend_model_max_num_seqs{model="m"} 256
# HELP dynamo_frontend_model_ready Whether the frontend can route at least one inference request for the model (1 = ready, 0 = not ready)
# TYPE dynamo_frontend_model_ready gauge
dynamo_frontend_model_ready{model="m"} 1
`
		if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "dynamo_frontend_model_context_length",
			"dynamo_frontend_model_kv_cache_block_size", "dynamo_frontend_model_max_num_seqs", "dynamo_frontend_model_ready",
			"dynamo_frontend_model_total_kv_blocks"); err != nil {
			t.Error(err)
		}
		s.down("a", 1)
		if n, err := testutil.GatherAndCount(reg, "dynamo_frontend_model_ready"); err != nil || n != 0 {
			t.Errorf("%d series of a model that is gone, %v", n, err)
		}
	})
}

// A request goes to a set that offers what it asks for, whatever else the name stands for.
func TestLookupFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, catalog.Options{})
		state := func(model, surface string) string {
			set, err := s.LookupFor(model, surface)
			if err == nil {
				return set.Endpoint.Name
			}
			f, _ := errors.AsType[*fault.Error](err)
			return f.Code
		}
		s.up("a/embed", 1, card("m", func(c *worker.Card) { c.ModelType = "Embedding" }))
		s.up("a/chat", 2, card("m", nil))
		s.source.Put(s.record("a/rank", 3, "", card("m", func(c *worker.Card) { c.ModelType, c.ModelInput = "Rerank", "Text" })))
		synctest.Wait()
		for _, c := range []struct{ model, surface, want string }{
			{"m", "Chat", "chat"}, {"m", "Completions", "chat"}, {"m", "Embedding", "embed"},
			{"m", "Rerank", notReady}, // its worker has no instance
			{"m", "Images", "model_not_supported"}, {"x", "Chat", missing},
		} {
			for range 20 {
				if got := state(c.model, c.surface); got != c.want {
					t.Fatalf("%s for %s: %s, want %s", c.model, c.surface, got, c.want)
				}
			}
		}
		s.down("a/embed", 1)
		if got := state("m", "Embedding"); got != "model_not_supported" {
			t.Errorf("after its last worker: %s", got)
		}
	})
}
