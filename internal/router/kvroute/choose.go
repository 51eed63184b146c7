package kvroute

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/kvcost"
	"github.com/portico-llm/portico/internal/router/kvhash"
)

// prompt is what is worked out of a request once, whichever workers it is tried on.
type prompt struct {
	tokens   int
	local    []uint64 // hashes of its blocks
	sequence []uint64 // of the blocks and all before them
	override override
}

// override is what one request changes (router_config_override).
type override struct {
	cost         kvcost.Override
	assumeReuse  *bool
	trackPrefill *bool
}

// desk is where a choice is made: room that choices reuse.
type desk struct {
	candidates []kvcost.Candidate
	loads      []kvcost.Load
	ranks      []*rank
	owners     []int // which of the router's candidates
	active     []uint32
	scratch    kvcost.Scratch
}

// overlaps are what the index says, by slot.
type overlaps struct {
	device, host, disk []uint32
	view               views
}

// rooms keeps overlaps for later requests.
var rooms = sync.Pool{New: func() any { return new(overlaps) }}

// Choose implements router.Chooser. It never blocks for long.
func (p *pool) Choose(_ context.Context, q *router.Query, candidates []router.Candidate) (router.Choice, error) {
	began := time.Now()
	in, err := p.prompt(q)
	if err != nil {
		return router.Choice{}, err
	}
	o := rooms.Get().(*overlaps)
	p.match(in, o)
	choice, err := p.choose(q, in, o, candidates)
	o.view = views{}
	rooms.Put(o)
	p.metrics.choose.Observe(seconds(began))
	return choice, err
}

// prompt hashes the request's prompt, unless that has been done for an earlier try.
func (p *pool) prompt(q *router.Query) (*prompt, error) {
	if in, ok := q.Memo.(*prompt); ok {
		return in, nil
	}
	in := &prompt{tokens: len(q.TokenIDs)}
	tokens, layout, seed := q.TokenIDs, p.layout, uint64(kvhash.BaseSeed)
	if rq := q.Request; rq != nil {
		seed = kvhash.Seed(rq.Routing.LoRAName, rq.Routing.CacheSalt)
		tokens, layout.Media = media(rq, tokens)
		var err error
		if in.override, err = parseOverride(rq.RouterOverride); err != nil {
			return nil, err
		}
	}
	n := layout.Count(len(tokens))
	room := make([]uint64, 2*n)
	h := kvhash.New(seed)
	var err error
	if in.local, err = h.Local(room[:0:n], tokens, layout); err != nil {
		return nil, fault.New(fault.Internal, "The prompt could not be routed").Because(err)
	}
	in.sequence = kvhash.Sequence(room[n:n:2*n], in.local)
	q.Memo = in
	return in, nil
}

// media returns the tokens to hash and the media in each block, for a request that has some. What can't be read is as
// good as absent: it only costs a hit in the cache.
func media(rq *worker.Request, tokens []uint32) ([]uint32, [][]uint64) {
	if len(rq.MMRoutingInfo) == 0 {
		return tokens, nil
	}
	var info struct {
		Tokens []uint32 `json:"routing_token_ids"`
		Blocks []*struct {
			Objects []struct {
				Hash uint64 `json:"mm_hash"`
			} `json:"mm_objects"`
		} `json:"block_mm_infos"`
	}
	if json.Unmarshal(rq.MMRoutingInfo, &info) != nil {
		return tokens, nil
	}
	if len(info.Tokens) > 0 {
		tokens = info.Tokens
	}
	out := make([][]uint64, len(info.Blocks))
	for i, b := range info.Blocks {
		if b == nil {
			continue
		}
		for _, o := range b.Objects {
			if !slices.Contains(out[i], o.Hash) {
				out[i] = append(out[i], o.Hash)
			}
		}
	}
	return tokens, out
}

