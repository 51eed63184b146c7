package kvindex

import (
	"errors"
	"slices"
)

// lockPieces is how many removals are done before lookups are let through.
const lockPieces = 32

// lockMember returns a worker's member with its mutex held; join says whether to make one.
func (x *Index) lockMember(w Worker, join bool) *member {
	for {
		m := x.view.Load().by[w]
		if m == nil && join {
			m = x.join(w)
		}
		if m == nil {
			return nil
		}
		m.mu.Lock()
		if !m.gone {
			return m
		}
		m.mu.Unlock()
		if !join {
			return nil
		}
		wait(spins + yields) // it is about to leave the view
	}
}

// Stored notes that a worker holds blocks behind the one that its engine calls parent, or from the start of a prompt
// where parent is nil. Nothing changes when the parent isn't known.
func (x *Index) Stored(t Tier, w Worker, parent *uint64, blocks []Block) error {
	if x.opts.TTL > 0 {
		return ErrMode
	}
	m := x.lockMember(w, true)
	var err error
	if t == Device {
		err = x.storeDevice(m, parent, blocks)
	} else {
		err = x.storeLower(m, t, parent, blocks)
	}
	m.mu.Unlock()
	if err != nil {
		x.count.rejected.Add(1)
		if errors.Is(err, ErrUnknownParent) {
			x.count.orphans.Add(1)
		}
	}
	x.stored()
	return err
}

// storeDevice puts the blocks into the tree first and names them afterwards, without the shard's lock. Whatever happens
// to the blocks in between leaves the names pointing at nothing, which is noted, and harmless.
func (x *Index) storeDevice(m *member, parent *uint64, blocks []Block) error {
	sink := uint64(0)
	if parent != nil {
		sink = m.names.touch(*parent)
	}
	m.local = slices.Grow(m.local[:0], len(blocks))[:len(blocks)]
	local := m.local
	for i, b := range blocks {
		local[i] = b.Local
		sink += m.names.touch(b.Hash)
	}
	m.sink += sink
	if parent == nil && len(blocks) == 0 {
		return nil
	}
	added, err := x.storePath(m, parent)
	if added > 0 {
		m.entries.Add(int64(added))
		x.count.entries.Add(int64(added))
	}
	rest := blocks
	for _, p := range m.path {
		for k, b := range rest[:p.n] {
			now := p.at.plus(k)
			if old := m.names.set(b.Hash, now); old != 0 && old != now {
				m.displaced = append(m.displaced, displaced{address(old), address(now)})
			}
		}
		rest = rest[p.n:]
	}
	if len(m.displaced) > 0 {
		x.displace(m)
	}
	x.settleNames(m)
	return err
}

// storePath puts m.local into the tree and notes in m.path where it is.
//
// A name of a block that the worker doesn't hold any more does no harm as long as the worker isn't given more blocks,
// among which the name could find a wrong one. So such names are swept out first.
func (x *Index) storePath(m *member, parent *uint64) (added int, err error) {
	m.path = slices.Grow(m.path[:0], len(m.local)/segMax+fewSegs)
	for {
		if m.dirty.Load() {
			x.sweep(m)
		}
		var a address
		var sh *shard
		if parent == nil {
			sh = x.shardFor(m.local[0])
		} else {
			if a = address(m.names.get(*parent)); a == 0 {
				return 0, ErrUnknownParent
			}
			sh = &x.shards[a.shard()]
		}
		sh.lock()
		if m.dirty.Load() { // evicted from meanwhile
			sh.unlock()
			continue
		}
		var s, at uint32
		ok := true
		if parent != nil {
			s, at, ok = sh.held(a, m.slot)
			at++
		}
		if !ok {
			sh.unlock()
			return 0, ErrUnknownParent
		}
		added, ok = sh.store(m, s, at, m.local, x.tick.Load())
		x.done(sh)
		if !ok {
			return added, ErrFull
		}
		return added, nil
	}
}

// displace drops the blocks that lost their name to another one: the engine has said last what the name means.
func (x *Index) displace(m *member) {
	for _, d := range m.displaced {
		sh := &x.shards[d.old.shard()]
		sh.lock()
		if s, pos, ok := sh.held(d.old, m.slot); ok {
			same := false
			if d.now.shard() == sh.number {
				s2, pos2, ok := sh.resolve(d.now)
				same = ok && s2 == s && pos2 == pos
			}
			if !same {
				x.lose(m, sh.cut(s, m.slot, pos))
				x.settle(sh)
			}
		}
		sh.unlock()
	}
	m.displaced = m.displaced[:0]
	m.markStale()
}

// markStale notes that there are names without a block. Every block held has a name, so more names than blocks are the
// sign of it (or of blocks with two names, which cost a sweep for nothing).
func (m *member) markStale() {
	if int64(m.names.n) > m.entries.Load() {
		m.dirty.Store(true)
	}
}

// sweep takes out the names of blocks that the worker doesn't hold.
func (x *Index) sweep(m *member) {
	m.dirty.Store(false)
	m.names.keep(func(_, value uint64) bool {
		a := address(value)
		sh := &x.shards[a.shard()]
		sh.rlock()
		_, _, ok := sh.held(a, m.slot)
		sh.runlock()
		return ok
	})
	x.settleNames(m)
}

// Removed notes that a worker has dropped blocks, given by its engine's hashes, and returns how many of those the index
// doesn't know. What the worker holds behind a dropped block goes with it.
func (x *Index) Removed(t Tier, w Worker, hashes []uint64) (unknown int) {
	m := x.lockMember(w, false)
	if m == nil {
		x.count.unknown.Add(int64(len(hashes)))
		return len(hashes)
	}
	if t == Device {
		unknown = x.removeDevice(m, hashes)
	} else {
		unknown = x.removeLower(m, t, hashes)
	}
	m.mu.Unlock()
	x.count.unknown.Add(int64(unknown))
	return unknown
}

// removeDevice takes the names out first, all of them, and then the blocks from shard to shard.
func (x *Index) removeDevice(m *member, hashes []uint64) (unknown int) {
	for _, h := range hashes {
		m.sink += m.names.touch(h)
	}
	m.addresses = m.addresses[:0]
	for _, h := range hashes {
		if a := m.names.del(h); a != 0 {
			m.addresses = append(m.addresses, address(a))
		} else {
			unknown++
		}
	}
	for rest := m.addresses; len(rest) > 0; {
		sh := &x.shards[rest[0].shard()]
		sh.lock()
		lost := 0
		for i := 0; i < lockPieces && len(rest) > 0 && rest[0].shard() == sh.number; i++ {
			// Engines evict from the tail: neighbours are dropped at once, by dropping the first of them.
			k := 1
			for k < len(rest) && rest[k-1].pos() > 0 && rest[k] == rest[k-1]-1<<32 {
				k++
			}
			if s, pos, ok := sh.held(rest[k-1], m.slot); ok {
				lost += sh.cut(s, m.slot, pos)
			}
			rest = rest[k:]
		}
		x.lose(m, lost)
		x.done(sh)
	}
	m.markStale()
	return unknown
}
