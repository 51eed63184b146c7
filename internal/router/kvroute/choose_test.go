package kvroute_test

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/kvhash"
	"github.com/portico-llm/portico/internal/router/kvindex"
	"github.com/portico-llm/portico/internal/router/kvroute"
)

func rankZero(id uint64) kvindex.Worker { return kvindex.Worker{ID: id} }

func tokens(n int, kind uint32) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = kind*1000 + uint32(i)
	}
	return out
}

func locals(t testing.TB, ids []uint32) []uint64 {
	t.Helper()
	h := kvhash.New(kvhash.Seed("", ""))
	out, err := h.Local(nil, ids, kvhash.Layout{BlockSize: blockSize})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (w *world) chooser() router.Chooser {
	return w.r.Route(endpoint, &router.Snapshot{})
}

func query(id string, ids []uint32) *router.Query {
	return &router.Query{RequestID: id, TokenIDs: ids, Request: &worker.Request{TokenIDs: ids}, Random: rand.IntN}
}

// choose returns the id of the chosen worker and the ticket.
func (w *world) choose(q *router.Query) (uint64, router.Ticket) {
	w.t.Helper()
	candidates := w.candidates()
	c, err := w.chooser().Choose(context.Background(), q, candidates)
	if err != nil {
		w.t.Fatal(err)
	}
	if c.Rank == nil || c.Ticket == nil {
		w.t.Fatalf("choice %+v", c)
	}
	return candidates[c.Index].Instance.InstanceID, c.Ticket
}

// TestChoice follows one prompt to the worker that has it, until that has too much to do.
func TestChoice(t *testing.T) {
	w := newWorld(t, kvroute.Options{})
	one, two := newEngine(1, 101), newEngine(2, 102)
	w.publish(one, two)
	w.cache.Missed(one.channel())
	w.cache.Missed(two.channel())
	w.quiet()
	prompt := tokens(42, 1) // ten blocks and a rest
	w.send(two, two.store(locals(t, prompt)[:8])...)
	id, ticket := w.choose(query("a", prompt))
	if id != 2 {
		t.Fatalf("worker %d, and not the one that has the prompt", id)
	}
	want := []kvroute.RankLoad{{Worker: 1}, {Worker: 2, Prefill: 42 - 8*blockSize, Blocks: 10, Requests: 1}}
	if diff := cmp.Diff(want, w.r.Loads(endpoint)); diff != "" {
		t.Errorf("loads (-want +got):\n%s", diff)
	}
	// The same again shares all its blocks; another goes where nothing is to do.
	_, again := w.choose(query("b", prompt))
	if id, other := w.choose(query("c", tokens(42, 2))); id != 1 {
		t.Errorf("worker %d", id)
	} else {
		other.Done()
	}
	ticket.Item(&worker.Item{})
	if got := w.r.Loads(endpoint)[1]; got != (kvroute.RankLoad{Worker: 2, Prefill: 20, Blocks: 10, Requests: 2}) {
		t.Errorf("load %+v", got)
	}
	ticket.Item(&worker.Item{HasData: true, Output: worker.Output{TokenIDs: []uint32{1}}})
	ticket.Item(&worker.Item{HasData: true, Output: worker.Output{TokenIDs: []uint32{1}}})
	if got := w.r.Loads(endpoint)[1]; got != (kvroute.RankLoad{Worker: 2, Prefill: 10, Blocks: 10, Requests: 2}) {
		t.Errorf("load %+v", got)
	}
	ticket.Done()
	again.Done()
	if diff := cmp.Diff([]kvroute.RankLoad{{Worker: 1}, {Worker: 2}}, w.r.Loads(endpoint)); diff != "" {
		t.Errorf("loads (-want +got):\n%s", diff)
	}
}

// TestBlocksOfActiveRequests compares the blocks counted with the union of the prompts at work, through random requests
// of two workers with common beginnings.
func TestBlocksOfActiveRequests(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 3))
	cfg := kvroute.Default()
	cfg.TrackOutput = true
	told := map[uint64]kvroute.RankLoad{1: {Worker: 1}, 2: {Worker: 2}}
	w := newWorld(t, kvroute.Options{Config: cfg, Loads: func(_ worker.EndpointID, id uint64, rank uint32, blocks, prefill *uint64) {
		told[id] = kvroute.RankLoad{Worker: id, Rank: rank, Blocks: int64(*blocks), Prefill: int64(*prefill)}
	}})
	w.publish(newEngine(1, 101), newEngine(2, 102))
	type open struct {
		id     uint64
		seq    []uint64
		ticket router.Ticket
		length int
		output int
		begun  bool
	}
	var all []*open
	for step := range 3000 {
		switch {
		case len(all) == 0 || (rng.IntN(2) == 0 && len(all) < 40):
			ids := tokens(rng.IntN(200), 1)
			if len(ids) > 0 {
				at := rng.IntN(len(ids))
				for i := at; i < len(ids); i++ {
					ids[i] += uint32(rng.IntN(2)) * 5000
				}
			}
			id, ticket := w.choose(query("x", ids))
			all = append(all, &open{id: id, seq: kvhash.Sequence(nil, locals(t, ids)), ticket: ticket, length: len(ids)})
		case rng.IntN(2) == 0:
			o := all[rng.IntN(len(all))]
			n := rng.IntN(6)
			o.ticket.Item(&worker.Item{HasData: true, Output: worker.Output{TokenIDs: make([]uint32, n)}})
			o.output += n
			o.begun = true
		default:
			i := rng.IntN(len(all))
			all[i].ticket.Done()
			all = append(all[:i], all[i+1:]...)
		}
		want := []kvroute.RankLoad{{Worker: 1}, {Worker: 2}}
		sets := []map[uint64]bool{{}, {}}
		for _, o := range all {
			for _, s := range o.seq {
				sets[o.id-1][s] = true
			}
			l := &want[o.id-1]
			l.Requests++
			if !o.begun {
				l.Prefill += int64(o.length)
			}
			l.Blocks += int64((o.length+o.output)/blockSize - o.length/blockSize)
		}
		for i := range want {
			want[i].Blocks += int64(len(sets[i]))
		}
		if diff := cmp.Diff(want, w.r.Loads(endpoint)); diff != "" {
			t.Fatalf("seed %d step %d, loads (-want +got):\n%s", seed, step, diff)
		}
		for _, l := range want {
			l.Requests = 0 // nobody is told
			if diff := cmp.Diff(l, told[l.Worker]); diff != "" {
				t.Fatalf("seed %d step %d, told (-want +got):\n%s", seed, step, diff)
			}
		}
	}
}

