package kvindex

// Hold notes that a worker holds a path from the start of a prompt, without names: for whoever keeps the books himself
// and takes paths back with Trim. An index is fed either by this or by events. In approximate mode use Insert.
func (x *Index) Hold(w Worker, path []uint64) error {
	if x.opts.TTL > 0 {
		return ErrMode
	}
	if len(path) == 0 {
		return nil
	}
	m := x.lockMember(w, true)
	sh := x.shardFor(path[0])
	sh.lock()
	m.path = m.path[:0]
	added, ok := sh.store(m, 0, 0, path, x.tick.Load())
	return x.put(m, sh, added, ok)
}

// put ends the store of a path, of which added blocks are new: it lets go of the shard and the member. ok tells whether
// there was room.
func (x *Index) put(m *member, sh *shard, added int, ok bool) error {
	m.entries.Add(int64(added))
	x.count.entries.Add(int64(added))
	x.done(sh)
	m.mu.Unlock()
	if !ok {
		x.count.rejected.Add(1)
	}
	x.stored()
	if !ok {
		return ErrFull
	}
	return nil
}

// stored counts a store and makes room for the next, without any lock.
func (x *Index) stored() {
	if n := x.count.stores.Add(1); n%tickEvery == 0 {
		x.tick.Add(1)
	}
	x.relieve()
}

// Trim takes back what Hold noted of a path, but for its first keep blocks, and all that the worker holds below.
func (x *Index) Trim(w Worker, path []uint64, keep int) {
	if keep >= len(path) {
		return
	}
	m := x.lockMember(w, false)
	if m == nil {
		return
	}
	defer m.mu.Unlock()
	sh := x.shardFor(path[0])
	sh.lock()
	lost := 0
	for s, depth := uint32(0), 0; depth < len(path); {
		c := sh.kid(s, path[depth])
		if c == 0 {
			break
		}
		blocks := sh.locals(sh.seg(c))
		n := 1 + common(path[depth+1:], blocks[1:])
		if depth+n > keep {
			lost = sh.cut(c, m.slot, uint32(max(0, keep-depth)))
			break
		}
		if n < len(blocks) {
			break
		}
		s, depth = c, depth+n
	}
	x.lose(m, lost)
	x.done(sh)
}
