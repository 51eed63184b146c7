package kvindex_test

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/portico-llm/portico/internal/router/kvhash"
	"github.com/portico-llm/portico/internal/router/kvindex"
)

// chain returns blocks whose engine names them by content.
func chain(local []uint64) []kvindex.Block {
	out := make([]kvindex.Block, len(local))
	for i, h := range kvhash.Sequence(nil, local) {
		out[i] = kvindex.Block{Hash: h, Local: local[i]}
	}
	return out
}

func names(blocks []kvindex.Block) []uint64 {
	out := make([]uint64, len(blocks))
	for i, b := range blocks {
		out[len(out)-1-i] = b.Hash // from the tail
	}
	return out
}

// random returns n local hashes.
func random(r *rand.Rand, n int) []uint64 {
	out := make([]uint64, n)
	for i := range out {
		out[i] = r.Uint64()
	}
	return out
}

// TestWritersAndReaders runs events of several workers, workers that come and go, and lookups at the same time. A
// lookup must never see more than somebody stores, and in the end everything must be there, or gone.
func TestWritersAndReaders(t *testing.T) {
	x := newIndex(t, kvindex.Options{})
	seed := uint64(time.Now().UnixNano())
	shared := random(rand.New(rand.NewPCG(seed, 0)), 100)
	var stop atomic.Bool
	var writers, readers sync.WaitGroup
	for w := range uint64(4) {
		writers.Go(func() {
			r := rand.New(rand.NewPCG(seed, w+1))
			worker := kvindex.Worker{ID: w}
			for range 150 {
				path := append(append([]uint64(nil), shared[:r.IntN(100)]...), random(r, 1+r.IntN(300))...)
				blocks := chain(path)
				if err := x.Stored(kvindex.Device, worker, nil, blocks); err != nil {
					t.Errorf("seed %d: %v", seed, err)
				}
				switch r.IntN(12) {
				case 0:
					x.Cleared(worker)
				case 1:
					x.RemoveWorker(w)
				default:
					x.Removed(kvindex.Device, worker, names(blocks)[:r.IntN(len(blocks))])
				}
			}
			x.RemoveWorker(w)
			if err := x.Stored(kvindex.Device, worker, nil, chain(shared)); err != nil {
				t.Errorf("seed %d: %v", seed, err)
			}
		})
	}
	for range 2 {
		readers.Go(func() {
			out := make([]uint32, 64)
			q := append(append([]uint64(nil), shared...), 1, 2, 3)
			for !stop.Load() {
				depth := x.Match(q, out)
				for slot, n := range out {
					if int(n) > depth || depth > len(shared) {
						t.Errorf("seed %d: slot %d holds %d of %d blocks", seed, slot, n, depth)
						return
					}
				}
			}
		})
	}
	writers.Wait()
	stop.Store(true)
	readers.Wait()
	want := make(map[kvindex.Worker]uint32)
	for w := range uint64(4) {
		want[kvindex.Worker{ID: w}] = 100
	}
	if d := cmp.Diff(want, overlaps(x, shared)); d != "" {
		t.Errorf("seed %d: %s", seed, d)
	}
	if n := x.Entries(); n != 400 {
		t.Errorf("seed %d: %d entries, want 400", seed, n)
	}
}

// TestWorkersComeAndGo: a thousand workers one after the other leave nothing behind, and use few slots.
func TestWorkersComeAndGo(t *testing.T) {
	x := newIndex(t, kvindex.Options{})
	r := rand.New(rand.NewPCG(1, 1))
	path := random(r, 40)
	var most int64
	for i := range uint64(1000) {
		if err := x.Stored(kvindex.Device, kvindex.Worker{ID: i}, nil, chain(append(path, random(r, 20)...))); err != nil {
			t.Fatal(err)
		}
		if i >= 10 {
			x.RemoveWorker(i - 10)
		}
		most = max(most, x.Bytes())
	}
	if n := x.View().Slots(); n > 12 {
		t.Errorf("%d slots", n)
	}
	if n := x.Entries(); n != 600 {
		t.Errorf("%d entries, want 600", n)
	}
	for i := range uint64(1000) {
		x.RemoveWorker(i)
	}
	if n := x.Entries(); n != 0 {
		t.Errorf("%d entries are left", n)
	}
	if left := x.Bytes(); left > most/2 {
		t.Errorf("%d bytes are in use without workers, at most there were %d", left, most)
	}
}

