package worker

import (
	"encoding/binary"
	"fmt"
	"math"
)

// DecodeRequest reads a request body, as a worker does. Every field but token_ids has a default; unknown ones are
// ignored. The raw JSON values of the result may alias body. It is used by simulated workers and by tests.
func DecodeRequest(c Codec, body []byte) (*Request, error) {
	r := reader{b: body, codec: c}
	q := &Request{}
	// Defaults are Go's zero values: nil for what may be absent.
	seen := false
	for s := r.openMap(); r.entry(&s); {
		seen = seen || string(s.key) == "token_ids"
		if !q.readField(&r, s.key) && !q.readOptional(&r, s.key) {
			r.skip()
		}
	}
	if err := r.finish(); err != nil {
		return nil, fmt.Errorf("decode worker request: %w", err)
	}
	if !seen {
		return nil, fmt.Errorf("decode worker request: %w: no token_ids", errValue)
	}
	return q, nil
}

// readField reads one of the fields that are always there and reports whether key names one. The value must be read
// when the result is true, and must not have been touched otherwise.
func (q *Request) readField(r *reader, key []byte) bool {
	switch string(key) {
	case "model":
		q.Model = r.text()
	case "token_ids":
		q.TokenIDs = r.ids(nil)
	case "stop_conditions":
		q.Stop.read(r)
	case "sampling_options":
		q.Sampling.read(r)
	case "output_options":
		q.Output.read(r)
	case "eos_token_ids":
		q.EOSTokenIDs = r.ids(nil)
	case "mdc_sum":
		q.MDCSum = r.text()
	case "annotations":
		q.Annotations = r.strs()
	case "routing":
		q.Routing.read(r)
	case "router_config_override":
		q.RouterOverride = r.raw()
	default:
		return false
	}
	return true
}

// readOptional reads one of the fields that may be absent and reports whether key names one.
func (q *Request) readOptional(r *reader, key []byte) bool {
	switch string(key) {
	case "prompt_embeds":
		q.PromptEmbeds = r.text()
	case "multi_modal_data":
		q.MultiModalData = r.raw()
	case "multi_modal_uuids":
		q.MultiModalUUIDs = r.raw()
	case "mm_routing_info":
		q.MMRoutingInfo = r.raw()
	case "prefill_result":
		q.PrefillResult = r.raw()
	case "encoder_result":
		q.EncoderResult = r.raw()
	case "migration_link":
		q.MigrationLink = r.raw()
	case "bootstrap_info":
		q.BootstrapInfo = r.readBootstrap()
	case "extra_args":
		q.ExtraArgs = r.raw()
	case "kv_hint":
		q.KVHint = r.raw()
	case "require_reasoning":
		q.RequireReasoning = !r.null() && r.boolean()
	case "router":
		q.Router = r.raw()
	case "agent_context":
		q.AgentContext = r.raw()
	case "image_cache_scope":
		q.ImageCacheScope = r.text()
	case "mm_processor_kwargs":
		q.MMProcessorKwargs = r.raw()
	case "media_io_kwargs":
		q.MediaIOKwargs = r.raw()
	case "request_timestamp_ms":
		q.TimestampMS = r.optFloat()
	case "_HEALTH_CHECK":
		q.HealthCheck = !r.null() && r.boolean()
	default:
		return false
	}
	return true
}

// fields calls f for every key of a map; f reports whether it read the value. A null is an empty map.
func (r *reader) fields(f func(key []byte) bool) {
	if r.null() {
		return
	}
	for s := r.openMap(); r.entry(&s); {
		if !f(s.key) {
			r.skip()
		}
	}
}

// read reads the conditions; a null leaves one unset.
func (s *StopConditions) read(r *reader) {
	r.fields(func(key []byte) bool {
		switch string(key) {
		case "max_tokens":
			s.MaxTokens = r.optU32()
		case "stop":
			s.Stop = r.strs()
		case "stop_token_ids":
			s.StopTokenIDs = r.ids(nil)
		case "stop_token_ids_visible":
			s.StopTokenIDsVisible = r.ids(nil)
		case "stop_token_ids_hidden":
			s.StopTokenIDsHidden = r.ids(nil)
		case "min_tokens":
			s.MinTokens = r.optU32()
		case "ignore_eos":
			s.IgnoreEOS = r.optBool()
		case "max_thinking_tokens":
			s.MaxThinkingTokens = r.optU32()
		default:
			return false
		}
		return true
	})
}

// read reads the options; a null leaves one unset.
func (s *SamplingOptions) read(r *reader) {
	r.fields(func(key []byte) bool {
		switch string(key) {
		case "n":
			s.N = r.optU8()
		case "best_of":
			s.BestOf = r.optU8()
		case "presence_penalty":
			s.PresencePenalty = r.optFloat()
		case "frequency_penalty":
			s.FrequencyPenalty = r.optFloat()
		case "repetition_penalty":
			s.RepetitionPenalty = r.optFloat()
		case "temperature":
			s.Temperature = r.optFloat()
		case "top_p":
			s.TopP = r.optFloat()
		case "top_k":
			s.TopK = r.optI32()
		case "min_p":
			s.MinP = r.optFloat()
		case "use_beam_search":
			s.UseBeamSearch = r.optBool()
		case "length_penalty":
			s.LengthPenalty = r.optFloat()
		case "seed":
			s.Seed = r.optI64()
		case "include_stop_str_in_output":
			s.IncludeStopStr = r.optBool()
		case "guided_decoding":
			s.GuidedDecoding = r.raw()
		default:
			return false
		}
		return true
	})
}

