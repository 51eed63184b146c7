package kvroute_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/kvhash"
	"github.com/portico-llm/portico/internal/router/kvindex"
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
	e.mu.Lock()
	for i := range list {
		pointers = append(pointers, &list[i])
		e.told = max(e.told, list[i].ID)
	}
	e.mu.Unlock()
	w.cache.Event(e.channel(), &worker.Event{Publisher: e.publisher, Topic: worker.TopicKVEvents, Payload: worker.AppendKVEvents(nil, pointers...)})
}

// until polls a condition.
func (w *world) until(what string, ok func() bool) {
	w.t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatal("never ", what)
		}
	}
}

func (w *world) quiet() {
	w.t.Helper()
	w.until("quiet", w.r.Quiet)
}

// text is a prompt, with all that tells its blocks from others of the same tokens.
type text struct {
	tokens        []uint32
	adapter, salt string
	media         [][]uint64 // images in each block
	blocks        []uint64   // their local hashes
}

// query is a request with the text.
func (x *text) query(t *testing.T) *router.Query {
	q := query("a", x.tokens)
	q.Request.Routing.LoRAName, q.Request.Routing.CacheSalt = x.adapter, x.salt
	if len(x.media) == 0 {
		return q
	}
	type object struct {
		Hash uint64 `json:"mm_hash"`
	}
	type block struct {
		Objects []object `json:"mm_objects"`
	}
	blocks := make([]*block, len(x.media))
	for i, images := range x.media {
		if len(images) > 0 {
			blocks[i] = &block{[]object{{images[0]}}}
		}
	}
	var err error
	if q.Request.MMRoutingInfo, err = json.Marshal(map[string]any{"block_mm_infos": blocks}); err != nil {
		t.Fatal(err)
	}
	return q
}

// history is a random one, of several engines.
type history struct {
	*world
	t     *testing.T
	rng   *rand.Rand
	live  []*engine
	next  uint64
	texts []text         // all that were ever cached
	drawn map[string]int // what has happened

	held []worker.KVEvent // a message that is late
	of   *engine
}

// text draws a prompt. Few tokens, adapters, salts and images: most begin as others do.
func (h *history) text() *text {
	x := text{adapter: h.oneOf("", "", "", "sql", "poems"), salt: h.oneOf("", "", "", "tenant")}
	n := 1 + h.rng.IntN(12)
	for i := range n {
		word := uint32(i+1)<<8 | uint32(h.rng.IntN(2+i/4))
		x.tokens = append(x.tokens, word, word, word, word)
	}
	if h.rng.IntN(4) == 0 {
		x.media = make([][]uint64, n)
		image := []uint64{1 + h.rng.Uint64N(2)}
		for i := h.rng.IntN(n); i < n && h.rng.IntN(3) > 0; i++ {
			x.media[i] = image
		}
	}
	hasher := kvhash.New(kvhash.Seed(x.adapter, x.salt))
	var err error
	if x.blocks, err = hasher.Local(nil, x.tokens, kvhash.Layout{BlockSize: blockSize, Media: x.media}); err != nil {
		h.t.Fatal(err)
	}
	h.texts = append(h.texts, x)
	return &x
}

func (h *history) oneOf(list ...string) string { return list[h.rng.IntN(len(list))] }

// store has an engine cache a new prompt.
func (h *history) store(e *engine) []worker.KVEvent { return e.store(h.text().blocks) }

// show publishes the living engines, but for one.
func (h *history) show(but *engine) {
	h.publish(slices.DeleteFunc(slices.Clone(h.live), func(e *engine) bool { return e == but })...)
}

// join lets an engine come, under a new id unless it has one.
func (h *history) join(id uint64) {
	h.next++
	if id == 0 {
		id = h.next
	}
	e := newEngine(id, h.next+1000)
	e.window = h.rng.IntN(20)
	switch h.rng.IntN(6) {
	case 0:
		e.mute = true
	case 1, 2:
		e.moody = true
	}
	h.live = append(h.live, e)
	h.show(nil)
	h.cache.Missed(e.channel())
}

