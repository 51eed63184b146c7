package simworker

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/portico-llm/portico/api/worker"
)

// Generator is an engine that sends one token after another, from Source at the pace of Timing. It honours max_tokens,
// min_tokens, stop and end-of-sequence ids, ignore_eos, n, logprobs and seed. It needs token requests.
type Generator struct {
	Source    Source
	Timing    Timing
	Seed      uint64 // with the request's own seed or prompt, decides everything drawn at random
	MaxTokens int    // when the request sets no limit; 0 is 256
	// Filler follows when the source has ended but the request wants more (ignore_eos, min_tokens); empty starts the
	// source again.
	Filler []uint32
}

var _ Engine = (*Generator)(nil)

// Admit refuses a request that isn't made of tokens.
func (g *Generator) Admit(req *Request) error {
	if req.Tokens == nil {
		return &worker.Error{Class: "InvalidRequest", Reason: "request.invalid", Message: "this worker takes tokens",
			PublicType: "message", Public: "this worker takes tokens"}
	}
	return nil
}

// Generate implements Engine. Choices are generated side by side, as engines do: every step sends one token of each.
func (g *Generator) Generate(ctx context.Context, req *Request, out Output) error {
	n := 1
	if p := req.Tokens.Sampling.N; p != nil {
		n = max(1, int(*p))
	}
	choices := make([]*choice, n)
	for i := range choices {
		choices[i] = g.newChoice(req.Tokens, i)
	}
	var p pace
	if err := p.wait(ctx, g.Timing.first(len(req.Tokens.TokenIDs), choices[0].random)); err != nil {
		return err
	}
	var it worker.Item
	for step := 0; ; step++ {
		running := false
		for _, c := range choices {
			if c.done {
				continue
			}
			c.step(&it)
			if err := out.Send(&it); err != nil {
				return err
			}
			running = running || !c.done
		}
		if !running {
			return nil
		}
		if err := p.wait(ctx, g.Timing.gap(len(req.Tokens.TokenIDs)+step, choices[0].random)); err != nil {
			return err
		}
	}
}

// choice is one answer under way.
type choice struct {
	index    uint32
	request  *worker.Request
	source   Source
	filler   []uint32
	next     func() (uint32, bool)
	random   *rand.Rand
	max, min int
	produced int
	eos      []uint32 // what the natural end sends
	stops    []uint32 // ids that end the answer
	endless  bool     // ignore_eos
	done     bool
}

// newChoice reads what the request says about one of its choices.
func (g *Generator) newChoice(req *worker.Request, index int) *choice {
	c := &choice{
		index: uint32(index), request: req, source: g.Source, filler: g.Filler,
		max: g.MaxTokens, eos: req.EOSTokenIDs,
	}
	if c.max == 0 {
		c.max = 256
	}
	s := &req.Stop
	if s.MaxTokens != nil {
		c.max = max(1, int(*s.MaxTokens))
	}
	if s.MinTokens != nil {
		c.min = int(*s.MinTokens)
	}
	c.endless = s.IgnoreEOS != nil && *s.IgnoreEOS
	c.stops = slices.Concat(req.EOSTokenIDs, s.StopTokenIDs, s.StopTokenIDsVisible, s.StopTokenIDsHidden)
	if len(c.eos) == 0 {
		c.eos = s.StopTokenIDsHidden
	}
	seed := promptHash(req.TokenIDs)
	if req.Sampling.Seed != nil {
		seed = uint64(*req.Sampling.Seed)
	}
	c.random = rand.New(rand.NewPCG(g.Seed^uint64(index), seed))
	c.next = c.source.Tokens(req, index, c.random)
	return c
}

// step fills it with the next token.
func (c *choice) step(it *worker.Item) {
	it.Reset()
	it.HasData = true
	o := &it.Output
	o.Index = c.index
	id, ok := c.token()
	if !ok { // a natural end without a token for it
		o.FinishReason, c.done = worker.FinishEOS, true
		return
	}
	o.TokenIDs = append(o.TokenIDs, id)
	c.produced++
	c.logprobs(o, id)
	switch {
	case c.produced >= c.min && !c.endless && slices.Contains(c.stops, id):
		o.FinishReason, c.done = worker.FinishStop, true
		if slices.Contains(c.request.EOSTokenIDs, id) {
			o.FinishReason = worker.FinishEOS
		}
	case c.produced >= c.max:
		o.FinishReason, c.done = worker.FinishLength, true
	}
}

// token returns the next token; at the source's end that is an end token, or more text if the request wants more.
func (c *choice) token() (uint32, bool) {
	id, ok := c.next()
	switch {
	case ok:
		return id, true
	case !c.endless && c.produced+1 >= c.min:
		if len(c.eos) > 0 {
			return c.eos[0], true
		}
		return 0, false
	case len(c.filler) > 0:
		return c.filler[c.produced%len(c.filler)], true
	}
	c.next = c.source.Tokens(c.request, int(c.index), c.random)
	return c.next()
}

// logprobs adds log probabilities, when asked: made up, but a valid distribution whose first entry is the token.
func (c *choice) logprobs(o *worker.Output, id uint32) {
	want := c.request.Output.Logprobs
	if want == nil {
		return
	}
	p := 0.5 + c.random.Float64()/2
	o.LogProbs = append(o.LogProbs, math.Log(p))
	var top []worker.TopLogProb
	for rank := range *want {
		alternative := id
		if rank > 0 {
			alternative = id ^ rank // another id close by, never the token itself
			p = (1 - p) / 2
		}
		top = append(top, worker.TopLogProb{Rank: rank + 1, TokenID: alternative, LogProb: math.Log(p)})
	}
	o.TopLogProbs = append(o.TopLogProbs, top)
}
