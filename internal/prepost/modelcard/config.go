package modelcard

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/portico-llm/portico/api/worker"
)

// modelConfig is what is read of config.json and generation_config.json.
type modelConfig struct {
	ModelType     string          `json:"model_type"`
	Architectures []string        `json:"architectures"`
	MaxPositions  *uint32         `json:"max_position_embeddings"`
	VocabSize     *int            `json:"vocab_size"`
	EOSTokenID    json.RawMessage `json:"eos_token_id"` // an id, a list of ids, or null
	Text          *modelConfig    `json:"text_config"`  // multimodal models keep the language model's part here
}

func (c *modelConfig) eos() []uint32 {
	if ids := tokenIDs(c.EOSTokenID); ids != nil {
		return ids
	}
	if c.Text != nil {
		return c.Text.eos()
	}
	return nil
}

func tokenIDs(raw json.RawMessage) []uint32 {
	var one uint32
	var list []uint32
	switch {
	case len(raw) == 0 || string(raw) == "null":
	case json.Unmarshal(raw, &one) == nil:
		return []uint32{one}
	case json.Unmarshal(raw, &list) == nil && len(list) > 0:
		return list
	}
	return nil
}

// unlimitedTokens and above are how tokenizers say that they know no limit.
const unlimitedTokens = 1 << 30

// maxContext returns the model's longest context: its own word for it, else its tokenizer's.
func (c *modelConfig) maxContext(settings *tokenizerConfig) uint32 {
	switch {
	case c.MaxPositions != nil:
		return *c.MaxPositions
	case c.Text != nil && c.Text.MaxPositions != nil:
		return *c.Text.MaxPositions
	case settings.maxLength >= 1 && settings.maxLength < unlimitedTokens:
		return uint32(settings.maxLength)
	}
	return 0
}

func (c *modelConfig) vocabSize() int {
	if c.VocabSize != nil {
		return *c.VocabSize
	}
	if c.Text != nil && c.Text.VocabSize != nil {
		return *c.Text.VocabSize
	}
	return 0
}

// templateSet is a model's chat templates.
type templateSet struct{ def, toolUse string }

// tokenizerConfig is what is read of tokenizer_config.json.
type tokenizerConfig struct {
	special   map[string]string // such as bos_token
	maxLength float64
	templates templateSet
}

// UnmarshalJSON reads the special tokens under whatever names they have.
func (c *tokenizerConfig) UnmarshalJSON(b []byte) error {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(b, &all); err != nil {
		return fmt.Errorf("not an object: %w", err)
	}
	c.special = map[string]string{}
	for name, raw := range all {
		if text, ok := tokenText(raw); ok && strings.HasSuffix(name, "_token") {
			c.special[name] = text
		}
	}
	if raw, ok := all["model_max_length"]; ok {
		// Numbers such as 1e30 are common; a value of another type says nothing.
		if json.Unmarshal(raw, &c.maxLength) != nil || math.IsNaN(c.maxLength) {
			c.maxLength = 0
		}
	}
	var err error
	c.templates, err = readTemplates(all["chat_template"])
	return err
}

// tokenText reads a token: a string, or an object with its content.
func tokenText(raw json.RawMessage) (string, bool) {
	var text string
	if bytes.HasPrefix(raw, []byte{'"'}) && json.Unmarshal(raw, &text) == nil {
		return text, true
	}
	var token struct {
		Content *string `json:"content"`
	}
	if bytes.HasPrefix(raw, []byte{'{'}) && json.Unmarshal(raw, &token) == nil && token.Content != nil {
		return *token.Content, true
	}
	return "", false
}

// readTemplates reads a chat_template value: one template, or a list of named ones, either as {"name":…,"template":…}
// or as {name: template}.
func readTemplates(raw json.RawMessage) (templateSet, error) {
	var set templateSet
	switch {
	case len(raw) == 0 || string(raw) == "null":
		return set, nil
	case json.Unmarshal(raw, &set.def) == nil:
		return set, nil
	}
	var list []map[string]string
	if err := json.Unmarshal(raw, &list); err != nil {
		return set, errors.New("chat_template is neither a string nor a list of named templates")
	}
	for _, entry := range list {
		named := entry
		if name, ok := entry["name"]; ok {
			named = map[string]string{name: entry["template"]}
		}
		for name, template := range named {
			switch name {
			case "default":
				set.def = template
			case "tool_use":
				set.toolUse = template
			}
		}
	}
	if set.def == "" {
		set.def = set.toolUse
	}
	return set, nil
}

// templates reads a chat template's own file: the template as it is, or JSON with a chat_template in it.
func (f *found) templates() (templateSet, error) {
	if f.kind != worker.KindChatTemplateJSON {
		return templateSet{def: string(f.data)}, nil
	}
	var file struct {
		ChatTemplate json.RawMessage `json:"chat_template"`
	}
	if err := f.decode(&file); err != nil {
		return templateSet{}, err
	}
	set, err := readTemplates(file.ChatTemplate)
	if err != nil {
		return set, fmt.Errorf("model file %s: %w", f.name, err)
	}
	return set, nil
}
