package kvroute

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/constraint"
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
	without []int32            // ranks that may not be chosen, by place in the roster
	out     []int32            // their members
	list    []kvcost.Candidate // those that may, where a list of them is needed
	at      []int32            // their places in the roster
	owners  []int32            // their instances among the router's candidates
	active  []uint32           // by slot
	guessed []uint32           // by slot
	device  []uint32           // by place in the roster
	scratch kvcost.Scratch
	best    uint32 // most blocks that any rank has on its device
}

// overlaps are what the index says, by slot.
type overlaps struct {
	device, host, disk []uint32
	lower              bool // some may have blocks below the device
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
	if in.local, in.sequence, err = h.Both(room[:0:n], room[n:n:2*n], tokens, layout); err != nil {
		return nil, fault.New(fault.Internal, "The prompt could not be routed").Because(err)
	}
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
	o.lower = p.index.MatchLower(in.sequence, o.device, o.host, o.disk)
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
	reuse := p.cfg.AssumeReuse
	put(&reuse, in.override.assumeReuse)

	p.mu.Lock()
	defer p.mu.Unlock()
	c, at, owner := p.assess(q, cq, in, o, reuse, candidates)
	if at < 0 {
		return p.nobody(q, candidates)
	}
	k := p.roster.ranks[at]
	p.note(&p.desk, in, c)
	t := p.place(&request{
		pool: p, rank: k, id: q.RequestID, path: in.sequence, shared: reuse, tokens: in.tokens,
		prefill: int64(max(in.tokens-c.Cached, 0)), track: cq.TrackPrefill, cached: c.Cached,
	})
	// Before the next request is weighed: it may begin alike. That there is no room is counted by the index.
	if !p.cfg.Events {
		_ = p.index.Insert(k.at, in.local)
	} else if p.guess != nil {
		_ = p.guess.Insert(k.at, in.local)
	}
	return router.Choice{Index: owner, Rank: &k.at.Rank, Ticket: t}, nil
}

// assess looks at what each rank has cached and to do, and weighs them, as weigh has it. The caller holds mu.
func (p *pool) assess(
	q *router.Query, cq *kvcost.Query, in *prompt, o *overlaps, reuse bool, candidates []router.Candidate,
) (c kvcost.Choice, at, owner int) {
	cfg := p.cfg.Cost.With(&in.override.cost)
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
	if p.guess != nil {
		o.view.guess = p.guess.View()
		d.guessed = sized(d.guessed, o.view.guess.Slots())
		p.guess.Match(in.local, d.guessed)
	}
	p.look(o.view)
	p.gather(in, o)
	return p.weigh(q, cq, &cfg, o, candidates)
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
	// Taints that are required have narrowed the candidates already. A request that can't be read was refused.
	if q.Request != nil && len(q.Request.Routing.Constraints) > 0 {
		wants, _ := constraint.Parse(q.Request.Routing.Constraints)
		for name, weight := range wants.Preferred {
			cq.Preferred = append(cq.Preferred, kvcost.Taint{Name: name, Weight: weight})
		}
	}
	// A decode worker that is handed the prompt's cache computes nothing of it; otherwise it works like any other.
	if rq := q.Request; rq != nil && p.role == kvcost.Decode && (len(rq.PrefillResult) > 0 || rq.BootstrapInfo != nil) {
		cq.Role, cq.TrackPrefill = kvcost.Decode, false
	}
	return cq
}

// gather writes into the roster's columns what this request finds at each rank, with what was sent there a moment ago
// counted as cached. The caller holds mu: the request before this one is in the books already.
func (p *pool) gather(in *prompt, o *overlaps) {
	total := int64(0)
	if p.cfg.TrackBlocks {
		total = int64(len(in.sequence))
	}
	r, d := &p.roster, &p.desk
	n := len(r.loads)
	d.device = sized(d.device, n)
	cache, active, device, best := r.cache[:n], r.active[:n], d.device[:n], uint32(0)
	for i := range r.loads {
		blocks, more := uint32(0), total
		if s := uint32(cache[i]); int(s) < len(o.device) { // -1 is beyond any length
			blocks = o.device[s]
		}
		if s := uint32(active[i]); int(s) < len(d.active) {
			more -= int64(d.active[s])
		}
		device[i], r.loads[i].AdditionalBlocks = blocks, more
		best = max(best, blocks)
	}
	if p.guess != nil {
		for i, s := range r.guess {
			if uint32(s) < uint32(len(d.guessed)) {
				device[i] = max(device[i], d.guessed[s])
				best = max(best, device[i])
			}
		}
	}
	d.best = best
}

// weigh chooses a rank and returns its place in the roster, -1 if there is none to choose, and whose it is among the
// router's candidates. Nearly always columns are enough, and candidates needn't be written. The caller holds mu.
func (p *pool) weigh(
	q *router.Query, cq *kvcost.Query, cfg *kvcost.Config, o *overlaps, candidates []router.Candidate,
) (c kvcost.Choice, at, owner int) {
	d := &p.desk
	part := p.part(q, candidates)
	if part && !o.lower {
		cols := kvcost.Columns{Loads: p.roster.loads, Device: d.device, Without: d.without}
		if c, ok := kvcost.ChooseColumns(cq, cfg, &cols, p.rng, &d.scratch); ok {
			d.leave()
			return c, c.Index, p.owner(c.Index)
		}
	}
	all := part && len(d.without) == 0
	if !all {
		p.pick(q, candidates)
	}
	c, ok := kvcost.Choose(cq, cfg, p.fill(o, all), p.rng, &d.scratch)
	switch {
	case !ok:
		return c, -1, 0
	case all:
		return c, c.Index, p.owner(c.Index)
	}
	return c, int(d.at[c.Index]), int(d.owners[c.Index])
}

