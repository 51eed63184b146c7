package catalog_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/router"
)

// eventually waits for a condition that real time brings about.
func eventually(t *testing.T, what string, limit time.Duration, f func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !f(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", limit, what)
		}
	}
}

// Five hundred models come and go, each with a goroutine of its own while it is open; nothing of them stays.
func TestFiveHundredModels(t *testing.T) {
	s := start(t, catalog.Options{}.WithSweep(10*time.Millisecond))
	eventually(t, "an empty table", 5*time.Second, func() bool { return s.state("m0") == missing })
	before := runtime.NumGoroutine()
	inner := s.loader.load
	s.loader.override = func(ctx context.Context, rec *worker.ModelRecord) (*catalog.Text, error) {
		text, err := inner(ctx, rec)
		if err != nil {
			return nil, err
		}
		pool := lifecycle.New(context.WithoutCancel(ctx))
		pool.Go("pool", func(ctx context.Context) error { <-ctx.Done(); return nil })
		closed := text.Close
		text.Close = func() error { _ = closed(); return pool.Stop() }
		return text, nil
	}
	const models = 500
	for i := range models {
		name := fmt.Sprint("m", i)
		s.source.Put(s.record("a", uint64(i), "", card(name, nil)))
		s.source.Put(s.instance("a", uint64(i)))
		eventually(t, name+" is served", 5*time.Second, func() bool { return s.state(name) == ok })
		key, _ := s.record("a", uint64(i), "", card(name, nil))
		s.source.Remove(key)
		key, _ = s.instance("a", uint64(i))
		s.source.Remove(key)
		eventually(t, name+" is gone", 5*time.Second, func() bool { return s.state(name) == missing })
	}
	eventually(t, "every text is closed", 20*time.Second, func() bool { return s.closed.Load() == models })
	eventually(t, "the goroutines of the start", 5*time.Second, func() bool { return runtime.NumGoroutine() <= before })
	if s.opened.Load() != models {
		t.Errorf("opened %d", s.opened.Load())
	}
}

// A request keeps its set open for as long as it likes, and no longer.
func TestHolderKeepsTextOpen(t *testing.T) {
	s := start(t, catalog.Options{}.WithSweep(5*time.Millisecond))
	s.source.Put(s.record("a", 1, "", card("m", nil)))
	s.source.Put(s.instance("a", 1))
	lora := card("m-lora", func(c *worker.Card) { c.LoRA = &worker.LoRA{Name: "style"} })
	s.source.Put(s.record("a", 1, "style", lora))
	eventually(t, "both are served", 5*time.Second, func() bool { return s.state("m") == ok && s.state("m-lora") == ok })

	held := s.mustLookup("m-lora") // shares the text of m, whose own set nobody holds
	for _, suffix := range []string{"", "style"} {
		key, _ := s.record("a", 1, suffix, lora)
		s.source.Remove(key)
	}
	eventually(t, "both are gone", 5*time.Second, func() bool { return s.state("m") == missing && s.state("m-lora") == missing })
	for range 10 {
		runtime.GC()
		time.Sleep(10 * time.Millisecond)
	}
	if s.closed.Load() != 0 {
		t.Error("closed under its holder")
	}
	if held.Tokenizer.(*tokenizer).model != "m" {
		t.Error("the adapter has a text of its own")
	}
	runtime.KeepAlive(held)
	held = nil
	eventually(t, "the text is closed", 30*time.Second, func() bool { runtime.GC(); return s.closed.Load() == 1 })
	s.stop()
	if s.closed.Load() != s.opened.Load() {
		t.Errorf("opened %d, closed %d", s.opened.Load(), s.closed.Load())
	}
}

// fleet is the naive model: records and instances in plain maps, and the rules read off them.
type fleet struct {
	records   map[string]fleetRecord // by key
	instances map[string]bool        // by namespace and id
	incumbent map[string]string      // namespace and name → source path being served
}

type fleetRecord struct {
	ns, name, source string
	id               uint64
}

// settle chooses for each model the card that is served: the one before, while any record has it.
func (f *fleet) settle() {
	first := map[string]fleetRecord{}
	keys := map[string]string{}
	still := map[string]bool{}
	for key, r := range f.records {
		at := r.ns + " " + r.name
		if k, ok := keys[at]; !ok || key < k {
			first[at], keys[at] = r, key
		}
		if f.incumbent[at] == r.source {
			still[at] = true
		}
	}
	for at := range f.incumbent {
		if _, ok := first[at]; !ok {
			delete(f.incumbent, at)
		}
	}
	for at, r := range first {
		if !still[at] {
			f.incumbent[at] = r.source
		}
	}
}

