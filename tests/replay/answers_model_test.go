package replay_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/prepost/chattmpl"
	"github.com/portico-llm/portico/internal/prepost/executor"
	"github.com/portico-llm/portico/internal/prepost/modelcard"
	"github.com/portico-llm/portico/internal/prepost/tokenizer"
	"github.com/portico-llm/portico/internal/testkit"
)

// answerModel is the model of the recordings under the given name, with its real tokenizer and template and without a
// reasoning or tool parser.
func answerModel(t *testing.T, name string) testkit.Models {
	t.Helper()
	return testkit.Models{name: fixtureSet(t, "qwen3", name)}
}

// addedToken is a token that is never the result of a merge, as a tokenizer's file writes it.
type addedToken struct {
	ID         int    `json:"id"`
	Content    string `json:"content"`
	Special    bool   `json:"special"`
	SingleWord bool   `json:"single_word"`
	Lstrip     bool   `json:"lstrip"`
	Rstrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
}

// markerTokens are the special tokens that the recorded s. and sr. models have on top of Qwen3's. Ids follow each other
// without a gap, or the file isn't valid; those that no recording uses have a name that says so.
func markerTokens() []addedToken {
	known := map[int]string{
		151669: "[TOOL_CALLS]",
		151673: "<|tool_calls_section_begin|>", 151674: "<|tool_calls_section_end|>", 151675: "<|tool_call_begin|>",
		151676: "<|tool_call_end|>", 151677: "<|tool_call_argument_begin|>",
		151678: "<|tool_call>", 151679: "<tool_call|>", 151680: `<|"|>`,
		151683: "<|open|>", 151684: "<|close|>", 151685: "<|sep|>",
		151687: "]<]minimax[>[", 151688: "<|python_tag|>",
		151689: "<｜tool▁calls▁begin｜>", 151690: "<｜tool▁calls▁end｜>", 151691: "<｜tool▁call▁begin｜>",
		151692: "<｜tool▁call▁end｜>", 151693: "<｜tool▁sep｜>", 151694: "｜DSML｜",
		151695: "<|content_invoke_tool_json|>", 151696: "<|message_model|>", 151697: "<|end_message|>",
		151707: "<|special_x|>",
	}
	var out []addedToken
	for id := 151669; id <= 151707; id++ {
		content, ok := known[id]
		if !ok {
			content = fmt.Sprintf("<|unrecorded_%d|>", id)
		}
		out = append(out, addedToken{ID: id, Content: content, Special: true})
	}
	return out
}

// thoughtMarkers are further special tokens of the sr. models, whose ids weren't recorded.
var thoughtMarkers = []string{
	"[THINK]", "[/THINK]", "<|channel>", "<channel|>", "<|end_of_msg|>", "<|content_thinking|>", "<|content_text|>",
}

// withAdded is a tokenizer's file with more added tokens.
func withAdded(t *testing.T, tokenizer []byte, more []addedToken) []byte {
	t.Helper()
	file := map[string]json.RawMessage{}
	var added []json.RawMessage
	if err := json.Unmarshal(tokenizer, &file); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(file["added_tokens"], &added); err != nil {
		t.Fatal(err)
	}
	marshal := func(v any) json.RawMessage {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, token := range more {
		added = append(added, marshal(token))
	}
	file["added_tokens"] = marshal(added)
	return marshal(file)
}

// fixtureSet is what serves a model whose files are there, with further special tokens.
func fixtureSet(t *testing.T, fixture, name string, special ...addedToken) *catalog.Set {
	t.Helper()
	dir := testkit.Fixture(t, fixture)
	log := slog.New(slog.DiscardHandler)
	card, err := modelcard.FromFolder(dir, name)
	if err != nil {
		t.Fatal(err)
	}
	files, err := modelcard.Open(t.Context(), card, modelcard.Options{ModelPath: dir, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	if len(special) > 0 {
		files.Tokenizer = withAdded(t, files.Tokenizer, special)
	}
	registry := executor.NewRegistry(executor.Options{Workers: 1, Log: log})
	tok, err := tokenizer.Load(t.Context(), tokenizer.Options{JSON: files.Tokenizer, Registry: registry, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	closers := []interface{ Close() error }{tok, registry}
	var renderer prepost.Renderer
	if files.TemplateDefault != "" { // not every fixture has one
		template, err := chattmpl.New(chattmpl.Options{Default: files.TemplateDefault, ToolUse: files.TemplateToolUse,
			SpecialTokens: files.SpecialTokens, Log: log})
		if err != nil {
			t.Fatal(err)
		}
		renderer, closers = template, append([]interface{ Close() error }{template}, closers...)
	}
	t.Cleanup(func() {
		for _, c := range closers {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	card.ModelType, card.ModelInput = "Chat | Completions", "Tokens"
	return &catalog.Set{
		Endpoint: worker.EndpointID{Namespace: "dynamo", Component: "backend", Name: "generate"},
		Card:     card, Renderer: renderer, Tokenizer: tok, EOS: files.EOS,
	}
}
