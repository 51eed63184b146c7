package tokenizer

import (
	"fmt"
	"slices"
)

// CheckCache looks for what must never be in a cache: memory that isn't counted or is more than there is room for, blocks
// that lead to what isn't there any more, strips with other ids than their blocks'.
func CheckCache(t *Tokenizer) error {
	if t.cache == nil {
		return nil
	}
	return t.cache.check()
}

func (k *cache) check() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, s := range map[string]*shelf{"blocks": &k.texts, "strips": &k.strips} {
		var sum int64
		for e := s.order.Front(); e != nil; e = e.Next() {
			sum += e.Value.(kept).bytes()
		}
		if sum != s.bytes || sum > s.room {
			return fmt.Errorf("%d bytes of %s, counted %d, room for %d", sum, name, s.bytes, s.room)
		}
	}
	if n := k.texts.order.Len(); n != len(k.blocks) {
		return fmt.Errorf("%d blocks, %d in the map", n, len(k.blocks))
	}
	numbered, err := k.checkBlocks()
	if err != nil {
		return err
	}
	for e := k.strips.order.Front(); e != nil; e = e.Next() {
		s := e.Value.(*strip)
		if err := s.check(numbered); err != nil {
			return err
		}
		if s.place != e {
			return fmt.Errorf("a strip of %d bytes is not where it should be", s.size)
		}
	}
	return nil
}

func (s *strip) check(numbered map[uint64]*block) error {
	s.mu.Lock() // it may be written to while it is on its shelf
	defer s.mu.Unlock()
	if has := 4*int64(cap(s.ids)) + 16*int64(cap(s.marks)); s.size < has {
		return fmt.Errorf("a strip of %d bytes has %d", s.size, has)
	}
	begin := 0
	for _, m := range s.marks {
		if b := numbered[m.number]; b != nil && !slices.Equal(b.ids, s.ids[begin:m.end]) {
			return fmt.Errorf("a strip has %v in place of %v, the ids of %q", s.ids[begin:m.end], b.ids, b.text)
		}
		begin = m.end
	}
	return nil
}

// checkBlocks returns the blocks by their number.
func (k *cache) checkBlocks() (map[uint64]*block, error) {
	numbered := map[uint64]*block{}
	for e := k.texts.order.Front(); e != nil; e = e.Next() {
		b := e.Value.(*block)
		if k.blocks[b.hash] != e || b.off {
			return nil, fmt.Errorf("a block of %q is not where it should be", b.text)
		}
		if next := b.next.Load(); next != nil && (next.before != b || next.off || next.token == 0) {
			return nil, fmt.Errorf("a block leads to %q, which does not come from it", next.text)
		}
		if b.before != nil && b.before.next.Load() != b {
			return nil, fmt.Errorf("a block comes from %q, which does not lead to it", b.before.text)
		}
		numbered[b.number] = b
	}
	return numbered, nil
}
