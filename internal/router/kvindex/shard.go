package kvindex

import (
	"math/bits"
	"sync/atomic"
	"unsafe"
)

const (
	segChunk    = 256 // segments that are allocated together
	segSize     = int(unsafe.Sizeof(seg{}))
	partialSize = int(unsafe.Sizeof(partial{}))
	maxSegs     = 1 << 26 // of a shard: what an address has room for
	groupBits   = 9
	groupCount  = 1 << groupBits
)

// seg is a piece of a path: up to 256 blocks without a branch, all of them held by somebody. Number 0 is the root, and
// stands for none elsewhere.
//
// Children aren't found by their parent's number but by a key of the parent, so that a split, which puts a new segment
// between a parent and its children, needn't touch the children. Keys are a permutation of the segments' numbers.
type seg struct {
	first             uint64 // its first block, so that finding it needn't look into the slab
	up, key, owner    uint32 // the parent's key; its own; and, by key, who has it
	child, next, prev uint32 // the first child, and its siblings
	tail              uint32 // where the blocks went that a split took off the end
	off               uint32 // of its blocks in the slab
	part              uint32 // list of the workers that hold a part
	used              uint32 // tick of the last use, atomic
	gen               uint32 // how often the number has been in use before, 24 bits
	n                 uint16
	class             int8
}

// partial is a worker that holds the first cut blocks of a segment, but not all.
type partial struct {
	next, slot uint32
	cut        uint32
}

// address says where a block was when its name was entered: 24 bits of the segment's generation, 8 of the position, 6 of
// the shard and 26 of the segment. A split leaves it valid: resolve follows the tails. It is never 0.
type address uint64

func (a address) shard() int  { return int(a >> 26 & (shardCount - 1)) }
func (a address) seg() uint32 { return uint32(a) & (maxSegs - 1) }
func (a address) pos() uint32 { return uint32(a>>32) & 0xFF }
func (a address) gen() uint32 { return uint32(a >> 40) }

// plus returns the address of a block some places behind in the same segment.
func (a address) plus(n int) uint64 { return uint64(a) + uint64(n)<<32 }

// shard is one of the trees, which hold the paths whose first block falls to them.
type shard struct {
	spinlock
	number int
	words  int // of 64 workers each

	segs   []*[segChunk]seg
	full   [][]uint64 // for each chunk, words for each segment: the workers that hold all of it
	parts  []partial
	spare  uint32   // list of free partials
	free   []uint32 // numbers of free segments
	live   int      // segments in use
	blocks int      // of them
	slab   slab
	kids   kids

	firsts *groups            // in Index.firsts
	begun  [groupCount]uint32 // the first blocks of each group

	moreSegs *[segChunk]seg // for the next chunk, allocated beforehand
	moreFull []uint64

	ttl     leases // approximate mode only
	counted int    // bytes that the index has counted

	_ [64]byte // keeps the next shard's lock off this one's cache line
}

func (sh *shard) init(number, words int, firsts *groups) {
	sh.number, sh.words, sh.firsts = number, words, firsts
	sh.parts = make([]partial, 1)
	sh.addChunk()
	sh.free = sh.free[:segChunk-1] // the root isn't free
}

// addChunk makes room for more segments, each with its own number as key.
func (sh *shard) addChunk() {
	first := uint32(len(sh.segs)) * segChunk
	c, full := sh.moreSegs, sh.moreFull
	sh.moreSegs, sh.moreFull = nil, nil
	if c == nil {
		c = new([segChunk]seg)
	}
	if len(full) != segChunk*sh.words {
		full = make([]uint64, segChunk*sh.words)
	}
	for i := range c {
		c[i].key, c[i].owner = first+uint32(i), first+uint32(i)
	}
	sh.segs, sh.full = append(sh.segs, c), append(sh.full, full)
	for i := segChunk - 1; i >= 0; i-- {
		sh.free = append(sh.free, first+uint32(i))
	}
}

