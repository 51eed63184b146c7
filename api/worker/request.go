package worker

import "encoding/json"

// Request is what a token worker takes: PreprocessedRequest of the worker protocol. Nil pointers and nil slices are
// encoded as null where the protocol always has the key, and left out where the key is optional. Its slices may be
// shared with other requests of the same batch or model, and are only read.
type Request struct {
	Model    string   // as the client named it
	TokenIDs []uint32 // prompt

	Stop     StopConditions  // when to end
	Sampling SamplingOptions // how to draw
	Output   OutputOptions   // what to send back

	EOSTokenIDs []uint32 // empty with ignore_eos
	MDCSum      string   // empty: null
	Annotations []string // the client's; may be empty, never null
	Routing     Routing  // for the worker and for routers behind it

	// Optional JSON values, passed on as they are; empty ones are left out.
	MultiModalData    json.RawMessage // multi_modal_data: media by kind, as URLs or decoded
	MultiModalUUIDs   json.RawMessage // multi_modal_uuids: by kind, an id or null for each medium
	PromptEmbeds      string          // prompt_embeds: base64 of a tensor, in place of tokens
	RouterOverride    json.RawMessage // router_config_override: null when empty
	PrefillResult     json.RawMessage // prefill_result: what a prefill worker handed over
	BootstrapInfo     *Bootstrap      // bootstrap_info: where both workers meet
	ExtraArgs         json.RawMessage // extra_args: nvext and further sampling_options
	Router            json.RawMessage // router: settings for a router behind the endpoint
	AgentContext      json.RawMessage // agent_context: object, passed on
	MMProcessorKwargs json.RawMessage // mm_processor_kwargs: for the model's media processor
	MediaIOKwargs     json.RawMessage // media_io_kwargs: for whoever decodes media
	MMRoutingInfo     json.RawMessage // mm_routing_info
	EncoderResult     json.RawMessage // encoder_result: what an encode worker handed over
	MigrationLink     json.RawMessage // migration_link: trace and span of the attempt before
	KVHint            json.RawMessage // kv_hint: object, passed on
	ImageCacheScope   string          // image_cache_scope: passed on
	RequireReasoning  bool            // left out when false
	TimestampMS       *float64        // request_timestamp_ms
	HealthCheck       bool            // _HEALTH_CHECK: left out when false
}

// StopConditions say when a worker stops. Every key is always present.
type StopConditions struct {
	MaxTokens           *uint32  // of each choice; nil: the worker's own limit
	Stop                []string // stop strings; nil and empty differ on the wire
	StopTokenIDs        []uint32 // the client's ids, not shown
	StopTokenIDsVisible []uint32 // ids that end the answer and are part of it
	StopTokenIDsHidden  []uint32 // ids that end every answer of the model, not shown
	MinTokens           *uint32  // until then nothing ends the answer
	IgnoreEOS           *bool    // no id ends the answer
	MaxThinkingTokens   *uint32  // of reasoning, then it is cut short
}

// SamplingOptions say how tokens are drawn. Every key is always present.
type SamplingOptions struct {
	N                 *uint8          // choices; nil: 1
	BestOf            *uint8          // candidates for them
	PresencePenalty   *float64        // -2 to 2
	FrequencyPenalty  *float64        // -2 to 2
	RepetitionPenalty *float64        // a divisor: 1 is none
	Temperature       *float64        // 0 takes the likeliest token
	TopP              *float64        // probability mass, at most 1
	TopK              *int32          // -1: all tokens
	MinP              *float64        // share of the likeliest token's probability
	UseBeamSearch     *bool           // not asked for by this frontend
	LengthPenalty     *float64        // of beam search
	Seed              *int64          // nil: the worker draws one
	IncludeStopStr    *bool           // include_stop_str_in_output
	GuidedDecoding    json.RawMessage // JSON object with only its non-null keys; empty: null
}

// OutputOptions say what comes back beside tokens. Every key is always present but no_stop_trim.
type OutputOptions struct {
	NoStopTrim             *bool   // left out when nil
	Logprobs               *uint32 // alternatives for each token; nil: no log probabilities
	PromptLogprobs         *uint32 // the same for the prompt
	SkipSpecialTokens      *bool   // nil is true
	FormattedPrompt        *bool   // send the prompt back
	ReturnTokensAsTokenIDs *bool   // tokens of log probabilities as token_id:N
}

// Routing holds the client's and the router's routing hints. Nil fields are left out; the object itself is always
// present. Frontends fill in what the client said; routers behind an endpoint may fill in more.
type Routing struct {
	BackendInstanceID    *uint64         // the worker to use
	PrefillWorkerID      *uint64         // the worker for the prompt
	DecodeWorkerID       *uint64         // the worker for the answer
	DPRank               *uint32         // data-parallel rank inside the worker
	PrefillDPRank        *uint32         // the same of the prefill worker
	ExpectedOutputTokens *uint32         // the client's guess
	LoRAName             string          // adapter; empty: the base model
	CacheSalt            string          // keeps cached prefixes apart; empty: shared
	PriorityJump         *float64        // Priority, for older routers
	StrictPriority       *uint32         // orders before any other weight
	Priority             *int32          // higher is sooner
	AllowedWorkerIDs     []uint64        // empty: any
	Constraints          json.RawMessage // routing_constraints
}
