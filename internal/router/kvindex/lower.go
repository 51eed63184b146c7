package kvindex

import "github.com/portico-llm/portico/internal/router/kvhash"

// lowerShare is the part of the memory limit that host and disk blocks may take.
const lowerShare = 4

// lower is what a worker holds in host memory and on disk. These blocks needn't form prefixes: they continue what lies on
// the device. So they are plain sets of sequence hashes, which the index works out itself: what an engine calls a block
// says nothing about its content.
type lower [2]tier

type tier struct {
	spinlock       // guards held
	names    table // engine's hash → sequence hash; guarded by the member's mutex
	held     table // sequence hash → number of names
	counted  int
}

// MatchLower continues a match in the lower tiers. sequence are the prompt's sequence hashes, device is what Match wrote;
// host and disk, as long as it, receive the blocks that each worker holds in host memory behind those on the device, and
// on disk behind those. It reports whether anybody holds anything there.
func (x *Index) MatchLower(sequence []uint64, device, host, disk []uint32) bool {
	clear(host)
	clear(disk)
	if x.count.lower.Load() == 0 {
		return false
	}
	for slot, m := range x.view.Load().members {
		if m == nil || slot >= min(len(device), len(host), len(disk)) {
			continue
		}
		l := m.lower.Load()
		if l == nil {
			continue
		}
		at := min(int(device[slot]), len(sequence))
		n := l[0].run(sequence[at:])
		host[slot] = uint32(n)
		disk[slot] = uint32(l[1].run(sequence[at+n:]))
	}
	return true
}

// run counts the leading blocks that are held.
func (t *tier) run(sequence []uint64) int {
	t.rlock()
	defer t.runlock()
	for i, s := range sequence {
		if t.held.get(s) == 0 {
			return i
		}
	}
	return len(sequence)
}

// storeLower works out the sequence hash of each block from its parent's, which may lie in any tier.
func (x *Index) storeLower(m *member, t Tier, parent *uint64, blocks []Block) error {
	if limit := x.opts.MemoryLimit; limit > 0 && x.count.lowerBytes.Load() > limit/lowerShare {
		return ErrFull
	}
	var last uint64
	if parent != nil {
		var ok bool
		if last, ok = x.sequenceOf(m, *parent); !ok {
			return ErrUnknownParent
		}
	}
	l := m.lower.Load()
	if l == nil {
		l = new(lower)
		m.lower.Store(l)
		x.count.lower.Add(1)
	}
	to := &l[t-Host]
	to.lock()
	for i, b := range blocks {
		if i == 0 && parent == nil {
			last = b.Local
		} else {
			last = kvhash.Next(last, b.Local)
		}
		if last == 0 {
			continue // it can't be told from nothing; one block in 2^64
		}
		old := to.names.set(b.Hash, last)
		if old == last {
			continue
		}
		if old != 0 {
			to.release(old)
		}
		to.held.set(last, to.held.get(last)+1)
	}
	x.settleTier(to)
	to.unlock()
	return nil
}

// release takes one name off a block.
func (t *tier) release(sequence uint64) {
	if n := t.held.get(sequence); n > 1 {
		t.held.set(sequence, n-1)
	} else {
		t.held.del(sequence)
	}
}

func (x *Index) removeLower(m *member, t Tier, hashes []uint64) (unknown int) {
	l := m.lower.Load()
	if l == nil {
		return len(hashes)
	}
	from := &l[t-Host]
	from.lock()
	defer from.unlock()
	for _, h := range hashes {
		if s := from.names.del(h); s != 0 {
			from.release(s)
		} else {
			unknown++
		}
	}
	return unknown
}

func (x *Index) dropLower(m *member) {
	l := m.lower.Swap(nil)
	if l == nil {
		return
	}
	x.count.lower.Add(-1)
	for i := range l {
		x.count.bytes.Add(-int64(l[i].counted))
		x.count.lowerBytes.Add(-int64(l[i].counted))
	}
}

func (x *Index) settleTier(t *tier) {
	n := (t.names.room + t.held.room) * entrySize
	x.count.bytes.Add(int64(n - t.counted))
	x.count.lowerBytes.Add(int64(n - t.counted))
	t.counted = n
}

// sequenceOf returns the sequence hash of a block that a worker holds in any tier.
func (x *Index) sequenceOf(m *member, name uint64) (sequence uint64, ok bool) {
	if l := m.lower.Load(); l != nil {
		for i := range l {
			if s := l[i].names.get(name); s != 0 {
				return s, true
			}
		}
	}
	a := address(m.names.get(name))
	if a == 0 {
		return 0, false
	}
	sh := &x.shards[a.shard()]
	sh.rlock()
	defer sh.runlock()
	s, pos, ok := sh.held(a, m.slot)
	if !ok {
		return 0, false
	}
	return sh.sequence(s, pos), true
}

// sequence works out the sequence hash of a block from the path to it.
func (sh *shard) sequence(s, pos uint32) uint64 {
	var path []uint32
	for at := s; at != 0; at = sh.parent(sh.seg(at)) {
		path = append(path, at)
	}
	var h uint64
	for i := len(path) - 1; i >= 0; i-- {
		blocks := sh.locals(sh.seg(path[i]))
		if i == 0 {
			blocks = blocks[:pos+1]
		}
		if i == len(path)-1 {
			h, blocks = blocks[0], blocks[1:]
		}
		for _, b := range blocks {
			h = kvhash.Next(h, b)
		}
	}
	return h
}