// read reads the options; a null leaves one unset.
func (o *OutputOptions) read(r *reader) {
	r.fields(func(key []byte) bool {
		switch string(key) {
		case "no_stop_trim":
			o.NoStopTrim = r.optBool()
		case "logprobs":
			o.Logprobs = r.optU32()
		case "prompt_logprobs":
			o.PromptLogprobs = r.optU32()
		case "skip_special_tokens":
			o.SkipSpecialTokens = r.optBool()
		case "formatted_prompt":
			o.FormattedPrompt = r.optBool()
		case "return_tokens_as_token_ids":
			o.ReturnTokensAsTokenIDs = r.optBool()
		default:
			return false
		}
		return true
	})
}

// read reads the hints; a null leaves one unset.
func (h *Routing) read(r *reader) {
	r.fields(func(key []byte) bool {
		switch string(key) {
		case "backend_instance_id":
			h.BackendInstanceID = r.optU64()
		case "prefill_worker_id":
			h.PrefillWorkerID = r.optU64()
		case "decode_worker_id":
			h.DecodeWorkerID = r.optU64()
		case "dp_rank":
			h.DPRank = r.optU32()
		case "prefill_dp_rank":
			h.PrefillDPRank = r.optU32()
		case "expected_output_tokens":
			h.ExpectedOutputTokens = r.optU32()
		case "lora_name":
			h.LoRAName = r.text()
		case "cache_salt":
			h.CacheSalt = r.text()
		case "priority_jump":
			h.PriorityJump = r.optFloat()
		case "strict_priority":
			h.StrictPriority = r.optU32()
		case "priority":
			h.Priority = r.optI32()
		case "allowed_worker_ids":
			h.AllowedWorkerIDs = r.u64s()
		case "routing_constraints":
			h.Constraints = r.raw()
		default:
			return false
		}
		return true
	})
}

// ids appends token ids to dst[:0]: an array of integers, or packed little-endian words of 32 bits. A null is nil.
// Packed ids are a msgpack form that some workers ask for: four bytes each, without a header of their own.
func (r *reader) ids(dst []uint32) []uint32 {
	switch r.peek() {
	case kindNull:
		r.null()
		return nil
	case kindBytes:
		// Checked before anything is read: half an id is a mistake of the sender's.
		b := r.bytes()
		if len(b)%4 != 0 {
			r.failf("packed token ids of %d bytes", len(b))
			return nil
		}
		dst = emptied(dst)
		for ; len(b) > 0; b = b[4:] {
			dst = append(dst, binary.LittleEndian.Uint32(b))
		}
		return dst
	}
	dst = emptied(dst)
	s := r.openArray()
	// msgpack tells the number in advance, so one allocation is enough; JSON grows as it goes.
	if r.codec == Msgpack && uint64(cap(dst)) < s.left {
		dst = make([]uint32, 0, s.left) // bounded by the size of the body
	}
	for r.elem(&s) {
		dst = append(dst, r.uint32())
	}
	return dst
}

// emptied returns s without elements, and not nil: an empty list differs from an absent one.
func emptied[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s[:0]
}

// strs reads an array of strings. A null is nil, an empty array is not.
func (r *reader) strs() []string {
	if r.null() {
		return nil
	}
	list := []string{}
	for s := r.openArray(); r.elem(&s); {
		list = append(list, string(r.str()))
	}
	return list
}

// u64s reads an array of instance ids.
func (r *reader) u64s() []uint64 {
	if r.null() {
		return nil
	}
	var list []uint64
	for s := r.openArray(); r.elem(&s); {
		list = append(list, r.uint64())
	}
	return list
}

// optU8 reads an integer of 8 bits, nil for null.
func (r *reader) optU8() *uint8 {
	if r.null() {
		return nil
	}
	return new(uint8(r.uint(math.MaxUint8)))
}

// optU32 reads an integer of 32 bits, nil for null.
func (r *reader) optU32() *uint32 {
	if r.null() {
		return nil
	}
	return new(r.uint32())
}

// optU64 reads an integer of 64 bits, nil for null.
func (r *reader) optU64() *uint64 {
	if r.null() {
		return nil
	}
	return new(r.uint64())
}

// optI64 reads a signed integer of 64 bits, nil for null.
func (r *reader) optI64() *int64 {
	if r.null() {
		return nil
	}
	return new(r.int64())
}

// optI32 reads a signed integer of 32 bits, nil for null.
func (r *reader) optI32() *int32 {
	if r.null() {
		return nil
	}
	v := r.int64()
	if v < math.MinInt32 || v > math.MaxInt32 {
		r.failf("integer out of range of 32 bits")
		return nil
	}
	return new(int32(v))
}

// optBool reads a bool, nil for null.
func (r *reader) optBool() *bool {
	if r.null() {
		return nil
	}
	return new(r.boolean())
}

// optFloat reads a number, nil for null: where a field may be absent, null says that it is.
func (r *reader) optFloat() *float64 {
	if r.null() {
		return nil
	}
	return new(r.float())
}
