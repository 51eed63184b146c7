package worker

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// Card is a model deployment card: what a worker publishes about the model it serves.
type Card struct {
	DisplayName string `json:"display_name"` // what clients name in model
	// Slug is DisplayName in lower case, of letters, digits, - and _ only.
	Slug string `json:"slug,omitempty"`
	// SourcePath is a folder or a repository; an adapter's names its base model.
	SourcePath   string   `json:"source_path,omitempty"`
	Aliases      []string `json:"aliases,omitempty"`           // further names of the model
	ModelInfo    CardFile `json:"model_info"`                  // config.json
	Tokenizer    CardFile `json:"tokenizer"`                   // tokenizer.json or tiktoken.model
	Formatter    CardFile `json:"prompt_formatter,omitzero"`   // tokenizer_config.json
	ChatTemplate CardFile `json:"chat_template_file,omitzero"` // takes precedence over Formatter's template
	GenConfig    CardFile `json:"gen_config,omitzero"`         // generation_config.json

	// Lengths in tokens; EffectiveContextLength knows which of them counts.
	ArchitecturalMaxContextLength *uint32 `json:"architectural_max_context_length,omitempty"` // the model's own
	// ContextLength counts where neither the engine nor the model says anything.
	ContextLength *uint32 `json:"context_length,omitempty"`
	// KVCacheBlockSize is the number of tokens in a block of the KV cache.
	KVCacheBlockSize uint32 `json:"kv_cache_block_size"`
	// MigrationLimit is how often a request may move to another worker.
	MigrationLimit uint32 `json:"migration_limit"`

	ModelType  string `json:"model_type"`  // flag names joined by " | ", such as "Chat | Completions"
	ModelInput string `json:"model_input"` // "Text", "Tokens" or "Tensor"
	// WorkerType is aggregated, prefill, decode or encode; older workers don't say.
	WorkerType string `json:"worker_type,omitempty"`
	// Needs lists alternatives, each a list of worker types that have to be there.
	Needs [][]string `json:"needs,omitempty"`

	LoRA          *LoRA           `json:"lora,omitempty"`      // set for adapters only
	UserData      json.RawMessage `json:"user_data,omitempty"` // the operator's own; not looked at
	RuntimeConfig RuntimeConfig   `json:"runtime_config"`      // reported by the engine
	// MediaDecoder asks for media decoded by the frontend; absent, the worker decodes them.
	MediaDecoder json.RawMessage `json:"media_decoder,omitempty"`
	MediaFetcher json.RawMessage `json:"media_fetcher,omitempty"` // how it is to fetch them
	RouterConfig json.RawMessage `json:"router_config,omitempty"` // in place of a router's own settings; in the sum
	ExtraFiles   []CheckedFile   `json:"extra_files,omitempty"`   // further files, which only count in the sum
}

// LoRA describes an adapter.
type LoRA struct {
	Name            string  `json:"name"`                         // of the adapter
	MaxGPULoRACount *uint32 `json:"max_gpu_lora_count,omitempty"` // adapters the worker keeps loaded
}

// CheckedFile is a file of the model with its checksum.
type CheckedFile struct {
	Path     string  `json:"path"`           // local path or URL
	Checksum string  `json:"checksum"`       // "blake3:" and 64 lower-case hex digits
	Size     *uint64 `json:"size,omitempty"` // bytes
}

