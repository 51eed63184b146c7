package kvindex

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	shardBits  = 6
	shardCount = 1 << shardBits
	tickEvery  = 256 // stores
)

// What a store can be refused for.
var (
	// ErrUnknownParent: the worker doesn't hold the block that the new ones are said to follow.
	ErrUnknownParent = errors.New("kvindex: the worker doesn't hold the parent block")
	// ErrFull: there is no room, and what could be evicted doesn't help.
	ErrFull = errors.New("kvindex: the index is full")
	// ErrMode: events are for an index that workers keep informed, Insert is for one that guesses.
	ErrMode = errors.New("kvindex: not in this mode of the index")
)

// Worker is one data-parallel rank of one worker.
type Worker struct {
	ID   uint64
	Rank uint32
}

// Block is one block of an event: the engine's own hash, by which later events speak of it, and the local hash of its
// tokens.
type Block struct{ Hash, Local uint64 }

// Tier is where a worker holds a block.
type Tier uint8

// The tiers. Blocks on the device form prefixes; the others continue them.
const (
	Device Tier = iota
	Host
	Disk
)

// Options configure an Index. The zero value is an index without a limit, fed by events.
type Options struct {
	// MemoryLimit bounds the memory in use, in bytes. Beyond it, the leaves that were looked up longest ago are evicted.
	// Host and disk blocks may take a quarter of it. 0: no limit.
	MemoryLimit int64

	// TTL makes the index guess: the router inserts the path of each request it sends, and a path that isn't inserted
	// again is forgotten after this time (at most 1/64 of it earlier). 0: workers publish events.
	TTL time.Duration

	Now        func() time.Time // of the approximate mode; nil: time.Now
	Registerer prometheus.Registerer
}

