//go:build invariants

package kvindex

import (
	"fmt"
	"math/bits"
)

// verifyMost is the number of segments up to which every change is followed by a check of the whole shard.
const verifyMost = 512

// verify panics when the shard's structure is broken. The caller holds the lock.
func (sh *shard) verify() {
	if sh.live > verifyMost {
		return
	}
	if err := sh.check(); err != nil {
		panic(fmt.Sprintf("kvindex: shard %d: %v", sh.number, err))
	}
}

// check walks the tree and compares what it finds with the counts and the tables.
func (sh *shard) check() error {
	live, blocks, taken := 0, 0, 0
	var walk func(s uint32) error
	walk = func(s uint32) error {
		g, prev := sh.seg(s), uint32(0)
		if sh.seg(g.key).owner != s {
			return fmt.Errorf("segment %d doesn't own its key", s)
		}
		for k := g.child; k != 0; prev, k = k, sh.seg(k).next {
			h := sh.seg(k)
			if h.up != g.key || h.prev != prev || h.n == 0 || int(h.n) > slots(h.class) || h.first != sh.locals(h)[0] {
				return fmt.Errorf("segment %d is badly linked: %+v", k, *h)
			}
			if sh.kid(s, h.first) != k {
				return fmt.Errorf("segment %d isn't found from its parent", k)
			}
			if err := sh.checkHolders(s, k); err != nil {
				return err
			}
			live, blocks, taken = live+1, blocks+int(h.n), taken+slots(h.class)
			if err := walk(k); err != nil {
				return err
			}
		}
		return nil
	}
	if err := walk(0); err != nil {
		return err
	}
	if err := sh.checkFirsts(); err != nil {
		return err
	}
	indexed := 0
	for _, n := range sh.kids.used {
		indexed += int(n)
	}
	if live != sh.live || blocks != sh.blocks || taken != sh.slab.live || indexed != live {
		return fmt.Errorf("%d segments, %d blocks, %d slots in the tree; counted %d, %d, %d; %d indexed",
			live, blocks, taken, sh.live, sh.blocks, sh.slab.live, indexed)
	}
	return sh.slab.check()
}

// checkFirsts compares what begin and end have noted with the root's children.
func (sh *shard) checkFirsts() error {
	var begun [groupCount]uint32
	for k := sh.seg(0).child; k != 0; k = sh.seg(k).next {
		begun[groupOf(sh.seg(k).first)]++
	}
	for g, n := range begun {
		if n != sh.begun[g] || n > 0 != (sh.firsts[g/64].Load()>>(g%64)&1 != 0) {
			return fmt.Errorf("%d paths begin with a block of group %d, noted are %d, %b", n, g, sh.begun[g], sh.firsts[g/64].Load())
		}
	}
	return nil
}

// checkHolders wants somebody to hold all of segment k, and its holders to hold all of its parent s.
func (sh *shard) checkHolders(s, k uint32) error {
	n, all := sh.seg(k).n, uint64(0)
	for i, w := range sh.holders(k) {
		all |= w
		if s != 0 && w&^sh.holders(s)[i] != 0 {
			return fmt.Errorf("workers hold segment %d, but not all of its parent %d", k, s)
		}
	}
	if all == 0 {
		return fmt.Errorf("nobody holds all of segment %d", k)
	}
	for p := sh.seg(k).part; p != 0; p = sh.parts[p].next {
		e := sh.parts[p]
		if e.cut == 0 || e.cut >= uint32(n) || sh.isFull(k, int(e.slot)) || s != 0 && !sh.isFull(s, int(e.slot)) {
			return fmt.Errorf("segment %d of %d blocks is badly held: %+v", k, n, e)
		}
	}
	return nil
}

func (s *slab) check() error {
	live := 0
	for p, g := range s.pages {
		gone := s.chunks[p/chunkPages] == nil
		if !gone {
			live += segMax - unit*bits.OnesCount64(g.free)
		}
		if want := largest(g.free); !gone && g.class != want || gone && g.class != -1 {
			return fmt.Errorf("page %d is filed under %d", p, g.class)
		}
	}
	if live != s.live {
		return fmt.Errorf("%d slots are taken, %d are counted", live, s.live)
	}
	return nil
}