// widen makes room for more workers.
func (sh *shard) widen(words int) {
	for c, old := range sh.full {
		wide := make([]uint64, segChunk*words)
		for i := range segChunk {
			copy(wide[i*words:], old[i*sh.words:(i+1)*sh.words])
		}
		sh.full[c] = wide
	}
	sh.words = words
}

// groups has a bit for each group of first blocks of which a shard has any. It changes under the shard's lock.
type groups [groupCount / 64]atomic.Uint64

func groupOf(first uint64) int {
	return int(spread(first) >> (64 - shardBits - groupBits) % groupCount)
}

// begin notes a first block, for Index.begins.
func (sh *shard) begin(first uint64) {
	g := groupOf(first)
	if sh.begun[g]++; sh.begun[g] == 1 {
		sh.firsts[g/64].Or(1 << (g % 64))
	}
}

// end takes back what begin has noted.
func (sh *shard) end(first uint64) {
	g := groupOf(first)
	if sh.begun[g]--; sh.begun[g] == 0 {
		sh.firsts[g/64].And(^(1 << (g % 64)))
	}
}

// seg returns a segment. It stays where it is: chunks aren't moved when their list grows.
func (sh *shard) seg(s uint32) *seg { return &sh.segs[s/segChunk][s%segChunk] }

// parent returns who has the key that a segment knows its parent by.
func (sh *shard) parent(g *seg) uint32 { return sh.seg(g.up).owner }

// locals returns a segment's blocks. They move when the segment outgrows its extent.
func (sh *shard) locals(g *seg) []uint64 { return sh.slab.at(g.off, int(g.n)) }

// holders returns the bits of the workers that hold all of a segment.
func (sh *shard) holders(s uint32) []uint64 {
	i := int(s%segChunk) * sh.words
	return sh.full[s/segChunk][i : i+sh.words : i+sh.words]
}

// address returns what a name remembers of a block that is at a place now.
func (sh *shard) address(s, pos uint32) address {
	return address(uint64(sh.seg(s).gen)<<40 | uint64(pos)<<32 | uint64(sh.number)<<26 | uint64(s))
}

// resolve returns where an address points now.
func (sh *shard) resolve(a address) (s, pos uint32, ok bool) {
	s, pos = a.seg(), a.pos()
	g := sh.seg(s)
	if g.gen != a.gen() {
		return 0, 0, false
	}
	for pos >= uint32(g.n) {
		if g.tail == 0 {
			return 0, 0, false
		}
		pos -= uint32(g.n)
		s = g.tail
		g = sh.seg(s)
	}
	return s, pos, true
}

// held resolves an address for a worker that must hold the block.
func (sh *shard) held(a address, slot int) (s, pos uint32, ok bool) {
	s, pos, ok = sh.resolve(a)
	return s, pos, ok && sh.covered(s, slot) > pos
}

func (sh *shard) isFull(s uint32, slot int) bool { return sh.holders(s)[slot/64]>>(slot%64)&1 != 0 }

// covered returns how many leading blocks of a segment a worker holds.
func (sh *shard) covered(s uint32, slot int) uint32 {
	g := sh.seg(s)
	if sh.isFull(s, slot) {
		return uint32(g.n)
	}
	for p := g.part; p != 0; p = sh.parts[p].next {
		if sh.parts[p].slot == uint32(slot) {
			return sh.parts[p].cut
		}
	}
	return 0
}

// cover makes a worker hold the first c blocks of a segment.
func (sh *shard) cover(s uint32, slot int, c uint32) {
	g, word, bit := sh.seg(s), &sh.holders(s)[slot/64], uint64(1)<<(slot%64)
	if *word&bit != 0 {
		*word &^= bit
	} else {
		for q := &g.part; *q != 0; q = &sh.parts[*q].next {
			if p := *q; sh.parts[p].slot == uint32(slot) {
				if c > 0 && c < uint32(g.n) {
					sh.parts[p].cut = c
					return
				}
				*q = sh.parts[p].next
				sh.parts[p].next, sh.spare = sh.spare, p
				break
			}
		}
	}
	switch {
	case c == 0:
	case c == uint32(g.n):
		*word |= bit
	default:
		p := sh.spare
		if p == 0 {
			p = uint32(len(sh.parts))
			sh.parts = append(sh.parts, partial{})
		} else {
			sh.spare = sh.parts[p].next
		}
		sh.parts[p] = partial{next: g.part, slot: uint32(slot), cut: c}
		g.part = p
	}
}

