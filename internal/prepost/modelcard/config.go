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

// modelConfig is what is read of config.json and generation_config.json. The two files share names, and a model may
// have either, both or neither.
type modelConfig struct {
	ModelType     string          `json:"model_type"`              // such as qwen3
	Architectures []string        `json:"architectures"`           // class names of transformers
	MaxPositions  *uint32         `json:"max_position_embeddings"` // tokens; nil: not said
	VocabSize     *int            `json:"vocab_size"`              // nil: not said
	EOSTokenID    json.RawMessage `json:"eos_token_id"`            // an id, a list of ids, or null
	// Text is where multimodal models keep the language model's part.
	Text *modelConfig `json:"text_config"`
}

// eos returns the ids that end an answer: the config's own, or those of its language model; nil: none are named.
func (c *modelConfig) eos() []uint32 {
	if ids := tokenIDs(c.EOSTokenID); ids != nil {
		return ids
	}
	if c.Text != nil {
		return c.Text.eos()
	}
	return nil
}

// tokenIDs reads an id or a list of ids, as configs have either; anything else names none.
func tokenIDs(raw json.RawMessage) []uint32 {
	var one uint32
	var list []uint32
	switch {
	case len(raw) == 0 || string(raw) == "null":
	// Llama 2 has one id, Llama 3 a list of them.
	case json.Unmarshal(raw, &one) == nil:
		return []uint32{one}
	case json.Unmarshal(raw, &list) == nil && len(list) > 0:
		return list
	}
	return nil
}

// unlimitedTokens and above are how tokenizers say that they know no limit.
const unlimitedTokens = 1 << 30

// maxContext returns the model's longest context: its own word for it, else its tokenizer's. 0 is unknown. Tokenizers
// of other frameworks write a made-up number, which is at least 2^30.
func (c *modelConfig) maxContext(settings *tokenizerConfig) uint32 {
	switch {
	case c.MaxPositions != nil:
		return *c.MaxPositions
	case c.Text != nil && c.Text.MaxPositions != nil:
		return *c.Text.MaxPositions
	// transformers writes 1e30 where there is no limit.
	case settings.maxLength >= 1 && settings.maxLength < unlimitedTokens:
		return uint32(settings.maxLength)
	}
	return 0
}

// vocabSize returns the number of rows the model's output has, which may exceed the tokenizer's; 0: unknown.
func (c *modelConfig) vocabSize() int {
	if c.VocabSize != nil {
		return *c.VocabSize
	}
	if c.Text != nil && c.Text.VocabSize != nil {
		return *c.Text.VocabSize
	}
	return 0
}

// templateSet is a model's chat templates. Empty is none.
type templateSet struct{ def, toolUse string }

// tokenizerConfig is what is read of tokenizer_config.json.
type tokenizerConfig struct {
	special   map[string]string // such as bos_token
	maxLength float64           // model_max_length; 0: not said
	templates templateSet       // empty when they have a file of their own
}

// UnmarshalJSON reads the special tokens under whatever names they have. Every member that ends in _token and has a
// text becomes a variable of chat templates, as in transformers.
func (c *tokenizerConfig) UnmarshalJSON(b []byte) error {
	// Member by member: one that has an odd type must not hide the others.
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
	// transformers writes an AddedToken object where a token has properties of its own.
	var token struct {
		Content *string `json:"content"`
	}
	if bytes.HasPrefix(raw, []byte{'{'}) && json.Unmarshal(raw, &token) == nil && token.Content != nil {
		return *token.Content, true
	}
	return "", false
}

// readTemplates reads a chat_template value: one template, or a list of named ones, either as {"name":…,"template":…}
// or as {name: template}. transformers knows two names, default and tool_use. Absent and null are no templates.
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
	// Both shapes become one name and one template; names other than the two have no meaning here.
	for _, entry := range list {
		// The second shape is a map from names to templates already.
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
	// A model with a template for tools only uses it for everything.
	if set.def == "" {
		set.def = set.toolUse
	}
	return set, nil
}

// templates reads a chat template's own file: the template as it is, or JSON with a chat_template in it. Which of the
// two it is, the card says.
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
