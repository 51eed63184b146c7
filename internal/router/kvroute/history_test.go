package kvroute_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/router/kvroute"
)

// startOf reads start_event_id of a query; 0 when it is null.
func startOf(query []byte) uint64 {
	var q struct {
		Start *uint64 `json:"start_event_id"`
	}
	if json.Unmarshal(query, &q) != nil || q.Start == nil {
		return 0
	}
	return *q.Start
}

// asJSON writes an event as it stands in an answer.
func asJSON(e *worker.KVEvent) []byte {
	var data string
	switch e.Kind {
	case worker.KVCleared:
		data = `"cleared"`
	case worker.KVRemoved:
		data = fmt.Sprintf(`{"removed":{"block_hashes":%s}}`, strings.ReplaceAll(fmt.Sprint(e.Hashes), " ", ","))
	default:
		parent := "null"
		if e.HasParent {
			parent = fmt.Sprint(e.Parent)
		}
		var blocks []string
		for _, b := range e.Blocks {
			blocks = append(blocks, fmt.Sprintf(`{"block_hash":%d,"tokens_hash":%d}`, b.Hash, b.Tokens))
		}
		data = fmt.Sprintf(`{"stored":{"parent_hash":%s,"blocks":[%s]}}`, parent, strings.Join(blocks, ","))
	}
	return fmt.Appendf(nil, `{"worker_id":%d,"event":{"event_id":%d,"data":%s,"dp_rank":0}}`, e.Worker.WorkerID, e.ID, data)
}

// send delivers events in one message.
func (w *world) send(e *engine, list ...worker.KVEvent) {
	var pointers []*worker.KVEvent
	for i := range list {
		pointers = append(pointers, &list[i])
	}
	w.cache.Event(e.channel(), &worker.Event{Publisher: e.publisher, Topic: worker.TopicKVEvents, Payload: worker.AppendKVEvents(nil, pointers...)})
}

func (w *world) quiet() {
	w.t.Helper()
	for until := time.Now().Add(20 * time.Second); !w.r.Quiet(); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			w.t.Fatal("not quiet")
		}
	}
}

// TestHistories plays random histories of several engines over a line that loses, repeats and swaps messages, with
// engines that clear, fail to answer, restart, come and go. When it is quiet, the index knows nothing but the truth; after
// one more event of each engine, all of it.
func TestHistories(t *testing.T) {
	n := 20
	if testing.Short() {
		n = 8
	}
	for range n {
		seed := rand.Uint64()
		t.Run(fmt.Sprint(seed), func(t *testing.T) { history(t, seed) })
	}
}

func history(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 7))
	w := newWorld(t, kvroute.Options{})
	var live []*engine
	next := uint64(0)
	join := func() {
		next++
		e := newEngine(next, next+1000)
		e.window = rng.IntN(20)
		live = append(live, e)
		w.publish(append([]*engine(nil), live...)...)
		w.cache.Missed(e.channel())
	}
	leave := func(i int) *engine {
		e := live[i]
		live = append(live[:i:i], live[i+1:]...)
		w.publish(append([]*engine(nil), live...)...)
		w.cache.Gone(e.channel())
		return e
	}
	for range 3 {
		join()
	}
	path := func() []uint64 {
		p := make([]uint64, 1+rng.IntN(12))
		for i := range p {
			p[i] = uint64(i+1)<<8 | uint64(rng.IntN(2+i/4))
		}
		return p
	}
	var held []worker.KVEvent // a message that is late
	var of *engine
	for range 400 {
		e := live[rng.IntN(len(live))]
		var list []worker.KVEvent
		switch k := rng.IntN(100); {
		case k < 60:
			list = e.store(path())
		case k < 94:
			list = e.evict(rng.IntN)
		case k < 95:
			list = e.clear()
		case k == 96 && len(live) < 6:
			join()
		case k == 95 && len(live) > 1:
			leave(rng.IntN(len(live)))
		case k == 98: // a restart under the same id: another publisher, an empty cache
			if i := rng.IntN(len(live)); true {
				old := leave(i)
				next++
				e := newEngine(old.id, next+1000)
				live = append(live, e)
				w.publish(append([]*engine(nil), live...)...)
				w.cache.Missed(e.channel())
			}
		case k == 97 && len(live) > 1: // gone from discovery for a moment, with its events going on
			i := rng.IntN(len(live))
			rest := append(append([]*engine(nil), live[:i]...), live[i+1:]...)
			w.publish(rest...)
			w.send(live[i], live[i].store(path())...)
			w.publish(append([]*engine(nil), live...)...)
		default:
			e.mu.Lock()
			e.fail = rng.IntN(5)
			e.mu.Unlock()
			w.cache.Missed(e.channel())
		}
		if len(list) == 0 {
			continue
		}
		switch k := rng.IntN(100); {
		case k < 5: // lost
		case k < 10: // twice
			w.send(e, list...)
			w.send(e, list...)
		case k < 13 && held == nil:
			held, of = list, e
			continue
		default:
			w.send(e, list...)
		}
		if held != nil && rng.IntN(3) == 0 {
			if slices.Contains(live, of) { // nothing comes after a publisher's end
				w.send(of, held...)
			}
			held = nil
		}
		if rng.IntN(40) == 0 {
			w.quiet()
		}
	}
	checkHistory(t, w, live, seed, rng, path)
}

// checkHistory has every living engine publish once more and compares the index with what they hold.
func checkHistory(t *testing.T, w *world, live []*engine, seed uint64, rng *rand.Rand, path func() []uint64) {
	t.Helper()
	w.quiet()
	for _, e := range live { // whatever was lost last shows by the next event
		w.send(e, e.store(append([]uint64{1 << 40}, path()...))...)
	}
	w.quiet()
	total := 0
	for range 200 {
		p := path()
		if rng.IntN(4) == 0 {
			p = append([]uint64{1 << 40}, p...)
		}
		got := w.r.Cached(endpoint, p)
		for _, e := range live {
			if want := e.holds(p); got[rankZero(e.id)] != want {
				t.Fatalf("seed %d: engine %d holds %d of %v, the index says %d", seed, e.id, want, p, got[rankZero(e.id)])
			}
			delete(got, rankZero(e.id))
		}
		if len(got) > 0 {
			t.Fatalf("seed %d: the index knows engines that are gone: %v", seed, got)
		}
	}
	for _, e := range live {
		total += len(e.nodes)
	}
	if n := w.r.Entries(endpoint); n != int64(total) {
		t.Errorf("seed %d: %d blocks in the index, %d in the caches", seed, n, total)
	}
}
