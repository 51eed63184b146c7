package discovery_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/discovery"
	"github.com/portico-llm/portico/internal/router/discovery/mem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs a store over source until the test ends.
func start(t *testing.T, source router.Source, opts discovery.Options) *discovery.Store {
	t.Helper()
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	s := discovery.NewStore(source, opts)
	g := lifecycle.New(t.Context())
	g.Go("store", s.Run)
	t.Cleanup(func() {
		if err := g.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// instance returns the key and the record of an instance; the address tells versions apart.
func instance(ep string, id uint64, addr string) (string, []byte) {
	in := worker.Instance{Namespace: "ns", Component: "c", Endpoint: ep, InstanceID: id, Transport: worker.Transport{TCP: addr}}
	value, err := in.Record()
	if err != nil {
		panic(err)
	}
	return router.BucketInstances + "/" + in.Path(), value
}

// model returns the key and the record of a model; extra are further members of its card.
func model(ep string, id uint64, suffix, name string, extra map[string]any) (string, []byte) {
	card := map[string]any{"display_name": name, "model_type": "Chat", "model_input": "Tokens"}
	maps.Copy(card, extra)
	rec := map[string]any{
		"type": "Model", "namespace": "ns", "component": "c", "endpoint": ep, "instance_id": id, "card_json": card,
	}
	key := fmt.Sprintf("%s/ns/c/%s/%x", router.BucketModels, ep, id)
	if suffix != "" {
		rec["model_suffix"] = suffix
		key += "/" + suffix
	}
	value, err := json.Marshal(rec)
	if err != nil {
		panic(err)
	}
	return key, value
}

// shape is a snapshot in comparable form.
type shape struct {
	Instances map[string][]string // endpoint → "id=addr", in order
	Models    []string            // "key=name"
}

// shapeOf keeps of a snapshot what the tests are about, its orders included.
func shapeOf(s *router.Snapshot) shape {
	out := shape{Instances: map[string][]string{}}
	for ep, list := range s.Instances {
		for _, in := range list {
			out.Instances[ep.String()] = append(out.Instances[ep.String()], in.Hex()+"="+in.Transport.TCP)
		}
	}
	for _, m := range s.Models {
		out.Models = append(out.Models, router.BucketModels+"/"+m.Path()+"="+m.Card.DisplayName)
	}
	return out
}

// TestStoreFollows puts, replaces and removes records, one of a foreign bucket among them, and looks whether a snapshot
// that somebody holds stays as it was.
func TestStoreFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := mem.New()
		source.Put(instance("gen", 0x1f, "a:1"))
		s := start(t, source, discovery.Options{})
		if s.Snapshot() == nil {
			t.Fatal("no snapshot before the first listing")
		}
		synctest.Wait()
		source.Put(instance("gen", 2, "a:2"))
		source.Put(instance("other", 3, "a:3"))
		source.Put(model("gen", 2, "", "m", nil))
		source.Put(model("gen", 2, "lora", "m-lora", map[string]any{"lora": map[string]any{"name": "l"}}))
		source.Put(model("gen", 0x1f, "", "m", nil))
		source.Put("v1/elsewhere/x", []byte("{}"))
		synctest.Wait()
		want := shape{
			Instances: map[string][]string{"ns/c/gen": {"2=a:2", "1f=a:1"}, "ns/c/other": {"3=a:3"}},
			Models:    []string{"v1/mdc/ns/c/gen/1f=m", "v1/mdc/ns/c/gen/2=m", "v1/mdc/ns/c/gen/2/lora=m-lora"},
		}
		before := s.Snapshot()
		if d := cmp.Diff(want, shapeOf(before)); d != "" {
			t.Fatalf("(-want +got):\n%s", d)
		}

		key, value := instance("gen", 2, "b:9")
		source.Put(key, value)
		source.Remove("v1/instances/ns/c/other/3")
		synctest.Wait()
		after := s.Snapshot()
		got := shapeOf(after)
		if d := cmp.Diff(map[string][]string{"ns/c/gen": {"2=b:9", "1f=a:1"}}, got.Instances); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
		if d := cmp.Diff(want, shapeOf(before)); d != "" {
			t.Errorf("an old snapshot changed:\n%s", d)
		}
		gen := worker.EndpointID{Namespace: "ns", Component: "c", Name: "gen"}
		if after.Instances[gen][1] != before.Instances[gen][1] {
			t.Error("an unchanged instance has a new address")
		}
		if after.Version <= before.Version {
			t.Errorf("version %d after %d", after.Version, before.Version)
		}

		source.Put(key, value)
		synctest.Wait()
		if s.Snapshot() != after {
			t.Error("a snapshot without news was published")
		}
	})
}

