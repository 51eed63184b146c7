package server

import (
	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/server/reply"
	"github.com/portico-llm/portico/internal/server/validate"
)

// chat answers POST /v1/chat/completions.
func (x *exchange) chat() error {
	body, err := x.s.readBody(x.w, x.r)
	if err != nil {
		return err
	}
	// Shape first: it names the model, and without it there is nothing to look up.
	req, err := openai.DecodeChat(body, x.s.opts.Decode)
	if err != nil {
		return err
	}
	set, err := x.lookup(&req.Common)
	if fault.KindOf(err) == fault.Unavailable {
		return err // known but not ready: said before anything is said of the request
	}
	// A mistake in the request is reported ahead of an unknown model, whose failure waits in err.
	if err := validate.Chat(req, x.s.opts.Validate); err != nil {
		return err
	}
	if err != nil {
		return err
	}
	opts := x.options("chatcmpl-", &req.Common)
	opts.Chat = true
	opts.ReasoningField = x.s.opts.ReasoningField
	opts.LogProbs = on(req.Logprobs)
	if req.TopLogprobs != nil {
		opts.TopLogProbs = int(*req.TopLogprobs)
	}
	// Named by the GenAI conventions.
	x.describe(&req.Common, "chat", req.TokenLimit())
	// The prepared request still refers to the body, which is why bodies are left to the collector and not pooled.
	prepared, err := x.s.opts.Pipeline.PrepareChat(x.r.Context(), set, x.meta, req)
	if err != nil {
		return err
	}
	return x.answer(prepared, x.completionForm(opts))
}

// completions answers POST /v1/completions.
func (x *exchange) completions() error {
	body, err := x.s.readBody(x.w, x.r)
	if err != nil {
		return err
	}
	req, err := openai.DecodeCompletion(body, x.s.opts.Decode)
	if err != nil {
		return err
	}
	set, err := x.lookup(&req.Common)
	if fault.KindOf(err) == fault.Unavailable {
		return err
	}
	// The same order as in chat.
	if err := validate.Completion(req, x.s.opts.Validate); err != nil {
		return err
	}
	if err != nil {
		return err
	}
	opts := x.options("cmpl-", &req.Common)
	if req.Logprobs != nil {
		// One field where chat has two: 0 asks for the tokens drawn and no others.
		opts.LogProbs, opts.TopLogProbs = true, int(*req.Logprobs)
	}
	x.describe(&req.Common, "text_completion", req.MaxTokens)
	prepared, err := x.s.opts.Pipeline.PrepareCompletion(x.r.Context(), set, x.meta, req)
	if err != nil {
		return err
	}
	return x.answer(prepared, x.completionForm(opts))
}

// options are what both endpoints' answers share.
func (x *exchange) options(prefix string, c *openai.Common) reply.Options {
	// The request's own id, so that an answer is found again in logs and traces.
	x.answerID = prefix + x.meta.RequestID
	o := reply.Options{
		ID:          x.answerID,
		RequestID:   x.meta.RequestID,
		Model:       c.Model,
		Created:     x.s.opts.Now(),
		Received:    x.began,
		TokensAsIDs: on(c.ReturnTokensAsTokenIDs),
		SkipSpecial: c.SkipSpecialTokens == nil || *c.SkipSpecialTokens,

		PromptLogProbs: c.PromptLogprobs != nil,
	}
	if so := c.StreamOptions; so != nil { // validation has refused them without a stream
		o.Usage = on(so.IncludeUsage)
		// As in vLLM, usage in every chunk is an extra of the last chunk's and not asked for alone.
		o.ContinuousUsage = o.Usage && on(so.ContinuousUsageStats)
	}
	o.Usage = o.Usage || x.s.opts.ForceUsage
	if ext := c.NvExt; ext != nil {
		o.Fields = reply.FieldsOf(ext.ExtraFields)
		o.Notes = reply.Notes{
			RequestID: ext.Wants("request_id"),
			Prompt:    ext.Wants("formatted_prompt"),
			TokenIDs:  ext.Wants("token_ids"),
		}
	}
	return o
}

// on is false for absent and false alike.
func on(b *bool) bool { return b != nil && *b }