// TestSpread has 512 different prompts arrive at four routers at once, each of which knows only its own.
func TestSpread(t *testing.T) {
	counts := map[uint64]int{}
	for router := range 4 {
		w := newWorld(t, kvroute.Options{})
		var list []*engine
		for id := range uint64(5) {
			list = append(list, newEngine(id+1, id+101))
		}
		w.publish(list...)
		for i := range 128 {
			id, _ := w.choose(query("x", tokens(100+i%7, uint32(router*128+i))))
			counts[id]++
		}
	}
	most := 0
	for _, n := range counts {
		most = max(most, n)
	}
	if ratio := float64(most) / (512.0 / 5); ratio > 1.1 {
		t.Errorf("most at one worker: %.2f of the mean: %v", ratio, counts)
	}
}

// TestRanks chooses among the ranks of workers, and the one that the client wants.
func TestRanks(t *testing.T) {
	w := newWorld(t, kvroute.Options{})
	card := &worker.Card{DisplayName: "m", ModelInput: "Tokens", KVCacheBlockSize: blockSize}
	card.RuntimeConfig.DataParallelStartRank, card.RuntimeConfig.DataParallelSize = 2, 3
	w.cards[1] = card
	w.publish(newEngine(1, 101))
	for range 6 {
		w.choose(query("x", tokens(40, rand.Uint32N(1000))))
	}
	for i, l := range w.r.Loads(endpoint) {
		if l.Rank != uint32(i+2) || l.Requests != 2 {
			t.Errorf("load %+v", l)
		}
	}
	q := query("x", tokens(40, 1))
	rank := uint32(4)
	q.Request.Routing.DPRank = &rank
	if _, ticket := w.choose(q); w.r.Loads(endpoint)[2].Requests != 3 {
		t.Errorf("loads %+v", w.r.Loads(endpoint))
	} else {
		ticket.Done()
	}
	rank = 5
	if _, err := w.chooser().Choose(t.Context(), q, w.candidates()); fault.KindOf(err) != fault.BadRequest {
		t.Errorf("error %v", err)
	}
}