// leave lets an engine go.
func (h *history) leave() *engine {
	i := h.rng.IntN(len(h.live))
	e := h.live[i]
	h.live = slices.Delete(h.live, i, i+1)
	return e
}

// step lets something happen and returns the events of it, and whose they are.
func (h *history) step() (e *engine, list []worker.KVEvent) {
	e = h.live[h.rng.IntN(len(h.live))]
	what := ""
	switch k := h.rng.IntN(200); {
	case k < 120:
		return e, h.store(e)
	case k < 186:
		return e, e.evict(h.rng.IntN)
	case k < 188:
		what, list = "cleared", e.clear()
	case k < 190 && len(h.live) < 6:
		what = "come"
		h.join(0)
	case k < 192 && len(h.live) > 1:
		what = "left"
		gone := h.leave()
		h.show(nil)
		h.cache.Gone(gone.channel())
	case k < 194: // under the same id: another publisher, an empty cache
		what = "restarted"
		old := h.leave()
		late := h.rng.IntN(2) == 0 // the old one is still heard when the new one has come
		if !late {
			h.show(nil)
			h.cache.Gone(old.channel())
		}
		h.join(old.id)
		if late {
			h.send(old, h.store(old)...)
			h.cache.Gone(old.channel())
		}
	case k < 195: // its publisher counts anew, which the line notices
		what = "reset"
		e.reset()
		h.cache.Missed(e.channel())
		h.until("settled", h.r.Settled)
	case k < 197 && len(h.live) > 1: // gone from discovery for a moment, with its events going on
		what = "away"
		h.show(e)
		h.send(e, h.store(e)...)
		h.show(nil)
	default:
		what = "missed"
		if e.moody {
			what = "unanswered"
			e.refuse([]int{0, 1, 2, 4, math.MaxInt}[h.rng.IntN(5)])
		}
		h.cache.Missed(e.channel())
	}
	h.drawn[what]++
	return e, list
}

// deliver sends events as a bad line does. What is late is late only where the engine always answers: elsewhere nothing
// tells an old event from the first of a new count, and the line keeps the order of what it delivers.
func (h *history) deliver(e *engine, list []worker.KVEvent) {
	switch k := h.rng.IntN(100); {
	case k < 5:
		h.drawn["lost"]++
	case k < 10:
		h.drawn["twice"]++
		h.send(e, list...)
		h.send(e, list...)
	case k < 13 && h.held == nil && !e.moody && !e.mute:
		h.drawn["late"]++
		h.held, h.of = list, e
		return
	default:
		h.send(e, list...)
	}
	if h.held != nil && h.rng.IntN(3) == 0 {
		if slices.Contains(h.live, h.of) && h.held[0].ID <= h.of.last { // nothing comes after a publisher's end
			h.send(h.of, h.held...)
		}
		h.held = nil
	}
}

// looked is what a request with a text finds.
func (h *history) looked(x *text) map[kvindex.Worker]int {
	h.t.Helper()
	got, err := h.r.Held(endpoint, x.query(h.t))
	if err != nil {
		h.t.Fatal(err)
	}
	return got
}

// subset finds that the index knows nothing but the truth, by the last prompts: what the engines held when they were last
// heard.
func (h *history) subset(prompts int) {
	h.t.Helper()
	for {
		h.until("settled", h.r.Settled)
		told := h.told()
		untrue := h.untrue(told, prompts)
		if !slices.Equal(told, h.told()) {
			continue // one has answered meanwhile
		}
		if untrue != "" {
			h.t.Fatal(untrue)
		}
		return
	}
}

// told is the last events that were heard of each engine.
func (h *history) told() (out []uint64) {
	for _, e := range h.live {
		e.mu.Lock()
		out = append(out, e.told)
		e.mu.Unlock()
	}
	return out
}

