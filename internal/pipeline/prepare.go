package pipeline

import (
	"context"
	"strconv"
	"time"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/prepost"
)

// PrepareChat renders, tokenises and maps a validated chat request into what the set's workers take. It reads req and
// the body behind it, also in the result: both have to stay as they are until the request has been dispatched.
// Failures are *fault.Error, or ctx's error when it ended first.
func (p *Pipeline) PrepareChat(
	ctx context.Context, set *catalog.Set, meta Meta, req *openai.ChatRequest,
) (out *Prepared, err error) {
	out = newPrepared(set, meta, &req.Common)
	out.Chat = true
	// Counted before anything here can refuse the request: the metric tells what clients ask for.
	p.prepare.countMedia(req.Model, req.Conversation.Media)
	out.bulkiest = bulkiest(req.Conversation.Media)
	if err := p.enter(ctx, out, &req.Common, chatTokenCount(req)); err != nil {
		return nil, err
	}
	defer leaveAfter(out, &err)
	defer p.stages.leave(p.stages.enter())
	// Workers that take text have their own template and tokenizer.
	if set.TakesText() {
		out.Raw = req.Forward()
		return out, nil
	}
	ids, tail, err := p.chatTokens(ctx, out, req)
	if err != nil {
		return nil, err
	}
	// Mapping follows tokenising, so that a conversation the template refuses is reported as that.
	q, err := chatRequest(set, &out.Meta, req)
	if err != nil {
		return nil, err
	}
	// No engine can start from nothing.
	if q.TokenIDs = ids; len(ids) == 0 {
		return nil, fault.Bad("messages", "`messages` render to an empty prompt").WithCode("invalid_value")
	}
	// Chat leaves an absent max_tokens to the worker, which knows its context.
	if err := fitBudget(set, q, "messages", false); err != nil {
		return nil, err
	}
	p.planAnswer(out, q, req, tail)
	out.Images = p.images(set, req)
	p.prepare.inputTokens(req.Model, len(ids))
	out.Requests = []*worker.Request{q}
	return out, nil
}

// PrepareCompletion tokenises and maps a validated completion request; see PrepareChat. Prompts of a batch become
// requests of their own, in order.
func (p *Pipeline) PrepareCompletion(
	ctx context.Context, set *catalog.Set, meta Meta, req *openai.CompletionRequest,
) (out *Prepared, err error) {
	out = newPrepared(set, meta, &req.Common)
	if err := p.enter(ctx, out, &req.Common, promptTokens(req)); err != nil {
		return nil, err
	}
	defer leaveAfter(out, &err)
	defer p.stages.leave(p.stages.enter())
	if set.TakesText() {
		out.Raw = req.Forward()
		return out, nil
	}
	// Every prompt is tokenised before any is mapped: a batch is refused as a whole.
	prompts, err := p.completionTokens(ctx, set, req)
	if err != nil {
		return nil, err
	}
	if isOn(req.Echo) && req.PromptEmbeds == nil {
		if out.Echo, err = echoed(set, req, prompts); err != nil {
			return nil, err
		}
	}
	first := completionRequest(set, &out.Meta, req)
	out.Requests = make([]*worker.Request, len(prompts))
	for i, ids := range prompts {
		q := *first // the prompts of a batch share all but their tokens
		q.TokenIDs = ids
		if err := fitBudget(set, &q, promptPath(&req.Prompt, i), true); err != nil {
			return nil, err
		}
		p.prepare.inputTokens(req.Model, len(ids))
		out.Requests[i] = &q
	}
	return out, nil
}

// echoed returns the texts of the prompts, as sent or as their tokens read.
func echoed(set *catalog.Set, req *openai.CompletionRequest, prompts [][]uint32) ([]string, error) {
	if x := req.NvExt; len(req.Prompt.Texts) == len(prompts) && (x == nil || x.TokenData == nil) {
		return req.Prompt.Texts, nil
	}
	out := make([]string, len(prompts))
	for i, ids := range prompts {
		var err error
		if out[i], err = set.Tokenizer.Decode(ids, false); err != nil {
			return nil, errDecode.Because(err)
		}
	}
	return out, nil
}

// newPrepared fills in what doesn't depend on the prompt. The body's choice of a worker comes before the header's; a
// decode worker is the one that answers, so naming it pins the request too.
func newPrepared(set *catalog.Set, meta Meta, c *openai.Common) *Prepared {
	out := &Prepared{Set: set, Model: c.Model, Meta: meta, Choices: 1}
	if c.N != nil {
		out.Choices = int(*c.N)
	}
	// Later assignments win: header, then the body's decode worker, then the body's instance.
	out.Pin = meta.BackendInstanceID
	if x := c.NvExt; x != nil {
		switch {
		case x.BackendInstanceID != nil:
			out.Pin = x.BackendInstanceID
		case x.DecodeWorkerID != nil:
			out.Pin = x.DecodeWorkerID
		}
	}
	return out
}

// chatTokens returns the prompt's tokens, those the client brought or the rendered conversation's, and the end of its
// text where the answer's parsers want to see it.
func (p *Pipeline) chatTokens(
	ctx context.Context, out *Prepared, req *openai.ChatRequest,
) (ids []uint32, tail string, err error) {
	set, x := out.Set, req.NvExt
	if x != nil && x.TokenData != nil {
		if err := checkTokens(set.Tokenizer, x.TokenData, "nvext.token_data"); err != nil {
			return nil, "", err
		}
		if set.ReasoningParser != "" {
			// Only the parsers would miss it.
			tail, _ = set.Tokenizer.Decode(x.TokenData[max(len(x.TokenData)-tailTokens, 0):], false)
		}
		return x.TokenData, tail, nil
	}
	// Only what an annotation asks for is kept: prompts are large, and streams are long.
	prompt, err := p.render(ctx, set, req)
	if err != nil {
		return nil, "", err
	}
	if x.Wants("formatted_prompt") {
		out.Prompt = prompt
	}
	if set.ReasoningParser != "" {
		tail = promptTail(prompt, req)
	}
	if err := p.fitText(set, prompt, "messages"); err != nil {
		return nil, "", err
	}
	ids, err = p.tokenise(ctx, set.Tokenizer, prompt)
	return ids, tail, err
}