// TestMemoryLimit stores without end. The index must stay below its limit, keep what is asked for, and drop the rest.
func TestMemoryLimit(t *testing.T) {
	const limit = 4 << 20
	registry := prometheus.NewPedanticRegistry()
	x := newIndex(t, kvindex.Options{MemoryLimit: limit, Registerer: registry})
	r := rand.New(rand.NewPCG(2, 2))
	hot := random(r, 200)
	if err := x.Stored(kvindex.Device, kvindex.Worker{ID: 1}, nil, chain(hot)); err != nil {
		t.Fatal(err)
	}
	out := make([]uint32, 8)
	for i := range 8000 {
		w := kvindex.Worker{ID: uint64(1 + i%3)}
		if err := x.Stored(kvindex.Device, w, nil, chain(random(r, 1+r.IntN(100)))); err != nil {
			t.Fatal(err)
		}
		if n := x.Bytes(); n > limit+limit/16 {
			t.Fatalf("%d bytes after %d stores", n, i)
		}
		if got := x.Match(hot, out); got != len(hot) {
			t.Fatalf("%d blocks of what is in use are left after %d stores", got, i)
		}
	}
	got := gather(t, registry)
	if got["evicted_blocks_total"] < 100000 || got["entries"] < 80000 || got["workers"] != 3 {
		t.Errorf("evicted too much or too little: %v", got)
	}
	// What was evicted is unknown now, and nothing must be found at addresses that have been given away again.
	for slot := range x.View().Slots() {
		w, _ := x.View().Worker(slot)
		x.RemoveRank(w)
	}
	if n := x.Entries(); n != 0 {
		t.Errorf("%d entries are left", n)
	}
}

// TestEvictionAgainstModel: under a tight limit the index holds a part of what the model does, and never more.
func TestEvictionAgainstModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	for round := range uint64(2) {
		d := &driver{r: rand.New(rand.NewPCG(seed, round)), m: newModel(), naming: naming(round % 2),
			x: newIndex(t, kvindex.Options{MemoryLimit: 150 << 10})}
		for i := range 5 {
			d.workers = append(d.workers, kvindex.Worker{ID: uint64(i)})
		}
		for step := range 800 {
			w := d.workers[d.r.IntN(len(d.workers))]
			if d.r.IntN(3) > 0 {
				blocks := chain(d.path())
				for i := range blocks {
					blocks[i].Hash = d.name(w, blocks[i].Hash)
				}
				if err := d.x.Stored(kvindex.Device, w, nil, blocks); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				d.m.stored(w, nil, blocks)
			} else {
				d.remove(w)
			}
			q := d.path()
			want := d.m.overlaps(q)
			for w, n := range overlaps(d.x, q) {
				if n > want[w] {
					t.Fatalf("seed %d, round %d, step %d: %v holds %d blocks, want at most %d", seed, round, step, w, n, want[w])
				}
			}
			if len(d.paths) > 60 {
				d.paths = d.paths[30:]
			}
		}
		if got, want := d.x.Entries(), d.m.entries(); got*2 > want {
			t.Errorf("seed %d, round %d: %d entries, and %d without a limit: too few were evicted", seed, round, got, want)
		}
	}
}

// TestApproximate: what is inserted lives as long as the TTL since its last insertion.
func TestApproximate(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	now := time.Unix(1000, 0)
	const ttl = 64 * time.Second
	x := newIndex(t, kvindex.Options{TTL: ttl, Now: func() time.Time { return now }})
	d := &driver{r: rand.New(rand.NewPCG(seed, 1)), x: x}
	type held struct {
		worker kvindex.Worker
		path   uint64 // sequence hash
	}
	until := make(map[held]time.Time) // for every beginning of a path that was inserted
	for step := range 1500 {
		w, p := kvindex.Worker{ID: d.r.Uint64N(5)}, d.path()
		if err := x.Insert(w, p); err != nil {
			t.Fatal(err)
		}
		for _, h := range kvhash.Sequence(nil, p) {
			until[held{w, h}] = now.Add(ttl)
		}
		now = now.Add(time.Duration(1+d.r.IntN(4)) * time.Second)
		if d.r.IntN(200) == 0 {
			gone := kvindex.Worker{ID: d.r.Uint64N(5)}
			x.RemoveWorker(gone.ID)
			for h := range until {
				if h.worker == gone {
					delete(until, h)
				}
			}
		}
		x.Expire()
		q := d.path()
		want := make(map[kvindex.Worker]uint32)
		for i, h := range kvhash.Sequence(nil, q) {
			for id := range uint64(5) {
				w := kvindex.Worker{ID: id}
				if until[held{w, h}].After(now) {
					want[w] = uint32(i + 1)
				}
			}
		}
		if diff := cmp.Diff(want, overlaps(x, q)); diff != "" {
			t.Fatalf("seed %d, step %d: %s", seed, step, diff)
		}
		if len(d.paths) > 30 {
			d.paths = d.paths[15:]
		}
	}
	now = now.Add(2 * ttl)
	x.Expire()
	if n := x.Entries(); n != 0 {
		t.Errorf("seed %d: %d entries outlive their time", seed, n)
	}
	if err := x.Stored(kvindex.Device, kvindex.Worker{}, nil, nil); err == nil {
		t.Error("an index that guesses takes events")
	}
	if err := newIndex(t, kvindex.Options{}).Insert(kvindex.Worker{}, nil); err == nil {
		t.Error("an index with events takes guesses")
	}
}

