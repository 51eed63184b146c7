package openai

import "encoding/json"

// The tables of the objects that make up a request. They are built once and never change.
var (
	chatTable = newTable("", commonFields(func(r *ChatRequest) *Common { return &r.Common }), chatFields()).
			alias("chat_template_kwargs", "chat_template_args")
	completionTable = newTable("", commonFields(func(r *CompletionRequest) *Common { return &r.Common }),
		completionFields())

	// Unknown names in nvext are noted with their path, as those at the root are; other objects grow with OpenAI's API,
	// and what is new in them is nobody's mistake.
	nvextTable = newTable("nvext.", nvextFields())
	saltTable  = newTable("nvext.", []field[NvExt]{
		textField("cache_salt", func(x *NvExt) **string { return &x.CacheSalt }),
	}).quietly()
	hintsTable  = newTable("", hintFields()).quietly()
	streamTable = newTable("", []field[StreamOptions]{
		boolField("include_usage", func(o *StreamOptions) **bool { return &o.IncludeUsage }),
		boolField("continuous_usage_stats", func(o *StreamOptions) **bool { return &o.ContinuousUsageStats }),
		boolField("include_obfuscation", func(o *StreamOptions) **bool { return &o.IncludeObfuscation }),
	}).quietly()

	formatTable = newTable("", []field[ResponseFormat]{
		requiredText("type", func(f *ResponseFormat) *string { return &f.Type }),
		structField("json_schema", schemaTable, func(f *ResponseFormat) **JSONSchema { return &f.JSONSchema }),
	}).quietly()
	schemaTable = newTable("", []field[JSONSchema]{
		requiredText("name", func(s *JSONSchema) *string { return &s.Name }),
		textField("description", func(s *JSONSchema) **string { return &s.Description }),
		objectField("schema", func(s *JSONSchema) *json.RawMessage { return &s.Schema }),
		boolField("strict", func(s *JSONSchema) **bool { return &s.Strict }),
	}).quietly()
	thinkingTable = newTable("", []field[Thinking]{
		requiredText("type", func(t *Thinking) *string { return &t.Type }),
	}).quietly()

	// A named tool_choice has the same shape as a tool, so both are read by these.
	toolTable = newTable("", []field[Tool]{
		requiredText("type", func(t *Tool) *string { return &t.Type }),
		{name: "function", kind: "object", read: func(r *reader, t *Tool) error {
			return readObject(r, functionTable, t)
		}},
	}).quietly()
	functionTable = newTable("", []field[Tool]{
		requiredText("name", func(t *Tool) *string { return &t.Name }),
		{name: "description", kind: "string", read: func(r *reader, _ *Tool) error {
			_, err := r.quoted("a string")
			return err
		}},
		objectField("parameters", func(t *Tool) *json.RawMessage { return &t.Parameters }),
		boolField("strict", func(t *Tool) **bool { return &t.Strict }),
	}).quietly()
)

// commonFields are the fields both requests have; at says where a request keeps them.
func commonFields[T any](at func(*T) *Common) []field[T] {
	fields := []field[T]{
		requiredText("model", func(t *T) *string { return &at(t).Model }),
		textField("user", func(t *T) **string { return &at(t).User }),
		boolField("stream", func(t *T) **bool { return &at(t).Stream }),
		structField("stream_options", streamTable, func(t *T) **StreamOptions { return &at(t).StreamOptions }),
		{name: "nvext", kind: "object", read: func(r *reader, t *T) error {
			// The salt keeps tenants' caches apart, so it counts even where the operator wants nothing else of nvext.
			fields := nvextTable
			if r.opts.IgnoreNvExt {
				fields, at(t).saltOnly = saltTable, true
			}
			return structField("", fields, func(c *Common) **NvExt { return &c.NvExt }).read(r, at(t))
		}},
		textField("cache_salt", func(t *T) **string { return &at(t).CacheSalt }),
		objectField("metadata", func(t *T) *json.RawMessage { return &at(t).Metadata }),
	}
	// Grouped by what they act on; the order has no meaning to the reader, which looks names up.
	return append(append(append(fields, samplingFields(at)...), stopFields(at)...), guidedFields(at)...)
}

