package kvroute_test

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/kvindex"
	"github.com/portico-llm/portico/internal/router/kvroute"
)

// TestGuessing routes by what was sent where, for as long as that is thought to hold.
func TestGuessing(t *testing.T) {
	cfg := kvroute.Default()
	cfg.Events, cfg.TTL = false, 300*time.Millisecond
	w := newWorld(t, kvroute.Options{Config: cfg})
	w.publish(newEngine(1, 101), newEngine(2, 102), newEngine(3, 103))
	prompt := tokens(80, 1)
	first, ticket := w.choose(query("a", prompt))
	ticket.Done()
	for range 10 {
		id, ticket := w.choose(query("b", prompt))
		ticket.Done()
		if id != first {
			t.Fatalf("worker %d, and before %d", id, first)
		}
	}
	if got := w.r.Cached(endpoint, locals(t, prompt)); got[rankZero(first)] != 20 || len(got) != 1 {
		t.Errorf("thought cached: %v", got)
	}
	for until := time.Now().Add(10 * time.Second); w.r.Entries(endpoint) > 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("guesses are never given up")
		}
	}
	// Events of workers that publish all the same are of no use to guesses.
	if topics := w.r.Topics(); topics[0].Wants(newEngine(1, 101).channel()) {
		t.Error("events are wanted")
	}
}

// TestPrediction sends requests that begin alike to one worker although no event has come yet.
func TestPrediction(t *testing.T) {
	cfg := kvroute.Default()
	cfg.Predicted = time.Minute
	w := newWorld(t, kvroute.Options{Config: cfg})
	w.publish(newEngine(1, 101), newEngine(2, 102), newEngine(3, 103))
	q := func() *router.Query { return query("a", tokens(80, 1)) }
	first, ticket := w.choose(q())
	ticket.Done()
	for range 10 {
		id, ticket := w.choose(q())
		if ticket.Done(); id != first {
			t.Fatalf("worker %d, and before %d", id, first)
		}
	}
	if n := w.r.Entries(endpoint); n != 0 {
		t.Errorf("%d blocks in the index, of predictions", n)
	}
}

// TestBlockSizeMismatch leaves out the cache of a worker whose blocks are of another size, loudly, until all others have
// been replaced.
func TestBlockSizeMismatch(t *testing.T) {
	reg := prometheus.NewRegistry()
	w := newWorld(t, kvroute.Options{Registerer: reg})
	one, two := newEngine(1, 101), newEngine(2, 102)
	w.cards[2] = &worker.Card{DisplayName: "m", ModelInput: "Tokens", KVCacheBlockSize: 2 * blockSize}
	w.publish(one, two)
	w.cache.Missed(two.channel())
	w.quiet()
	w.send(two, two.store(locals(t, tokens(40, 1)))...)
	if got := w.r.Cached(endpoint, locals(t, tokens(40, 1))); len(got) != 0 {
		t.Errorf("thought cached: %v", got)
	}
	mismatch := func() float64 { return mismatches(t, reg) }
	if n := mismatch(); n != 1 {
		t.Errorf("%v workers differ", n)
	}
	if id, ticket := w.choose(query("x", tokens(40, 1))); id == 0 {
		t.Error("no worker")
	} else {
		ticket.Done()
	}
	w.publish(two) // the last of the old size has gone
	if n := mismatch(); n != 0 {
		t.Errorf("%v workers differ", n)
	}
	w.cache.Missed(two.channel())
	w.quiet()
	if n := w.r.Entries(endpoint); n != 10 {
		t.Errorf("%d blocks in the index", n)
	}
}

// mismatches reads the metric of workers whose block size differs.
func mismatches(t *testing.T, reg *prometheus.Registry) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "portico_kv_block_size_mismatch_workers" {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	return 0
}

// TestConfiguredBlockSize takes the configured size in place of a card's, and says loudly that they differ. A card that
// says nothing has nothing to complain about.
func TestConfiguredBlockSize(t *testing.T) {
	for card, want := range map[uint32]float64{2 * blockSize: 1, blockSize: 0, 0: 0} {
		reg := prometheus.NewRegistry()
		w := newWorld(t, kvroute.Options{Registerer: reg, BlockSize: blockSize})
		e := newEngine(1, 101)
		w.cards[1] = &worker.Card{DisplayName: "m", ModelInput: "Tokens", KVCacheBlockSize: card}
		w.publish(e)
		w.cache.Missed(e.channel())
		w.quiet()
		w.send(e, e.store(locals(t, tokens(40, 1)))...)
		if got := w.r.Cached(endpoint, locals(t, tokens(40, 1))); got[rankZero(1)] != 10 {
			t.Errorf("card %d: thought cached: %v", card, got)
		}
		if n := mismatches(t, reg); n != want {
			t.Errorf("card %d: %v workers differ, want %v", card, n, want)
		}
		w.publish()
		if n := mismatches(t, reg); n != 0 {
			t.Errorf("card %d: %v workers differ, of none", card, n)
		}
	}
}

