package replay_test

import (
	"log/slog"
	"testing"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/catalog"
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
	dir := testkit.Fixture(t, "qwen3")
	log := slog.New(slog.DiscardHandler)
	card, err := modelcard.FromFolder(dir, name)
	if err != nil {
		t.Fatal(err)
	}
	files, err := modelcard.Open(t.Context(), card, modelcard.Options{ModelPath: dir, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	registry := executor.NewRegistry(executor.Options{Workers: 1, Log: log})
	tok, err := tokenizer.Load(t.Context(), tokenizer.Options{JSON: files.Tokenizer, Registry: registry, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	template, err := chattmpl.New(chattmpl.Options{Default: files.TemplateDefault, ToolUse: files.TemplateToolUse,
		SpecialTokens: files.SpecialTokens, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, c := range []interface{ Close() error }{template, tok, registry} {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	card.ModelType, card.ModelInput = "Chat | Completions", "Tokens"
	return testkit.Models{name: &catalog.Set{
		Endpoint: worker.EndpointID{Namespace: "dynamo", Component: "backend", Name: "generate"},
		Card:     card, Renderer: template, Tokenizer: tok, EOS: files.EOS,
	}}
}
