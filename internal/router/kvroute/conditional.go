package kvroute

import (
	"fmt"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/kvcost"
)

// Conditional says when a decode worker reads a prompt itself although there are prefill workers: where little of it is
// left to be computed, or where the prefill workers are busy. Policies, thresholds and what they are compared with are
// those of Dynamo's routers.
type Conditional struct {
	On     bool
	Policy string // PolicyISL, PolicyLoad, PolicyEither

	// Of what the decode worker hasn't cached: fewer tokens than Tokens and less of the prompt than Share.
	Tokens int
	Share  float64

	// PrefillBusy is the multiple of a batch's tokens in prefill beyond which the prefill worker is busy; nil: it never is.
	PrefillBusy *float64
	// DecodeBusy is the share of its KV blocks, this request's included, beyond which a decode worker is spared; nil: it
	// never is.
	DecodeBusy *float64
}

// The policies.
const (
	PolicyISL    = "isl_bounding" // little is left to be computed
	PolicyLoad   = "prefill_load" // the prefill worker is busy
	PolicyEither = "isl_or_load"
)

// DefaultConditional returns what holds when nothing is configured.
func DefaultConditional() Conditional {
	return Conditional{Policy: PolicyISL, Tokens: 2048, Share: 0.7}
}

// Check refuses what makes no sense.
func (c Conditional) Check() error {
	switch c.Policy {
	case PolicyISL, PolicyLoad, PolicyEither:
	default:
		return fmt.Errorf("conditional disaggregation policy %q; known: %s, %s, %s", c.Policy, PolicyISL, PolicyLoad, PolicyEither)
	}
	if c.On && c.Policy != PolicyISL && c.PrefillBusy == nil {
		return fmt.Errorf("conditional disaggregation policy %s needs prefill_busy_threshold, or a queue threshold", c.Policy)
	}
	return nil
}

// preview is what a choice would come to.
type preview struct {
	tokens   int   // of the prompt
	cached   int   // of them where it would go
	decoding int64 // blocks there, with the prompt's
	prefill  int64 // tokens in prefill there, without the prompt's
	blocks   uint64
	batch    uint64 // capacities of the worker; 0: it doesn't say
}

// short reports whether little of a prompt is left to be computed at the decode worker.
func (c *Conditional) short(at *preview) bool {
	left := max(at.tokens-at.cached, 0)
	return left < c.Tokens && float64(left)/float64(max(at.tokens, 1)) < c.Share
}

// defaultBatch is the number of tokens of a batch where a worker doesn't say.
const defaultBatch = 8192

// loaded reports whether a prefill worker has enough to do.
func (c *Conditional) loaded(at *preview) bool {
	batch := float64(at.batch)
	if batch == 0 {
		batch = defaultBatch
	}
	return c.PrefillBusy != nil && float64(at.prefill) > *c.PrefillBusy*batch
}

// full reports whether a decode worker is to be spared. One that doesn't say how much it holds isn't.
func (c *Conditional) full(at *preview) bool {
	return c.DecodeBusy != nil && at.blocks > 0 && float64(at.decoding) > *c.DecodeBusy*float64(at.blocks)
}

// alone decides. prefill is asked only where it matters; it is false when nobody can say.
func (c *Conditional) alone(decode *preview, prefill func() (*preview, bool)) bool {
	wants := c.Policy != PolicyLoad && c.short(decode)
	if !wants && c.Policy != PolicyISL {
		at, ok := prefill()
		wants = ok && c.loaded(at)
	}
	return wants && !c.full(decode)
}

// Look calls a function with what a call could be sent to now, and who would choose. It fails when there is nothing.
type Look func(func(c router.Chooser, q *router.Query, candidates []router.Candidate)) error

// Alone reports whether a worker of an endpoint that decodes had better read a prompt itself, by the endpoint's
// configuration. Endpoints in other modes have none. Nobody is looked at unless it matters.
func (r *Router) Alone(id worker.EndpointID, decode, prefill Look) bool {
	p := r.pool(id)
	if p == nil || !p.cfg.Conditional.On {
		return false
	}
	at := foresee(decode)
	if at == nil {
		return false
	}
	return p.cfg.Conditional.alone(at, func() (*preview, bool) {
		at := foresee(prefill)
		return at, at != nil
	})
}

// foresee returns what a choice would come to; nil when it isn't one of this package.
func foresee(look Look) (at *preview) {
	// That nobody can take it is found out, and told, by sending it.
	_ = look(func(c router.Chooser, q *router.Query, candidates []router.Candidate) {
		if p, ok := c.(*pool); ok {
			at = p.foresee(q, candidates)
		}
	})
	return at
}

// foresee makes a choice and forgets it.
func (p *pool) foresee(q *router.Query, candidates []router.Candidate) *preview {
	in, err := p.prompt(q)
	if err != nil {
		return nil
	}
	o := rooms.Get().(*overlaps)
	defer func() { o.view = views{}; rooms.Put(o) }()
	p.match(in, o)
	cq, reuse := p.query(q, in), p.cfg.AssumeReuse
	put(&reuse, in.override.assumeReuse)

	p.mu.Lock()
	defer p.mu.Unlock()
	c, at, _ := p.assess(q, cq, in, o, reuse, candidates)
	if at < 0 {
		return nil
	}
	m := p.roster.holder(at)
	return &preview{
		tokens: in.tokens, cached: min(c.Cached, in.tokens), decoding: decoding(&p.roster.loads[at]),
		prefill: p.roster.loads[at].PrefillTokens, blocks: m.blocks, batch: m.batch,
	}
}

// decoding is how many blocks a rank would have at work with the request's.
func decoding(l *kvcost.Load) int64 { return l.DecodeBlocks + l.AdditionalBlocks }