// TestNobodyToAsk begins anew with a worker that can't say what was missed.
func TestNobodyToAsk(t *testing.T) {
	w := newWorld(t, kvroute.Options{})
	e := newEngine(1, 101)
	e.mute = true
	w.publish(e)
	w.cache.Missed(e.channel())
	w.send(e, e.store([]uint64{1, 2, 3})...)
	if got := w.r.Cached(endpoint, []uint64{1, 2, 3}); got[rankZero(1)] != 3 {
		t.Errorf("cached %v", got)
	}
	e.evict(func(int) int { return 0 }) // lost
	w.send(e, e.store([]uint64{7, 8})...)
	want := map[kvindex.Worker]int{rankZero(1): 2}
	if diff := cmp.Diff(want, w.r.Cached(endpoint, []uint64{7, 8})); diff != "" {
		t.Errorf("cached (-want +got):\n%s", diff)
	}
	if got := w.r.Cached(endpoint, []uint64{1, 2, 3}); len(got) != 0 {
		t.Errorf("cached %v", got)
	}
}

// TestNeverAnswers hears a worker that fails every query: what it says counts from the third failure on, whether or not
// it is just being asked once more, until it has answered.
func TestNeverAnswers(t *testing.T) {
	w := newWorld(t, kvroute.Options{})
	e := newEngine(1, 101)
	e.fail = math.MaxInt
	w.publish(e)
	w.send(e, e.store([]uint64{1, 2})...)
	w.cache.Missed(e.channel())
	asked := func() int {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.queries
	}
	eventually := func(what string, ok func() bool) {
		t.Helper()
		for until := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
			if time.Now().After(until) {
				t.Fatalf("%s: never; asked %d times, cached %v", what, asked(), w.r.Cached(endpoint, []uint64{1, 2, 3, 4}))
			}
		}
	}
	eventually("asked again", func() bool { return asked() > 5 })
	w.send(e, e.clear()...)
	w.send(e, e.store([]uint64{1, 2, 3, 4})...)
	eventually("stored", func() bool { return w.r.Cached(endpoint, []uint64{1, 2, 3, 4})[rankZero(1)] == 4 })
	now := asked()
	eventually("asked again", func() bool { return asked() > now })
	w.send(e, e.evict(func(int) int { return 0 })...)
	eventually("evicted", func() bool { return w.r.Cached(endpoint, []uint64{1, 2, 3, 4})[rankZero(1)] == 3 })
	e.store([]uint64{9}) // lost
	w.send(e, e.store([]uint64{5, 6})...)
	eventually("begun anew", func() bool {
		return w.r.Cached(endpoint, []uint64{5, 6})[rankZero(1)] == 2 && len(w.r.Cached(endpoint, []uint64{1})) == 0
	})
	e.mu.Lock()
	e.fail = 0
	e.mu.Unlock()
	w.quiet()
	if n := w.r.Entries(endpoint); n != 6 {
		t.Errorf("%d blocks in the index", n)
	}
}

