package kvroute

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/events"
	"github.com/portico-llm/portico/internal/router/kvindex"
)

// maxRecoveries bounds the recovery queries under way: their answers may be large.
const maxRecoveries = 16

// Router has a pool for each endpoint in mode kv. All methods are safe for concurrent use; Run is called once.
//
// Mutexes are taken in this order: the router's, a feed's, a seat's, a pool's.
type Router struct {
	opts    Options
	id      uint64 // by which other routers know this one
	metrics *metrics
	slots   chan struct{} // of recoveries under way

	vacating atomic.Int64 // workers that are being forgotten

	mu      sync.Mutex
	version uint64                         // guarded by mu: of the snapshot followed last
	pools   map[worker.EndpointID]*pool    // guarded by mu
	sources map[uint64]*worker.EventSource // guarded by mu: by publisher
	feeds   map[uint64]*feed               // guarded by mu: by publisher
	mutes   map[mute]bool                  // guarded by mu: what has been complained about

	// A leaf of the order of mutexes: goroutines are begun with any other held.
	queue   sync.Mutex
	group   *lifecycle.Group // guarded by queue; nil while Run isn't running
	waiting []task           // guarded by queue: what is to run as soon as it is
}

// task is something that a goroutine of its own does.
type task struct {
	name string
	run  func(ctx context.Context) error
}

// New returns a Router. It starts nothing.
func New(opts Options) *Router {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: the runtime ends the program instead
	opts = opts.withDefaults()
	return &Router{
		opts: opts, id: binary.BigEndian.Uint64(b[:]) >> 1, metrics: newMetrics(opts.Registerer),
		slots: make(chan struct{}, maxRecoveries),
		pools: map[worker.EndpointID]*pool{}, sources: map[uint64]*worker.EventSource{}, feeds: map[uint64]*feed{},
		mutes: map[mute]bool{},
	}
}

// Topics are what the Router wants to hear of an events.Hub.
func (r *Router) Topics() []events.Topic {
	return []events.Topic{
		{Name: worker.TopicKVEvents, Wants: r.wantsCache, Handler: (*cacheEvents)(r)},
		{Name: worker.TopicActiveSequences, Wants: r.wantsSequences, Handler: (*sequenceEvents)(r)},
	}
}

// Run does what takes time, recoveries and expiry, until ctx ends; then it returns nil.
func (r *Router) Run(ctx context.Context) error {
	g := lifecycle.New(ctx)
	r.queue.Lock()
	r.group = g
	for _, t := range r.waiting {
		g.Go(t.name, t.run)
	}
	r.waiting = nil
	r.queue.Unlock()
	tick := time.NewTicker(expireEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			err := g.Stop()
			return errors.Join(err, r.close())
		case <-tick.C:
			for _, p := range r.all() {
				p.index.Expire()
				if p.guess != nil {
					p.guess.Expire()
				}
			}
		}
	}
}

// expireEvery is how often guesses are looked through for those whose time is over.
const expireEvery = time.Second

// close releases the pools' metrics.
func (r *Router) close() error {
	var errs []error
	for _, p := range r.all() {
		errs = append(errs, p.index.Close())
	}
	return errors.Join(errs...)
}

// all lists the pools.
func (r *Router) all() (out []*pool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.pools {
		out = append(out, p)
	}
	return out
}

// start runs f on a goroutine of its own, now or as soon as Run runs. After Run's end it runs nothing.
func (r *Router) start(name string, f func(ctx context.Context) error) {
	r.queue.Lock()
	defer r.queue.Unlock()
	if r.group != nil {
		r.group.Go(name, f)
		return
	}
	r.waiting = append(r.waiting, task{name, f})
}

// Route returns how the instances of an endpoint are chosen, as of a snapshot: nil when it isn't in mode kv.
func (r *Router) Route(id worker.EndpointID, snap *router.Snapshot) router.Chooser {
	r.Follow(snap)
	if p := r.pool(id); p != nil {
		return p
	}
	return nil
}

// pool returns an endpoint's pool, or nil.
func (r *Router) pool(id worker.EndpointID) *pool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pools[id]
}

