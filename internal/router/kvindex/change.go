package kvindex

import (
	"math/bits"
	"sync/atomic"
)

// stretch is a piece of a stored path: n blocks from an address on.
type stretch struct {
	at address
	n  int
}

// newSeg makes a child of a segment with room for n blocks, of which it is told the first. It returns 0 when the shard is
// full.
func (sh *shard) newSeg(parent uint32, n int, first uint64) uint32 {
	if len(sh.free) == 0 {
		if len(sh.segs) >= maxSegs/segChunk {
			return 0
		}
		sh.addChunk()
	}
	s := sh.free[len(sh.free)-1]
	sh.free = sh.free[:len(sh.free)-1]
	g, p := sh.seg(s), sh.seg(parent)
	g.class, g.first = classFor(n), first
	g.off, g.n, g.child, g.tail, g.part = sh.slab.alloc(g.class), 0, 0, 0, 0
	g.gen = max(1, (g.gen+1)&0xFFFFFF) // an address is never 0
	clear(sh.holders(s))
	g.up, g.prev, g.next = p.key, 0, p.child
	if g.next != 0 {
		sh.seg(g.next).prev = s
	}
	p.child = s
	if parent == 0 {
		sh.begin(first)
	}
	sh.live++
	return s
}

// drop frees a segment that nobody holds and that has no children.
func (sh *shard) drop(s uint32) {
	g := sh.seg(s)
	parent := sh.parent(g)
	p := sh.seg(parent)
	sh.kids.drop(kidTag(g.up, g.first), s)
	if g.next != 0 {
		sh.seg(g.next).prev = g.prev
	}
	if g.prev != 0 {
		sh.seg(g.prev).next = g.next
	} else {
		p.child = g.next
	}
	if p.tail == s {
		p.tail = 0
	}
	if parent == 0 {
		sh.end(g.first)
	}
	sh.slab.release(g.off, g.class)
	sh.blocks -= int(g.n)
	g.n, g.tail = 0, 0
	g.gen = (g.gen + 1) & 0xFFFFFF // old addresses end here
	sh.live--
	sh.free = append(sh.free, s)
}

// extend appends blocks to a segment that has room for them or can be moved to where there is.
func (sh *shard) extend(s uint32, local []uint64) {
	g := sh.seg(s)
	n := int(g.n) + len(local)
	if class := classFor(n); class > g.class {
		off := sh.slab.alloc(class)
		copy(sh.slab.at(off, n), sh.locals(g))
		sh.slab.release(g.off, g.class)
		g.off, g.class = off, class
	}
	copy(sh.slab.at(g.off, n)[g.n:], local)
	g.n = uint16(n)
	sh.blocks += len(local)
}

// split moves the blocks from at on into a new child, which takes over the children. It reports whether there was room.
func (sh *shard) split(s, at uint32) bool {
	g := sh.seg(s)
	n := uint32(g.n)
	kid := g.child
	g.child = 0
	t := sh.newSeg(s, int(n-at), sh.locals(g)[at])
	if t == 0 {
		g.child = kid
		return false
	}
	h := sh.seg(t)
	copy(sh.slab.at(h.off, int(n-at)), sh.locals(g)[at:])
	h.n, g.n = uint16(n-at), uint16(at)
	h.child, h.tail, g.tail = kid, g.tail, t
	h.used = atomic.LoadUint32(&g.used) // or it would pass for the oldest of all
	// The children know their parent by its key: the new segment takes it over.
	h.key, g.key = g.key, h.key
	sh.seg(h.key).owner, sh.seg(g.key).owner = t, s
	h.up = g.key
	sh.kids.put(kidTag(g.key, h.first), t)
	copy(sh.holders(t), sh.holders(s))
	// Who held a part now holds all of the one and maybe a part of the other.
	list := g.part
	g.part = 0
	for list != 0 {
		p := sh.parts[list]
		sh.parts[list].next, sh.spare = sh.spare, list
		sh.cover(s, int(p.slot), min(p.cut, at))
		if p.cut > at {
			sh.cover(t, int(p.slot), p.cut-at)
		}
		list = p.next
	}
	if sh.ttl.stamps != nil {
		sh.ttl.split(sh, s, t)
	}
	return true
}

