package replay_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/prepost/msgparse"
	"github.com/portico-llm/portico/internal/server/validate"
)

// boundaryCase is a request to a model whose calls may be held to their form, and the constraint that was made of it.
type boundaryCase struct {
	Version   int                        `json:"version"`
	Config    json.RawMessage            `json:"config"`
	Tool      string                     `json:"tool_parser"`
	Reasoning string                     `json:"reasoning_parser"`
	Kind      string                     `json:"kind"`
	Request   map[string]json.RawMessage `json:"request"`
	Prompt    string                     `json:"prompt"`
	Guided    map[string]any             `json:"guided"`
	Require   bool                       `json:"require_reasoning"`
	Kwargs    map[string]any             `json:"kwargs"`
}

// differs returns why the case is answered otherwise here; empty: it isn't.
func (c *boundaryCase) differs() string {
	switch {
	case c.Tool == "kimi_k3" && (c.Kind == "required" || c.Kind == "required_rf" || c.Kind == "required_off" ||
		c.Kind == "loose_req") && string(c.Config) == "{}":
		return "a forced call is held to its form; upstream sends no constraint"
	}
	return ""
}

// TestBoundaries: settings of structural tags have the recorded effects.
func TestBoundaries(t *testing.T) {
	n := 0
	for i, line := range readGzip(t, "boundaries.jsonl.gz") {
		var c boundaryCase
		if err := json.Unmarshal(line, &c); err != nil {
			t.Fatal(err)
		}
		n++
		name := fmt.Sprintf("%d/%s/%s/%s/%s", i, c.Tool, c.Reasoning, c.Kind, c.Config)
		q := c.prepare(t)
		got := map[string]any{}
		if len(q.Sampling.GuidedDecoding) > 0 {
			if err := json.Unmarshal(q.Sampling.GuidedDecoding, &got); err != nil {
				t.Fatal(err)
			}
		}
		diff := cmp.Diff(tidyTag(c.Guided), tidyTag(got)) + cmp.Diff(c.Require, q.RequireReasoning)
		if c.Tool == "minimax_m3" {
			diff += cmp.Diff(c.Kwargs, templateArgs(t, q))
		}
		if reason := c.differs(); (reason != "") != (diff != "") {
			t.Errorf("%s (listed: %q): - recorded, + ours:\n%s", name, reason, diff)
		}
	}
	if n < 900 {
		t.Errorf("only %d recordings", n)
	}
}

// prepare is what a worker would get.
func (c *boundaryCase) prepare(t *testing.T) *worker.Request {
	t.Helper()
	c.Request["model"] = json.RawMessage(`"m"`)
	c.Request["messages"] = json.RawMessage(`[{"role":"user","content":"hi"}]`)
	body, err := json.Marshal(c.Request)
	if err != nil {
		t.Fatal(err)
	}
	card := &worker.Card{DisplayName: "m", ModelType: "Chat", ModelInput: "Tokens"}
	if err := json.Unmarshal(c.Config, &card.RuntimeConfig); err != nil {
		t.Fatal(err)
	}
	if c.Version == 2 { // excludes markers unless told otherwise
		var tag map[string]any
		if err := json.Unmarshal(card.RuntimeConfig.StructuralTag, &tag); err != nil {
			t.Fatal(err)
		}
		if _, said := tag["exclude_special_tokens"]; !said {
			tag["exclude_special_tokens"] = true
		}
		if card.RuntimeConfig.StructuralTag, err = json.Marshal(tag); err != nil {
			t.Fatal(err)
		}
	}
	// The recorded template opened thoughts in one family's words alone.
	if end, opens := strings.CutSuffix(c.Prompt, "<think>\n"); opens && c.Reasoning == "inkling" {
		c.Prompt = end + "<|content_thinking|>"
	}
	text := &promptText{text: c.Prompt}
	set := &catalog.Set{Card: card, ToolParser: c.Tool, ReasoningParser: c.Reasoning, Renderer: text, Tokenizer: text}
	req, err := openai.DecodeChat(body, openai.DecodeOptions{Strict: true})
	if err == nil {
		err = validate.Chat(req, validate.Options{})
	}
	if err != nil {
		t.Fatal(err)
	}
	p, err := pipeline.New(pipeline.Options{Answers: msgparse.Plan}).PrepareChat(t.Context(), set, pipeline.Meta{}, req)
	if err != nil {
		t.Fatal(err)
	}
	return p.Requests[0]
}

// templateArgs are the template's variables as the engine is told of them.
func templateArgs(t *testing.T, q *worker.Request) map[string]any {
	t.Helper()
	var args struct {
		Reasoning struct {
			Kwargs map[string]any `json:"chat_template_kwargs"`
		} `json:"reasoning_parser_kwargs"`
	}
	if len(q.ExtraArgs) > 0 {
		if err := json.Unmarshal(q.ExtraArgs, &args); err != nil {
			t.Fatal(err)
		}
	}
	return args.Reasoning.Kwargs
}

// promptText renders every conversation as the recorded end of its prompt.
type promptText struct {
	prepost.Tokenizer
	text string
}

func (p *promptText) Render(context.Context, *prepost.ChatInput) (string, error) { return p.text, nil }

func (p *promptText) Encode(context.Context, string, bool) ([]uint32, error) { return []uint32{1}, nil }

func (p *promptText) Decode([]uint32, bool) (string, error) { return "", nil }

func (p *promptText) TokenID(string) (uint32, bool) { return 0, false }

// tidyTag takes out of a tag what only the second version of the parsers writes: the empty lines between a thought and
// what comes behind it, where models write them on their own.
func tidyTag(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for name, value := range v {
			out[name] = tidyTag(value)
		}
		if list, ok := out["elements"].([]any); ok && out["type"] == "sequence" && len(list) == 1 {
			return list[0]
		}
		return out
	case []any:
		var out []any
		for _, e := range v {
			if m, ok := e.(map[string]any); ok && m["type"] == "const_string" && m["value"] == "\n\n" {
				continue
			}
			out = append(out, tidyTag(e))
		}
		return out
	}
	return v
}
