package pipeline

import (
	"context"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/internal/admission"
	"github.com/portico-llm/portico/internal/catalog"
)

// bytesPerToken is a rough guess: lengths of prompts are wanted before anything is tokenised.
const bytesPerToken = 4

// enter waits until the request may go on, which is decided before anything is rendered or tokenised. What comes out is
// out's to leave: Run does, as does a failure of what follows; whatever happens, the place is free when ctx ends.
func (p *Pipeline) enter(ctx context.Context, out *Prepared, c *openai.Common, tokens int) error {
	p.series.note(c.Model)
	if err := p.constrain(out, c.NvExt); err != nil || p.gate == nil {
		return err
	}
	r := admission.Request{Model: out.Set.Card.DisplayName, Tokens: tokens}
	priority, strict := urgency(&out.Meta, c.NvExt)
	if priority != nil {
		r.Priority = *priority
	}
	if strict != nil {
		r.Strict = *strict
	}
	r.Workers = p.workersOf(out.Set)
	ctx, span := p.tracer.Start(ctx, "admission")
	defer span.End()
	place, err := p.gate.Enter(ctx, &r)
	if err != nil {
		endWith(span, err)
		return err
	}
	if place == nil {
		return nil // nothing is counted
	}
	out.place = place
	out.unwatch = context.AfterFunc(ctx, place.Leave)
	return nil
}

// workersOf says what the workers of a set can take, or nil when nobody knows.
func (p *Pipeline) workersOf(set *catalog.Set) func(pending int64) admission.State {
	if p.workers == nil {
		return nil
	}
	return p.workers(set)
}

// leave gives the request's place back, if it has one. It may be called again.
func (r *Prepared) leave() {
	if r.place != nil {
		r.unwatch()
		r.place.Leave()
	}
}

// leaveAfter gives the place back when preparing has failed.
func leaveAfter(r *Prepared, err *error) {
	if *err != nil {
		r.leave()
	}
}

// urgency is how a request stands to others: what its body says goes before the headers.
func urgency(meta *Meta, x *openai.NvExt) (priority *int32, strict *uint32) {
	priority, strict = meta.Priority, meta.StrictPriority
	if x != nil && x.AgentHints != nil {
		override(&priority, x.AgentHints.Priority)
		override(&strict, x.AgentHints.StrictPriority)
	}
	return priority, strict
}

// promptTokens guesses the number of tokens of a completion's prompts.
func promptTokens(req *openai.CompletionRequest) (n int) {
	if x := req.NvExt; x != nil && x.TokenData != nil {
		return len(x.TokenData)
	}
	for _, ids := range req.Prompt.Tokens {
		n += len(ids)
	}
	for _, text := range req.Prompt.Texts {
		n += len(text) / bytesPerToken
	}
	return n
}

// chatTokenCount guesses the number of tokens of a conversation. Media inside it count as text, which is too much.
func chatTokenCount(req *openai.ChatRequest) int {
	if x := req.NvExt; x != nil && x.TokenData != nil {
		return len(x.TokenData)
	}
	return len(req.Messages) / bytesPerToken
}

// inputTokens guesses the number of tokens of a task's inputs.
func inputTokens(req *openai.TaskRequest) (n int) {
	for _, ids := range req.Input.Tokens {
		n += len(ids)
	}
	for _, text := range req.Input.Texts {
		n += len(text) / bytesPerToken
	}
	return n
}