// TestStoreFollowsPublishers has the records of event publishers come, change and go, and wrong ones left out.
func TestStoreFollowsPublishers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := mem.New()
		scope := worker.EndpointScope(worker.EndpointID{Namespace: "ns", Component: "c", Name: "gen"})
		put := func(bucket, path string, record func() ([]byte, error)) {
			value, err := record()
			if err != nil {
				t.Fatal(err)
			}
			source.Put(bucket+"/"+path, value)
		}
		ch := &worker.EventChannel{Scope: scope, Topic: "kv-events", Publisher: 0x2b,
			Transport: worker.EventTransport{Kind: worker.TransportZMQ, Endpoint: "tcp://a:1"}}
		src := &worker.EventSource{Scope: scope, Topic: "kv-events", Publisher: 0x2b}
		put(router.BucketChannels, ch.Path(), ch.Record)
		put(router.BucketSources, src.Path(), src.Record)
		put(router.BucketChannels, "elsewhere", ch.Record)
		put(router.BucketSources, "elsewhere", src.Record)
		s := start(t, source, discovery.Options{})
		synctest.Wait()
		first := s.Snapshot()
		if diff := cmp.Diff([]*worker.EventChannel{ch}, first.Channels); diff != "" {
			t.Errorf("channels (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]*worker.EventSource{src}, first.Sources); diff != "" {
			t.Errorf("sources (-want +got):\n%s", diff)
		}
		ch.Transport.Endpoint = "tcp://a:2"
		put(router.BucketChannels, ch.Path(), ch.Record)
		source.Remove(router.BucketSources + "/" + src.Path())
		synctest.Wait()
		second := s.Snapshot()
		if len(second.Channels) != 1 || second.Channels[0].Transport.Endpoint != "tcp://a:2" || len(second.Sources) != 0 || len(first.Sources) != 1 {
			t.Errorf("channels %+v, sources %+v, before %+v", second.Channels, second.Sources, first.Sources)
		}
		source.Remove(router.BucketChannels + "/" + ch.Path())
		synctest.Wait()
		if last := s.Snapshot(); len(last.Channels) != 0 || last.Version <= second.Version {
			t.Errorf("snapshot %+v", last)
		}
	})
}

// logLines counts the records of a text log.
type logLines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logLines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *logLines) count(substring string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), substring)
}

func TestStoreKeepsLastGoodValue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines logLines
		reg := prometheus.NewRegistry()
		source := mem.New()
		s := start(t, source, discovery.Options{Log: slog.New(slog.NewTextHandler(&lines, nil)), Registerer: reg})
		key, good := instance("gen", 1, "a:1")
		_, elsewhere := instance("gen", 2, "a:1")
		source.Put(key, good)
		synctest.Wait()
		for _, bad := range []string{"{", "{", `{"type":"Endpoint"}`, string(elsewhere), string(elsewhere)} {
			source.Put(key, []byte(bad))
			synctest.Wait()
			if got := shapeOf(s.Snapshot()).Instances["ns/c/gen"]; !slices.Equal(got, []string{"1=a:1"}) {
				t.Fatalf("after %s: %v", bad, got)
			}
		}
		if n := lines.count("discovery record refused"); n != 3 {
			t.Errorf("%d lines for three different bad values", n)
		}
		source.Put(key, good)
		synctest.Wait()
		source.Put(key, []byte("{"))
		synctest.Wait()
		if n := lines.count("discovery record refused"); n != 4 {
			t.Errorf("%d lines: a value that breaks again is news", n)
		}
		source.Remove(key)
		synctest.Wait()
		if len(s.Snapshot().Instances) != 0 {
			t.Error("a removed record stays because its last value was bad")
		}
		const want = `
# HELP dynamo_frontend_discovery_broken_records_total Discovery records refused because they could not be read or changed what may not change
# TYPE dynamo_frontend_discovery_broken_records_total counter
dynamo_frontend_discovery_broken_records_total 4
`
		if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "dynamo_frontend_discovery_broken_records_total"); err != nil {
			t.Error(err)
		}
	})
}

func TestCardIsImmutableButForTaints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := mem.New()
		s := start(t, source, discovery.Options{})
		put := func(extra map[string]any) *worker.ModelRecord {
			source.Put(model("gen", 1, "", "m", extra))
			synctest.Wait()
			return s.Snapshot().Models[0]
		}
		first := put(map[string]any{"runtime_config": map[string]any{"max_num_seqs": 4}})
		if put(map[string]any{"runtime_config": map[string]any{"max_num_seqs": 5}}) != first {
			t.Error("a changed card was taken")
		}
		got := put(map[string]any{"runtime_config": map[string]any{"max_num_seqs": 4, "taints": []string{"x"}}})
		if d := cmp.Diff([]string{"x"}, got.Card.RuntimeConfig.Taints); d != "" {
			t.Errorf("taints (-want +got):\n%s", d)
		}
		// Removed and put again within one step, the record is a new one, which may have any card.
		key, value := model("gen", 1, "", "other", nil)
		source.Remove(key)
		source.Put(key, value)
		synctest.Wait()
		if got := s.Snapshot().Models[0].Card.DisplayName; got != "other" {
			t.Errorf("name after replacement: %s", got)
		}
	})
}