// store lets a worker hold a path below the first at blocks of a segment. It notes in w.path where the blocks are and
// returns how many of them the worker didn't hold before. ok is false when the shard is full.
func (sh *shard) store(w *member, s, at uint32, local []uint64, tick uint32) (added int, ok bool) {
	for {
		g := sh.seg(s)
		if s != 0 {
			k := common(local, sh.locals(g)[at:])
			if k > 0 {
				w.path = append(w.path, stretch{sh.address(s, at), k})
			}
			at, local = at+uint32(k), local[k:]
			if c := sh.covered(s, w.slot); at > c {
				sh.cover(s, w.slot, at)
				added += int(at - c)
			}
			atomic.StoreUint32(&g.used, tick)
		}
		if len(local) == 0 {
			return added, true
		}
		if at < uint32(g.n) && !sh.split(s, at) {
			return added, false
		}
		if c := sh.kid(s, local[0]); c != 0 {
			s, at = c, 0
			continue
		}
		// A worker's own path goes on growing in the segment where it ends. With other holders, or with branches, the new
		// blocks need a segment of their own: coverage is noted for whole segments.
		k := min(segMax, len(local))
		if s != 0 && g.child == 0 && g.n < segMax && sh.sole(s, w.slot) {
			k = min(segMax-int(g.n), len(local))
			at = uint32(g.n)
		} else {
			c := sh.newSeg(s, k, local[0])
			if c == 0 {
				return added, false
			}
			sh.kids.put(kidTag(g.key, local[0]), c)
			s, at = c, 0
			sh.holders(s)[w.slot/64] = 1 << (w.slot % 64)
		}
		sh.extend(s, local[:k])
		atomic.StoreUint32(&sh.seg(s).used, tick)
		w.path = append(w.path, stretch{sh.address(s, at), k})
		added += k
		at, local = at+uint32(k), local[k:]
	}
}

// cut limits a worker to the first c blocks of a segment and takes it off everything below; what nobody holds any more
// is freed. It returns how many blocks the worker lost.
func (sh *shard) cut(s uint32, slot int, c uint32) (lost int) {
	had := sh.covered(s, slot)
	if had <= c {
		return 0
	}
	if had == uint32(sh.seg(s).n) { // whoever holds a part only holds nothing below
		lost = sh.cutBelow(s, slot)
	}
	sh.uncover(s, slot, c)
	return lost + int(had-c)
}

// cutBelow takes a worker off the descendants of a segment, children before their parents.
func (sh *shard) cutBelow(s uint32, slot int) (lost int) {
	for k := sh.seg(s).child; k != 0; {
		next := sh.seg(k).next // k may be freed
		lost += sh.cut(k, slot, 0)
		k = next
	}
	return lost
}

// uncover limits a worker to c blocks of a segment, and the segment to what somebody holds.
func (sh *shard) uncover(s uint32, slot int, c uint32) {
	sh.cover(s, slot, c)
	if c == 0 {
		sh.ttl.forget(s, slot)
	}
	for _, w := range sh.holders(s) {
		if w != 0 {
			return
		}
	}
	g, m := sh.seg(s), uint32(0)
	for p := g.part; p != 0; p = sh.parts[p].next {
		m = max(m, sh.parts[p].cut)
	}
	if m == 0 {
		sh.drop(s)
		return
	}
	sh.blocks -= int(g.n) - int(m)
	g.n = uint16(m)
	for p := g.part; p != 0; { // who holds all that is left
		e := sh.parts[p]
		if e.cut == m {
			sh.cover(s, int(e.slot), m)
		}
		p = e.next
	}
}

// evict frees a leaf whoever holds it, and calls f for each of them with the number of blocks lost.
func (sh *shard) evict(s uint32, f func(slot int, lost int)) {
	g := sh.seg(s)
	for p := g.part; p != 0; {
		e := sh.parts[p]
		f(int(e.slot), int(e.cut))
		sh.ttl.forget(s, int(e.slot))
		sh.parts[p].next, sh.spare = sh.spare, p
		p = e.next
	}
	g.part = 0
	for i, w := range sh.holders(s) {
		for ; w != 0; w &= w - 1 {
			slot := i*64 + bits.TrailingZeros64(w)
			f(slot, int(g.n))
			sh.ttl.forget(s, slot)
		}
	}
	clear(sh.holders(s))
	sh.drop(s)
}

// size is the memory in use, in bytes.
func (sh *shard) size() int {
	return sh.slab.live*8 + sh.live*(segSize+8*sh.words) + sh.kids.room*8 + len(sh.parts)*partialSize + sh.ttl.size()
}
