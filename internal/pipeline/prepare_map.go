package pipeline

import (
	"encoding/json"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/catalog"
)

// chatRequest maps all of a chat request but its tokens.
func chatRequest(set *catalog.Set, meta *Meta, req *openai.ChatRequest) (*worker.Request, error) {
	// All else maps field by field; a schema may turn out to be impossible, and media to be of no use to anyone.
	guided, err := chatGuided(req)
	if err != nil {
		return nil, err
	}
	media, err := mediaData(req.Conversation.Media)
	if err != nil {
		return nil, err
	}
	q := commonRequest(set, meta, &req.Common)
	q.MultiModalData = media
	q.Sampling.GuidedDecoding = guided
	q.Stop.MaxTokens = asUint32(req.TokenLimit())
	// The newer field wins over nvext's, which commonRequest has set.
	if req.ThinkingTokenBudget != nil {
		q.Stop.MaxThinkingTokens = asUint32(req.ThinkingTokenBudget)
	}
	// top_logprobs alone asks for nothing.
	if isOn(req.Logprobs) {
		one := uint32(1)
		if q.Output.Logprobs = &one; req.TopLogprobs != nil {
			q.Output.Logprobs = asUint32(req.TopLogprobs)
		}
	}
	q.AgentContext = agentContext(meta.Agent, trigger(req.Conversation.LastRole))
	q.MMProcessorKwargs = req.MMProcessorKwargs
	if len(set.Card.MediaDecoder) == 0 { // otherwise media are decoded before they reach the worker
		q.MediaIOKwargs = req.MediaIOKwargs
	}
	return q, nil
}

// completionRequest maps all of a completion request but its tokens.
func completionRequest(set *catalog.Set, meta *Meta, req *openai.CompletionRequest) *worker.Request {
	q := commonRequest(set, meta, &req.Common)
	q.AgentContext = agentContext(meta.Agent, triggerOther)
	q.Sampling.GuidedDecoding = commonGuided(&req.Common)
	// Completions have numbers where chat has a switch and a number.
	q.Sampling.BestOf = asUint8(req.BestOf)
	q.Stop.MaxTokens = asUint32(req.MaxTokens)
	q.Output.Logprobs = asUint32(req.Logprobs)
	// A prompt that is repeated has probabilities, too. Workers tell them at the end, which is too late for a stream.
	if isOn(req.Echo) && !req.Streaming() && q.Output.PromptLogprobs == nil {
		q.Output.PromptLogprobs = q.Output.Logprobs
	}
	q.Output.NoStopTrim = req.NoStopTrim
	if req.PromptEmbeds != nil {
		q.PromptEmbeds = *req.PromptEmbeds
	}
	return q
}

// commonRequest maps what both kinds of request share.
func commonRequest(set *catalog.Set, meta *Meta, c *openai.Common) *worker.Request {
	q := &worker.Request{
		Model:    c.Model,
		Stop:     stopConditions(set, c),
		Sampling: samplingOptions(c),
		// Shared with the set: read-only.
		EOSTokenIDs: set.EOS,
		MDCSum:      set.MDCSum,
		// Workers want a list, also an empty one.
		Annotations: []string{},
		Output: worker.OutputOptions{
			PromptLogprobs:         asUint32(c.PromptLogprobs),
			SkipSpecialTokens:      c.SkipSpecialTokens,
			ReturnTokensAsTokenIDs: c.ReturnTokensAsTokenIDs,
		},
	}
	// The key is always there; an empty list means that no token ends the answer.
	if isOn(c.IgnoreEOS) {
		q.EOSTokenIDs = []uint32{}
	}
	if meta.Agent != nil { // images of one session are likely to come again in it
		q.ImageCacheScope = meta.Agent.Session
	}
	// The salt goes both to the router, which compares prefixes, and to the engine, which caches them.
	salt := cacheSalt(meta, c)
	q.Routing = routing(set, meta, c.NvExt, salt)
	q.ExtraArgs = extraArgs(c, salt)
	if x := c.NvExt; x != nil {
		if x.Annotations != nil {
			q.Annotations = x.Annotations
		}
		q.Router = x.Router
		q.TimestampMS = x.RequestTimestampMS
	}
	return q
}