// parseOverride reads router_config_override. What is wrong with it is the client's to know.
func parseOverride(raw json.RawMessage) (o override, err error) {
	if len(raw) == 0 {
		return o, nil
	}
	var v struct {
		Credit       *float64 `json:"overlap_score_credit"`
		Weight       *float64 `json:"overlap_score_weight"` // the credit's older name
		Scale        *float64 `json:"prefill_load_scale"`
		Temperature  *float64 `json:"router_temperature"`
		Shared       *float64 `json:"shared_cache_multiplier"`
		AssumeReuse  *bool    `json:"assume_kv_reuse"`
		TrackPrefill *bool    `json:"track_prefill_tokens"`
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		return o, fault.Bad("router_config_override", "`router_config_override` must be an object of numbers "+
			"(overlap_score_credit, prefill_load_scale, router_temperature, shared_cache_multiplier) and booleans "+
			"(assume_kv_reuse, track_prefill_tokens)")
	}
	if v.Credit == nil {
		v.Credit = v.Weight
	}
	for name, n := range map[string]*float64{
		"overlap_score_credit": v.Credit, "prefill_load_scale": v.Scale, "router_temperature": v.Temperature,
		"shared_cache_multiplier": v.Shared,
	} {
		if n != nil && *n < 0 {
			at := "router_config_override." + name
			return o, fault.Bad(at, "`%s` must be 0 or more, not %v", at, *n)
		}
	}
	return override{
		cost:        kvcost.Override{OverlapCredit: v.Credit, PrefillScale: v.Scale, Temperature: v.Temperature, SharedMultiplier: v.Shared},
		assumeReuse: v.AssumeReuse, trackPrefill: v.TrackPrefill,
	}, nil
}

// match asks the index what is cached where.
func (p *pool) match(in *prompt, o *overlaps) {
	o.view.cache = p.index.View()
	n := o.view.cache.Slots()
	o.device = sized(o.device, n)
	p.index.Match(in.local, o.device)
	o.host, o.disk = sized(o.host, n), sized(o.disk, n)
	p.index.MatchLower(in.sequence, o.device, o.host, o.disk)
}

// sized returns a slice of n elements, of any content.
func sized(s []uint32, n int) []uint32 {
	if cap(s) < n {
		return make([]uint32, n, n+n/4)
	}
	return s[:n]
}

// choose weighs the ranks and notes the choice.
func (p *pool) choose(
	q *router.Query, in *prompt, o *overlaps, candidates []router.Candidate,
) (router.Choice, error) {
	cq := p.query(q, in)
	cfg := p.cfg.Cost.With(&in.override.cost)
	reuse := p.cfg.AssumeReuse
	put(&reuse, in.override.assumeReuse)

	p.mu.Lock()
	defer p.mu.Unlock()
	d := &p.desk
	if p.cfg.TrackBlocks && reuse {
		o.view.active = p.active.View()
		d.active = sized(d.active, o.view.active.Slots())
		p.active.Match(in.sequence, d.active)
	} else if p.views.active != nil {
		o.view.active = p.views.active // not looked at
		d.active = d.active[:0]
	} else {
		o.view.active = p.active.View()
		d.active = d.active[:0]
	}
	p.look(o.view)
	p.lay(d, q, in, o, candidates)
	if len(d.candidates) == 0 {
		return p.nobody(q, candidates)
	}
	c, err := kvcost.Choose(cq, &cfg, d.candidates, p.rng, &d.scratch)
	if err != nil {
		return router.Choice{}, refusal(err)
	}
	k := d.ranks[c.Index]
	p.note(d, in, c)
	t := p.place(&request{
		pool: p, rank: k, id: q.RequestID, path: in.sequence, shared: reuse, tokens: in.tokens,
		prefill: int64(max(in.tokens-c.Cached, 0)), track: cq.TrackPrefill, cached: c.Cached,
	})
	if !p.cfg.Events {
		// Before the next request is weighed: it may begin alike. That there is no room is counted by the index.
		_ = p.index.Insert(k.at, in.local)
	}
	return router.Choice{Index: d.owners[c.Index], Rank: &k.at.Rank, Ticket: t}, nil
}