// RuntimeConfig is what a worker's engine reports of itself.
type RuntimeConfig struct {
	// ContextLength is in tokens, and goes before the card's own.
	ContextLength *uint32 `json:"context_length,omitempty"`
	// TotalKVBlocks is the size of the worker's KV cache in blocks.
	TotalKVBlocks *uint64 `json:"total_kv_blocks,omitempty"`
	// MaxNumSeqs bounds the sequences of one batch.
	MaxNumSeqs *uint64 `json:"max_num_seqs,omitempty"`
	// MaxNumBatchedTokens bounds the tokens of one batch.
	MaxNumBatchedTokens *uint64 `json:"max_num_batched_tokens,omitempty"`
	// ToolCallParser names the way the model writes tool calls.
	ToolCallParser string `json:"tool_call_parser,omitempty"`
	// ReasoningParser names the way it marks its reasoning.
	ReasoningParser string `json:"reasoning_parser,omitempty"`
	// StructuralTag is the object that CallTags reads; older workers write the three settings below in its place.
	StructuralTag       json.RawMessage `json:"structural_tag,omitempty"`
	StructuralTagMode   string          `json:"structural_tag_mode,omitempty"`   // on or off
	StructuralTagScope  string          `json:"structural_tag_scope,omitempty"`  // as CallTags.Scope
	StructuralTagSchema string          `json:"structural_tag_schema,omitempty"` // as CallTags.Schema
	// TokenizerBackend may be default, which asks for the reference tokenizer.
	TokenizerBackend string `json:"tokenizer_backend,omitempty"`
	// ExcludeToolsWhenNone hides the tools from the template when tool_choice is none; nil is true.
	ExcludeToolsWhenNone *bool `json:"exclude_tools_when_tool_choice_none,omitempty"`
	// DataParallelStartRank is the first rank inside the worker.
	DataParallelStartRank uint32 `json:"data_parallel_start_rank,omitempty"`
	// DataParallelSize is the number of ranks.
	DataParallelSize uint32 `json:"data_parallel_size,omitempty"`
	// EnableEagle says that blocks are hashed with the token behind them, for speculative decoding of that kind.
	EnableEagle bool `json:"enable_eagle,omitempty"`
	// RuntimeData holds values by name, such as token_budget.
	RuntimeData map[string]json.RawMessage `json:"runtime_data,omitempty"`
	// DisaggregatedEndpoint is where decode workers meet a prefill worker; BootstrapAddress reads it.
	DisaggregatedEndpoint json.RawMessage `json:"disaggregated_endpoint,omitempty"`
	// Taints may change while the worker lives, as nothing else of a card does.
	Taints []string `json:"taints,omitempty"`
}

// Has reports whether the card's model type has the named flag, such as "Chat".
func (c *Card) Has(flag string) bool {
	for f := range strings.SplitSeq(c.ModelType, "|") {
		if strings.TrimSpace(f) == flag {
			return true
		}
	}
	return false
}

// CallTags is what a worker says of structural tags, which hold tool calls to the model's own form.
type CallTags struct {
	Scope  string `json:"scope"`  // always, or auto: for calls that must be made, strict tools and single calls
	Schema string `json:"schema"` // strict: every tool's schema holds; auto: but for those that say strict false

	// WithFormat leaves an answer with a response format the choice between calls and that format.
	WithFormat bool `json:"allow_tool_calls_with_structured_output"`
	// Exclude keeps the markers of thoughts and calls out of the text around them; nil: as the model's family wants.
	Exclude *bool `json:"exclude_special_tokens"`
	// Boundary says who lets a thought that the prompt has opened pass: structural_tag, backend, or auto.
	Boundary string `json:"reasoning_boundary"`
	// AnyOrder lets arguments come in another order than the schema's.
	AnyOrder bool `json:"tool_arguments_any_order"`
}

// Flag reports whether a value of RuntimeData is true.
func (r *RuntimeConfig) Flag(name string) bool {
	return string(bytes.TrimSpace(r.RuntimeData[name])) == "true"
}

// The flags with which an engine says that thoughts are its own business.
const (
	// FlagTagExcludesReasoning: its grammars begin behind the thought, whatever they hold the answer to.
	FlagTagExcludesReasoning = "tool_call_structural_tag_excludes_reasoning"
	// FlagTagReasoningGate: they do when the request says require_reasoning.
	FlagTagReasoningGate = "tool_call_structural_tag_reasoning_gate"
)