// TestApproximateLimit: guesses are evicted like anything else.
func TestApproximateLimit(t *testing.T) {
	const limit = 1 << 20
	x := newIndex(t, kvindex.Options{TTL: time.Hour, MemoryLimit: limit})
	r := rand.New(rand.NewPCG(3, 3))
	for range 3000 {
		if err := x.Insert(kvindex.Worker{ID: r.Uint64N(4)}, random(r, 1+r.IntN(60))); err != nil {
			t.Fatal(err)
		}
		if n := x.Bytes(); n > limit+limit/8 {
			t.Fatalf("%d bytes", n)
		}
	}
	if n := x.Entries(); n < 10000 {
		t.Errorf("only %d entries are left", n)
	}
}

// TestLowerTiers: host and disk continue what lies on the device, and each other.
func TestLowerTiers(t *testing.T) {
	x := newIndex(t, kvindex.Options{})
	a, b := kvindex.Worker{ID: 1}, kvindex.Worker{ID: 2, Rank: 1}
	r := rand.New(rand.NewPCG(4, 4))
	path := random(r, 300)
	blocks := chain(path)
	sequence := kvhash.Sequence(nil, path)
	store := func(tier kvindex.Tier, w kvindex.Worker, from, to int) {
		t.Helper()
		var parent *uint64
		if from > 0 {
			parent = &blocks[from-1].Hash
		}
		if err := x.Stored(tier, w, parent, blocks[from:to]); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(want ...[3]uint32) {
		t.Helper()
		n := x.View().Slots()
		device, host, disk := make([]uint32, n), make([]uint32, n), make([]uint32, n)
		x.Match(path, device)
		x.MatchLower(sequence, device, host, disk)
		var got [][3]uint32
		for i := range n {
			got = append(got, [3]uint32{device[i], host[i], disk[i]})
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	}
	store(kvindex.Device, a, 0, 270)
	expect([3]uint32{270, 0, 0})
	store(kvindex.Host, a, 265, 280) // overlaps the device and goes on behind it
	store(kvindex.Disk, a, 280, 290)
	store(kvindex.Host, b, 0, 3)
	store(kvindex.Disk, b, 3, 5)
	expect([3]uint32{270, 10, 10}, [3]uint32{0, 3, 2})

	// Without the end of the device's part, host memory begins too late.
	x.Removed(kvindex.Device, a, names(blocks[260:270]))
	expect([3]uint32{260, 0, 0}, [3]uint32{0, 3, 2})
	store(kvindex.Host, a, 260, 265)
	expect([3]uint32{260, 20, 10}, [3]uint32{0, 3, 2})
	x.Removed(kvindex.Host, a, []uint64{blocks[275].Hash, 42})
	expect([3]uint32{260, 15, 0}, [3]uint32{0, 3, 2})
	store(kvindex.Host, a, 275, 276)
	x.Cleared(b)
	expect([3]uint32{260, 20, 10}, [3]uint32{0, 0, 0})
	unknown := uint64(7)
	if err := x.Stored(kvindex.Host, b, &unknown, blocks[:1]); err == nil {
		t.Error("a block behind an unknown one was stored")
	}
	x.RemoveWorker(1)
	if n := x.Removed(kvindex.Host, a, []uint64{blocks[265].Hash}); n != 1 {
		t.Errorf("%d unknown blocks of a worker that is gone, want 1", n)
	}
}

// gather returns the index's metrics by name.
func gather(t *testing.T, g prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]float64)
	for _, f := range families {
		m := f.GetMetric()[0]
		out[f.GetName()[len("dynamo_frontend_kv_index_"):]] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
	}
	return out
}

func TestMetrics(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	x, err := kvindex.New(kvindex.Options{Registerer: registry})
	if err != nil {
		t.Fatal(err)
	}
	w := kvindex.Worker{ID: 1}
	unknown := uint64(99)
	blocks := chain([]uint64{1, 2, 3})
	if err := x.Stored(kvindex.Device, w, nil, blocks); err != nil {
		t.Fatal(err)
	}
	if err := x.Stored(kvindex.Device, w, &unknown, blocks); err == nil {
		t.Error("no error")
	}
	if n := x.Removed(kvindex.Device, w, []uint64{5, blocks[2].Hash}); n != 1 {
		t.Errorf("%d unknown", n)
	}
	got := gather(t, registry)
	if got["bytes"] <= 0 || got["bytes"] != float64(x.Bytes()) {
		t.Errorf("bytes: %v", got["bytes"])
	}
	delete(got, "bytes")
	want := map[string]float64{"entries": 2, "workers": 1, "evicted_blocks_total": 0, "expired_blocks_total": 0,
		"rejected_stores_total": 1, "unknown_parents_total": 1, "unknown_removals_total": 1}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if _, err := kvindex.New(kvindex.Options{Registerer: registry}); err == nil {
		t.Error("two indexes have registered the same series")
	}
	if err := x.Close(); err != nil {
		t.Error(err)
	}
	if got := gather(t, registry); len(got) != 0 {
		t.Errorf("metrics after Close: %v", got)
	}
}
