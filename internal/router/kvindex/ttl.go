package kvindex

import "container/heap"

// leaseSlack is the part of the TTL by which a lease must grow to be noted anew. It bounds what popular paths cost.
const leaseSlack = 64

// expireBatch is how many leases are looked at under one lock.
const expireBatch = 64

// leases are how long each worker keeps each segment, in approximate mode. An inserted path always ends where a segment
// does, so a segment's blocks have one lease for each worker, and never a longer one than their parent's.
type leases struct {
	stamps map[uint64]int64 // slot<<32|segment → end in nanoseconds
	queue  leaseQueue
}

// lease is a moment at which a lease may end: it does if the stamp still says so.
type lease struct {
	end int64
	key uint64
}

type leaseQueue []lease

func (q leaseQueue) Len() int           { return len(q) }
func (q leaseQueue) Less(i, j int) bool { return q[i].end < q[j].end }
func (q leaseQueue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }

// Push is for container/heap.
func (q *leaseQueue) Push(v any) { *q = append(*q, v.(lease)) }

// Pop is for container/heap.
func (q *leaseQueue) Pop() any {
	old := *q
	v := old[len(old)-1]
	*q = old[:len(old)-1]
	return v
}

func leaseKey(s uint32, slot int) uint64 { return uint64(slot)<<32 | uint64(s) }

// size estimates the memory in use: a map's entry takes about twice its size.
func (l *leases) size() int { return len(l.stamps)*32 + len(l.queue)*16 }

// forget ends a lease of which the worker has lost the blocks already.
func (l *leases) forget(s uint32, slot int) {
	if l.stamps != nil {
		delete(l.stamps, leaseKey(s, slot))
	}
}

// renew lets a lease end later, unless that would be hardly later than before.
func (l *leases) renew(s uint32, slot int, end, slack int64) {
	key := leaseKey(s, slot)
	if old, ok := l.stamps[key]; ok && end-old < slack {
		return
	}
	l.stamps[key] = end
	heap.Push(&l.queue, lease{end, key})
}

// split gives the new segment t the leases of s, off which it was split.
func (l *leases) split(sh *shard, s, t uint32) {
	for i, w := range sh.holders(t) {
		for slot := i * 64; w != 0; slot, w = slot+1, w>>1 {
			if w&1 != 0 {
				l.renew(t, slot, l.stamps[leaseKey(s, slot)], 0)
			}
		}
	}
}

// Insert notes, in approximate mode, that a worker is about to hold a path from the start of a prompt.
func (x *Index) Insert(w Worker, local []uint64) error {
	if x.opts.TTL <= 0 {
		return ErrMode
	}
	if len(local) == 0 {
		return nil
	}
	now := x.opts.Now().UnixNano()
	m := x.lockMember(w, true)
	sh := x.shardFor(local[0])
	sh.lock()
	x.expireIn(sh, now)
	m.path = m.path[:0]
	added, ok := sh.store(m, 0, 0, local, x.tick.Load())
	if n := len(m.path); ok && n > 0 {
		last := m.path[n-1]
		s, end := last.at.seg(), last.at.pos()+uint32(last.n)
		ok = end == uint32(sh.seg(s).n) || sh.split(s, end)
	}
	end := now + int64(x.opts.TTL)
	for _, p := range m.path {
		sh.ttl.renew(p.at.seg(), m.slot, end, int64(x.opts.TTL)/leaseSlack)
	}
	return x.put(m, sh, added, ok)
}

// Expire forgets the paths whose time is over. Insert does it for the paths that are near; the owner calls Expire now and
// then for the rest.
func (x *Index) Expire() {
	if x.opts.TTL <= 0 {
		return
	}
	now := x.opts.Now().UnixNano()
	for i := range x.shards {
		sh := &x.shards[i]
		for more := true; more; {
			sh.lock()
			more = x.expireIn(sh, now)
			x.done(sh)
		}
	}
}

// expireIn ends a batch of leases of a shard, whose lock the caller holds. It reports whether there are more.
func (x *Index) expireIn(sh *shard, now int64) (more bool) {
	members := x.view.Load().members
	for range expireBatch {
		if len(sh.ttl.queue) == 0 || sh.ttl.queue[0].end > now {
			return false
		}
		l := heap.Pop(&sh.ttl.queue).(lease)
		if end, ok := sh.ttl.stamps[l.key]; !ok || end != l.end {
			continue
		}
		slot := int(l.key >> 32)
		lost := sh.cut(uint32(l.key), slot, 0)
		x.count.expired.Add(int64(lost))
		if m := members[slot]; m != nil {
			x.lose(m, lost)
		}
	}
	return true
}