// serving returns namespace, card and workers for each name that answers, as text.
func (f *fleet) serving(name string) (state string, sets []string) {
	sets = []string{}
	state = missing
	found := map[string][]uint64{}
	for _, r := range f.records {
		if r.name != name {
			continue
		}
		state = notReady
		at := r.ns + " " + r.source
		if f.incumbent[r.ns+" "+r.name] == r.source && f.instances[fmt.Sprint(r.ns, r.id)] {
			found[at] = append(found[at], r.id)
		}
	}
	for at, ids := range found {
		slices.Sort(ids)
		sets = append(sets, fmt.Sprint(at, ids))
	}
	slices.Sort(sets)
	if len(sets) > 0 {
		state = ok
	}
	return state, sets
}

// Random fleets end up as the naive model says, step by step.
func TestCatalogAgainstModel(t *testing.T) {
	for range 10 {
		seed := rand.Uint64()
		synctest.Test(t, func(t *testing.T) { randomFleet(t, seed) })
	}
}

func randomFleet(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 3))
	s := start(t, catalog.Options{})
	synctest.Wait()
	f := &fleet{records: map[string]fleetRecord{}, instances: map[string]bool{}, incumbent: map[string]string{}}
	names := []string{"x", "y", "z"}
	for step := range 120 {
		ns, id := []string{"a", "b"}[rng.IntN(2)], uint64(rng.IntN(5))
		r := fleetRecord{ns: ns, id: id, name: names[rng.IntN(3)], source: fmt.Sprint("v", rng.IntN(2))}
		key, value := s.record(ns, id, "", card(r.name, func(c *worker.Card) { c.SourcePath = r.source }))
		switch rng.IntN(5) {
		case 0, 1:
			if _, there := f.records[key]; there { // a card doesn't change under its key
				s.source.Remove(key)
				synctest.Wait()
				delete(f.records, key)
				f.settle()
			}
			s.source.Put(key, value)
			f.records[key] = r
		case 2:
			s.source.Remove(key)
			delete(f.records, key)
		case 3:
			s.source.Put(s.instance(ns, id))
			f.instances[fmt.Sprint(ns, id)] = true
		default:
			k, _ := s.instance(ns, id)
			s.source.Remove(k)
			delete(f.instances, fmt.Sprint(ns, id))
		}
		f.settle()
		synctest.Wait()
		for _, name := range names {
			state, sets := f.serving(name)
			if got := s.state(name); got != state {
				t.Fatalf("seed %d step %d: %s is %s, want %s", seed, step, name, got, state)
			}
			if d := cmp.Diff(sets, s.drawn(name, len(sets))); d != "" {
				t.Fatalf("seed %d step %d: %s (-want +got):\n%s", seed, step, name, d)
			}
		}
	}
}

// drawn looks the name up until all n sets have been seen, and describes them like fleet.serving.
func (s *stack) drawn(name string, n int) []string {
	seen := []string{}
	for i := 0; i < 500 && len(seen) <= n; i++ {
		set, err := s.Lookup(name)
		if err != nil {
			break
		}
		ids := []uint64{}
		for id := range uint64(5) {
			if set.Serves(id) {
				ids = append(ids, id)
			}
		}
		text := fmt.Sprint(set.Endpoint.Namespace, " ", strings.TrimPrefix(set.MDCSum, "sum-"+name+"-"), ids)
		if !slices.Contains(seen, text) {
			seen = append(seen, text)
		}
		if len(seen) == n && i > 60 {
			break
		}
	}
	slices.Sort(seen)
	return seen
}

func BenchmarkLookup(b *testing.B) {
	source := newSnapshots(1000)
	c := catalog.New(catalog.Options{Store: source, Load: newLoader().load, Sum: sum, Log: slog.New(slog.DiscardHandler)})
	g := lifecycle.New(b.Context())
	g.Go("catalog", c.Run)
	defer func() { _ = g.Stop() }()
	for !c.Ready() {
		time.Sleep(time.Millisecond)
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := c.Lookup("m0"); err != nil {
				b.Error(err)
			}
		}
	})
}

// snapshots is a store that never changes.
type snapshots struct{ snap *router.Snapshot }

func newSnapshots(models int) snapshots {
	snap := &router.Snapshot{Instances: map[worker.EndpointID][]*worker.Instance{}}
	for i := range models {
		ep := at("a")
		snap.Instances[ep] = append(snap.Instances[ep], &worker.Instance{InstanceID: uint64(i)})
		snap.Models = append(snap.Models, &worker.ModelRecord{
			Namespace: ep.Namespace, Component: ep.Component, Endpoint: ep.Name, InstanceID: uint64(i),
			Card: card(fmt.Sprint("m", i), nil),
		})
	}
	return snapshots{snap}
}

func (s snapshots) Snapshot() *router.Snapshot { return s.snap }

func (s snapshots) Watch(f func(*router.Snapshot)) func() { f(s.snap); return func() {} }
