package tokenizer

import (
	"container/list"
	"hash/maphash"
	"sync/atomic"

	"github.com/portico-llm/portico/internal/prepost"
)

// shelf is what has a place in a cache until others need it. Guarded by the cache.
type shelf struct {
	order       list.List // of kept; the one that was added, or found to be in use, last is the first
	bytes, room int64
}

// kept is a block or a strip.
type kept interface {
	bytes() int64 // always the same
	inUse() bool  // since the last call
	dropped()     // it is on no shelf any more
}

// usage notes that something is used, without a lock: a long text uses hundreds of blocks.
type usage struct{ used atomic.Bool }

// touch notes a use.
func (u *usage) touch() {
	if !u.used.Load() { // writing takes the memory away from other processors
		u.used.Store(true)
	}
}

// inUse is true once for any number of uses.
func (u *usage) inUse() bool { return u.used.Load() && u.used.Swap(false) }

// block is a text and its ids, neither of which is ever changed.
type block struct {
	text   string
	token  int // length of the token that it begins with; 0: none, it begins a text
	ids    []prepost.TokenID
	next   atomic.Pointer[block] // the block that came behind it last: looked at first, and found without hashing
	hash   uint64
	number uint64 // no other block of the cache ever has it
	usage
	strip atomic.Pointer[strip] // a strip that this block is one of the last of

	before *block // the only block whose next it is. Guarded by the cache
	off    bool   // it is on no shelf: nothing may lead to it. Guarded by the cache
}

// overhead is what a block takes beside its text and ids: its own fields, the list's element, the map's entry.
const overhead = 208

func (b *block) bytes() int64 { return int64(len(b.text)) + 4*int64(cap(b.ids)) + overhead }

// dropped makes nothing lead to b.
func (b *block) dropped() {
	b.off = true
	b.strip.Store(nil)
	b.leadLocked(nil)
	if b.before != nil {
		b.before.leadLocked(nil)
	}
}

// leadLocked makes next the block that came behind b last.
func (b *block) leadLocked(next *block) {
	old := b.next.Load()
	if old == next || next != nil && (b.off || next.off) {
		return
	}
	if old != nil {
		old.before = nil
	}
	if next != nil {
		if next.before != nil {
			next.before.next.Store(nil)
		}
		next.before = b
	}
	b.next.Store(next)
}

// find looks a block up that stands behind another, or behind nil.
func (k *cache) find(before *block, text string) piece {
	p := piece{text: text, hash: maphash.String(k.seed, text)}
	k.mu.Lock()
	defer k.mu.Unlock()
	// Comparing texts under the lock is rare: not those of blocks that came behind each other before.
	if e := k.blocks[p.hash]; e != nil && e.Value.(*block).text == text {
		p.known = e.Value.(*block)
		p.known.touch()
		if before != nil {
			before.leadLocked(p.known)
		}
	}
	return p
}

// keep adds the blocks between from and to that are new, and leads from each block to the next.
func (k *cache) keep(pieces []piece, from, to int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := from; i < min(to+1, len(pieces)); i++ {
		b := pieces[i].known
		if b != nil && b.number == 0 {
			b = k.addBlockLocked(b)
			pieces[i].known = b
		}
		if i > 0 && b != nil && pieces[i-1].known != nil {
			pieces[i-1].known.leadLocked(b)
		}
	}
}

// addBlockLocked adds a block, and drops what it leaves no room for. It returns the block, or the one there is of the same
// text already; nil: it is too large, or the cache closed.
func (k *cache) addBlockLocked(b *block) *block {
	if k.closed || b.bytes() > k.texts.room {
		return nil
	}
	if e := k.blocks[b.hash]; e != nil {
		old := e.Value.(*block)
		if old.text == b.text { // encoded twice at once
			return old
		}
		k.removeLocked(&k.texts, e)
	}
	k.last++
	b.number = k.last
	k.blocks[b.hash] = k.addLocked(&k.texts, b)
	return b
}

// addLocked puts something that isn't larger than a shelf on it. What was used since it was last looked at stays once more.
func (k *cache) addLocked(s *shelf, x kept) *list.Element {
	size := x.bytes()
	for looks := s.order.Len(); s.bytes+size > s.room; looks-- {
		e := s.order.Back()
		if looks > 0 && e.Value.(kept).inUse() {
			s.order.MoveToFront(e)
			continue
		}
		k.removeLocked(s, e)
	}
	s.bytes += size
	k.all.bytes.Add(float64(size))
	return s.order.PushFront(x)
}

// removeLocked drops what is on a shelf.
func (k *cache) removeLocked(s *shelf, e *list.Element) {
	x := s.order.Remove(e).(kept)
	size := x.bytes()
	s.bytes -= size
	k.all.bytes.Sub(float64(size))
	if b, ok := x.(*block); ok {
		delete(k.blocks, b.hash)
	}
	x.dropped()
}

// drop forgets everything, and takes nothing more. It is called once.
func (k *cache) drop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	for _, s := range []*shelf{&k.texts, &k.strips} {
		for s.order.Len() > 0 {
			k.removeLocked(s, s.order.Back())
		}
	}
	k.all.left(k.model)
}