// untrue says what the index knows about the last prompts beyond what the engines held after the events told.
func (h *history) untrue(told []uint64, prompts int) string {
	h.t.Helper()
	var truth []*engine
	blocks := 0
	for i, e := range h.live {
		truth = append(truth, e.after(told[i]))
		blocks += len(truth[i].nodes)
	}
	for _, x := range h.texts[max(0, len(h.texts)-prompts):] {
		got := h.looked(&x)
		for _, e := range truth {
			if most := e.holds(x.blocks); got[rankZero(e.id)] > most {
				return fmt.Sprintf("engine %d holds %d of %+v, the index says %d", e.id, most, x, got[rankZero(e.id)])
			}
			delete(got, rankZero(e.id))
		}
		if len(got) > 0 {
			return fmt.Sprintf("the index knows engines that are gone: %v", got)
		}
	}
	if n := h.r.Entries(endpoint); n > int64(blocks) {
		return fmt.Sprintf("%d blocks in the index, %d in the caches", n, blocks)
	}
	return ""
}

// equal finds that the index knows the truth, all of it, but for engines that can't be asked.
func (h *history) equal() {
	h.t.Helper()
	h.quiet()
	h.subset(len(h.texts))
	blocks, sure := 0, true
	for i := range h.texts {
		got := h.looked(&h.texts[i])
		for _, e := range h.live {
			if want := e.holds(h.texts[i].blocks); got[rankZero(e.id)] != want && !e.mute {
				h.t.Fatalf("engine %d holds %d of %+v, the index says %d", e.id, want, h.texts[i], got[rankZero(e.id)])
			}
		}
	}
	for _, e := range h.live {
		blocks += len(e.nodes)
		sure = sure && !e.mute
	}
	if n := h.r.Entries(endpoint); n != int64(blocks) && sure {
		h.t.Errorf("%d blocks in the index, %d in the caches", n, blocks)
	}
}

// TestHistories plays random histories of several engines over a line that loses, repeats and swaps messages, with
// engines that clear, restart, count anew, come and go, fail to answer, or can't be asked. Whenever it is quiet, the index
// knows nothing but the truth, also where what was missed hasn't been made good; after that, it knows all of it. Prompts
// of the same tokens differ by adapter, cache salt and images, and are looked up as requests are.
func TestHistories(t *testing.T) {
	n := 20
	if testing.Short() {
		n = 8
	}
	drawn, alike := map[string]int{}, 0
	for range n {
		seed := rand.Uint64()
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			h := &history{world: newWorld(t, kvroute.Options{}), t: t, rng: rand.New(rand.NewPCG(seed, 7)), drawn: drawn}
			h.play()
			alike += h.alike()
		})
	}
	t.Logf("%v; %d prompts of tokens that another has had, with other blocks", drawn, alike)
	for _, what := range []string{"lost", "twice", "late", "cleared", "reset", "restarted", "come", "left", "away", "missed", "unanswered"} {
		if drawn[what] == 0 {
			t.Errorf("nothing was ever %s", what)
		}
	}
	if alike == 0 {
		t.Error("no prompts differ in their blocks alone")
	}
}

// play is the whole history.
func (h *history) play() {
	for range 3 {
		h.join(0)
	}
	for range 400 {
		if e, list := h.step(); len(list) > 0 {
			h.deliver(e, list)
		}
		if h.rng.IntN(40) == 0 {
			h.subset(50)
		}
	}
	// Every engine loses an event, and the next shows it, while none answers.
	for _, e := range h.live {
		e.refuse(math.MaxInt)
		for len(h.store(e)) == 0 {
		}
		if h.rng.IntN(2) == 0 {
			e.evict(h.rng.IntN)
		}
		list := h.store(e)
		for len(list) == 0 {
			list = h.store(e)
		}
		h.send(e, list...)
	}
	h.subset(len(h.texts))
	for _, e := range h.live {
		e.refuse(0)
	}
	h.equal()
}

// alike counts prompts whose tokens an earlier one has, with other blocks.
func (h *history) alike() (n int) {
	seen := map[string][]uint64{}
	for _, x := range h.texts {
		key := fmt.Sprint(x.tokens)
		if first, ok := seen[key]; !ok {
			seen[key] = x.blocks
		} else if !slices.Equal(first, x.blocks) {
			n++
		}
	}
	return n
}