// stopConditions says when the worker stops. The ids that end every answer of the model are hidden stops; with
// ignore_eos there are no stops at all, the client's included.
func stopConditions(set *catalog.Set, c *openai.Common) worker.StopConditions {
	s := worker.StopConditions{MinTokens: asUint32(c.MinTokens), IgnoreEOS: c.IgnoreEOS}
	if c.NvExt != nil {
		s.MaxThinkingTokens = asUint32(c.NvExt.MaxThinkingTokens)
	}
	if isOn(c.IgnoreEOS) {
		return s
	}
	// The set's ids are shared by all its requests: nobody writes to them.
	s.Stop, s.StopTokenIDs = c.Stop, c.StopTokenIDs
	if len(set.EOS) > 0 {
		s.StopTokenIDsHidden = set.EOS
	}
	return s
}

// samplingOptions says how tokens are drawn. Nothing is filled in for fields the client left out: workers have
// defaults of their own.
func samplingOptions(c *openai.Common) worker.SamplingOptions {
	s := worker.SamplingOptions{
		// Ranges are checked before: the conversions lose nothing but float precision.
		N:                 asUint8(c.N),
		PresencePenalty:   single(c.PresencePenalty),
		FrequencyPenalty:  single(c.FrequencyPenalty),
		RepetitionPenalty: single(c.RepetitionPenalty),
		Temperature:       single(c.Temperature),
		TopP:              single(c.TopP),
		MinP:              single(c.MinP),
		Seed:              c.Seed,
		IncludeStopStr:    c.IncludeStop,
	}
	if c.TopK != nil {
		k := int32(*c.TopK)
		if k == 0 { // both mean all tokens; workers know one of them
			k = -1
		}
		s.TopK = &k
	}
	// Without both a worker takes the likeliest token.
	if c.NvExt != nil && isOn(c.NvExt.GreedSampling) {
		s.Temperature, s.TopP = nil, nil
	}
	return s
}

// cacheSalt returns the salt that separates this request's cached prefixes from others': the body's before the
// header's. An empty string in the body counts, and undoes the header's.
func cacheSalt(meta *Meta, c *openai.Common) string {
	if c.NvExt != nil && c.NvExt.CacheSalt != nil {
		return *c.NvExt.CacheSalt
	}
	if c.CacheSalt != nil {
		return *c.CacheSalt
	}
	return meta.CacheSalt
}

// routing joins the routing hints of headers and body; the body wins. The hints travel with the request for routers
// behind it; the frontend's own choice follows the pin alone.
func routing(set *catalog.Set, meta *Meta, x *openai.NvExt, salt string) worker.Routing {
	r := worker.Routing{
		BackendInstanceID: meta.BackendInstanceID,
		PrefillWorkerID:   meta.PrefillWorkerID,
		DPRank:            meta.DPRank,
		PrefillDPRank:     meta.PrefillDPRank,
		// Empty for the base model.
		LoRAName:  set.LoRA,
		CacheSalt: salt,
	}
	r.Priority, r.StrictPriority = urgency(meta, x)
	// A body is written by whoever knows the request; headers are set by proxies for many.
	if x != nil {
		// Each hint by itself: a body that names a rank keeps the header's instance.
		override(&r.BackendInstanceID, x.BackendInstanceID)
		override(&r.PrefillWorkerID, x.PrefillWorkerID)
		override(&r.DecodeWorkerID, x.DecodeWorkerID)
		override(&r.DPRank, x.DPRank)
		override(&r.PrefillDPRank, x.PrefillDPRank)
		r.Constraints = x.RoutingConstraints
		if h := x.AgentHints; h != nil {
			r.ExpectedOutputTokens = h.OSL
		}
	}
	// Routers of different ages read one or the other.
	if r.Priority != nil {
		jump := float64(*r.Priority)
		r.PriorityJump = &jump
	}
	return r
}

// override replaces a hint when there is a better one.
func override[T any](to **T, from *T) {
	if from != nil {
		*to = from
	}
}

