package kvindex_test

import (
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/internal/router/kvhash"
	"github.com/portico-llm/portico/internal/router/kvindex"
)

// node is a block of the model, which is a plain tree with a set of workers on every node.
type node struct {
	parent  *node
	kids    map[uint64]*node
	holders map[kvindex.Worker]bool
}

func newNode(parent *node) *node {
	return &node{parent, make(map[uint64]*node), make(map[kvindex.Worker]bool)}
}

// model is what the index should be, as simple as can be.
type model struct {
	root  *node
	names map[kvindex.Worker]map[uint64]*node
}

func newModel() *model {
	return &model{newNode(nil), make(map[kvindex.Worker]map[uint64]*node)}
}

func (m *model) stored(w kvindex.Worker, parent *uint64, blocks []kvindex.Block) bool {
	at := m.root
	if parent != nil {
		if at = m.names[w][*parent]; at == nil {
			return false
		}
	}
	if m.names[w] == nil {
		m.names[w] = make(map[uint64]*node)
	}
	var path []*node
	for _, b := range blocks {
		next := at.kids[b.Local]
		if next == nil {
			next = newNode(at)
			at.kids[b.Local] = next
		}
		next.holders[w] = true
		path, at = append(path, next), next
	}
	var displaced [][2]*node
	for i, b := range blocks {
		if old := m.names[w][b.Hash]; old != nil && old != path[i] {
			displaced = append(displaced, [2]*node{old, path[i]})
		}
		m.names[w][b.Hash] = path[i]
	}
	for _, d := range displaced {
		if d[0].holders[w] {
			m.drop(w, d[0])
		}
	}
	return true
}

// drop takes a worker and its names off a block and everything behind it.
func (m *model) drop(w kvindex.Worker, n *node) {
	delete(n.holders, w)
	for h, named := range m.names[w] {
		if named == n {
			delete(m.names[w], h)
		}
	}
	for _, k := range n.kids {
		if k.holders[w] {
			m.drop(w, k)
		}
	}
}

func (m *model) removed(w kvindex.Worker, hashes []uint64) {
	for _, h := range hashes {
		if n := m.names[w][h]; n != nil {
			m.drop(w, n)
		}
	}
}

func (m *model) cleared(w kvindex.Worker) {
	for _, n := range m.root.kids {
		if n.holders[w] {
			m.drop(w, n)
		}
	}
	delete(m.names, w)
}

func (m *model) overlaps(q []uint64) map[kvindex.Worker]uint32 {
	out := make(map[kvindex.Worker]uint32)
	at := m.root
	for i, l := range q {
		next := at.kids[l]
		if next == nil {
			break
		}
		for w := range next.holders {
			out[w] = uint32(i + 1)
		}
		at = next
	}
	return out
}

func (m *model) entries() (n int64) {
	var walk func(*node)
	walk = func(at *node) {
		n += int64(len(at.holders))
		for _, k := range at.kids {
			walk(k)
		}
	}
	walk(m.root)
	return n
}

// naming is how engines name blocks in a random history.
type naming int

const (
	sharedNames naming = iota // by content: all workers alike
	ownNames                  // by content and worker
	messyNames                // few names that mean anything at any time
)

// driver makes a random history and applies it to both.
type driver struct {
	r       *rand.Rand
	x       *kvindex.Index
	m       *model
	naming  naming
	paths   [][]uint64
	workers []kvindex.Worker
}

func (d *driver) name(w kvindex.Worker, sequence uint64) uint64 {
	switch d.naming {
	case ownNames:
		return kvhash.Next(w.ID, sequence)
	case messyNames:
		return d.r.Uint64N(60)
	}
	return sequence
}

// path returns a path that shares beginnings with others; blocks repeat within it.
func (d *driver) path() []uint64 {
	if len(d.paths) > 0 && d.r.IntN(3) > 0 {
		old := d.paths[d.r.IntN(len(d.paths))]
		p := append([]uint64(nil), old[:d.r.IntN(len(old)+1)]...)
		for range d.r.IntN(40) {
			p = append(p, d.r.Uint64N(5))
		}
		if len(p) > 0 {
			d.paths = append(d.paths, p)
		}
		return p
	}
	n := 1 + d.r.IntN(20)
	if d.r.IntN(10) == 0 {
		n = 300 + d.r.IntN(300) // more than a segment
	}
	p := make([]uint64, n)
	for i := range p {
		p[i] = d.r.Uint64N(5)
	}
	d.paths = append(d.paths, p)
	return p
}

