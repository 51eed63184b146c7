package main

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/config"
	"github.com/portico-llm/portico/internal/prepost/modelcard"
)

// TestParsers: the operator's names go before the card's, and the template is asked only when nobody names any.
func TestParsers(t *testing.T) {
	const qwen = "<tool_call></tool_call>{% if enable_thinking %}</think>"
	tests := []struct {
		name                     string
		flags, card              [2]string // tool parser, reasoning parser
		template                 string
		tools, reasoning, logged string
	}{
		{"nothing", [2]string{}, [2]string{}, "{{ messages }}", "", "", ""},
		{"card", [2]string{}, [2]string{"mistral", "basic"}, qwen, "mistral", "basic", ""},
		{"flags", [2]string{"hermes", "qwen3"}, [2]string{"mistral", "basic"}, "", "hermes", "qwen3", ""},
		{"one of each", [2]string{"hermes", ""}, [2]string{"", "basic"}, "", "hermes", "basic", ""},
		{"card with one", [2]string{}, [2]string{"mistral", ""}, qwen, "mistral", "", ""},
		{"template", [2]string{}, [2]string{}, qwen, "hermes", "qwen3",
			`level=INFO msg="parsers recognised by the chat template" model=m tool_call_parser=hermes reasoning_parser=qwen3`},
		{"unknown on the card", [2]string{}, [2]string{"new", "qwen3"}, "", "", "qwen3", "level=WARN"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var log bytes.Buffer
			a := &app{cfg: &config.Config{Models: config.Models{ToolParser: tt.flags[0], ReasoningParser: tt.flags[1]}}}
			card := &worker.Card{DisplayName: "m"}
			card.RuntimeConfig.ToolCallParser, card.RuntimeConfig.ReasoningParser = tt.card[0], tt.card[1]
			tools, reasoning := a.parsers(card, &modelcard.Files{TemplateDefault: tt.template},
				slog.New(slog.NewTextHandler(&log, nil)))
			if tools != tt.tools || reasoning != tt.reasoning {
				t.Errorf("%q and %q, want %q and %q", tools, reasoning, tt.tools, tt.reasoning)
			}
			if strings.Count(log.String(), "\n") > 1 || !strings.Contains(log.String(), tt.logged) ||
				tt.logged == "" && log.Len() > 0 {
				t.Errorf("log: %s", &log)
			}
		})
	}
}
