package worker

import "encoding/json"

// Request is what a token worker takes: PreprocessedRequest of the worker protocol. Nil pointers and nil slices are
// encoded as null where the protocol always has the key, and left out where the key is optional.
type Request struct {
	Model    string
	TokenIDs []uint32 // prompt

	Stop     StopConditions
	Sampling SamplingOptions
	Output   OutputOptions

	EOSTokenIDs []uint32 // empty with ignore_eos
	MDCSum      string   // empty: null
	Annotations []string
	Routing     Routing

	// Optional JSON values, passed on as they are; empty ones are left out.
	MultiModalData    json.RawMessage
	MultiModalUUIDs   json.RawMessage
	PromptEmbeds      string
	RouterOverride    json.RawMessage // router_config_override: null when empty
	PrefillResult     json.RawMessage
	BootstrapInfo     json.RawMessage
	ExtraArgs         json.RawMessage
	Router            json.RawMessage
	AgentContext      json.RawMessage
	MMProcessorKwargs json.RawMessage
	MediaIOKwargs     json.RawMessage
	MMRoutingInfo     json.RawMessage // mm_routing_info
	EncoderResult     json.RawMessage
	MigrationLink     json.RawMessage
	KVHint            json.RawMessage
	ImageCacheScope   string
	RequireReasoning  bool     // left out when false
	TimestampMS       *float64 // request_timestamp_ms
	HealthCheck       bool     // _HEALTH_CHECK: left out when false
}

// StopConditions say when a worker stops. Every key is always present.
type StopConditions struct {
	MaxTokens           *uint32
	Stop                []string
	StopTokenIDs        []uint32
	StopTokenIDsVisible []uint32
	StopTokenIDsHidden  []uint32
	MinTokens           *uint32
	IgnoreEOS           *bool
	MaxThinkingTokens   *uint32
}

// SamplingOptions say how tokens are drawn. Every key is always present.
type SamplingOptions struct {
	N                 *uint8
	BestOf            *uint8
	PresencePenalty   *float64
	FrequencyPenalty  *float64
	RepetitionPenalty *float64
	Temperature       *float64
	TopP              *float64
	TopK              *int32
	MinP              *float64
	UseBeamSearch     *bool
	LengthPenalty     *float64
	Seed              *int64
	IncludeStopStr    *bool           // include_stop_str_in_output
	GuidedDecoding    json.RawMessage // JSON object with only its non-null keys; empty: null
}

// OutputOptions say what comes back beside tokens. Every key is always present but no_stop_trim.
type OutputOptions struct {
	NoStopTrim             *bool // left out when nil
	Logprobs               *uint32
	PromptLogprobs         *uint32
	SkipSpecialTokens      *bool
	FormattedPrompt        *bool
	ReturnTokensAsTokenIDs *bool
}

// Routing holds the client's and the router's routing hints. Nil fields are left out; the object itself is always
// present.
type Routing struct {
	BackendInstanceID    *uint64
	PrefillWorkerID      *uint64
	DecodeWorkerID       *uint64
	DPRank               *uint32
	PrefillDPRank        *uint32
	ExpectedOutputTokens *uint32
	LoRAName             string
	CacheSalt            string
	PriorityJump         *float64
	StrictPriority       *uint32
	Priority             *int32
	AllowedWorkerIDs     []uint64
	Constraints          json.RawMessage // routing_constraints
}
