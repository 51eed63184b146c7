package busy_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/busy"
)

var at = worker.EndpointID{Namespace: "n", Component: "c", Name: "e"}

// wk is a worker in discovery: 100 blocks, batches of 1000 tokens.
type wk struct {
	id     uint64
	model  string
	ranks  uint32
	config string // router_config of the card
	suffix string
	away   bool // its record is there, its instance isn't
}

func snapshot(workers ...wk) *router.Snapshot {
	s := &router.Snapshot{Instances: map[worker.EndpointID][]*worker.Instance{}}
	for _, w := range workers {
		if w.model == "" {
			w.model = "m"
		}
		s.Models = append(s.Models, &worker.ModelRecord{
			Namespace: at.Namespace, Component: at.Component, Endpoint: at.Name, InstanceID: w.id, Suffix: w.suffix,
			Card: worker.Card{
				DisplayName: w.model, RouterConfig: json.RawMessage(w.config),
				RuntimeConfig: worker.RuntimeConfig{
					TotalKVBlocks: ptr[uint64](100), MaxNumBatchedTokens: ptr[uint64](1000), DataParallelSize: w.ranks,
				},
			},
		})
		if !w.away && w.suffix == "" {
			s.Instances[at] = append(s.Instances[at], &worker.Instance{
				Namespace: at.Namespace, Component: at.Component, Endpoint: at.Name, InstanceID: w.id,
			})
		}
	}
	return s
}

// over lists which of the instances 1 to 5 are overloaded.
func over(m *busy.Monitor, prefill int64) (out []uint64) {
	check := m.Checker(at)
	for id := uint64(1); id <= 5 && check != nil; id++ {
		if check(id, prefill) {
			out = append(out, id)
		}
	}
	return out
}

func wantOver(t *testing.T, what string, m *busy.Monitor, ids ...uint64) {
	t.Helper()
	if d := cmp.Diff(ids, over(m, 0)); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

func TestReports(t *testing.T) {
	m := busy.New(busy.Options{})
	m.Follow(snapshot(wk{id: 1}, wk{id: 2}, wk{id: 3, ranks: 2}, wk{id: 4, away: true}))
	used := func(n uint64) busy.Load { return busy.Load{Used: &n} }
	m.Report(at, 1, 0, used(99))
	if m.Checker(at) != nil {
		t.Error("overloaded without thresholds")
	}
	if _, ok, err := m.SetThresholds("m", worker.LoadThresholds{DecodeBlocks: ptr(0.5)}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	wantOver(t, "what was reported before counts", m, 1)
	m.Report(at, 2, 0, used(51))
	m.Report(at, 3, 0, used(51))
	m.Report(at, 4, 0, used(51)) // not there
	m.Report(at, 9, 0, used(51)) // never heard of
	m.Report(worker.EndpointID{}, 2, 0, used(0))
	wantOver(t, "one rank of two isn't enough", m, 1, 2)
	m.Report(at, 3, 1, used(51))
	wantOver(t, "both are", m, 1, 2, 3)
	m.Report(at, 3, 0, used(0))
	m.Report(at, 3, 7, used(99)) // it has no such rank
	wantOver(t, "one is back", m, 1, 2)
	m.Report(at, 1, 0, busy.Load{Decode: ptr[uint64](10)})
	wantOver(t, "blocks in use keep it out", m, 1, 2)
	m.Report(at, 1, 0, used(50))
	wantOver(t, "both are back", m, 2)

	m.Follow(snapshot(wk{id: 2}, wk{id: 5}))
	wantOver(t, "loads outlive snapshots", m, 2)
	m.Follow(snapshot(wk{id: 5}))
	m.Follow(snapshot(wk{id: 2}, wk{id: 5}))
	wantOver(t, "but not their workers", m)
}

// TestPrefill: what this frontend sent counts as well as what workers say, and ranks share it.
func TestPrefill(t *testing.T) {
	m := busy.New(busy.Options{Thresholds: worker.LoadThresholds{PrefillFraction: ptr(0.5)}})
	m.Follow(snapshot(wk{id: 1}, wk{id: 2, ranks: 2}))
	for prefill, want := range map[int64][]uint64{0: nil, 500: nil, 501: {1}, 1001: {1}, 1002: {1, 2}} {
		if d := cmp.Diff(want, over(m, prefill)); d != "" {
			t.Errorf("%d tokens (-want +got):\n%s", prefill, d)
		}
	}
	m.Report(at, 1, 0, busy.Load{Prefill: ptr[uint64](501)})
	wantOver(t, "by its own word", m, 1)
	m.Report(at, 1, 0, busy.Load{Prefill: ptr[uint64](500)})
	wantOver(t, "and no longer", m)
}

// TestStale: a worker isn't left out for longer than its word is fresh.
func TestStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := busy.New(busy.Options{Thresholds: worker.LoadThresholds{DecodeBlocks: ptr(0.5)}, Stale: time.Minute})
		m.Follow(snapshot(wk{id: 1}))
		m.Report(at, 1, 0, busy.Load{Used: ptr[uint64](60)})
		time.Sleep(59 * time.Second)
		wantOver(t, "fresh", m, 1)
		time.Sleep(time.Second)
		wantOver(t, "old", m)
		m.Report(at, 1, 0, busy.Load{Used: ptr[uint64](60)})
		wantOver(t, "again", m, 1)
	})
}