func (d *driver) store(t *testing.T, w kvindex.Worker) {
	p := d.path()
	if len(p) == 0 {
		return
	}
	sequence := kvhash.Sequence(nil, p)
	from := 0
	var parent *uint64
	if d.r.IntN(2) == 0 {
		from = d.r.IntN(len(p))
		if from > 0 {
			h := d.name(w, sequence[from-1])
			parent = &h
		}
	}
	to := from + d.r.IntN(len(p)-from+1)
	var blocks []kvindex.Block
	for i := from; i < to; i++ {
		blocks = append(blocks, kvindex.Block{Hash: d.name(w, sequence[i]), Local: p[i]})
	}
	err := d.x.Stored(kvindex.Device, w, parent, blocks)
	if ok := d.m.stored(w, parent, blocks); ok != (err == nil) {
		t.Fatalf("stored: %v, want %t", err, ok)
	}
}

func (d *driver) remove(w kvindex.Worker) {
	p := d.path()
	if len(p) == 0 {
		return
	}
	sequence := kvhash.Sequence(nil, p)
	from := d.r.IntN(len(p))
	var hashes []uint64
	for i := from; i < len(p); i++ {
		hashes = append(hashes, d.name(w, sequence[i]))
	}
	switch d.r.IntN(3) {
	case 0: // from the tail, as engines do
		for i, j := 0, len(hashes)-1; i < j; i, j = i+1, j-1 {
			hashes[i], hashes[j] = hashes[j], hashes[i]
		}
	case 1:
		d.r.Shuffle(len(hashes), func(i, j int) { hashes[i], hashes[j] = hashes[j], hashes[i] })
	}
	hashes = hashes[:min(len(hashes), 1+d.r.IntN(30))]
	d.x.Removed(kvindex.Device, w, hashes)
	d.m.removed(w, hashes)
}

func (d *driver) step(t *testing.T) {
	w := d.workers[d.r.IntN(len(d.workers))]
	switch k := d.r.IntN(100); {
	case k < 60:
		d.store(t, w)
	case k < 95:
		d.remove(w)
	case k < 97:
		d.x.Cleared(w)
		d.m.cleared(w)
	case k < 98:
		d.x.RemoveRank(w)
		d.m.cleared(w)
	default:
		d.x.RemoveWorker(w.ID)
		for _, o := range d.workers {
			if o.ID == w.ID {
				d.m.cleared(o)
			}
		}
	}
}

func (d *driver) compare(t *testing.T, step int) {
	t.Helper()
	if got, want := d.x.Entries(), d.m.entries(); got != want {
		t.Fatalf("step %d: %d entries, want %d", step, got, want)
	}
	for range 3 {
		q := d.path()
		if diff := cmp.Diff(d.m.overlaps(q), overlaps(d.x, q)); diff != "" {
			t.Fatalf("step %d: %s", step, diff)
		}
	}
}

// TestRandomHistories compares the index with the model on random histories. More workers than a word has bits make the
// index grow sideways.
func TestRandomHistories(t *testing.T) {
	rounds := 24
	if testing.Short() {
		rounds = 6
	}
	for name, n := range map[string]naming{"shared": sharedNames, "own": ownNames, "messy": messyNames} {
		t.Run(name, func(t *testing.T) {
			seed := uint64(time.Now().UnixNano())
			t.Logf("seed %d", seed)
			for round := range rounds {
				seed := seed + uint64(round)
				d := &driver{r: rand.New(rand.NewPCG(seed, 1)), x: newIndex(t, kvindex.Options{}), m: newModel(), naming: n}
				for i := range []int{4, 12, 150}[round%3] {
					d.workers = append(d.workers, kvindex.Worker{ID: uint64(i / 2), Rank: uint32(i % 2)})
				}
				for step := range 300 {
					d.step(t)
					if step%3 == 0 {
						d.compare(t, step)
					}
					if len(d.paths) > 60 {
						d.paths = d.paths[30:]
					}
				}
				d.finish(t, seed)
			}
		})
	}
}

// finish removes everybody: nothing may be left.
func (d *driver) finish(t *testing.T, seed uint64) {
	t.Helper()
	v := d.x.View()
	for slot := range v.Slots() {
		if w, ok := v.Worker(slot); ok {
			d.x.RemoveRank(w)
		}
	}
	if n := d.x.Entries(); n != 0 {
		t.Fatalf("seed %d: %d entries are left", seed, n)
	}
	if n := d.x.View().Slots(); n > len(d.workers) {
		t.Fatalf("seed %d: %d slots for %d workers", seed, n, len(d.workers))
	}
	if got := maps.Collect(maps.All(overlaps(d.x, d.path()))); len(got) != 0 {
		t.Fatalf("seed %d: overlaps without workers: %v", seed, got)
	}
}
