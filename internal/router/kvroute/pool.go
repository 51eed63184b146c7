package kvroute

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/events"
	"github.com/portico-llm/portico/internal/router/kvcost"
	"github.com/portico-llm/portico/internal/router/kvhash"
	"github.com/portico-llm/portico/internal/router/kvindex"
)

// pool is the workers of one endpoint. It is a router.Chooser.
type pool struct {
	r       *Router
	id      worker.EndpointID
	cfg     Config
	role    kvcost.Role
	layout  kvhash.Layout
	metrics poolMetrics

	index  *kvindex.Index // who has what cached, by local hashes
	guess  *kvindex.Index // who has just been sent what, by local hashes; nil: that doesn't count
	active *kvindex.Index // whose prompts are at work where, by sequence hashes
	outlet *events.Outlet // nil: other routers aren't told

	seating sync.Mutex
	seats   map[kvindex.Worker]*seat // guarded by seating

	mu      sync.Mutex               // held while a worker is chosen
	stopped bool                     // guarded by mu
	quit    chan struct{}            // closed when stopped
	roster  roster                   // guarded by mu
	ranks   map[kvindex.Worker]*rank // guarded by mu; those of workers that have gone stay while they have requests
	remote  map[remoteKey]*request   // guarded by mu: of other routers
	views   views                    // guarded by mu
	desk    desk                     // guarded by mu
	rng     *rand.Rand               // guarded by mu
}

var _ router.Chooser = (*pool)(nil)

// member is one worker of the pool.
type member struct {
	instance *worker.Instance
	muted    bool // its blocks are of another size
	from, to int  // its ranks, in the roster's

	blocks, batch uint64 // KV blocks of a rank and tokens of a batch, as its card has them; 0: it doesn't say
}

// roster is the workers in discovery, by id, and their ranks in the same order. What a choice reads of a thousand ranks
// lies side by side: the choice writes only what this request changes, and the candidates only where it needs them.
type roster struct {
	members    []member
	instances  []*worker.Instance // of the members
	ranks      []*rank
	candidates []kvcost.Candidate
	loads      []kvcost.Load // of candidates and ranks
	cache      []int32       // slots in the views; -1: none
	active     []int32
	guess      []int32 // nil where none are made
}

// rank is one data-parallel rank of a worker and what it has to do. Its fields are guarded by the pool's mutex.
type rank struct {
	at       kvindex.Worker
	gone     bool         // the worker isn't in discovery
	load     *kvcost.Load // in the roster, unless it is gone
	requests []*request   // at work there
}

// views are those that the ranks' slots are of. While they stay, slots needn't be looked up.
type views struct{ cache, active, guess *kvindex.View }

// maxRanks bounds the ranks of one worker: a card is no reason to run out of memory.
const maxRanks = 4096

// newPool makes an endpoint's pool as the first card describes it. The caller holds the router's mutex.
func (r *Router) newPool(id worker.EndpointID, card *worker.Card, cfg Config) (*pool, error) {
	size := r.opts.BlockSize
	if size <= 0 {
		size = int(card.KVCacheBlockSize)
	}
	if size <= 0 {
		return nil, fmt.Errorf("the card says no KV block size: %w", kvhash.ErrBlockSize)
	}
	p := &pool{
		r: r, id: id, cfg: cfg, role: roleOf(card), layout: kvhash.Layout{BlockSize: size, Eagle: card.RuntimeConfig.EnableEagle},
		metrics: r.metrics.of(id.String()), quit: make(chan struct{}),
		ranks: map[kvindex.Worker]*rank{}, remote: map[remoteKey]*request{}, seats: map[kvindex.Worker]*seat{},
		rng: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())),
	}
	if p.role == kvcost.Prefill {
		p.cfg.TrackBlocks = false // they are gone before anything is generated
	}
	opts := kvindex.Options{MemoryLimit: r.opts.MemoryLimit}
	if r.opts.Registerer != nil {
		opts.Registerer = prometheus.WrapRegistererWith(prometheus.Labels{"endpoint": id.String()}, r.opts.Registerer)
	}
	if !cfg.Events {
		opts.TTL = cfg.TTL
	}
	var err error
	if p.index, err = kvindex.New(opts); err != nil {
		return nil, err
	}
	if cfg.Events && cfg.Predicted > 0 {
		if p.guess, err = kvindex.New(kvindex.Options{MemoryLimit: r.opts.MemoryLimit, TTL: cfg.Predicted}); err != nil {
			return nil, err
		}
	}
	if p.active, err = kvindex.New(kvindex.Options{}); err != nil {
		return nil, err
	}
	r.openOutlet(p)
	r.opts.Log.Info("routing by KV caches", "endpoint", id.String(), "block_size", size, "events", cfg.Events)
	return p, nil
}

// roleOf returns what the workers of a card do.
func roleOf(card *worker.Card) kvcost.Role {
	switch card.WorkerType {
	case "prefill":
		return kvcost.Prefill
	case "decode":
		return kvcost.Decode
	case "encode":
		return kvcost.Encode
	}
	if card.Has("Prefill") {
		return kvcost.Prefill
	}
	return kvcost.Aggregated
}

