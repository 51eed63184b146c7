package kvindex

import (
	"math"
	"slices"
	"sync/atomic"
)

const (
	evictShare  = 8    // an eighth of the limit is freed at a time
	evictPasses = 32   // a pass takes leaves; their parents are the next one's
	ageSample   = 4096 // leaves whose age is looked at
	evictPiece  = 32   // segments that are looked at under one lock
)

// relieve makes room when the index has outgrown its limit. It is called without locks.
func (x *Index) relieve() {
	limit := x.opts.MemoryLimit
	if limit <= 0 || x.count.bytes.Load() <= limit || !x.evicting.TryLock() {
		return
	}
	defer x.evicting.Unlock()
	target := limit - limit/evictShare
	for range evictPasses {
		excess := x.count.bytes.Load() - target
		if excess <= 0 {
			return
		}
		age, ok := x.threshold(excess)
		if !ok {
			return // nothing is left
		}
		// Most of a block's memory is its names, which go only afterwards: so blocks are counted, not bytes.
		perEntry := float64(x.count.bytes.Load()) / float64(max(1, x.count.entries.Load()))
		blocks := int(float64(excess)/perEntry) + 1
		for i := range x.shards {
			if blocks > 0 {
				blocks -= x.evictIn(&x.shards[i], age, blocks)
			}
		}
		for _, m := range x.view.Load().members {
			if m != nil && m.dirty.Load() {
				m.mu.Lock()
				x.sweep(m)
				m.mu.Unlock()
			}
		}
	}
}

// threshold returns the age from which on leaves must go so that about excess bytes are freed, judged by a sample.
func (x *Index) threshold(excess int64) (age uint32, ok bool) {
	tick := x.tick.Load()
	live := 0
	for i := range x.shards {
		sh := &x.shards[i]
		sh.rlock()
		live += sh.live
		sh.runlock()
	}
	stride := uint32(max(1, live/ageSample))
	var ages []uint32
	for i := range x.shards {
		ages = x.shards[i].ages(ages, tick, stride)
	}
	if len(ages) == 0 {
		return 0, false
	}
	slices.Sort(ages)
	perLeaf := float64(x.count.bytes.Load()) / float64(max(1, live))
	share := float64(excess) / perLeaf / float64(len(ages)*int(stride))
	i := len(ages) - 1 - int(math.Min(share, 1)*float64(len(ages)-1))
	return ages[i], true
}

// ages appends the age of one leaf in stride.
func (sh *shard) ages(to []uint32, tick, stride uint32) []uint32 {
	for c := uint32(0); ; c++ {
		sh.rlock()
		if int(c) >= len(sh.segs) {
			sh.runlock()
			return to
		}
		// The phase moves with the chunk, or strides beyond a chunk would see the same places only.
		for s := c*segChunk + (stride-c*segChunk%stride)%stride; s < (c+1)*segChunk; s += stride {
			if g := sh.seg(s); g.n > 0 && g.child == 0 {
				to = append(to, tick-atomic.LoadUint32(&g.used))
			}
		}
		sh.runlock()
	}
}

// evictIn frees the leaves of a shard that are of an age or older, a piece at a time, until that many blocks are gone.
// It returns how many are.
func (x *Index) evictIn(sh *shard, age uint32, blocks int) (evicted int) {
	tick := x.tick.Load()
	for from := uint32(0); evicted < blocks; from += evictPiece {
		sh.lock()
		if int(from) >= len(sh.segs)*segChunk {
			sh.unlock()
			break
		}
		members := x.view.Load().members
		for s := from; s < from+evictPiece; s++ {
			g := sh.seg(s)
			if g.n == 0 || g.child != 0 || tick-atomic.LoadUint32(&g.used) < age {
				continue
			}
			sh.evict(s, func(slot, lost int) {
				evicted += lost
				if m := members[slot]; m != nil {
					x.lose(m, lost)
					m.dirty.Store(true)
				}
			})
		}
		x.done(sh)
	}
	x.count.evicted.Add(int64(evicted))
	return evicted
}