func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := mem.New()
		s := start(t, source, discovery.Options{})
		var versions []uint64
		cancel := s.Watch(func(snap *router.Snapshot) { versions = append(versions, snap.Version) })
		other := s.Watch(func(*router.Snapshot) {})
		synctest.Wait()
		for id := range uint64(3) {
			source.Put(instance("gen", id, "a"))
			synctest.Wait()
		}
		cancel()
		cancel()
		source.Put(instance("gen", 9, "a"))
		synctest.Wait()
		if d := cmp.Diff([]uint64{0, 1, 2, 3}, versions); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
		other()
	})
}

// scripted is a Source that emits what it is told.
type scripted chan router.Change

func (s scripted) Run(ctx context.Context, emit func(router.Change)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case c := <-s:
			emit(c)
		}
	}
}

// Random histories, with broken values, resyncs and replaced keys, end where a plain map ends.
func TestStoreAgainstModel(t *testing.T) {
	for range 20 {
		seed := rand.Uint64()
		synctest.Test(t, func(t *testing.T) { history(t, seed) })
	}
}

func history(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0))
	source := make(scripted)
	s := start(t, source, discovery.Options{})
	good := map[string]string{} // instance key → address, model key → name
	random := func() (key, want string, value []byte) {
		ep, id := []string{"a", "b"}[rng.IntN(2)], uint64(rng.IntN(6))
		if rng.IntN(2) == 0 {
			want = fmt.Sprint("addr", rng.IntN(3))
			key, value = instance(ep, id, want)
		} else {
			want = "m"
			key, value = model(ep, id, "", want, nil)
		}
		if rng.IntN(4) == 0 {
			return key, "", value[:rng.IntN(len(value))]
		}
		return key, want, value
	}
	for step := range 150 {
		var c router.Change
		c.Full = rng.IntN(10) == 0
		used := map[string]bool{}
		listed := map[string]string{}
		for range rng.IntN(6) {
			key, want, value := random()
			if used[key] {
				continue
			}
			used[key] = true
			if rng.IntN(4) == 0 {
				c.Removed = append(c.Removed, key)
				delete(good, key)
				if rng.IntN(2) == 0 {
					continue
				}
			}
			c.Put = append(c.Put, router.Record{Key: key, Value: value})
			if want == "" {
				want = good[key] // broken: the last good value stays
			}
			if listed[key] = want; want != "" {
				good[key] = want
			}
		}
		if c.Full {
			maps.DeleteFunc(good, func(key, _ string) bool { return listed[key] == "" })
		}
		source <- c
		synctest.Wait()
		want := shape{Instances: map[string][]string{}}
		for _, key := range slices.Sorted(maps.Keys(good)) {
			if rest, ok := strings.CutPrefix(key, "v1/instances/"); ok {
				ep, hex := rest[:len(rest)-2], rest[len(rest)-1:]
				want.Instances[ep] = append(want.Instances[ep], hex+"="+good[key])
			} else {
				want.Models = append(want.Models, key+"="+good[key])
			}
		}
		if d := cmp.Diff(want, shapeOf(s.Snapshot())); d != "" {
			t.Fatalf("seed %d step %d (-want +got):\n%s", seed, step, d)
		}
	}
}

func TestRegistrarOfMem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := mem.New()
		s := start(t, source, discovery.Options{})
		reg := mem.NewRegistrar(source)
		id, err := reg.InstanceID(t.Context())
		if err != nil || id == 0 {
			t.Fatal(id, err)
		}
		for _, ep := range []string{"a", "b"} {
			key, value := instance(ep, id, "x")
			if err := reg.Put(t.Context(), key, value); err != nil {
				t.Fatal(err)
			}
		}
		key, _ := instance("a", id, "x")
		if err := reg.Remove(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
		if got := shapeOf(s.Snapshot()).Instances; len(got) != 1 || len(got["ns/c/b"]) != 1 {
			t.Errorf("published: %v", got)
		}
		if err := reg.Close(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
		if got := s.Snapshot().Instances; len(got) != 0 {
			t.Errorf("left behind: %v", got)
		}
		if err := reg.Put(t.Context(), key, nil); err == nil {
			t.Error("a closed registrar publishes")
		}
	})
}