// samplingFields say how tokens are drawn and what comes back beside the text.
func samplingFields[T any](at func(*T) *Common) []field[T] {
	return []field[T]{
		floatField("temperature", func(t *T) **float64 { return &at(t).Temperature }),
		floatField("top_p", func(t *T) **float64 { return &at(t).TopP }),
		intField("top_k", func(t *T) **int64 { return &at(t).TopK }),
		floatField("min_p", func(t *T) **float64 { return &at(t).MinP }),
		floatField("frequency_penalty", func(t *T) **float64 { return &at(t).FrequencyPenalty }),
		floatField("presence_penalty", func(t *T) **float64 { return &at(t).PresencePenalty }),
		floatField("repetition_penalty", func(t *T) **float64 { return &at(t).RepetitionPenalty }),
		intField("seed", func(t *T) **int64 { return &at(t).Seed }),
		intField("n", func(t *T) **int64 { return &at(t).N }),
		objectField("logit_bias", func(t *T) *json.RawMessage { return &at(t).LogitBias }),
		// Checked to be token ids, because a worker may not survive anything else, but never needed as numbers here.
		rawTokensField("allowed_token_ids", 1, func(t *T) *json.RawMessage { return &at(t).AllowedTokenIDs }),
		rawTokensField("bad_words_token_ids", 2, func(t *T) *json.RawMessage { return &at(t).BadWordsTokenIDs }),
		rawTokensField("logprob_token_ids", 1, func(t *T) *json.RawMessage { return &at(t).LogprobTokenIDs }),
		intField("prompt_logprobs", func(t *T) **int64 { return &at(t).PromptLogprobs }),
		boolField("return_tokens_as_token_ids", func(t *T) **bool { return &at(t).ReturnTokensAsTokenIDs }),
		boolField("skip_special_tokens", func(t *T) **bool { return &at(t).SkipSpecialTokens }),
		boolField("detokenize", func(t *T) **bool { return &at(t).Detokenize }),
	}
}

// stopFields say when an answer ends.
func stopFields[T any](at func(*T) *Common) []field[T] {
	return []field[T]{
		intField("max_tokens", func(t *T) **int64 { return &at(t).MaxTokens }),
		intField("min_tokens", func(t *T) **int64 { return &at(t).MinTokens }),
		// OpenAI documents both shapes.
		{name: "stop", kind: "string|array", read: func(r *reader, t *T) (err error) {
			at(t).Stop, err = readStop(r)
			return err
		}},
		tokensField("stop_token_ids", func(t *T) *[]uint32 { return &at(t).StopTokenIDs }),
		boolField("ignore_eos", func(t *T) **bool { return &at(t).IgnoreEOS }),
		boolField("include_stop_str_in_output", func(t *T) **bool { return &at(t).IncludeStop }),
	}
}

// guidedFields constrain the answer; only one of the first four may be given, which package validate checks.
func guidedFields[T any](at func(*T) *Common) []field[T] {
	return []field[T]{
		// Clients send the schema in either form; package validate looks into a string.
		rawField("guided_json", "string|object", "a JSON schema, as an object or as a string",
			func(t *T) *json.RawMessage { return &at(t).GuidedJSON }, '{', '"'),
		textField("guided_regex", func(t *T) **string { return &at(t).GuidedRegex }),
		textField("guided_grammar", func(t *T) **string { return &at(t).GuidedGrammar }),
		textsField("guided_choice", func(t *T) *[]string { return &at(t).GuidedChoice }),
		textField("guided_decoding_backend", func(t *T) **string { return &at(t).GuidedBackend }),
		textField("guided_whitespace_pattern", func(t *T) **string { return &at(t).GuidedWhitespacePattern }),
		beyond(anyField("structured_outputs", func(t *T) *json.RawMessage { return &at(t).StructuredOutputs })),
	}
}

// chatFields are those only chat requests have.
func chatFields() []field[ChatRequest] {
	type T = ChatRequest
	fields := []field[T]{
		{name: "messages", kind: "array", read: readMessages},
		intField("max_completion_tokens", func(t *T) **int64 { return &t.MaxCompletionTokens }),
		boolField("logprobs", func(t *T) **bool { return &t.Logprobs }),
		intField("top_logprobs", func(t *T) **int64 { return &t.TopLogprobs }),
		{name: "tools", kind: "array", read: readTools},
		{name: "tool_choice", kind: "string|object", read: func(r *reader, t *T) (err error) {
			t.ToolChoice, err = readToolChoice(r)
			return err
		}},
		boolField("parallel_tool_calls", func(t *T) **bool { return &t.ParallelToolCalls }),
		structField("response_format", formatTable, func(t *T) **ResponseFormat { return &t.ResponseFormat }),
		// Refused whatever they hold, so their type isn't looked at.
		anyField("functions", func(t *T) *json.RawMessage { return &t.Functions }),
		anyField("function_call", func(t *T) *json.RawMessage { return &t.FunctionCall }),
		textField("reasoning_effort", func(t *T) **string { return &t.ReasoningEffort }),
		{name: "thinking", kind: "object|boolean", read: func(r *reader, t *T) (err error) {
			t.Thinking, err = readThinking(r)
			return err
		}},
		intField("thinking_token_budget", func(t *T) **int64 { return &t.ThinkingTokenBudget }),
		// Objects and arrays for templates keep the client's text: key order shows in what a template prints.
		objectField("chat_template_args", func(t *T) *json.RawMessage { return &t.ChatTemplateArgs }),
		beyond(textField("chat_template", func(t *T) **string { return &t.ChatTemplate })),
		beyond(field[T]{name: "documents", kind: "array", read: func(r *reader, t *T) (err error) {
			t.Documents, err = rawArray(r, "an array of objects", func(int) error {
				_, err := r.rawOf("an object", '{')
				return err
			})
			return err
		}}),
		boolField("add_generation_prompt", func(t *T) **bool { return &t.AddGenerationPrompt }),
		boolField("continue_final_message", func(t *T) **bool { return &t.ContinueFinal }),
		objectField("mm_processor_kwargs", func(t *T) *json.RawMessage { return &t.MMProcessorKwargs }),
		objectField("media_io_kwargs", func(t *T) *json.RawMessage { return &t.MediaIOKwargs }),
	}
	return append(fields, idleFields()...)
}