// TestReplicas counts what other routers have sent, and forgets it with them.
func TestReplicas(t *testing.T) {
	cfg := kvroute.Default()
	cfg.ReplicaSync = true
	w := newWorld(t, kvroute.Options{Config: cfg})
	w.publish(newEngine(1, 101), newEngine(2, 102))
	topic := w.r.Topics()[1]
	ch := &worker.EventChannel{Scope: worker.EndpointScope(endpoint), Topic: worker.TopicActiveSequences, Publisher: 9}
	if !topic.Wants(ch) {
		t.Fatal("other routers aren't wanted")
	}
	say := func(a worker.ActiveSequence) {
		a.Router = 77
		a.Worker.WorkerID = 2
		topic.Handler.Event(ch, &worker.Event{Payload: worker.AppendActiveSequences(nil, &a)})
	}
	check := func(want kvroute.RankLoad) {
		t.Helper()
		want.Worker = 2
		if diff := cmp.Diff([]kvroute.RankLoad{{Worker: 1}, want}, w.r.Loads(endpoint)); diff != "" {
			t.Errorf("loads (-want +got):\n%s", diff)
		}
	}
	add := worker.ActiveSequence{RequestID: "a", Kind: worker.SequenceAdded, Blocks: []uint64{1, 2, 3}, Counted: true,
		TrackPrefill: true, HasPrefill: true, Prefill: 50}
	say(add)
	say(add) // a retry
	check(kvroute.RankLoad{Prefill: 50, Blocks: 3, Requests: 1})
	add.RequestID, add.Blocks = "b", []uint64{1, 2, 9, 10}
	say(add)
	check(kvroute.RankLoad{Prefill: 100, Blocks: 5, Requests: 2})
	say(worker.ActiveSequence{RequestID: "a", Kind: worker.SequencePrefilled})
	say(worker.ActiveSequence{RequestID: "a", Kind: worker.SequencePrefilled})
	check(kvroute.RankLoad{Prefill: 50, Blocks: 5, Requests: 2})
	if id, ticket := w.choose(query("x", tokens(40, 1))); id != 1 {
		t.Errorf("worker %d, where another router has work at it", id)
	} else {
		ticket.Done()
	}
	say(worker.ActiveSequence{RequestID: "a", Kind: worker.SequenceFreed})
	say(worker.ActiveSequence{RequestID: "a", Kind: worker.SequenceFreed})
	check(kvroute.RankLoad{Prefill: 50, Blocks: 4, Requests: 1})
	topic.Handler.Gone(ch)
	check(kvroute.RankLoad{})
	topic.Handler.Event(ch, &worker.Event{Payload: []byte("\xc1")})
	check(kvroute.RankLoad{})
}

// TestReplicasOfStopped: what other routers had at work at an endpoint that is gone isn't counted for ever.
func TestReplicasOfStopped(t *testing.T) {
	cfg := kvroute.Default()
	cfg.ReplicaSync = true
	reg := prometheus.NewPedanticRegistry()
	w := newWorld(t, kvroute.Options{Config: cfg, Registerer: reg})
	w.publish(newEngine(1, 101))
	ch := &worker.EventChannel{Scope: worker.EndpointScope(endpoint), Topic: worker.TopicActiveSequences, Publisher: 9}
	active := func(n int) {
		t.Helper()
		err := testutil.GatherAndCompare(reg, strings.NewReader(fmt.Sprintf(`
# HELP portico_kv_active_requests Requests counted as load of workers, those of other routers included
# TYPE portico_kv_active_requests gauge
portico_kv_active_requests{endpoint="ns/c/generate"} %d
`, n)), "portico_kv_active_requests")
		if err != nil {
			t.Error(err)
		}
	}
	for range 2 {
		w.publish(newEngine(1, 101))
		a := worker.ActiveSequence{RequestID: "a", Kind: worker.SequenceAdded, Router: 77, Worker: worker.WorkerRank{WorkerID: 1}}
		w.r.Topics()[1].Handler.Event(ch, &worker.Event{Payload: worker.AppendActiveSequences(nil, &a)})
		active(1)
		w.publish()
		active(0)
	}
}

// TestCards takes mode and weights from a card, where it has some.
func TestCards(t *testing.T) {
	other := worker.EndpointID{Namespace: "ns", Component: "c", Name: "other"}
	for raw, want := range map[string]bool{
		`{"router_mode":"random"}`: false,
		`{"router_mode":"kv","kv_router_config":{"overlap_score_weight":2,"use_kv_events":false,"router_ttl_secs":5}}`: true,
		`{"kv_router_config":[]}`: true,
	} {
		w := newWorld(t, kvroute.Options{})
		w.r.Follow(&router.Snapshot{
			Version:   1,
			Instances: map[worker.EndpointID][]*worker.Instance{other: {{Namespace: "ns", Component: "c", Endpoint: "other", InstanceID: 1}}},
			Models: []*worker.ModelRecord{{Namespace: "ns", Component: "c", Endpoint: "other", InstanceID: 1,
				Card: worker.Card{DisplayName: "m", ModelInput: "Tokens", KVCacheBlockSize: 16, RouterConfig: json.RawMessage(raw)}}},
		})
		if got := w.r.Route(other, &router.Snapshot{}) != nil; got != want {
			t.Errorf("%s: in mode kv: %t", raw, got)
		}
		w.r.Follow(&router.Snapshot{Version: 2})
		if w.r.Route(other, &router.Snapshot{}) != nil {
			t.Errorf("%s: a pool without an endpoint", raw)
		}
	}
}
