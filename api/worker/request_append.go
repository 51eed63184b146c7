package worker

import "fmt"

// Append appends the request as a body in the given codec: every key that workers always get, null where there is no
// value, and of the optional ones those that are set. It may be called any number of times, and from several
// goroutines.
func (q *Request) Append(dst []byte, c Codec) ([]byte, error) {
	w := writer{b: dst, codec: c}
	m := w.openMap()
	// The keys stand in the order of the worker's own type; readers don't depend on it.
	w.key(&m, "model")
	w.str(q.Model)
	w.key(&m, "token_ids")
	w.ids(q.TokenIDs)
	w.key(&m, "stop_conditions")
	q.Stop.write(&w)
	w.key(&m, "sampling_options")
	q.Sampling.write(&w)
	w.key(&m, "output_options")
	q.Output.write(&w)
	w.key(&m, "eos_token_ids")
	w.ids(q.EOSTokenIDs)
	w.key(&m, "mdc_sum")
	if q.MDCSum == "" {
		w.null()
	} else {
		w.str(q.MDCSum)
	}
	w.key(&m, "annotations")
	w.strs(q.Annotations)
	w.key(&m, "routing")
	q.Routing.write(&w)
	w.jsonField(&m, "router_config_override", q.RouterOverride)
	q.writeOptional(&w, &m)
	w.closeMap(&m)
	// Only a raw value that is no JSON can fail; dst is then as it was.
	if w.err != nil {
		return dst, fmt.Errorf("encode worker request: %w", w.err)
	}
	return w.b, nil
}

// writeOptional writes the fields that are there only when they say something. Most requests have none.
func (q *Request) writeOptional(w *writer, m *open) {
	w.optStr(m, "prompt_embeds", q.PromptEmbeds)
	w.optJSON(m, "multi_modal_data", q.MultiModalData)
	w.optJSON(m, "multi_modal_uuids", q.MultiModalUUIDs)
	w.optJSON(m, "mm_routing_info", q.MMRoutingInfo)
	w.optJSON(m, "prefill_result", q.PrefillResult)
	w.optJSON(m, "encoder_result", q.EncoderResult)
	w.optJSON(m, "migration_link", q.MigrationLink)
	if q.BootstrapInfo != nil {
		w.key(m, "bootstrap_info")
		q.BootstrapInfo.write(w)
	}
	w.optJSON(m, "extra_args", q.ExtraArgs)
	w.optJSON(m, "kv_hint", q.KVHint)
	if q.RequireReasoning {
		w.key(m, "require_reasoning")
		w.boolean(true)
	}
	w.optJSON(m, "router", q.Router)
	w.optJSON(m, "agent_context", q.AgentContext)
	w.optStr(m, "image_cache_scope", q.ImageCacheScope)
	w.optJSON(m, "mm_processor_kwargs", q.MMProcessorKwargs)
	w.optJSON(m, "media_io_kwargs", q.MediaIOKwargs)
	if q.TimestampMS != nil {
		w.floatField(m, "request_timestamp_ms", q.TimestampMS)
	}
	if q.HealthCheck {
		w.key(m, "_HEALTH_CHECK")
		w.boolean(true)
	}
}

// write writes the conditions, null for each that isn't set.
func (s *StopConditions) write(w *writer) {
	m := w.openMap()
	w.u32Field(&m, "max_tokens", s.MaxTokens)
	w.key(&m, "stop")
	// An empty list is written as one: the client gave it.
	if s.Stop == nil {
		w.null()
	} else {
		w.strs(s.Stop)
	}
	w.idsField(&m, "stop_token_ids", s.StopTokenIDs)
	w.idsField(&m, "stop_token_ids_visible", s.StopTokenIDsVisible)
	w.idsField(&m, "stop_token_ids_hidden", s.StopTokenIDsHidden)
	w.u32Field(&m, "min_tokens", s.MinTokens)
	w.boolField(&m, "ignore_eos", s.IgnoreEOS)
	w.u32Field(&m, "max_thinking_tokens", s.MaxThinkingTokens)
	w.closeMap(&m)
}

// write writes the options, null for each that isn't set: the worker's own defaults then apply.
func (s *SamplingOptions) write(w *writer) {
	m := w.openMap()
	w.u8Field(&m, "n", s.N)
	w.u8Field(&m, "best_of", s.BestOf)
	w.floatField(&m, "presence_penalty", s.PresencePenalty)
	w.floatField(&m, "frequency_penalty", s.FrequencyPenalty)
	w.floatField(&m, "repetition_penalty", s.RepetitionPenalty)
	w.floatField(&m, "temperature", s.Temperature)
	w.floatField(&m, "top_p", s.TopP)
	// Signed, unlike the other counts.
	w.key(&m, "top_k")
	if s.TopK == nil {
		w.null()
	} else {
		w.int(int64(*s.TopK))
	}
	w.floatField(&m, "min_p", s.MinP)
	w.boolField(&m, "use_beam_search", s.UseBeamSearch)
	w.floatField(&m, "length_penalty", s.LengthPenalty)
	w.key(&m, "seed")
	if s.Seed == nil {
		w.null()
	} else {
		w.int(*s.Seed)
	}
	w.boolField(&m, "include_stop_str_in_output", s.IncludeStopStr)
	w.jsonField(&m, "guided_decoding", s.GuidedDecoding)
	w.closeMap(&m)
}

// write writes the options, null for each that isn't set.
func (o *OutputOptions) write(w *writer) {
	m := w.openMap()
	// Younger than the others, and unknown to workers that are older than it.
	if o.NoStopTrim != nil {
		w.boolField(&m, "no_stop_trim", o.NoStopTrim)
	}
	w.u32Field(&m, "logprobs", o.Logprobs)
	w.u32Field(&m, "prompt_logprobs", o.PromptLogprobs)
	w.boolField(&m, "skip_special_tokens", o.SkipSpecialTokens)
	w.boolField(&m, "formatted_prompt", o.FormattedPrompt)
	w.boolField(&m, "return_tokens_as_token_ids", o.ReturnTokensAsTokenIDs)
	w.closeMap(&m)
}

// write writes the hints that are set. The map is there even when empty, as live requests have it.
func (h *Routing) write(w *writer) {
	m := w.openMap()
	// Instance ids are integers of 64 bits in both codecs.
	w.optU64(&m, "backend_instance_id", h.BackendInstanceID)
	w.optU64(&m, "prefill_worker_id", h.PrefillWorkerID)
	w.optU64(&m, "decode_worker_id", h.DecodeWorkerID)
	w.optU32(&m, "dp_rank", h.DPRank)
	w.optU32(&m, "prefill_dp_rank", h.PrefillDPRank)
	w.optU32(&m, "expected_output_tokens", h.ExpectedOutputTokens)
	w.optStr(&m, "lora_name", h.LoRAName)
	w.optStr(&m, "cache_salt", h.CacheSalt)
	if h.PriorityJump != nil {
		w.floatField(&m, "priority_jump", h.PriorityJump)
	}
	w.optU32(&m, "strict_priority", h.StrictPriority)
	if h.Priority != nil {
		w.key(&m, "priority")
		w.int(int64(*h.Priority))
	}
	if len(h.AllowedWorkerIDs) > 0 {
		w.key(&m, "allowed_worker_ids")
		a := w.openArray(len(h.AllowedWorkerIDs))
		for _, id := range h.AllowedWorkerIDs {
			w.elem(&a)
			w.uint(id)
		}
		w.closeArray(&a)
	}
	w.optJSON(&m, "routing_constraints", h.Constraints)
	w.closeMap(&m)
}