// TestStaleState: nobody waits for longer than a worker's word is fresh.
func TestStaleState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := busy.New(busy.Options{Queue: ptr(1.0), Stale: time.Minute})
		m.Follow(snapshot(wk{id: 1}))
		m.Report(at, 1, 0, busy.Load{Prefill: ptr[uint64](1001)})
		for _, want := range []busy.Verdict{busy.Saturated, busy.Ready} {
			if got := m.State(at, []busy.Sight{{InstanceID: 1}}, 0); got != want {
				t.Errorf("%d, want %d", got, want)
			}
			time.Sleep(time.Minute)
		}
	})
}

// TestPrecedence: an operator's word goes before the card's, the card's before the default, each threshold by itself.
func TestPrecedence(t *testing.T) {
	m := busy.New(busy.Options{Thresholds: worker.LoadThresholds{DecodeBlocks: ptr(0.1), PrefillTokens: ptr[uint64](1), PrefillFraction: ptr(1.0)}})
	card := `{"load_threshold_config":{"active_decode_blocks_threshold":0.2,"active_prefill_tokens_threshold":2}}`
	m.Follow(snapshot(wk{id: 1, config: card}, wk{id: 1, model: "adapter", suffix: "adapter"}))
	now, ok, err := m.SetThresholds("m", worker.LoadThresholds{DecodeBlocks: ptr(0.3)})
	want := worker.LoadThresholds{DecodeBlocks: ptr(0.3), PrefillTokens: ptr[uint64](2), PrefillFraction: ptr(1.0)}
	if d := cmp.Diff(want, now); d != "" || !ok || err != nil {
		t.Errorf("%v, %v (-want +got):\n%s", ok, err, d)
	}
	if d := cmp.Diff([]busy.ModelThresholds{{Model: "m", LoadThresholds: want}}, m.Thresholds()); d != "" {
		t.Errorf("list (-want +got):\n%s", d)
	}
	// Nothing set is nothing changed; nonsense changes nothing; nobody's model has none.
	if now, ok, err := m.SetThresholds("m", worker.LoadThresholds{}); !ok || err != nil || cmp.Diff(want, now) != "" {
		t.Errorf("%v, %v, %v", now, ok, err)
	}
	if _, ok, err := m.SetThresholds("m", worker.LoadThresholds{DecodeBlocks: ptr(7.0)}); !ok || err == nil {
		t.Errorf("%v, %v", ok, err)
	}
	if _, ok, err := m.SetThresholds("x", worker.LoadThresholds{DecodeBlocks: ptr(0.7)}); ok || err != nil {
		t.Errorf("%v, %v", ok, err)
	}
	if got, ok := m.ThresholdsOf("m"); !ok || cmp.Diff(want, got) != "" {
		t.Errorf("%v, %v", got, ok)
	}
	if _, ok := m.ThresholdsOf("x"); ok {
		t.Error("thresholds of nobody's model")
	}
	// A model that goes takes along what was set for it; a card that can't be used leaves the default.
	m.Follow(snapshot())
	m.Follow(snapshot(wk{id: 1, config: `{"load_threshold_config":{"active_decode_blocks_threshold":9}}`}))
	if got, _ := m.ThresholdsOf("m"); got.DecodeBlocks == nil || *got.DecodeBlocks != 0.1 {
		t.Errorf("%+v", got)
	}
}

