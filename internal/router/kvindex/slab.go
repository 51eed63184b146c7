package kvindex

import "math/bits"

const (
	segMax     = 256 // blocks of a segment at most, slots of a page
	unit       = 4   // slots that are handed out together at least
	chunkPages = 16
	chunkSlots = chunkPages * segMax // 32 KiB: a size that the runtime hands out from a free list
	maxClass   = 6                   // of a whole page
)

// aligned has a bit for each unit where an extent of a class may begin.
var aligned = [maxClass + 1]uint64{^uint64(0), 0x5555555555555555, 0x1111111111111111, 0x0101010101010101,
	0x0001000100010001, 0x0000000100000001, 1}

// slab hands out extents of 4, 8, … 256 slots for block hashes. Free neighbours merge by themselves, because a page's
// free units are bits of one word; chunks that hold nothing go back to the runtime, but for one.
type slab struct {
	chunks [][]uint64
	unused []int    // free units of each chunk
	empty  int      // chunks that hold nothing
	gone   []uint32 // chunks given back
	spare  []uint64 // for the next chunk, allocated beforehand
	whole  int      // pages of which nothing is handed out
	pages  []page
	heads  [maxClass + 1]uint32 // first page, plus one, whose largest free extent is of the class
	live   int                  // slots handed out
}

type page struct {
	free       uint64 // bit per unit
	next, prev uint32 // in the list of its class; page plus one
	class      int8   // of the largest free extent; -1: none, and in no list
}

// classFor returns the class that holds n blocks.
func classFor(n int) int8 {
	if n <= unit {
		return 0
	}
	return int8(bits.Len(uint(n-1)) - 2)
}

// slots returns how many blocks an extent of a class holds.
func slots(class int8) int { return unit << class }

// largest returns the class of the largest extent in a word of free units.
func largest(free uint64) int8 {
	if free == 0 {
		return -1
	}
	class := int8(0)
	for class < maxClass {
		free &= free >> (1 << class) & aligned[class+1]
		if free == 0 {
			break
		}
		class++
	}
	return class
}

// at returns n slots of an extent, which never crosses a chunk.
func (s *slab) at(off uint32, n int) []uint64 {
	o := off % chunkSlots
	return s.chunks[off/chunkSlots][o : o+uint32(n)]
}

// file moves a page to the list of its class.
func (s *slab) file(p uint32, class int8) {
	g := &s.pages[p]
	if g.class == class {
		return
	}
	if g.class == maxClass {
		s.whole--
	}
	if class == maxClass {
		s.whole++
	}
	if g.class >= 0 {
		if g.prev != 0 {
			s.pages[g.prev-1].next = g.next
		} else {
			s.heads[g.class] = g.next
		}
		if g.next != 0 {
			s.pages[g.next-1].prev = g.prev
		}
	}
	g.class, g.prev, g.next = class, 0, 0
	if class >= 0 {
		if g.next = s.heads[class]; g.next != 0 {
			s.pages[g.next-1].prev = p + 1
		}
		s.heads[class] = p + 1
	}
}

// alloc returns the first slot of an extent, from the fullest page that has one.
func (s *slab) alloc(class int8) uint32 {
	k := class
	for k <= maxClass && s.heads[k] == 0 {
		k++
	}
	if k > maxClass {
		s.grow()
		k = maxClass
	}
	p := s.heads[k] - 1
	g := &s.pages[p]
	m := g.free
	for i := range class {
		m &= m >> (1 << i) & aligned[i+1]
	}
	first := bits.TrailingZeros64(m)
	g.free &^= run(class) << first
	s.file(p, largest(g.free))
	c := p / chunkPages
	if s.unused[c] == chunkSlots/unit {
		s.empty--
	}
	s.unused[c] -= 1 << class
	s.live += slots(class)
	return p*segMax + uint32(first)*unit
}

// run has as many bits as an extent of a class has units.
func run(class int8) uint64 { return ^uint64(0) >> (64 - 1<<class) }

// grow adds a chunk, under the number of one that was given back if there is any.
func (s *slab) grow() {
	var c uint32
	if n := len(s.gone); n > 0 {
		c, s.gone = s.gone[n-1], s.gone[:n-1]
	} else {
		c = uint32(len(s.chunks))
		s.chunks, s.unused = append(s.chunks, nil), append(s.unused, 0)
		for range chunkPages {
			s.pages = append(s.pages, page{class: -1})
		}
	}
	if s.spare == nil {
		s.spare = make([]uint64, chunkSlots)
	}
	s.chunks[c], s.unused[c], s.spare = s.spare, chunkSlots/unit, nil
	s.empty++
	for p := c * chunkPages; p < (c+1)*chunkPages; p++ {
		s.pages[p].free = ^uint64(0)
		s.file(p, maxClass)
	}
}

// release takes an extent back.
func (s *slab) release(off uint32, class int8) {
	p := off / segMax
	g := &s.pages[p]
	g.free |= run(class) << (off % segMax / unit)
	s.file(p, largest(g.free))
	c := p / chunkPages
	s.unused[c] += 1 << class
	s.live -= slots(class)
	if s.unused[c] < chunkSlots/unit {
		return
	}
	if s.empty++; s.empty < 2 {
		return // one is kept for what comes next
	}
	for p := c * chunkPages; p < (c+1)*chunkPages; p++ {
		s.file(p, -1)
	}
	s.chunks[c] = nil
	s.gone = append(s.gone, c)
	s.empty--
}
