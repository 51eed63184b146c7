package worker

import (
	"bytes"
	"encoding/json"
	"fmt"
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
	Formatter    CardFile `json:"prompt_formatter,omitzero"`   // tokenizer_config.json
	ChatTemplate CardFile `json:"chat_template_file,omitzero"` // takes precedence over Formatter's template
	GenConfig    CardFile `json:"gen_config,omitzero"`

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

// Kinds of model files.
const (
	KindConfig           = "hf_config_json"
	KindTokenizer        = "hf_tokenizer_json"
	KindTiktoken         = "tik_token_model"
	KindTokenizerConfig  = "hf_tokenizer_config_json"
	KindChatTemplate     = "hf_chat_template"
	KindChatTemplateJSON = "hf_chat_template_json"
	KindGenerationConfig = "hf_generation_config_json"
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
	if f.Kind == KindChatTemplate || f.Kind == KindChatTemplateJSON {
		return json.Marshal(map[string]customFile{f.Kind: {f.Custom, &f.File}})
	}
	return json.Marshal(map[string]CheckedFile{f.Kind: f.File})
}
