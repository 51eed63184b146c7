package worker

import (
	"encoding/json"
	"strings"
)

// Card is a model deployment card: what a worker publishes about the model it serves.
type Card struct {
	DisplayName  string   `json:"display_name"`
	Slug         string   `json:"slug,omitempty"`
	SourcePath   string   `json:"source_path,omitempty"`
	Aliases      []string `json:"aliases,omitempty"`
	ModelInfo    CardFile `json:"model_info"`
	Tokenizer    CardFile `json:"tokenizer"`
	Formatter    CardFile `json:"prompt_formatter"`   // tokenizer_config.json
	ChatTemplate CardFile `json:"chat_template_file"` // takes precedence over Formatter's template
	GenConfig    CardFile `json:"gen_config"`

	ArchitecturalMaxContextLength *uint32 `json:"architectural_max_context_length,omitempty"`
	ContextLength                 *uint32 `json:"context_length,omitempty"`
	KVCacheBlockSize              uint32  `json:"kv_cache_block_size"`
	MigrationLimit                uint32  `json:"migration_limit"`

	ModelType  string     `json:"model_type"`  // flag names joined by " | ", such as "Chat | Completions"
	ModelInput string     `json:"model_input"` // "Text", "Tokens" or "Tensor"
	WorkerType string     `json:"worker_type,omitempty"`
	Needs      [][]string `json:"needs,omitempty"`

	LoRA          *LoRA           `json:"lora,omitempty"`
	UserData      json.RawMessage `json:"user_data,omitempty"`
	RuntimeConfig RuntimeConfig   `json:"runtime_config"`
	MediaDecoder  json.RawMessage `json:"media_decoder,omitempty"`
	MediaFetcher  json.RawMessage `json:"media_fetcher,omitempty"`
	RouterConfig  json.RawMessage `json:"router_config,omitempty"`
	ExtraFiles    []CheckedFile   `json:"extra_files,omitempty"`
}

// LoRA describes an adapter.
type LoRA struct {
	Name            string  `json:"name"`
	MaxGPULoRACount *uint32 `json:"max_gpu_lora_count,omitempty"`
}

// CheckedFile is a file of the model with its checksum.
type CheckedFile struct {
	Path     string  `json:"path"`     // local path or URL
	Checksum string  `json:"checksum"` // "blake3:" and 64 lower-case hex digits
	Size     *uint64 `json:"size,omitempty"`
}

// RuntimeConfig is what a worker's engine reports of itself.
type RuntimeConfig struct {
	ContextLength         *uint32                    `json:"context_length,omitempty"`
	TotalKVBlocks         *uint64                    `json:"total_kv_blocks,omitempty"`
	MaxNumSeqs            *uint64                    `json:"max_num_seqs,omitempty"`
	MaxNumBatchedTokens   *uint64                    `json:"max_num_batched_tokens,omitempty"`
	ToolCallParser        string                     `json:"tool_call_parser,omitempty"`
	ReasoningParser       string                     `json:"reasoning_parser,omitempty"`
	TokenizerBackend      string                     `json:"tokenizer_backend,omitempty"`
	ExcludeToolsWhenNone  *bool                      `json:"exclude_tools_when_tool_choice_none,omitempty"`
	DataParallelStartRank uint32                     `json:"data_parallel_start_rank,omitempty"`
	DataParallelSize      uint32                     `json:"data_parallel_size,omitempty"`
	RuntimeData           map[string]json.RawMessage `json:"runtime_data,omitempty"`
	DisaggregatedEndpoint json.RawMessage            `json:"disaggregated_endpoint,omitempty"`
	Taints                []string                   `json:"taints,omitempty"`
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

// EffectiveContextLength returns the model's context length in tokens; 0 is unknown.
func (c *Card) EffectiveContextLength() uint32 {
	for _, n := range []*uint32{c.RuntimeConfig.ContextLength, c.ArchitecturalMaxContextLength, c.ContextLength} {
		if n != nil {
			return *n
		}
	}
	return 0
}

// CardFile is one of the card's model files: {"<kind>": CheckedFile}, or null when the model has none.
type CardFile struct {
	Kind   string // such as hf_tokenizer_json; empty when there is no file
	File   CheckedFile
	Custom bool // chat templates: given by the operator, so never looked up elsewhere
}

// IsZero reports whether the card names no such file.
func (f CardFile) IsZero() bool { return f.Kind == "" }
