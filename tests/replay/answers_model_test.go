package replay_test

import (
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

// fixtureSet is what serves a model whose files are there.
func fixtureSet(t *testing.T, fixture, name string) *catalog.Set {
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