// query describes the request to the cost function.
func (p *pool) query(q *router.Query, in *prompt) *kvcost.Query {
	cq := &kvcost.Query{
		Tokens: in.tokens, BlockSize: p.layout.BlockSize, Role: kvcost.Aggregated, TrackPrefill: p.cfg.TrackPrefill,
	}
	if p.role == kvcost.Prefill {
		cq.Role = kvcost.Prefill
	}
	put(&cq.TrackPrefill, in.override.trackPrefill)
	// A decode worker that is handed the prompt's cache computes nothing of it; otherwise it works like any other.
	if rq := q.Request; rq != nil && p.role == kvcost.Decode && (len(rq.PrefillResult) > 0 || rq.BootstrapInfo != nil) {
		cq.Role, cq.TrackPrefill = kvcost.Decode, false
	}
	return cq
}

// lay lists the ranks that may be chosen. Candidates come ordered by id, as workers do. The caller holds mu.
func (p *pool) lay(d *desk, q *router.Query, in *prompt, o *overlaps, candidates []router.Candidate) {
	var only *uint32
	if q.Request != nil {
		only = q.Request.Routing.DPRank
	}
	total := int64(0)
	if p.cfg.TrackBlocks {
		total = int64(len(in.sequence))
	}
	d.candidates, d.ranks, d.owners, d.loads = d.candidates[:0], d.ranks[:0], d.owners[:0], d.loads[:0]
	at := 0
	for i := range candidates {
		id := candidates[i].Instance.InstanceID
		if at > 0 && at <= len(p.workers) && p.workers[at-1].id >= id {
			at = 0 // not in order after all
		}
		for at < len(p.workers) && p.workers[at].id < id {
			at++
		}
		if at == len(p.workers) || p.workers[at].id != id {
			continue
		}
		m := &p.workers[at]
		for _, k := range m.ranks {
			if only != nil && k.at.Rank != *only {
				continue
			}
			c := kvcost.Candidate{Worker: id, Rank: k.at.Rank, Taints: m.taints}
			if s := k.cacheSlot; s >= 0 && s < len(o.device) {
				c.Device, c.Host, c.Disk = o.device[s], o.host[s], o.disk[s]
			}
			load := k.load
			if load.AdditionalBlocks = total; k.activeSlot >= 0 && k.activeSlot < len(d.active) {
				load.AdditionalBlocks -= int64(d.active[k.activeSlot])
			}
			d.candidates, d.ranks, d.owners, d.loads = append(d.candidates, c), append(d.ranks, k), append(d.owners, i), append(d.loads, load)
		}
	}
	for i := range d.candidates { // only now do the loads stay where they are
		d.candidates[i].Load = &d.loads[i]
	}
}

// nobody is for requests that no rank is known for: none has the number that the client wants, or discovery has just
// changed, and any candidate will do.
func (p *pool) nobody(q *router.Query, candidates []router.Candidate) (router.Choice, error) {
	if q.Request != nil && q.Request.Routing.DPRank != nil {
		return router.Choice{}, fault.Bad("dp_rank", "no worker available to the request has the data-parallel rank %d",
			*q.Request.Routing.DPRank)
	}
	return router.Choice{Index: q.Random(len(candidates))}, nil
}

// refusal is the client's view of why there is no choice.
func refusal(err error) error {
	if errors.Is(err, kvcost.ErrNoEndpoints) {
		return fault.New(fault.Unavailable, "No workers available").Because(err)
	}
	return fault.New(fault.Internal, "The request could not be routed").Because(err)
}

// note counts what a choice hopes for. The caller holds mu.
func (p *pool) note(d *desk, in *prompt, c kvcost.Choice) {
	best := uint32(0)
	for i := range d.candidates {
		best = max(best, d.candidates[i].Device)
	}
	cached := min(c.Cached, in.tokens)
	p.metrics.selected.Add(float64(cached))
	p.metrics.best.Add(float64(max(min(int(best)*p.layout.BlockSize, in.tokens), cached)))
	if in.tokens > 0 {
		p.metrics.hitRate.Observe(float64(cached) / float64(in.tokens))
	}
}