// leave makes best that of the ranks that may be chosen.
func (d *desk) leave() {
	lost := false
	for _, at := range d.without {
		lost = lost || d.device[at] == d.best
	}
	if !lost {
		return
	}
	best, from := uint32(0), 0
	for _, at := range d.without {
		for _, n := range d.device[from:at] {
			best = max(best, n)
		}
		from = int(at) + 1
	}
	for _, n := range d.device[from:] {
		best = max(best, n)
	}
	d.best = best
}

// fill writes out the candidates, all or those picked. The caller holds mu and has gathered.
func (p *pool) fill(o *overlaps, all bool) []kvcost.Candidate {
	r, d := &p.roster, &p.desk
	for i := range r.candidates {
		c := &r.candidates[i]
		c.Device, c.Host, c.Disk = d.device[i], 0, 0
		if s := uint32(r.cache[i]); o.lower && int(s) < len(o.host) {
			c.Host, c.Disk = o.host[s], o.disk[s]
		}
	}
	if all {
		return r.candidates
	}
	d.list = d.list[:0]
	for _, at := range d.at {
		d.list = append(d.list, r.candidates[at])
	}
	return d.list
}

// part reports whether the router's candidates are workers of the roster, in its order, and the client wants no rank in
// particular. Nearly always that is so, and few workers aren't among them: those, and their ranks, are noted on the desk.
// The caller holds mu.
func (p *pool) part(q *router.Query, candidates []router.Candidate) bool {
	r, d := &p.roster, &p.desk
	d.without, d.out = d.without[:0], d.out[:0]
	if q.Request != nil && q.Request.Routing.DPRank != nil {
		return false
	}
	i := 0
	for at, in := range r.instances {
		if i < len(candidates) && candidates[i].Instance == in {
			i++
			continue
		}
		if len(candidates)-i >= len(r.instances)-at { // more than could follow
			return false
		}
		d.out = append(d.out, int32(at))
		for k := r.members[at].from; k < r.members[at].to; k++ {
			d.without = append(d.without, int32(k))
		}
	}
	return i == len(candidates)
}

// holder returns whose rank one is, as a member of the roster.
func (r *roster) holder(at int) *member {
	i, found := slices.BinarySearchFunc(r.members, at, func(m member, at int) int { return cmp.Compare(m.from, at) })
	if !found {
		i-- // the last that begins before it
	}
	return &r.members[i]
}

// owner returns whose rank one is, as a place among the router's candidates, of which part has spoken. The caller holds mu.
func (p *pool) owner(at int) int {
	i, found := slices.BinarySearchFunc(p.roster.members, at, func(m member, at int) int { return cmp.Compare(m.from, at) })
	if !found {
		i-- // the last that begins before it
	}
	before, _ := slices.BinarySearch(p.desk.out, int32(i))
	return i - before
}

// pick lists the ranks that may be chosen, where those aren't all. Candidates come ordered by id, as members do. The
// caller holds mu.
func (p *pool) pick(q *router.Query, candidates []router.Candidate) {
	var only *uint32
	if q.Request != nil {
		only = q.Request.Routing.DPRank
	}
	r, d := &p.roster, &p.desk
	d.at, d.owners, d.best = d.at[:0], d.owners[:0], 0
	at := 0
	for i := range candidates {
		in := candidates[i].Instance
		if at == len(r.instances) || r.instances[at] != in { // mostly it is just the next
			var ok bool
			if at, ok = r.seek(at, in.InstanceID); !ok {
				continue
			}
		}
		for k := r.members[at].from; k < r.members[at].to; k++ {
			if only == nil || r.ranks[k].at.Rank == *only {
				d.at, d.owners = append(d.at, int32(k)), append(d.owners, int32(i))
				d.best = max(d.best, d.device[k])
			}
		}
		at++
	}
}

// seek returns the place of a member by id, looking on from a place behind the member before it. Where there is none, it
// returns where to look on.
func (r *roster) seek(at int, id uint64) (place int, ok bool) {
	if at > 0 && r.instances[at-1].InstanceID >= id {
		at = 0 // not in order after all
	}
	for at < len(r.instances) && r.instances[at].InstanceID < id {
		at++
	}
	return at, at < len(r.instances) && r.instances[at].InstanceID == id
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

// note counts what a choice hopes for. The caller holds mu.
func (p *pool) note(d *desk, in *prompt, c kvcost.Choice) {
	cached := min(c.Cached, in.tokens)
	p.metrics.selected.Add(float64(cached))
	p.metrics.best.Add(float64(max(min(int(d.best)*p.layout.BlockSize, in.tokens), cached)))
	if in.tokens > 0 {
		p.metrics.hitRate.Observe(float64(cached) / float64(in.tokens))
	}
}