// idleFields are fields of OpenAI's that mean nothing to a worker.
func idleFields() []field[ChatRequest] {
	type T = ChatRequest
	return []field[T]{
		objectField("audio", func(t *T) *json.RawMessage { return &t.Audio }),
		textsField("modalities", func(t *T) *[]string { return &t.Modalities }),
		objectField("prediction", func(t *T) *json.RawMessage { return &t.Prediction }),
		textField("prompt_cache_key", func(t *T) **string { return &t.PromptCacheKey }),
		beyond(textField("prompt_cache_retention", func(t *T) **string { return &t.PromptCacheRetention })),
		beyond(textField("safety_identifier", func(t *T) **string { return &t.SafetyIdentifier })),
		textField("service_tier", func(t *T) **string { return &t.ServiceTier }),
		boolField("store", func(t *T) **bool { return &t.Store }),
		beyond(textField("verbosity", func(t *T) **string { return &t.Verbosity })),
		objectField("web_search_options", func(t *T) *json.RawMessage { return &t.WebSearchOptions }),
	}
}

// completionFields are those only completion requests have.
func completionFields() []field[CompletionRequest] {
	type T = CompletionRequest
	return []field[T]{
		// One prompt or many, each in one of two forms.
		{name: "prompt", kind: "string|array", read: func(r *reader, t *T) error { return readPrompt(r, &t.Prompt) }},
		textField("prompt_embeds", func(t *T) **string { return &t.PromptEmbeds }),
		textField("suffix", func(t *T) **string { return &t.Suffix }),
		boolField("echo", func(t *T) **bool { return &t.Echo }),
		intField("best_of", func(t *T) **int64 { return &t.BestOf }),
		intField("logprobs", func(t *T) **int64 { return &t.Logprobs }),
		boolField("no_stop_trim", func(t *T) **bool { return &t.NoStopTrim }),
	}
}

// nvextFields are the extensions. Numbers that name workers are exact beyond 2^53.
func nvextFields() []field[NvExt] {
	type T = NvExt
	return []field[T]{
		boolField("greed_sampling", func(x *T) **bool { return &x.GreedSampling }),
		boolField("use_raw_prompt", func(x *T) **bool { return &x.UseRawPrompt }),
		textsField("annotations", func(x *T) *[]string { return &x.Annotations }),
		// Instance ids use all 64 bits: a float would name another worker.
		uint64Field("backend_instance_id", func(x *T) **uint64 { return &x.BackendInstanceID }),
		tokensField("token_data", func(x *T) *[]uint32 { return &x.TokenData }),
		intField("max_thinking_tokens", func(x *T) **int64 { return &x.MaxThinkingTokens }),
		textField("cache_salt", func(x *T) **string { return &x.CacheSalt }),
		textsField("extra_fields", func(x *T) *[]string { return &x.ExtraFields }),
		objectField("metadata_upload", func(x *T) *json.RawMessage { return &x.MetadataUpload }),
		uint64Field("prefill_worker_id", func(x *T) **uint64 { return &x.PrefillWorkerID }),
		uint64Field("decode_worker_id", func(x *T) **uint64 { return &x.DecodeWorkerID }),
		uint32Field("dp_rank", func(x *T) **uint32 { return &x.DPRank }),
		uint32Field("prefill_dp_rank", func(x *T) **uint32 { return &x.PrefillDPRank }),
		structField("agent_hints", hintsTable, func(x *T) **AgentHints { return &x.AgentHints }),
		floatField("request_timestamp_ms", func(x *T) **float64 { return &x.RequestTimestampMS }),
		objectField("routing_constraints", func(x *T) *json.RawMessage { return &x.RoutingConstraints }),
		objectField("router", func(x *T) *json.RawMessage { return &x.Router }),
	}
}

// hintFields are those of nvext.agent_hints.
func hintFields() []field[AgentHints] {
	type T = AgentHints
	return []field[T]{
		// The sizes are those of the worker protocol, so that nothing has to be narrowed later.
		int32Field("priority", func(h *T) **int32 { return &h.Priority }),
		uint32Field("strict_priority", func(h *T) **uint32 { return &h.StrictPriority }),
		uint32Field("osl", func(h *T) **uint32 { return &h.OSL }),
		boolField("speculative_prefill", func(h *T) **bool { return &h.SpeculativePrefill }),
		floatField("latency_sensitivity", func(h *T) **float64 { return &h.LatencySensitivity }),
	}
}
