package kvindex

// Allocating can stop a goroutine for milliseconds while the garbage collector runs. So what a shard will need soon is
// allocated before, without its lock; only large stores and large splits still allocate under it.

const (
	fewPages    = 4  // whole pages
	fewSegs     = 16 // free segments
	fewPartials = 64
)

// shortage is what a shard will need soon.
type shortage struct {
	chunk    bool
	segs     bool
	words    int
	tight    int // part of the table of children, plus one
	kids     int // entries it needs
	partials int
}

// short tells what the shard, whose lock the caller holds, will need soon.
func (sh *shard) short() (s shortage, needed bool) {
	s.chunk = sh.slab.spare == nil && sh.slab.whole < fewPages
	s.segs = sh.moreSegs == nil && len(sh.free) < fewSegs
	s.words = sh.words
	if t := sh.kids.tight; t != 0 {
		s.tight, s.kids = t, larger(sh.kids.parts[t-1])
	}
	if sh.spare == 0 && cap(sh.parts)-len(sh.parts) < fewPartials {
		s.partials = 2*len(sh.parts) + fewPartials*2
	}
	return s, s.chunk || s.segs || s.tight != 0 || s.partials != 0
}

// done ends a change: it counts, checks, unlocks, and allocates what will be needed.
func (x *Index) done(sh *shard) {
	x.settle(sh)
	sh.verify()
	s, needed := sh.short()
	sh.unlock()
	if needed {
		x.supply(sh, s)
	}
}

func (x *Index) supply(sh *shard, s shortage) {
	var chunk, full, kids []uint64
	var segs *[segChunk]seg
	var partials []partial
	if s.chunk {
		chunk = make([]uint64, chunkSlots)
	}
	if s.segs {
		segs, full = new([segChunk]seg), make([]uint64, segChunk*s.words)
	}
	if s.tight != 0 {
		kids = make([]uint64, s.kids)
	}
	if s.partials != 0 {
		partials = make([]partial, 0, s.partials)
	}
	sh.lock()
	defer sh.unlock()
	if chunk != nil {
		sh.slab.spare = chunk
	}
	if segs != nil {
		sh.moreSegs, sh.moreFull = segs, full
	}
	if kids != nil && len(kids) == larger(sh.kids.parts[s.tight-1]) { // it may have grown meanwhile
		sh.kids.move(uint64(s.tight-1), kids)
	}
	if s.tight != 0 && sh.kids.tight == s.tight {
		sh.kids.tight = 0
	}
	if cap(partials) > cap(sh.parts) {
		sh.parts = append(partials, sh.parts...)
	}
	x.settle(sh)
}
