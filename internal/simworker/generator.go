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
	// A missing n, and zero, ask for one choice.
	n := 1
	if p := req.Tokens.Sampling.N; p != nil {
		n = max(1, int(*p))
	}
	choices := make([]*choice, n)
	for i := range choices {
		choices[i] = g.newChoice(req.Tokens, i)
	}
	// The prefill: it grows with the prompt and is spent once, however many choices there are.
	var p pace
	if err := p.wait(ctx, g.Timing.first(len(req.Tokens.TokenIDs), choices[0].random)); err != nil {
		return err
	}
	// One item serves all steps: Send encodes it before it returns.
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
		// One wait a step, not one a token: engines decode their whole batch in one pass.
		if err := p.wait(ctx, g.Timing.gap(len(req.Tokens.TokenIDs)+step, choices[0].random)); err != nil {
			return err
		}
	}
}

// choice is one answer under way. For the goroutine that runs Generate.
type choice struct {
	index    uint32 // from 0 to n-1
	request  *worker.Request
	source   Source
	filler   []uint32              // see Generator
	next     func() (uint32, bool) // the source's next token; false at its end
	random   *rand.Rand            // of this choice alone
	max, min int                   // tokens; the end token counts
	produced int                   // tokens sent so far
	eos      []uint32              // what the natural end sends
	stops    []uint32              // ids that end the answer
	endless  bool                  // ignore_eos
	done     bool
}

// newChoice reads what the request says about one of its choices. The index is part of the seed: what is drawn differs
// between choices, and a request that comes again gets the same answers.
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
	// The lists say what clients see of a stop token. That is the frontend's part: here all of them end the answer.
	c.stops = slices.Concat(req.EOSTokenIDs, s.StopTokenIDs, s.StopTokenIDsVisible, s.StopTokenIDsHidden)
	// A request that names no end tokens may still hide some from its client: those that end the model's turns.
	if len(c.eos) == 0 {
		c.eos = s.StopTokenIDsHidden
	}
	// Without a seed in the request its prompt takes the place: equal prompts get equal answers.
	seed := promptHash(req.TokenIDs)
	if req.Sampling.Seed != nil {
		seed = uint64(*req.Sampling.Seed)
	}
	c.random = rand.New(rand.NewPCG(g.Seed^uint64(index), seed))
	c.next = c.source.Tokens(req, index, c.random)
	return c
}

// step fills it with the next token, and with the finish reason when that is the last. An id that stops the answer is
// sent like any other, as engines do: leaving it out of the text is the frontend's part.
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
	// Stops stand above the length: a stop as the last token allowed is a stop. With ignore_eos no id ends the answer.
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
		// Models without an end token just end.
		return 0, false
	case len(c.filler) > 0:
		return c.filler[c.produced%len(c.filler)], true
	}
	// Nothing to fill up with: the source begins again, and its first token comes next. When there is none at all the
	// answer ends, whatever was asked for.
	c.next = c.source.Tokens(c.request, int(c.index), c.random)
	return c.next()
}

// logprobs adds log probabilities, when asked: made up, with the token itself as the first and likeliest entry.
func (c *choice) logprobs(o *worker.Output, id uint32) {
	want := c.request.Output.Logprobs
	if want == nil {
		return
	}
	// The token itself gets at least half, each alternative half of what is left: the ranks fall and add up to less than
	// one, as a real distribution cut off after some ranks does.
	p := 0.5 + c.random.Float64()/2
	o.LogProbs = append(o.LogProbs, math.Log(p))
	var top []worker.TopLogProb
	rest := 1 - p
	for rank := range *want {
		alternative := id
		if rank > 0 {
			alternative = id ^ rank // another id close by, never the token itself
			p = rest / 2
			rest -= p
		}
		top = append(top, worker.TopLogProb{Rank: rank + 1, TokenID: alternative, LogProb: math.Log(p)})
	}
	o.TopLogProbs = append(o.TopLogProbs, top)
}
