package tokenizer

import (
	"container/list"
	"slices"
	"sync"

	"github.com/portico-llm/portico/internal/prepost"
)

// strip has the ids of a long text one behind the other, with room behind them. Whoever asked for the text has the same
// memory. When the text comes back with more at its end, as conversations do, the new ids are written into the room and
// what is there is not copied: an id is written once, before anybody is given a slice that reaches as far.
type strip struct {
	usage
	size  int64
	place *list.Element // guarded by the cache; nil: on no shelf

	mu    sync.Mutex
	ids   []prepost.TokenID // up to what was given to anybody; nil: dropped
	marks []mark            // of the blocks it begins with, in order; what is behind the last one is a text's end
}

// mark is where a block of a strip ends.
type mark struct {
	number uint64 // of the block
	end    int
}

func (s *strip) bytes() int64 { return s.size }

// dropped lets go of the memory, which those who were given it go on using.
func (s *strip) dropped() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ids, s.marks, s.place = nil, nil, nil
}

// lengthen returns the ids of a text of which blocks up to from were known, and the rest has the ids tail: size ids.
func (k *cache) lengthen(pieces []piece, from int, tail []prepost.TokenID, size int) []prepost.TokenID {
	s, begin := stripOf(pieces[:from])
	if s == nil {
		out := append(join(pieces, nil, from, len(pieces), size+size/8), tail...)
		k.strip(pieces, out, nil)
		return slices.Clip(out)
	}
	if begin < from { // the last of the known blocks are known from other texts
		tail = join(pieces[begin:], tail, from-begin, len(pieces)-begin, len(tail))
	}
	out, only := s.write(pieces, begin, tail)
	if out == nil { // it has been dropped since, or written to
		out = join(pieces, tail, begin, len(pieces), size+size/8)
	} else if len(out) == size {
		s.touch()
		s.point(pieces)
		return out
	} else { // the capacity is the length: this copies, to where there is a quarter more room
		out = append(out, tail...)
	}
	if !only { // the text goes on otherwise from the middle of another; both may be needed
		s = nil
	}
	k.strip(pieces, out, s)
	return slices.Clip(out)
}

// stripOf returns a strip that begins with these blocks but for some of the last ones, and how many it begins with. Nil: it
// has to be looked for no further, since the ids of more blocks would have to be copied.
func stripOf(pieces []piece) (*strip, int) {
	for n := len(pieces); n > 0 && n > len(pieces)-4; n-- {
		if s := pieces[n-1].known.strip.Load(); s != nil && s.begins(pieces[:n]) {
			return s, n
		}
	}
	return nil, 0
}

// write adds tail behind the blocks up to from, which s begins with, and returns the ids of all the text. If there is no
// room, or something else than what tail begins with, it returns what is before tail alone, and whether s has little more.
// Nil: s doesn't begin with the blocks, any more.
func (s *strip) write(pieces []piece, from int, tail []prepost.TokenID) (ids []prepost.TokenID, only bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.beginsLocked(pieces[:from]) {
		return nil, false
	}
	at := s.marks[from-1].end
	end := at + len(tail)
	there := s.ids[at:min(end, len(s.ids))]
	if slices.Equal(there, tail[:len(there)]) {
		if end <= len(s.ids) {
			return s.ids[:end:end], false
		}
		if end <= cap(s.ids) && len(pieces) <= cap(s.marks) {
			s.ids = append(s.ids, tail[len(there):]...)
			s.markLocked(pieces, from)
			return s.ids[:end:end], false
		}
	}
	return s.ids[:at:at], len(s.marks)-from <= 1
}

// begins reports whether s begins with these blocks.
func (s *strip) begins(pieces []piece) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.beginsLocked(pieces)
}

func (s *strip) beginsLocked(pieces []piece) bool {
	if len(pieces) > len(s.marks) {
		return false
	}
	for i := range pieces {
		if s.marks[i].number != pieces[i].known.number {
			return false
		}
	}
	return true
}

// markLocked notes the blocks behind the first from ones.
func (s *strip) markLocked(pieces []piece, from int) {
	end := 0
	if from > 0 {
		end = s.marks[from-1].end
	}
	s.marks = s.marks[:from]
	for i := range pieces[from:] {
		p := &pieces[from+i]
		if p.known == nil { // too large to be kept
			break
		}
		end += len(p.known.ids)
		s.marks = append(s.marks, mark{p.known.number, end})
	}
}

// point makes the last blocks of a text lead to s. The very last one is cut short by the text's end, and another text goes
// on from the one before.
func (s *strip) point(pieces []piece) {
	for i := max(0, len(pieces)-2); i < len(pieces); i++ {
		if b := pieces[i].known; b != nil && b.strip.Load() != s {
			b.strip.Store(s)
		}
	}
}

// strip keeps the ids of a text, which are the caller's alone, with the room behind them, in place of old.
func (k *cache) strip(pieces []piece, ids []prepost.TokenID, old *strip) {
	if cap(ids) == len(ids) {
		return
	}
	marks := len(pieces) + len(pieces)/4 + 16
	s := &strip{ids: ids, marks: make([]mark, 0, marks), size: 4*int64(cap(ids)) + 16*int64(marks) + overhead}
	s.markLocked(pieces, 0) // nobody else has it yet
	if len(s.marks) < len(pieces)-1 || s.size > k.strips.room {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return
	}
	if old != nil && old.place != nil {
		k.removeLocked(&k.strips, old.place)
	}
	s.place = k.addLocked(&k.strips, s)
	s.point(pieces)
}