// stop ends the pool: its endpoint is gone. Requests at work end as they do. The caller holds the router's mutex.
func (p *pool) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.roster.members {
		p.forgive(m.instance.InstanceID)
	}
	if !p.stopped {
		p.stopped = true
		close(p.quit)
		// Nobody will be told of their ends.
		for key := range p.remote {
			p.dismiss(key)
		}
		if err := p.index.Close(); err != nil {
			p.r.opts.Log.Warn("metrics of a KV index stay behind", "endpoint", p.id.String(), "error", err)
		}
	}
}

// follow takes over the workers of a snapshot, which come ordered by id, and returns the ranks that are new or back. The
// caller holds the router's mutex.
func (p *pool) follow(instances []*worker.Instance, cards map[uint64]*worker.Card) (back []kvindex.Worker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var next roster
	for _, in := range instances {
		// Without a card it isn't sent requests either.
		if card := cards[in.InstanceID]; card != nil {
			p.enlist(&next, in, card)
		}
	}
	n := len(next.ranks)
	next.loads, next.cache, next.active = make([]kvcost.Load, n), make([]int32, n), make([]int32, n)
	if p.guess != nil {
		next.guess = make([]int32, n)
	}
	present := make(map[kvindex.Worker]bool, n)
	for i, k := range next.ranks {
		if k.gone {
			back = append(back, k.at)
		}
		next.loads[i] = *k.load
		k.load, k.gone = &next.loads[i], false
		next.candidates[i].Load = k.load
		present[k.at] = true
	}
	p.roster = next
	p.views = views{} // there may be new ranks, whose slots nobody has looked up
	for at, k := range p.ranks {
		if present[at] {
			continue
		}
		if !k.gone {
			load := *k.load // out of the old roster, which is to go
			k.load, k.gone = &load, true
			p.forgive(at.ID)
			p.r.vacating.Add(1)
			p.r.start("forget a worker", func(context.Context) error {
				defer p.r.vacating.Add(-1)
				p.vacate(at)
				return nil
			})
		}
		p.bury(k)
	}
	return back
}

// enlist adds a worker to a roster. Ranks that were known are kept, with what they have to do.
func (p *pool) enlist(to *roster, in *worker.Instance, card *worker.Card) {
	rc := &card.RuntimeConfig
	m := member{instance: in, from: len(to.ranks)}
	if size := card.KVCacheBlockSize; size == uint32(p.layout.BlockSize) || (size == 0 && p.r.opts.BlockSize > 0) {
		p.forgive(in.InstanceID)
	} else {
		// A size that was configured stands above the card, which may be wrong. If it isn't, nothing is ever found.
		m.muted = p.r.opts.BlockSize <= 0
		p.complain(in.InstanceID, card, m.muted)
	}
	for i := range min(max(rc.DataParallelSize, 1), maxRanks) {
		at := kvindex.Worker{ID: in.InstanceID, Rank: rc.DataParallelStartRank + i}
		k := p.ranks[at]
		if k == nil {
			k = &rank{at: at, gone: true, load: &kvcost.Load{}} // until the roster has it
			p.ranks[at] = k
		}
		to.ranks = append(to.ranks, k)
		to.candidates = append(to.candidates, kvcost.Candidate{Worker: at.ID, Rank: at.Rank, Taints: rc.Taints})
	}
	m.to = len(to.ranks)
	if rc.TotalKVBlocks != nil {
		m.blocks = *rc.TotalKVBlocks
	}
	if rc.MaxNumBatchedTokens != nil {
		m.batch = *rc.MaxNumBatchedTokens
	}
	to.members, to.instances = append(to.members, m), append(to.instances, in)
}

// bury forgets a rank that is gone and has nothing to do. The caller holds mu.
func (p *pool) bury(k *rank) {
	if k.gone && len(k.requests) == 0 && p.ranks[k.at] == k {
		p.active.RemoveRank(k.at)
		delete(p.ranks, k.at)
	}
}

// muted reports whether a worker's events are of no use.
func (p *pool) muted(id uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	i, ok := slices.BinarySearchFunc(p.roster.members, id, func(m member, id uint64) int {
		return cmp.Compare(m.instance.InstanceID, id)
	})
	return ok && p.roster.members[i].muted
}

// here reports whether a worker is in the pool.
func (p *pool) here(w kvindex.Worker) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := p.ranks[w]
	return k != nil && !k.gone
}

// look brings the ranks' slots in line with views. The caller holds mu.
func (p *pool) look(v views) {
	if p.views == v {
		return
	}
	p.views = v
	r := &p.roster
	for i, k := range r.ranks {
		r.cache[i], r.active[i] = slot(v.cache, k.at), slot(v.active, k.at)
		if v.guess != nil {
			r.guess[i] = slot(v.guess, k.at)
		}
	}
}

// slot is -1 for a worker that isn't in the view.
func slot(v *kvindex.View, w kvindex.Worker) int32 {
	if s, ok := v.Slot(w); ok {
		return int32(s)
	}
	return -1
}

// seconds is for observers.
func seconds(since time.Time) float64 { return time.Since(since).Seconds() }
