package kvindex_test

import (
	"math/rand/v2"
	"testing"

	"github.com/portico-llm/portico/internal/router/kvindex"
)

// TestHoldAndTrim holds and takes back random paths with common beginnings, and compares with sets after each step.
func TestHoldAndTrim(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	x, err := kvindex.New(kvindex.Options{})
	if err != nil {
		t.Fatal(err)
	}
	type held struct {
		w    kvindex.Worker
		path []uint64
	}
	var all []held
	common := func(a, b []uint64) int {
		n := 0
		for n < len(a) && n < len(b) && a[n] == b[n] {
			n++
		}
		return n
	}
	// best is what others of a worker's paths have in common with one.
	best := func(w kvindex.Worker, path []uint64) int {
		n := 0
		for _, h := range all {
			if h.w == w {
				n = max(n, common(h.path, path))
			}
		}
		return n
	}
	path := func() []uint64 {
		p := make([]uint64, 1+rng.IntN(600))
		for i := range p {
			p[i] = uint64(i + 1)
		}
		// A branch somewhere makes all that follows another path.
		for range rng.IntN(3) {
			at, kind := rng.IntN(len(p)), uint64(1+rng.IntN(3))<<32
			for i := at; i < len(p); i++ {
				p[i] |= kind
			}
		}
		return p
	}
	for step := range 2000 {
		if len(all) == 0 || rng.IntN(100) < 52 {
			h := held{kvindex.Worker{ID: uint64(rng.IntN(4)), Rank: uint32(rng.IntN(2))}, path()}
			if err := x.Hold(h.w, h.path); err != nil {
				t.Fatal(err)
			}
			all = append(all, h)
		} else {
			i := rng.IntN(len(all))
			h := all[i]
			all[i] = all[len(all)-1]
			all = all[:len(all)-1]
			x.Trim(h.w, h.path, best(h.w, h.path))
		}
		if step%50 != 0 {
			continue
		}
		q := path()
		view := x.View()
		out := make([]uint32, view.Slots())
		x.Match(q, out)
		for slot, got := range out {
			if w, ok := view.Worker(slot); ok && int(got) != best(w, q) {
				t.Fatalf("seed %d step %d: worker %v holds %d, index says %d", seed, step, w, best(w, q), got)
			}
		}
	}
	for len(all) > 0 {
		h := all[0]
		all = all[1:]
		x.Trim(h.w, h.path, best(h.w, h.path))
	}
	if x.Entries() != 0 {
		t.Errorf("%d entries are left", x.Entries())
	}
}