func (o Options) withDefaults() Options {
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// Index tells which workers hold how much of a prompt. See the package comment for what may run beside what.
type Index struct {
	opts   Options
	shards [shardCount]shard
	firsts [shardCount]groups
	view   atomic.Pointer[View]
	tick   atomic.Uint32 // grows with the number of stores; the age of what is in the index

	mu    sync.Mutex // guards joining and leaving
	free  []int      // slots, the one that has been free for longest first
	words int

	evicting sync.Mutex // one goroutine makes room
	count    counters
	metrics  *collector
}

// counters are read by metrics and tests.
type counters struct {
	stores, bytes, lowerBytes, entries           atomic.Int64
	evicted, expired, rejected, orphans, unknown atomic.Int64 // orphans: rejected for an unknown parent
	lower                                        atomic.Int64 // members with lower tiers
}

// member is what the index knows of a worker. mu is held during its events.
type member struct {
	worker  Worker
	slot    int
	entries atomic.Int64 // blocks held on the device
	dirty   atomic.Bool  // some names may be of blocks that aren't held any more
	lower   atomic.Pointer[lower]

	mu      sync.Mutex
	gone    bool
	names   table // engine's hash → address
	counted int   // bytes of names that the index has counted

	// Room for events.
	path      []stretch
	local     []uint64
	addresses []address
	displaced []displaced
	sink      uint64
}

// displaced is a name that now means another block.
type displaced struct{ old, now address }

// View is the workers of an index at one moment: which slot of Match's array is whose. It is immutable. A slot that
// becomes free is given away last of all.
type View struct {
	members []*member // by slot; nil: free
	by      map[Worker]*member
}

// Slots returns how long an array Match needs.
func (v *View) Slots() int { return len(v.members) }

// Worker returns whose slot it is.
func (v *View) Worker(slot int) (w Worker, ok bool) {
	if slot < 0 || slot >= len(v.members) || v.members[slot] == nil {
		return Worker{}, false
	}
	return v.members[slot].worker, true
}

// Slot returns a worker's slot.
func (v *View) Slot(w Worker) (slot int, ok bool) {
	m := v.by[w]
	if m == nil {
		return 0, false
	}
	return m.slot, true
}

// New makes an index. Close unregisters its metrics; there is nothing else to close.
func New(o Options) (*Index, error) {
	x := &Index{opts: o.withDefaults(), words: 1}
	for i := range x.shards {
		x.shards[i].init(i, x.words, &x.firsts[i])
		if x.opts.TTL > 0 {
			x.shards[i].ttl.stamps = make(map[uint64]int64)
		}
	}
	x.view.Store(&View{by: map[Worker]*member{}})
	if x.opts.Registerer != nil {
		x.metrics = &collector{x}
		if err := x.opts.Registerer.Register(x.metrics); err != nil {
			return nil, err
		}
	}
	return x, nil
}

// Close takes the index's metrics out of the registry. The index can be used no less after it.
func (x *Index) Close() error {
	if x.metrics != nil {
		x.opts.Registerer.Unregister(x.metrics)
	}
	return nil
}

// View returns the workers as of now.
func (x *Index) View() *View { return x.view.Load() }

// Entries returns how many blocks all workers together hold on their devices.
func (x *Index) Entries() int64 { return x.count.entries.Load() }

// Bytes returns the memory in use. What the index has taken from the runtime can be more, by what is free at the moment
// and will be used first.
func (x *Index) Bytes() int64 { return x.count.bytes.Load() }

// shardFor returns the shard of the paths that begin with a block.
func (x *Index) shardFor(first uint64) *shard { return &x.shards[spread(first)>>(64-shardBits)] }

// begins reports whether a path may begin with a block, without any lock.
func (x *Index) begins(first uint64) bool {
	group := groupOf(first)
	return x.firsts[spread(first)>>(64-shardBits)][group/64].Load()>>(group%64)&1 != 0
}

// Match writes into out, by slot of the view, how many leading blocks of a prompt each worker holds on its device, and
// returns the most. out is cleared first; workers whose slots lie beyond it are left out.
func (x *Index) Match(local []uint64, out []uint32) int {
	clear(out)
	if len(local) == 0 || !x.begins(local[0]) {
		return 0
	}
	sh := x.shardFor(local[0])
	tick := x.tick.Load()
	sh.rlock()
	depth := sh.match(local, out, tick)
	sh.runlock()
	return depth
}

// join returns a worker's member, which it makes if need be.
func (x *Index) join(w Worker) *member {
	if m := x.view.Load().by[w]; m != nil {
		return m
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	old := x.view.Load()
	if m := old.by[w]; m != nil {
		return m
	}
	m := &member{worker: w, slot: len(old.members)}
	members := append([]*member(nil), old.members...)
	if len(x.free) > 0 {
		m.slot, x.free = x.free[0], x.free[1:]
	} else {
		members = append(members, nil)
	}
	members[m.slot] = m
	if m.slot >= 64*x.words {
		x.words *= 2
		for i := range x.shards {
			sh := &x.shards[i]
			sh.lock()
			sh.widen(x.words)
			x.settle(sh)
			sh.unlock()
		}
	}
	x.publish(members)
	return m
}

// publish makes a new view. The caller holds mu.
func (x *Index) publish(members []*member) {
	v := &View{members: members, by: make(map[Worker]*member, len(members))}
	for _, m := range members {
		if m != nil {
			v.by[m.worker] = m
		}
	}
	x.view.Store(v)
}

// RemoveWorker forgets a worker with all its ranks.
func (x *Index) RemoveWorker(id uint64) {
	for w := range x.view.Load().by {
		if w.ID == id {
			x.RemoveRank(w)
		}
	}
}

// RemoveRank forgets one rank of a worker.
func (x *Index) RemoveRank(w Worker) {
	m := x.view.Load().by[w]
	if m == nil {
		return
	}
	m.mu.Lock()
	if m.gone {
		m.mu.Unlock()
		return
	}
	m.gone = true
	x.forget(m)
	m.mu.Unlock()

	x.mu.Lock()
	defer x.mu.Unlock()
	members := append([]*member(nil), x.view.Load().members...)
	members[m.slot] = nil
	x.free = append(x.free, m.slot)
	x.publish(members)
}

// Cleared forgets what a worker holds, in every tier.
func (x *Index) Cleared(w Worker) {
	m := x.view.Load().by[w]
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	x.forget(m)
}

// forget takes a member off every path. The caller holds its mutex.
func (x *Index) forget(m *member) {
	for i := range x.shards {
		x.forgetIn(&x.shards[i], m)
	}
	m.names, m.path, m.local, m.addresses = table{}, nil, nil, nil
	m.dirty.Store(false)
	x.settleNames(m)
	x.dropLower(m)
}

// forgetIn takes a member off the paths of a shard. It lets lookups through now and then.
func (x *Index) forgetIn(sh *shard, m *member) {
	for c := 0; ; c++ {
		sh.lock()
		if c >= len(sh.segs) || sh.live == 0 {
			sh.unlock()
			return
		}
		for s := uint32(c) * segChunk; s < uint32(c+1)*segChunk; s++ {
			if g := sh.seg(s); g.n > 0 && g.up == 0 { // the root is never split and keeps its key
				x.lose(m, sh.cut(s, m.slot, 0))
			}
		}
		x.done(sh)
	}
}

// lose counts blocks that a member doesn't hold any more.
func (x *Index) lose(m *member, n int) {
	m.entries.Add(-int64(n))
	x.count.entries.Add(-int64(n))
}

// settle brings the count of bytes up to date with a shard, whose lock the caller holds.
func (x *Index) settle(sh *shard) {
	if n := sh.size(); n != sh.counted {
		x.count.bytes.Add(int64(n - sh.counted))
		sh.counted = n
	}
}

// settleNames does the same for a member's names; the caller holds its mutex.
func (x *Index) settleNames(m *member) {
	if n := m.names.room * entrySize; n != m.counted {
		x.count.bytes.Add(int64(n - m.counted))
		m.counted = n
	}
}
