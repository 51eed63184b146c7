package kvindex

const tableParts = 32

// table maps 64-bit keys to values other than 0, in open-addressed parts: growing one moves a small share at a time.
// Entries hold no pointers, so the garbage collector doesn't look at them.
type table struct {
	parts [tableParts][]line
	used  [tableParts]int32
	n     int
	room  int // entries there is memory for
}

type entry struct{ key, value uint64 } // value 0: empty

const (
	entrySize = 16
	lineSize  = 4  // entries of a line
	fullest   = 13 // sixteenths of its places that a part fills before it grows
)

// line is what a search loads at once: a cache line's worth of entries, those in use first. A key that finds no room in
// the line where it belongs lies in the next one that had some.
type line [lineSize]entry

// find returns where a key is, or lineSize. Instead of key 0 it may find the first empty place, if the key isn't there.
// Nothing foretells the place, so there are no branches on the way to it that a processor could guess wrong.
func (l *line) find(key uint64) int {
	i := lineSize
	if l[3].key == key {
		i = 3
	}
	if l[2].key == key {
		i = 2
	}
	if l[1].key == key {
		i = 1
	}
	if l[0].key == key {
		i = 0
	}
	return i
}

func (l *line) full() bool { return l[lineSize-1].value != 0 }

// empty returns the first empty place of a line that isn't full.
func (l *line) empty() int {
	i := 0
	for l[i].value != 0 {
		i++
	}
	return i
}

// take takes an entry out and closes the gap.
func (l *line) take(i int) {
	last := lineSize - 1
	for l[last].value == 0 {
		last--
	}
	l[i], l[last] = l[last], entry{}
}

// spread mixes a key: engines may name blocks by small numbers.
func spread(key uint64) uint64 {
	key *= 0x9E3779B97F4A7C15
	return key ^ key>>29
}

// home returns the part and, as a fraction of 2^32, the place where a key belongs.
func home(key uint64) (part, fraction uint64) {
	s := spread(key)
	return s >> 59, s >> 27 & 0xFFFFFFFF
}

// slotOf scales the fraction to a part's size, which needn't be a power of two.
func slotOf(fraction uint64, n int) int { return int(fraction * uint64(n) >> 32) }

// find returns the line of a key in its part and the place there, or the empty place where it would be.
func find(part []line, key, fraction uint64) (b, i int) {
	b = slotOf(fraction, len(part))
	for {
		l := &part[b]
		if i = l.find(key); i < lineSize {
			return b, i
		}
		if !l.full() {
			return b, l.empty()
		}
		if b++; b == len(part) {
			b = 0
		}
	}
}

// touch loads the place of a key. Touching a batch first lets its cache misses overlap.
func (t *table) touch(key uint64) uint64 {
	p, f := home(key)
	if part := t.parts[p]; len(part) > 0 {
		return part[slotOf(f, len(part))][0].key
	}
	return 0
}

// get returns the value of a key, or 0.
func (t *table) get(key uint64) uint64 {
	p, f := home(key)
	part := t.parts[p]
	if len(part) == 0 {
		return 0
	}
	b, i := find(part, key, f)
	return part[b][i].value
}

// set gives a key a value and returns the one it had, or 0.
func (t *table) set(key, value uint64) (old uint64) {
	p, f := home(key)
	if int(t.used[p])*16 >= len(t.parts[p])*lineSize*fullest {
		t.grow(p)
	}
	part := t.parts[p]
	b, i := find(part, key, f)
	e := &part[b][i]
	if old = e.value; old == value {
		return old // what isn't written to needn't go back to memory
	}
	if old == 0 {
		t.used[p]++
		t.n++
	}
	*e = entry{key, value}
	return old
}

// newPart makes room for n entries or a little more, whatever the allocator would waste.
func newPart(n int) []line {
	part := append([]line(nil), make([]line, (n+lineSize-1)/lineSize)...)
	return part[:cap(part)]
}

// grow makes a part larger by two thirds: halves would cost a fifth of the stores, doubling a tenth of the memory. The
// parts begin with different sizes, so that they don't all grow at the same time.
func (t *table) grow(p uint64) {
	old := t.parts[p]
	n := len(old) * lineSize * 5 / 3
	if n == 0 {
		n = 16 + int(p)/3
	}
	part := newPart(n)
	for b := range old {
		for _, e := range old[b] {
			if e.value != 0 {
				enter(part, e)
			}
		}
	}
	t.parts[p] = part
	t.room += (len(part) - len(old)) * lineSize
}