// CallTags returns the worker's wish for structural tags; nil: it has none. The object goes before the older settings,
// also when it says no; one that can't be read counts as none.
func (r *RuntimeConfig) CallTags() *CallTags {
	if len(r.StructuralTag) == 0 {
		if r.StructuralTagMode != "on" {
			return nil
		}
		return &CallTags{Scope: r.StructuralTagScope, Schema: r.StructuralTagSchema}
	}
	var t *CallTags
	if json.Unmarshal(r.StructuralTag, &t) != nil {
		return nil
	}
	return t
}

// EffectiveContextLength returns the model's context length in tokens; 0 is unknown.
func (c *Card) EffectiveContextLength() uint32 {
	// The engine knows best what it was started with; a 0 counts like any other value.
	for _, n := range []*uint32{c.RuntimeConfig.ContextLength, c.ArchitecturalMaxContextLength, c.ContextLength} {
		if n != nil {
			return *n
		}
	}
	return 0
}

// CardFile is one of the card's model files: {"<kind>": CheckedFile}, or null when the model has none.
type CardFile struct {
	Kind   string      // such as hf_tokenizer_json; empty when there is no file
	File   CheckedFile // zero when there is none
	Custom bool        // chat templates: given by the operator, so never looked up elsewhere
}

// IsZero reports whether the card names no such file.
func (f CardFile) IsZero() bool { return f.Kind == "" }

// Kinds of model files. They are the variant names of the worker's own type, in its serialised form.
const (
	KindConfig           = "hf_config_json"            // config.json
	KindTokenizer        = "hf_tokenizer_json"         // tokenizer.json
	KindTiktoken         = "tik_token_model"           // tiktoken.model or *.tiktoken
	KindTokenizerConfig  = "hf_tokenizer_config_json"  // tokenizer_config.json
	KindChatTemplate     = "hf_chat_template"          // a Jinja template as it is
	KindChatTemplateJSON = "hf_chat_template_json"     // JSON with the template in chat_template
	KindGenerationConfig = "hf_generation_config_json" // generation_config.json
)

// kindChatTemplateAlias is another name for KindChatTemplate.
const kindChatTemplateAlias = "hf_chat_template_jinja"

// customFile is how chat templates wrap their file.
type customFile struct {
	IsCustom bool         `json:"is_custom"`
	File     *CheckedFile `json:"file"`
}

// UnmarshalJSON reads null or an object with one key, the kind. Chat templates wrap their file once more; either shape
// is read for any kind.
func (f *CardFile) UnmarshalJSON(b []byte) error {
	*f = CardFile{}
	if bytes.Equal(bytes.TrimSpace(b), []byte("null")) {
		return nil
	}
	var kinds map[string]json.RawMessage
	if err := json.Unmarshal(b, &kinds); err != nil {
		return fmt.Errorf("model file: %w", err)
	}
	if len(kinds) != 1 {
		return fmt.Errorf("model file: %d kinds where one is expected", len(kinds))
	}
	for kind, raw := range kinds {
		// A plain file has no member file, so the first look tells the two shapes apart.
		var wrapped customFile
		if err := json.Unmarshal(raw, &wrapped); err != nil {
			return fmt.Errorf("model file %s: %w", kind, err)
		}
		if wrapped.File != nil {
			f.File, f.Custom = *wrapped.File, wrapped.IsCustom
		} else if err := json.Unmarshal(raw, &f.File); err != nil {
			return fmt.Errorf("model file %s: %w", kind, err)
		}
		if kind == kindChatTemplateAlias {
			kind = KindChatTemplate
		}
		f.Kind = kind
	}
	return nil
}

// MarshalJSON writes null or an object with one key, the kind.
func (f CardFile) MarshalJSON() ([]byte, error) {
	if f.IsZero() {
		return []byte("null"), nil
	}
	// The shape that workers write for each kind, so that a card read and written again keeps its text.
	if f.Kind == KindChatTemplate || f.Kind == KindChatTemplateJSON {
		return json.Marshal(map[string]customFile{f.Kind: {f.Custom, &f.File}})
	}
	return json.Marshal(map[string]CheckedFile{f.Kind: f.File})
}