// sole reports whether a worker holds all of a segment and nobody else holds any.
func (sh *shard) sole(s uint32, slot int) bool {
	if sh.seg(s).part != 0 {
		return false
	}
	for i, w := range sh.holders(s) {
		if i == slot/64 {
			w ^= 1 << (slot % 64)
		}
		if w != 0 {
			return false
		}
	}
	return true
}

// kid returns the child of a segment that begins with a block, or 0. The first child is tried without a search.
func (sh *shard) kid(s uint32, local uint64) uint32 {
	g := sh.seg(s)
	if c := g.child; s != 0 && c != 0 && sh.seg(c).first == local {
		return c
	}
	tag := kidTag(g.key, local)
	part := sh.kids.parts[tag>>28]
	if len(part) == 0 {
		return 0
	}
	for i := kidHome(tag<<32, len(part)); part[i] != 0; {
		if e := part[i]; e>>32 == tag {
			if c := sh.seg(uint32(e)); c.up == g.key && c.first == local {
				return uint32(e)
			}
		}
		if i++; i == len(part) {
			i = 0
		}
	}
	return 0
}

// common returns how many blocks two paths begin with alike.
func common(a, b []uint64) int {
	n := min(len(a), len(b))
	a, b = a[:n], b[:n]
	i := 0
	for i+32 <= n && *(*[32]uint64)(a[i:]) == *(*[32]uint64)(b[i:]) {
		i += 32
	}
	for i < n && a[i] == b[i] {
		i++
	}
	return i
}

// match writes the overlap of each worker with a path and returns the depth that anybody reaches. Coverage is closed
// towards the root, so only the workers that stop are written, each once.
func (sh *shard) match(q []uint64, out []uint32, tick uint32) int {
	s, depth := uint32(0), 0
	var above []uint64
	for depth < len(q) {
		c := sh.kid(s, q[depth])
		if c == 0 {
			break
		}
		here := sh.holders(c)
		for i, w := range above {
			if w &^= here[i]; w != 0 {
				score(w, i, depth, out)
			}
		}
		s, above = c, here
		g := sh.seg(s)
		blocks := sh.locals(g)
		m := 1 + common(q[depth+1:], blocks[1:])
		for p := g.part; p != 0; p = sh.parts[p].next {
			if e := &sh.parts[p]; int(e.slot) < len(out) {
				out[e.slot] = uint32(depth) + min(e.cut, uint32(m))
			}
		}
		if depth += m; m < len(blocks) {
			break
		}
	}
	if s == 0 {
		return 0
	}
	for i, w := range above {
		score(w, i, depth, out)
	}
	if g := sh.seg(s); atomic.LoadUint32(&g.used) != tick {
		atomic.StoreUint32(&g.used, tick)
	}
	return depth
}

// score gives the workers of one word the same overlap. Prompts that all begin alike leave long runs of workers, which are
// quicker to fill than to look up one by one.
func score(w uint64, i, depth int, out []uint32) {
	if bits.OnesCount64(w) > 32 {
		scoreRuns(w, i, depth, out)
		return
	}
	for ; w != 0; w &= w - 1 {
		if slot := i*64 + bits.TrailingZeros64(w); slot < len(out) {
			out[slot] = uint32(depth)
		}
	}
}

// scoreRuns is score for a word with runs of ones.
func scoreRuns(w uint64, i, depth int, out []uint32) {
	for w != 0 {
		from := bits.TrailingZeros64(w)
		to := from + bits.TrailingZeros64(^(w >> from))
		w &^= 1<<to - 1 // to = 64 shifts the one out, and leaves nothing
		lo, hi := min(i*64+from, len(out)), min(i*64+to, len(out))
		for s := range out[lo:hi] {
			out[lo+s] = uint32(depth)
		}
	}
}
