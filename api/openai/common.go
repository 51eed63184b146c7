package openai

import (
	"encoding/json"
	"slices"
)

// Common holds what chat and completion requests share: sampling, stops, guided decoding and extensions. Nil is absent.
type Common struct {
	Model string  `json:"model"` // required
	User  *string `json:"user"`  // for abuse reports at OpenAI; not passed on

	Stream        *bool          `json:"stream"`         // absent is false
	StreamOptions *StreamOptions `json:"stream_options"` // only with Stream

	Temperature       *float64        `json:"temperature"`        // 0 takes the likeliest token
	TopP              *float64        `json:"top_p"`              // probability mass to draw from
	TopK              *int64          `json:"top_k"`              // 0 and -1: all tokens
	MinP              *float64        `json:"min_p"`              // least share of the likeliest token's probability
	FrequencyPenalty  *float64        `json:"frequency_penalty"`  // grows with each use of a token
	PresencePenalty   *float64        `json:"presence_penalty"`   // the same after any number of uses
	RepetitionPenalty *float64        `json:"repetition_penalty"` // 1: none
	Seed              *int64          `json:"seed"`               // absent: the worker draws one
	N                 *int64          `json:"n"`                  // answers to each prompt
	LogitBias         json.RawMessage `json:"logit_bias"`         // object: token id → bias

	MaxTokens    *int64   `json:"max_tokens"`                 // absent: the worker's own limit
	MinTokens    *int64   `json:"min_tokens"`                 // until then nothing stops the answer
	Stop         []string `json:"stop"`                       // a single string is a list of one; empty and nil differ
	StopTokenIDs []uint32 `json:"stop_token_ids"`             // not shown in the text
	IgnoreEOS    *bool    `json:"ignore_eos"`                 // no token or text ends the answer
	IncludeStop  *bool    `json:"include_stop_str_in_output"` // keep what matched

	GuidedJSON              json.RawMessage `json:"guided_json"`               // schema as an object, or as a string
	GuidedRegex             *string         `json:"guided_regex"`              // the whole answer matches
	GuidedGrammar           *string         `json:"guided_grammar"`            // EBNF or whatever the backend takes
	GuidedChoice            []string        `json:"guided_choice"`             // the answer is one of them; empty: no constraint
	GuidedBackend           *string         `json:"guided_decoding_backend"`   // a setting, no constraint
	GuidedWhitespacePattern *string         `json:"guided_whitespace_pattern"` // between the tokens of guided JSON
	StructuredOutputs       json.RawMessage `json:"structured_outputs"`        // refused: vLLM's newer name for all of these

	SkipSpecialTokens      *bool           `json:"skip_special_tokens"`        // absent is true
	PromptLogprobs         *int64          `json:"prompt_logprobs"`            // alternatives for each token of the prompt
	ReturnTokensAsTokenIDs *bool           `json:"return_tokens_as_token_ids"` // logprobs name tokens token_id:N
	Detokenize             *bool           `json:"detokenize"`                 // this and the next three go to the worker as they are
	AllowedTokenIDs        json.RawMessage `json:"allowed_token_ids"`          // array: nothing else is drawn
	BadWordsTokenIDs       json.RawMessage `json:"bad_words_token_ids"`        // array of sequences, as arrays
	LogprobTokenIDs        json.RawMessage `json:"logprob_token_ids"`          // array: also with logprobs

	CacheSalt *string         `json:"cache_salt"` // keeps cached prefixes apart; nvext's counts first
	Metadata  json.RawMessage `json:"metadata"`   // object of the client's own
	NvExt     *NvExt          `json:"nvext"`      // extensions of Dynamo's

	Unknown Unknown `json:"-"` // what was skipped while reading

	body     []byte // what the request was decoded from
	saltOnly bool   // all of nvext but its salt was ignored
}

// Streaming reports whether the client asked for a stream.
func (c *Common) Streaming() bool { return c.Stream != nil && *c.Stream }

// Unknown tells which fields of a request the server doesn't know. Names are bounded in number and length.
type Unknown struct {
	Names []string // JSON paths, in order of appearance
	Count int      // how many there were, also beyond Names
}

// Bounds of Unknown: a client chooses these names, and they end in logs and error texts.
const (
	maxUnknownNames = 16
	maxUnknownBytes = 64
)

// add notes one more unknown field. A body may hold millions of unknown names: only the first few are kept, the rest is
// counted.
func (u *Unknown) add(name string) {
	u.Count++
	if len(u.Names) < maxUnknownNames {
		u.Names = append(u.Names, clip(name, maxUnknownBytes))
	}
}

// StreamOptions are the options of a stream.
type StreamOptions struct {
	IncludeUsage         *bool `json:"include_usage"`          // a last chunk with the usage
	ContinuousUsageStats *bool `json:"continuous_usage_stats"` // usage in every chunk
	IncludeObfuscation   *bool `json:"include_obfuscation"`    // accepted; the server never obfuscates
}

// NvExt holds the extensions under nvext.
type NvExt struct {
	GreedSampling      *bool           `json:"greed_sampling"`       // whatever temperature and top_p say
	UseRawPrompt       *bool           `json:"use_raw_prompt"`       // no effect: there is no other prompt
	Annotations        []string        `json:"annotations"`          // events wanted ahead of a stream
	BackendInstanceID  *uint64         `json:"backend_instance_id"`  // the worker to use
	TokenData          []uint32        `json:"token_data"`           // the prompt as token ids
	MaxThinkingTokens  *int64          `json:"max_thinking_tokens"`  // thinking_token_budget counts first
	CacheSalt          *string         `json:"cache_salt"`           // the one field that is never ignored
	ExtraFields        []string        `json:"extra_fields"`         // wanted in the answer's nvext
	MetadataUpload     json.RawMessage `json:"metadata_upload"`      // object, for the worker
	PrefillWorkerID    *uint64         `json:"prefill_worker_id"`    // with separate prefill and decode workers
	DecodeWorkerID     *uint64         `json:"decode_worker_id"`     // the worker that answers: pins the request, too
	DPRank             *uint32         `json:"dp_rank"`              // data-parallel rank inside the worker
	PrefillDPRank      *uint32         `json:"prefill_dp_rank"`      // the same of the prefill worker
	AgentHints         *AgentHints     `json:"agent_hints"`          // scheduling wishes
	RequestTimestampMS *float64        `json:"request_timestamp_ms"` // Unix time of the client
	RoutingConstraints json.RawMessage `json:"routing_constraints"`  // required and preferred taints
	Router             json.RawMessage `json:"router"`               // object, for the worker's own router
}

// AgentHints tell the router what a client knows of its request.
type AgentHints struct {
	Priority           *int32   `json:"priority"`            // higher is sooner
	StrictPriority     *uint32  `json:"strict_priority"`     // orders before any other weight
	OSL                *uint32  `json:"osl"`                 // expected output tokens
	SpeculativePrefill *bool    `json:"speculative_prefill"` // no effect
	LatencySensitivity *float64 `json:"latency_sensitivity"` // no effect
}

// Wants reports whether the client asked for the named annotation. A nil NvExt wants none.
func (x *NvExt) Wants(annotation string) bool {
	if x == nil {
		return false
	}
	// Lists are a handful of names: a set would cost more than it saves.
	return slices.Contains(x.Annotations, annotation)
}

// HasExtra reports whether the client asked for the named extra response field. A nil NvExt has none.
func (x *NvExt) HasExtra(field string) bool {
	if x == nil {
		return false
	}
	return slices.Contains(x.ExtraFields, field)
}