// TestOverrides refuses what a request may not ask for, naming the field.
func TestOverrides(t *testing.T) {
	w := newWorld(t, kvroute.Options{})
	one, two := newEngine(1, 101), newEngine(2, 102)
	w.publish(one, two)
	w.cache.Missed(two.channel())
	w.quiet()
	prompt := tokens(40, 1)
	w.send(two, two.store(locals(t, prompt))...)
	for range 20 { // without credit the cache doesn't count, and the tie is drawn for
		q := query("x", prompt)
		q.Request.RouterOverride = json.RawMessage(`{"overlap_score_weight":0}`)
		id, ticket := w.choose(q)
		ticket.Done()
		if id == 1 {
			break
		}
	}
	for _, bad := range []string{`7`, `{"router_temperature":"hot"}`, `{"prefill_load_scale":-1}`} {
		q := query("x", prompt)
		q.Request.RouterOverride = json.RawMessage(bad)
		if _, err := w.chooser().Choose(t.Context(), q, w.candidates()); fault.KindOf(err) != fault.BadRequest {
			t.Errorf("%s: error %v", bad, err)
		}
	}
}

// TestWorkersComeAndGo leaves nothing of a worker that has gone, and keeps the books of one that comes back while its
// requests go on.
func TestWorkersComeAndGo(t *testing.T) {
	w := newWorld(t, kvroute.Options{})
	one, two := newEngine(1, 101), newEngine(2, 102)
	w.publish(one)
	_, ticket := w.choose(query("x", tokens(40, 1)))
	w.publish(two)
	if id, other := w.choose(query("y", tokens(40, 1))); id != 2 {
		t.Errorf("worker %d", id)
	} else {
		other.Done()
	}
	w.publish(one, two)
	if got := w.r.Loads(endpoint)[0]; got != (kvroute.RankLoad{Worker: 1, Prefill: 40, Blocks: 10, Requests: 1}) {
		t.Errorf("load %+v", got)
	}
	w.publish(two)
	ticket.Done()
	if diff := cmp.Diff([]kvroute.RankLoad{{Worker: 2}}, w.r.Loads(endpoint)); diff != "" {
		t.Errorf("loads (-want +got):\n%s", diff)
	}
}

// TestSomeWorkers leaves workers out, in the middle, at the ends and nearly all, and counts each request at the candidate
// that was named. Candidates that discovery doesn't know, or in another order, change nothing of that.
func TestSomeWorkers(t *testing.T) {
	w := newWorld(t, kvroute.Options{})
	random := rand.New(rand.NewPCG(1, 2))
	var list []*engine
	for id := range uint64(9) {
		list = append(list, newEngine(id+1, id+101))
		w.cards[id+1] = &worker.Card{DisplayName: "m", ModelInput: "Tokens", KVCacheBlockSize: blockSize,
			RuntimeConfig: worker.RuntimeConfig{DataParallelSize: uint32(1 + id%3)}}
	}
	w.publish(list...)
	for i := range 500 {
		candidates := w.candidates()
		for k := len(candidates) - 1; k >= 0 && len(candidates) > 1; k-- {
			if random.IntN(4) < i%4 {
				candidates = slices.Delete(candidates, k, k+1)
			}
		}
		if i%5 == 4 {
			random.Shuffle(len(candidates), func(a, b int) { candidates[a], candidates[b] = candidates[b], candidates[a] })
			candidates = append(candidates, router.Candidate{Instance: newEngine(77, 77).instance})
		}
		c, err := w.chooser().Choose(t.Context(), query("x", tokens(40, uint32(i))), candidates)
		if err != nil {
			t.Fatal(err)
		}
		want := kvroute.RankLoad{Worker: candidates[c.Index].Instance.InstanceID, Rank: *c.Rank, Prefill: 40, Blocks: 10, Requests: 1}
		loads := slices.DeleteFunc(w.r.Loads(endpoint), func(l kvroute.RankLoad) bool { return l.Requests == 0 })
		if diff := cmp.Diff([]kvroute.RankLoad{want}, loads); diff != "" {
			t.Fatalf("round %d, loads (-want +got):\n%s", i, diff)
		}
		c.Ticket.Done()
	}
}