// enter puts an entry with a new key into a part. Done in the order of another part, it writes from front to back.
func enter(part []line, e entry) {
	_, f := home(e.key)
	b := slotOf(f, len(part))
	for part[b].full() {
		if b++; b == len(part) {
			b = 0
		}
	}
	part[b][part[b].empty()] = e
}

// del takes a key out and returns the value it had, or 0.
func (t *table) del(key uint64) (old uint64) {
	p, f := home(key)
	part := t.parts[p]
	if len(part) == 0 {
		return 0
	}
	b, i := find(part, key, f)
	if old = part[b][i].value; old == 0 {
		return 0
	}
	t.used[p]--
	t.n--
	gap := part[b].full()
	part[b].take(i)
	for j := b; gap; { // move back what found no room before, so that no search ends early
		if j++; j == len(part) {
			j = 0
		}
		gap = part[j].full()
		if i := part[j].stray(b, j, len(part)); i < lineSize {
			part[b][part[b].empty()] = part[j][i]
			part[j].take(i)
			b = j
		}
	}
	return old
}

// stray returns the place of an entry in line j of n that may lie in line b, which comes before, or lineSize.
func (l *line) stray(b, j, n int) int {
	for i, e := range l {
		if e.value == 0 {
			break
		}
		if _, f := home(e.key); behind(slotOf(f, n), b, j, n) {
			return i
		}
	}
	return lineSize
}

// behind reports whether what belongs at want and lies at j may lie at i, which comes before j on a ring of n.
func behind(want, i, j, n int) bool {
	distance, gap := j-want, j-i
	if distance < 0 {
		distance += n
	}
	if gap < 0 {
		gap += n
	}
	return distance >= gap
}

// keep takes out every entry that f doesn't want, and gives memory back.
func (t *table) keep(f func(key, value uint64) bool) {
	for p, old := range t.parts {
		var wanted []entry
		for b := range old {
			for _, e := range old[b] {
				if e.value != 0 && f(e.key, e.value) {
					wanted = append(wanted, e)
				}
			}
		}
		if len(wanted) == int(t.used[p]) {
			continue
		}
		t.n += len(wanted) - int(t.used[p])
		t.room -= len(old) * lineSize
		t.parts[p], t.used[p] = nil, int32(len(wanted))
		if len(wanted) == 0 {
			continue
		}
		part := newPart(len(wanted)*3/2 + 8)
		t.room += len(part) * lineSize
		for _, e := range wanted {
			enter(part, e)
		}
		t.parts[p] = part
	}
}

const kidParts = 16

// kids finds the child of a segment by its first local hash: entries are 32 bits of a tag and the child's number, to be
// compared with the child itself.
type kids struct {
	parts [kidParts][]uint64
	used  [kidParts]int32
	room  int
	tight int // a part that will have to grow soon, plus one
}

func larger(part []uint64) int { return len(part)*3/2 + 8 }

// move puts what is in a part into a larger one.
func (k *kids) move(p uint64, to []uint64) {
	for _, e := range k.parts[p] {
		if e != 0 {
			place(to, e)
		}
	}
	k.room += len(to) - len(k.parts[p])
	k.parts[p] = to
}

// kidTag mixes a parent's key and a first block.
func kidTag(parent uint32, local uint64) uint64 {
	return spread(local^uint64(parent)*0xD6E8FEB86659FD93) >> 32
}

func kidHome(e uint64, n int) int { return int((e >> 32 & 0x0FFFFFFF) * uint64(n) >> 28) }

// put adds a child.
func (k *kids) put(tag uint64, child uint32) {
	p := tag >> 28
	if part := k.parts[p]; int(k.used[p])*4 >= len(part)*3 {
		k.move(p, make([]uint64, larger(part)))
	}
	if k.used[p]++; int(k.used[p])*8 >= len(k.parts[p])*5 {
		k.tight = int(p) + 1
	}
	place(k.parts[p], tag<<32|uint64(child))
}

// place puts an entry into a part that has room.
func place(part []uint64, e uint64) {
	i := kidHome(e, len(part))
	for part[i] != 0 {
		if i++; i == len(part) {
			i = 0
		}
	}
	part[i] = e
}

// drop takes a child out.
func (k *kids) drop(tag uint64, child uint32) {
	part := k.parts[tag>>28]
	e := tag<<32 | uint64(child)
	i := kidHome(e, len(part))
	for part[i] != e {
		if i++; i == len(part) {
			i = 0
		}
	}
	k.used[tag>>28]--
	for j := i; ; {
		if j++; j == len(part) {
			j = 0
		}
		if part[j] == 0 {
			break
		}
		if behind(kidHome(part[j], len(part)), i, j, len(part)) {
			part[i], i = part[j], j
		}
	}
	part[i] = 0
}