// Follow brings pools in line with a snapshot. Older ones than the last are ignored.
func (r *Router) Follow(snap *router.Snapshot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if snap.Version <= r.version {
		return
	}
	r.version = snap.Version
	cards := map[worker.EndpointID]map[uint64]*worker.Card{}
	for _, m := range snap.Models {
		if m.Suffix != "" { // adapters share their base model's cache
			continue
		}
		if cards[m.ID()] == nil {
			cards[m.ID()] = map[uint64]*worker.Card{}
		}
		cards[m.ID()][m.InstanceID] = &m.Card
	}
	for id, p := range r.pools {
		if cards[id] == nil && len(snap.Instances[id]) == 0 {
			p.stop()
			delete(r.pools, id)
		}
	}
	back := map[*pool][]kvindex.Worker{}
	for id, list := range cards {
		r.followPool(id, snap.Instances[id], list)
		if p := r.pools[id]; p != nil {
			back[p] = p.follow(snap.Instances[id], list)
		}
	}
	r.followSources(snap)
	for _, f := range r.feeds {
		f.welcome(back[f.p])
	}
}

// followPool makes the pool of an endpoint that has cards, if it is in mode kv and there is none. The caller holds mu.
func (r *Router) followPool(id worker.EndpointID, instances []*worker.Instance, cards map[uint64]*worker.Card) {
	p := r.pools[id]
	if p != nil && p.outdated(instances, cards) {
		p.stop()
		delete(r.pools, id)
		p = nil
	}
	if p == nil {
		card := firstCard(instances, cards)
		if card == nil {
			return
		}
		mode, c, err := parseCard(card)
		if err != nil {
			r.opts.Log.Warn("the card's router configuration isn't used", "endpoint", id.String(), "error", err)
		}
		if mode == "" {
			mode = r.opts.Mode
		}
		// Text has no blocks: its workers are chosen by load alone, which other modes do better.
		if mode != Mode || card.ModelInput == "Text" {
			return
		}
		if p, err = r.newPool(id, card, c.over(r.opts.Config)); err != nil {
			r.opts.Log.Error("no routing by KV caches", "endpoint", id.String(), "error", err)
			return
		}
		r.pools[id] = p
	}
}

// outdated reports whether the pool's blocks are of a size that none of its workers has any more: they have all been
// replaced.
func (p *pool) outdated(instances []*worker.Instance, cards map[uint64]*worker.Card) bool {
	if p.r.opts.BlockSize > 0 {
		return false
	}
	some := false
	for _, in := range instances {
		c := cards[in.InstanceID]
		if c == nil {
			continue
		}
		if some = true; c.KVCacheBlockSize == uint32(p.layout.BlockSize) {
			return false
		}
	}
	return some
}

// firstCard returns the card of the first instance that has one.
func firstCard(instances []*worker.Instance, cards map[uint64]*worker.Card) *worker.Card {
	for _, in := range instances {
		if c := cards[in.InstanceID]; c != nil {
			return c
		}
	}
	return nil
}

// mute is a worker whose blocks are of another size than its pool's, by its card.
type mute struct {
	endpoint worker.EndpointID
	worker   uint64
}

// complain says once that a worker's blocks are of another size, so that it isn't heard or may be misunderstood.
func (p *pool) complain(id uint64, card *worker.Card, muted bool) {
	m := mute{p.id, id}
	if p.r.mutes[m] {
		return
	}
	p.r.mutes[m] = true
	p.r.metrics.mismatch.WithLabelValues(p.id.String()).Inc()
	log := p.r.opts.Log.With("endpoint", p.id.String(), "worker", id, "block_size", card.KVCacheBlockSize, "expected", p.layout.BlockSize)
	if muted {
		log.Error("KV block size of a worker differs: what it has cached isn't used")
		return
	}
	log.Error("KV block size of a worker's card differs from the configured one: unless the card is wrong, nothing is found in its cache")
}

// forgive takes a complaint back: the worker is gone or has changed.
func (p *pool) forgive(id uint64) {
	m := mute{p.id, id}
	if p.r.mutes[m] {
		delete(p.r.mutes, m)
		p.r.metrics.mismatch.WithLabelValues(p.id.String()).Dec()
	}
}