func TestState(t *testing.T) {
	sight := func(id uint64, prefill int64) busy.Sight { return busy.Sight{InstanceID: id, Prefill: prefill} }
	full := busy.Sight{InstanceID: 2, Full: true}
	for _, tc := range []struct {
		name     string
		queue    *float64
		reported map[uint64]uint64 // tokens in prefill, by the worker's word
		sights   []busy.Sight
		pending  int64
		want     busy.Verdict
	}{
		{"nobody", nil, nil, nil, 9, busy.Ready},
		{"idle", nil, nil, []busy.Sight{sight(1, 0)}, 1 << 40, busy.Ready},
		{"one is full", nil, nil, []busy.Sight{sight(1, 0), full}, 0, busy.Ready},
		{"all are", nil, nil, []busy.Sight{full}, 0, busy.Overloaded},
		{"beyond the threshold", nil, nil, []busy.Sight{sight(1, 9001), full}, 0, busy.Overloaded},
		{"by its own word", nil, map[uint64]uint64{1: 9001}, []busy.Sight{sight(1, 0)}, 0, busy.Overloaded},
		{"enough to do", ptr(1.0), nil, []busy.Sight{sight(1, 1001)}, 0, busy.Saturated},
		{"not quite", ptr(1.0), nil, []busy.Sight{sight(1, 1000)}, 0, busy.Ready},
		{"with what is coming", ptr(1.0), nil, []busy.Sight{sight(1, 1000)}, 1, busy.Saturated},
		{"which is shared", ptr(1.0), nil, []busy.Sight{sight(1, 2000), sight(3, 0)}, 2000, busy.Ready},
		{"but not with full ones", ptr(1.0), nil, []busy.Sight{sight(1, 0), full}, 1001, busy.Saturated},
		{"by its own word, too", ptr(1.0), map[uint64]uint64{1: 1001}, []busy.Sight{sight(1, 5)}, 0, busy.Saturated},
		{"any prefill", ptr(0.0), nil, []busy.Sight{sight(1, 1)}, 0, busy.Saturated},
		{"none", ptr(0.0), nil, []busy.Sight{sight(1, 0)}, 0, busy.Ready},
		{"two ranks", ptr(1.0), nil, []busy.Sight{sight(4, 2000)}, 0, busy.Ready},
		{"two full ranks", ptr(1.0), nil, []busy.Sight{sight(4, 2001)}, 0, busy.Saturated},
		{"one nobody knows", ptr(1.0), nil, []busy.Sight{sight(77, 8192)}, 0, busy.Ready},
		{"one nobody knows, with more", ptr(1.0), nil, []busy.Sight{sight(77, 8193)}, 0, busy.Saturated},
	} {
		m := busy.New(busy.Options{Queue: tc.queue, Thresholds: worker.LoadThresholds{PrefillTokens: ptr[uint64](9000)}})
		m.Follow(snapshot(wk{id: 1}, wk{id: 2}, wk{id: 3}, wk{id: 4, ranks: 2}))
		for id, n := range tc.reported {
			m.Report(at, id, 0, busy.Load{Prefill: &n})
		}
		if got := m.State(at, tc.sights, tc.pending); got != tc.want || m.Queues() != (tc.queue != nil) {
			t.Errorf("%s: %d, want %d", tc.name, got, tc.want)
		}
	}
}

// TestEvents: reports come in the form of the topic.
func TestEvents(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m := busy.New(busy.Options{Thresholds: worker.LoadThresholds{DecodeBlocks: ptr(0.5)}, Registerer: reg})
	m.Follow(snapshot(wk{id: 1}, wk{id: 2}))
	ch := &worker.EventChannel{Scope: worker.EndpointScope(at)}
	k := worker.KVMetrics{Worker: worker.WorkerRank{WorkerID: 2}, KVUsedBlocks: ptr[uint64](60)}
	m.Event(ch, &worker.Event{Payload: worker.AppendKVMetrics(nil, &k)})
	m.Event(ch, &worker.Event{Payload: []byte{0xc1}})
	m.Missed(ch)
	m.Gone(ch)
	wantOver(t, "reported", m, 2)
	err := testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP portico_overloaded_workers Workers of a model that are left out because they report more load than its thresholds allow
# TYPE portico_overloaded_workers gauge
portico_overloaded_workers{model="m"} 1
`))
	if err != nil {
		t.Error(err)
	}
}

// TestAtOnce has everything happen at the same time, for the race detector.
func TestAtOnce(t *testing.T) {
	m := busy.New(busy.Options{Queue: ptr(1.0)})
	m.Follow(snapshot(wk{id: 1}, wk{id: 2}))
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for n := range uint64(200) {
				switch i {
				case 0:
					m.Report(at, 1+n%2, 0, busy.Load{Used: ptr(n), Prefill: ptr(n)})
				case 1:
					m.Follow(snapshot(wk{id: 1}, wk{id: 2 + n%2}))
				case 2:
					_, _, _ = m.SetThresholds("m", worker.LoadThresholds{DecodeBlocks: ptr(float64(n%10) / 10)})
				case 3:
					_ = fmt.Sprint(over(m, int64(n)), m.State(at, []busy.Sight{{InstanceID: 1}}, 0), m.Thresholds())
				}
			}
		})
	}
	wg.Wait()
}