// extraArgs gathers what travels beside the request proper; it is empty when there is nothing. The shape is the
// workers': {"nvext":{…},"sampling_options":{…}}.
func extraArgs(c *openai.Common, salt string) json.RawMessage {
	// Workers tell absent from empty here, so what has no content is not written at all.
	var nvext, sampling objectWriter
	if x := c.NvExt; x != nil {
		nvext.texts("extra_fields", x.ExtraFields)
		nvext.raw("metadata_upload", x.MetadataUpload)
		// Tells the worker that the prompt is the client's own ids.
		if x.TokenData != nil {
			nvext.raw("token_in", json.RawMessage("true"))
		}
	}
	if salt != "" {
		nvext.text("cache_salt", salt)
	}
	if c.Detokenize != nil {
		sampling.boolean("detokenize", *c.Detokenize)
	}
	sampling.raw("allowed_token_ids", c.AllowedTokenIDs)
	sampling.raw("bad_words_token_ids", c.BadWordsTokenIDs)
	sampling.raw("logprob_token_ids", c.LogprobTokenIDs)

	var all objectWriter
	// Two levels, each left out when it is empty.
	all.raw("nvext", nvext.done())
	all.raw("sampling_options", sampling.done())
	return all.done()
}

// objectWriter writes a small JSON object member by member; empty members are left out, and so is an empty object. A
// member's order is that of the calls; names are not checked to be different.
type objectWriter struct{ buf []byte }

// name begins a member; the first one begins the object.
func (w *objectWriter) name(name string) {
	if w.buf == nil {
		w.buf = append(w.buf, '{')
	} else {
		w.buf = append(w.buf, ',')
	}
	w.buf = append(appendQuoted(w.buf, name), ':')
}

// raw writes a value that is JSON already, unless it is empty.
func (w *objectWriter) raw(name string, value json.RawMessage) {
	if len(value) > 0 {
		w.name(name)
		w.buf = append(w.buf, value...)
	}
}

// text writes a string, also an empty one.
func (w *objectWriter) text(name, value string) {
	w.name(name)
	w.buf = appendQuoted(w.buf, value)
}

// boolean writes true or false.
func (w *objectWriter) boolean(name string, value bool) {
	if value {
		w.raw(name, json.RawMessage("true"))
	} else {
		w.raw(name, json.RawMessage("false"))
	}
}

// texts writes an array of strings, unless it is empty.
func (w *objectWriter) texts(name string, values []string) {
	if len(values) == 0 {
		return
	}
	w.name(name)
	w.buf = append(w.buf, '[')
	for i, v := range values {
		if i > 0 {
			w.buf = append(w.buf, ',')
		}
		w.buf = appendQuoted(w.buf, v)
	}
	w.buf = append(w.buf, ']')
}

// done ends the object; one without members is nil.
func (w *objectWriter) done() json.RawMessage {
	if w.buf == nil {
		return nil
	}
	w.buf = append(w.buf, '}')
	return w.buf
}

// appendQuoted appends s as a JSON string. The strings come from decoded requests, so they are valid UTF-8; what isn't
// would be replaced.
func appendQuoted(dst []byte, s string) []byte {
	out, err := jsontext.AppendQuote(dst, s)
	if err != nil {
		return out
	}
	return out
}

// single rounds to the precision workers are told numbers in, so that they see the same number from every frontend.
func single(v *float64) *float64 {
	if v == nil {
		return nil
	}
	// Widened again, because the wire types hold doubles: 0.7 becomes 0.699999988079071.
	f := float64(float32(*v))
	return &f
}

// asUint32 narrows a count that validation has bounded.
func asUint32(v *int64) *uint32 {
	if v == nil {
		return nil
	}
	n := uint32(*v)
	return &n
}

// asUint8 narrows n and best_of, which are at most 128.
func asUint8(v *int64) *uint8 {
	if v == nil {
		return nil
	}
	n := uint8(*v)
	return &n
}

// isOn is false for absent and false alike.
func isOn(v *bool) bool { return v != nil && *v }