// render applies the model's template to the conversation.
func (p *Pipeline) render(ctx context.Context, set *catalog.Set, req *openai.ChatRequest) (string, error) {
	// Base models have none; their prompt is what the client writes.
	if set.Renderer == nil {
		return "", fault.Bad("model", "model %q has no chat template; use /v1/completions", req.Model)
	}
	// Blocks until the renderer has room and has rendered, each within its time-out.
	ctx, span := p.tracer.Start(ctx, "prepost.render")
	defer span.End()
	// One clock for the metric and for what the template takes as now.
	begin := time.Now()
	in := prepost.ChatInput{
		Messages:             req.Messages,
		Tools:                templateTools(set, req),
		Documents:            req.Documents,
		Kwargs:               p.chatKwargs(set, req),
		AddGenerationPrompt:  req.AddGenerationPrompt == nil || *req.AddGenerationPrompt,
		ContinueFinalMessage: isOn(req.ContinueFinal),
		Now:                  begin,
	}
	prompt, err := set.Renderer.Render(ctx, &in)
	p.prepare.template.Observe(time.Since(begin).Seconds())
	if err != nil {
		endWith(span, err)
		return "", err
	}
	return prompt, nil
}

// tokenise encodes a prompt. The template has put the special tokens where they belong, so none are added; completion
// prompts are taken as literally.
func (p *Pipeline) tokenise(ctx context.Context, tokenizer prepost.Tokenizer, text string) ([]uint32, error) {
	return p.tokeniseAs(ctx, tokenizer, text, false)
}

// tokeniseAs encodes a text, with or without the special tokens the model puts around one.
func (p *Pipeline) tokeniseAs(
	ctx context.Context, tokenizer prepost.Tokenizer, text string, special bool,
) ([]uint32, error) {
	ctx, span := p.tracer.Start(ctx, "prepost.tokenise")
	defer span.End()
	begin := time.Now()
	// Blocks until the executor has room or ctx ends.
	ids, err := tokenizer.Encode(ctx, text, special)
	// Waiting for the executor counts: it is what the client notices.
	took := time.Since(begin)
	p.prepare.tokenise.Observe(took.Seconds())
	p.prepare.latency.Observe(float64(took) / float64(time.Millisecond))
	if err != nil {
		endWith(span, err)
		return nil, err
	}
	// Attributes are boxed, which an unrecorded span needn't pay for.
	if span.IsRecording() {
		span.SetAttributes(inputTokensAttr.Int(len(ids)))
	}
	return ids, nil
}

// completionTokens returns the tokens of each prompt of a completion request.
func (p *Pipeline) completionTokens(
	ctx context.Context, set *catalog.Set, req *openai.CompletionRequest,
) ([][]uint32, error) {
	// Token ids brought along stand for the whole prompt, as in chat.
	if x := req.NvExt; x != nil && x.TokenData != nil {
		return [][]uint32{x.TokenData}, checkTokens(set.Tokenizer, x.TokenData, "nvext.token_data")
	}
	// The worker gets the tensor in place of tokens.
	if req.PromptEmbeds != nil {
		return [][]uint32{{}}, nil
	}
	// Ids are used as they are, unchecked for emptiness: that has been validated.
	if len(req.Prompt.Tokens) > 0 {
		for i, ids := range req.Prompt.Tokens {
			if err := checkTokens(set.Tokenizer, ids, promptPath(&req.Prompt, i)); err != nil {
				return nil, err
			}
		}
		return req.Prompt.Tokens, nil
	}
	// One after the other: the executor of the model's tokenizer bounds how many run at once over all requests, and a
	// batch is not to take more than its share.
	out := make([][]uint32, len(req.Prompt.Texts))
	for i, text := range req.Prompt.Texts {
		if err := p.fitText(set, text, promptPath(&req.Prompt, i)); err != nil {
			return nil, err
		}
		ids, err := p.tokenise(ctx, set.Tokenizer, text)
		if err != nil {
			return nil, err
		}
		if len(ids) == 0 {
			at := promptPath(&req.Prompt, i)
			return nil, fault.Bad(at, "`%s` has no tokens", at).WithCode("invalid_value")
		}
		out[i] = ids
	}
	return out, nil
}

// promptPath is the JSON path of prompt i.
func promptPath(p *openai.Prompt, i int) string {
	if p.Batch {
		return "prompt[" + strconv.Itoa(i) + "]"
	}
	return "prompt"
}

// checkTokens refuses ids outside the vocabulary: a worker may not survive them. path is the JSON path of the array.
func checkTokens(tokenizer prepost.Tokenizer, ids []uint32, path string) error {
	// VocabSize counts added tokens too, so every id the tokenizer itself gives passes.
	size := tokenizer.VocabSize()
	for i, id := range ids {
		if int64(id) >= int64(size) {
			at := path + "[" + strconv.Itoa(i) + "]"
			return fault.Bad(at, "`%s` must be a token id below %d, the size of the vocabulary, not %d", at, size, id).
				WithCode("invalid_value")
		}
	}
	return nil
}
