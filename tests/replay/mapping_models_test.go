package replay_test

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/prepost/chattmpl"
	"github.com/portico-llm/portico/internal/prepost/executor"
	"github.com/portico-llm/portico/internal/prepost/tokenizer"
)

// mappingModels makes the sets that served the recorded requests. Most names stand for Qwen3 with one parser or
// another; names beginning with p. had another template, gpt-oss names another tokenizer.
type mappingModels struct {
	renderer  prepost.Renderer // of Qwen3; nil when its files haven't been fetched
	tokenizer prepost.Tokenizer
}

// openMappingModels loads Qwen3, when its files are there: tests/fixtures/fetch.sh qwen3.
func openMappingModels(t *testing.T) *mappingModels {
	t.Helper()
	const dir = "../../.build/fixtures/qwen3"
	text, err := os.ReadFile(filepath.Join(dir, "tokenizer.json"))
	if errors.Is(err, fs.ErrNotExist) {
		t.Logf("%s isn't there: prompts and tokens are taken as recorded", dir)
		return &mappingModels{}
	} else if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "tokenizer_config.json"))
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		ChatTemplate string `json:"chat_template"`
	}
	if err := json.Unmarshal(raw, &config); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	registry := executor.NewRegistry(executor.Options{Workers: 1, Log: log})
	t.Cleanup(func() {
		if err := registry.Close(); err != nil {
			t.Error(err)
		}
	})
	tok, err := tokenizer.Load(t.Context(), tokenizer.Options{JSON: text, Registry: registry, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	renderer, err := chattmpl.New(chattmpl.Options{Default: config.ChatTemplate, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		renderer.Close()
		if err := tok.Close(); err != nil {
			t.Error(err)
		}
	})
	return &mappingModels{renderer: renderer, tokenizer: tok}
}

// loaded reports whether prompts are really rendered and tokenised; otherwise differences of that part don't show.
func (m *mappingModels) loaded() bool { return m.tokenizer != nil }

// set returns the set that served a case. Its tokenizer is a *notedTokenizer.
func (m *mappingModels) set(c *mappingCase) *catalog.Set {
	card := &worker.Card{DisplayName: c.Model, ModelType: "Chat | Completions", ModelInput: "Tokens"}
	family, parser, _ := strings.Cut(c.Model, ".")
	if c.Model == "x.keep" {
		keep := false
		card.RuntimeConfig.ExcludeToolsWhenNone = &keep
	}
	set := &catalog.Set{Card: card, EOS: []uint32{151645, 151643}}
	switch family {
	case "t":
		set.ToolParser = parser
	case "p":
		set.ToolParser, set.ReasoningParser = bothParsers(parser)
	case "x":
		set.ToolParser = "hermes"
		switch parser {
		case "st":
			card.RuntimeConfig.StructuralTag = json.RawMessage(`{"scope":"auto"}`)
		case "st_coder":
			set.ToolParser = "qwen3_coder"
			card.RuntimeConfig.StructuralTag = json.RawMessage(`{"scope":"always"}`)
		}
	}
	switch {
	case parser == "harmony" || parser == "gpt_oss":
		set.EOS = []uint32{200002, 199999, 200012}
	case family != "p" && m.tokenizer != nil:
		set.Renderer, set.Tokenizer = m.renderer, &notedTokenizer{Tokenizer: m.tokenizer}
		return set
	}
	text := &recordedText{c: c}
	set.Renderer, set.Tokenizer = text, &notedTokenizer{Tokenizer: text}
	return set
}

// bothParsers are the parsers of a recorded model that has two.
func bothParsers(model string) (tools, reasoning string) {
	switch model {
	case "hermes_qwen3", "qwen3_coder_qwen3":
		return strings.TrimSuffix(model, "_qwen3"), "qwen3"
	case "gpt_oss":
		return "harmony", model
	case "kimi_k25":
		return "kimi_k2", model
	}
	return model, model
}

// lastPrompt returns the text the set's tokenizer has encoded.
func (m *mappingModels) lastPrompt(set *catalog.Set) string {
	return set.Tokenizer.(*notedTokenizer).text
}

// notedTokenizer remembers what it was asked to encode.
type notedTokenizer struct {
	prepost.Tokenizer
	text string
}

func (n *notedTokenizer) Encode(ctx context.Context, text string, special bool) ([]uint32, error) {
	n.text = text
	return n.Tokenizer.Encode(ctx, text, special)
}

// recordedText stands for the template and tokenizer of a model whose files aren't at hand: it answers with the
// recorded prompt and tokens.
type recordedText struct {
	prepost.Tokenizer
	c *mappingCase
}

// TokenID knows the one token that mapping depends on.
func (r *recordedText) TokenID(token string) (uint32, bool) { return 200012, token == "<|call|>" }

func (r *recordedText) Decode([]uint32, bool) (string, error) { return "", nil }

func (r *recordedText) Render(context.Context, *prepost.ChatInput) (string, error) {
	return r.c.PromptText, nil
}

func (r *recordedText) Encode(context.Context, string, bool) ([]uint32, error) {
	switch v := r.c.Preprocessed["token_ids"].(type) {
	case []any:
		ids := make([]uint32, len(v))
		for i, id := range v {
			ids[i] = uint32(id.(float64))
		}
		return ids, nil
	case string: // "185 ids"
		count, _, _ := strings.Cut(v, " ")
		n, err := strconv.Atoi(count)
		return make([]uint32, n), err
	}
	return []uint32{1}, nil // of a request that is refused in the end
}
