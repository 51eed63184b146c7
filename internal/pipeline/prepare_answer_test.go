package pipeline_test

import (
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/testkit"
)

// TestPrepareAnswer: what a request says of its answer reaches the plan, and the plan's needs the worker.
func TestPrepareAnswer(t *testing.T) {
	set := testkit.ByteModel("m")
	set.ToolParser, set.ReasoningParser = "tp", "rp"
	yes, no := true, false
	tests := []struct {
		name, body string
		want       *prepost.AnswerRequest
	}{
		{"plain", `{}`, &prepost.AnswerRequest{Prompt: "user: hi\n"}},
		{"switches", `{"chat_template_kwargs":{"enable_thinking":false,"x":1},"thinking":{"type":"enabled"},"reasoning_effort":"low"}`,
			&prepost.AnswerRequest{Prompt: "user: hi\n", EnableThinking: &no, Thinking: &yes, ReasoningEffort: "low"}},
		{"tools", `{"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],"parallel_tool_calls":false}`,
			&prepost.AnswerRequest{Prompt: "user: hi\n", OneCall: true,
				Tools: []prepost.Function{{Name: "f", Parameters: json.RawMessage(`{"type":"object"}`)}}}},
		{"named", `{"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"type":"function","function":{"name":"f"}}}`,
			&prepost.AnswerRequest{Prompt: "user: hi\n", Choice: prepost.MustCallFunction, Function: "f", JSON: true,
				Tools: []prepost.Function{{Name: "f"}}}},
		{"response_format", `{"response_format":{"type":"json_object"}}`, &prepost.AnswerRequest{Prompt: "user: hi\n", JSON: true}},
		{"tokens in place of text", `{"nvext":{"token_data":[60,62]}}`, &prepost.AnswerRequest{Prompt: "<>"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got *prepost.AnswerRequest
			p := pipeline.New(pipeline.Options{Log: slog.New(slog.DiscardHandler),
				Answers: func(q *prepost.AnswerRequest) *prepost.AnswerPlan {
					got = q
					return &prepost.AnswerPlan{WorkerKeepsSpecial: true, RequireReasoning: true, Reasoning: true, ThoughtIsOpen: true,
						VisibleStops: []string{"<eos>", "nothing"}}
				}})
			q := preparedFor(t, p, set, tt.body)
			tt.want.ToolParser, tt.want.ReasoningParser = "tp", "rp"
			if !got.Special("<eos>") || got.Special("a") {
				t.Error("special tokens aren't told from others")
			}
			got.Special = nil
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("- want, + got:\n%s", diff)
			}
			w := q.Requests[0]
			if w.Output.SkipSpecialTokens == nil || *w.Output.SkipSpecialTokens || !w.RequireReasoning ||
				!strings.Contains(string(w.ExtraArgs), `"reasoning_ended":false`) {
				t.Errorf("the worker isn't told: %+v %s", w.Output, w.ExtraArgs)
			}
			if len(w.Stop.StopTokenIDsHidden) > 0 || len(w.Stop.StopTokenIDsVisible) != 1 || len(set.EOS) != 1 {
				t.Errorf("stops %v, %v of %v", w.Stop.StopTokenIDsHidden, w.Stop.StopTokenIDsVisible, set.EOS)
			}
		})
	}
}

// TestPrepareContinued: of an answer that goes on with a message, the message so far is looked at.
func TestPrepareContinued(t *testing.T) {
	set := testkit.ByteModel("m")
	set.ReasoningParser = "rp"
	var got *prepost.AnswerRequest
	p := pipeline.New(pipeline.Options{Log: slog.New(slog.DiscardHandler),
		Answers: func(q *prepost.AnswerRequest) *prepost.AnswerPlan { got = q; return nil }})
	long := strings.Repeat("x", 2000)
	preparedFor(t, p, set, `{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"<think>`+long+`"}],
		"continue_final_message":true,"add_generation_prompt":false}`)
	if !got.Continues || !strings.HasSuffix(got.Prompt, "<think>"+long+"\n") {
		t.Errorf("%v %d bytes", got.Continues, len(got.Prompt))
	}
}

// preparedFor prepares a chat request whose body is merged with a message.
func preparedFor(t *testing.T, p *pipeline.Pipeline, set *catalog.Set, body string) *pipeline.Prepared {
	t.Helper()
	full := map[string]any{"model": "m", "messages": []any{map[string]any{"role": "user", "content": "hi"}}}
	if err := json.Unmarshal([]byte(body), &full); err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(full)
	if err != nil {
		t.Fatal(err)
	}
	req, err := openai.DecodeChat(raw, openai.DecodeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.PrepareChat(t.Context(), set, pipeline.Meta{RequestID: "id"}, req)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestStructuralTag: a tag takes the place of a forced call's schema, not of what the client wants the answer held to; one
// without room for a thought switches thinking off.
func TestStructuralTag(t *testing.T) {
	set := testkit.ByteModel("m")
	set.ToolParser, set.ReasoningParser = "tp", "rp"
	const tool = `"tools":[{"type":"function","function":{"name":"f","strict":false}}]`
	const named = `,"tool_choice":{"type":"function","function":{"name":"f"}}`
	for _, tt := range []struct{ name, body, guided, extra string }{
		{"may", `{` + tool + `}`, `{"structural_tag":{"t":1}}`, `{"enable_thinking":false,"thinking":false}`},
		{"may, and a regex", `{` + tool + `,"guided_regex":"a+"}`, `{"regex":"a+"}`, `{"enable_thinking":false,"thinking":false}`},
		{"named", `{` + tool + named + `,"chat_template_kwargs":{"thinking":true,"x":1}}`,
			`{"structural_tag":{"t":1}}`, `"x":1,`},
	} {
		p := pipeline.New(pipeline.Options{Log: slog.New(slog.DiscardHandler),
			Answers: func(q *prepost.AnswerRequest) *prepost.AnswerPlan {
				if len(q.Tools) != 1 || !q.Tools[0].Loose {
					t.Errorf("%s: tools %+v", tt.name, q.Tools)
				}
				return &prepost.AnswerPlan{Reasoning: true, WithoutThought: true, StructuralTag: json.RawMessage(`{"t":1}`)}
			}})
		w := preparedFor(t, p, set, tt.body).Requests[0]
		if got := string(w.Sampling.GuidedDecoding); got != tt.guided {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.guided)
		}
		if got := string(w.ExtraArgs); !strings.Contains(got, tt.extra) || strings.Contains(got, "true") {
			t.Errorf("%s: %s without %s", tt.name, got, tt.extra)
		}
	}
}
