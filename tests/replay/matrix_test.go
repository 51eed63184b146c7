package replay_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/prepost/msgparse"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/server"
	"github.com/portico-llm/portico/internal/testkit"
)

// twoCalls is two calls of f, with 1 and 2 for n, in each dialect's own form.
var twoCalls = map[string]string{
	"hermes": "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1}}\n</tool_call>\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 2}}\n</tool_call>",
	"qwen3_coder": "<tool_call>\n<function=f>\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>\n" +
		"<tool_call>\n<function=f>\n<parameter=n>\n2\n</parameter>\n</function>\n</tool_call>",
	"deepseek_v3_1": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"n\":1}<｜tool▁call▁end｜>" +
		"<｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"n\":2}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
	"deepseek_v4": "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"n\" string=\"false\">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n" +
		"<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"n\" string=\"false\">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
	"kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"n\":1}<|tool_call_end|>" +
		"<|tool_call_begin|>functions.f:1<|tool_call_argument_begin|>{\"n\":2}<|tool_call_end|><|tool_calls_section_end|>",
	"glm47":      "<tool_call>f<arg_key>n</arg_key><arg_value>1</arg_value></tool_call><tool_call>f<arg_key>n</arg_key><arg_value>2</arg_value></tool_call>",
	"minimax_m2": "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"n\">1</parameter>\n</invoke>\n<invoke name=\"f\">\n<parameter name=\"n\">2</parameter>\n</invoke>\n</minimax:tool_call>",
	"mistral":    `[TOOL_CALLS][{"name": "f", "arguments": {"n": 1}}, {"name": "f", "arguments": {"n": 2}}]`,
	"pythonic":   `[f(n=1), f(n=2)]`,
	"kimi_k3": `<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>argument key="n" type="number"<|sep|>1<|close|>argument<|sep|><|close|>call<|sep|>` +
		`<|open|>call tool="f" index="2"<|sep|><|open|>argument key="n" type="number"<|sep|>2<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>`,
}

// markup is what must never be in a content.
var markup = []string{"tool_call", "<function", "DSML", "tool▁", "<arg_", "minimax", "TOOL_CALLS", "<|", "<think", "</think"}

// matrixAnswer is what a client makes of an answer.
type matrixAnswer struct {
	Content, Reasoning, Finish string
	Calls                      []matrixCall
	Tokens                     string // of the log probabilities, joined
	Count                      int    // of them
}

type matrixCall struct{ Name, Arguments string }

// matrixCase is one way of asking for calls and of answering.
type matrixCase struct {
	parser, choice, form    string // form of the answer: native, guided, text
	oneCall, strict, thinks bool
	size                    int // tokens in one item
}

// TestCallMatrix asks for calls in every way and is answered in every form, streamed and not: both are the same, no markup
// is in a content, calls have dense indices, there is one reason for the end, and each token's log probability comes once.
func TestCallMatrix(t *testing.T) {
	var script testkit.Script
	d := &testkit.Dispatcher{Script: func(*router.Call, []byte) (testkit.Script, error) { return script, nil }}
	models := testkit.Models{}
	for parser := range twoCalls {
		for _, reasoning := range []string{"", "qwen3"} {
			set := testkit.ByteModel(parser + reasoning)
			set.ToolParser, set.ReasoningParser = parser, reasoning
			models[parser+reasoning] = set
		}
	}
	srv, err := server.New(server.Options{
		Pipeline: pipeline.New(pipeline.Options{Dispatcher: d, Answers: msgparse.Plan}), Catalog: models,
		Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	handler := testkit.LintHandler(t, srv.Handler())
	ask := func(body string) string {
		t.Helper()
		req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/chat/completions", strings.NewReader(body))
		req.Header.Set("Content-Type", "application/json")
		res := httptest.NewRecorder()
		handler.ServeHTTP(res, req)
		if res.Code != 200 {
			t.Fatalf("%d %s for %s", res.Code, res.Body, body)
		}
		return res.Body.String()
	}
	for _, c := range matrixCases() {
		text := c.text()
		script = c.script(text)
		whole := wholeAnswer(t, ask(c.body(false)))
		streamed := streamedAnswer(t, ask(c.body(true)))
		if diff := cmp.Diff(whole, streamed); diff != "" {
			t.Errorf("%+v: - whole, + streamed:\n%s", c, diff)
		}
		c.check(t, text, &whole)
	}
}

func matrixCases() []matrixCase {
	var out []matrixCase
	for parser := range twoCalls {
		for _, choice := range []string{`"none"`, `"auto"`, `"required"`, `{"type":"function","function":{"name":"f"}}`} {
			for _, form := range []string{"native", "guided", "text"} {
				if form == "guided" && (choice == `"auto"` || choice == `"none"`) {
					continue
				}
				for bits := range 4 {
					one, thinks := bits&1 > 0, bits&2 > 0
					out = append(out, matrixCase{parser, choice, form, one, one != thinks, thinks, 1},
						matrixCase{parser, choice, form, one, one == thinks, thinks, 7})
				}
			}
		}
	}
	return out
}

// text is what the model writes.
func (c *matrixCase) text() string {
	text := "Hello."
	switch {
	case c.form == "native":
		text = twoCalls[c.parser]
	case c.form == "guided" && c.choice == `"required"`:
		text = `[{"name":"f","parameters":{"n":1}},{"name":"f","parameters":{"n":2}}]`
	case c.form == "guided":
		text = `{"n":1}`
	}
	if c.thinks {
		text = "<think>Hm.</think>" + text
	}
	return text
}

// script writes the text byte by byte, so many in an item.
func (c *matrixCase) script(text string) testkit.Script {
	var s testkit.Script
	for i := 0; i < len(text); i += c.size {
		piece := text[i:min(i+c.size, len(text))]
		ids, probs := make([]int, len(piece)), make([]float64, len(piece))
		for k := range len(piece) {
			ids[k], probs[k] = int(piece[k]), -0.5
		}
		item := map[string]any{"token_ids": ids, "log_probs": probs}
		if i+c.size >= len(text) {
			item["finish_reason"] = "stop"
		}
		raw, _ := json.Marshal(item)
		s = append(s, raw)
	}
	return s
}

func (c *matrixCase) body(stream bool) string {
	model := c.parser
	if c.thinks {
		model += "qwen3"
	}
	return fmt.Sprintf(`{"model":%q,"stream":%v,"logprobs":true,"parallel_tool_calls":%v,"tool_choice":%s,
		"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"f","strict":%v,
		"parameters":{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false}}}]}`,
		model, stream, !c.oneCall, c.choice, c.strict)
}

// check holds an answer to what everybody expects of one.
func (c *matrixCase) check(t *testing.T, text string, a *matrixAnswer) {
	t.Helper()
	var want []matrixCall
	if c.choice != `"none"` && c.form != "text" {
		want = []matrixCall{{"f", `{"n":1}`}, {"f", `{"n":2}`}}
		if c.oneCall || c.form == "guided" && c.choice != `"required"` {
			want = want[:1]
		}
	}
	for i := range a.Calls {
		a.Calls[i].Arguments = strings.ReplaceAll(a.Calls[i].Arguments, " ", "")
	}
	finish := "stop"
	if want != nil {
		finish = "tool_calls"
	}
	if diff := cmp.Diff(want, a.Calls); diff != "" || a.Finish != finish {
		t.Errorf("%+v: finish %s, content %q\n%s", *c, a.Finish, a.Content, diff)
	}
	if c.thinks && a.Reasoning != "Hm." {
		t.Errorf("%+v: reasoning %q", *c, a.Reasoning)
	}
	if c.form == "text" && a.Content != "Hello." {
		t.Errorf("%+v: content %q", *c, a.Content)
	}
	if c.choice != `"none"` {
		for _, m := range markup {
			if strings.Contains(a.Content, m) {
				t.Errorf("%+v: markup in %q", *c, a.Content)
			}
		}
	}
	if a.Count != len(text) {
		t.Errorf("%+v: %d log probabilities of %d tokens", *c, a.Count, len(text))
	}
}

type matrixLogprobs struct {
	Content []struct{ Token string }
}

type matrixMessage struct {
	Content          string
	ReasoningContent string `json:"reasoning_content"`
	ToolCalls        []struct {
		Index    *int
		Function matrixCall
	} `json:"tool_calls"`
}

func wholeAnswer(t *testing.T, body string) matrixAnswer {
	t.Helper()
	var r struct {
		Choices []struct {
			Message  matrixMessage
			Finish   string `json:"finish_reason"`
			Logprobs *matrixLogprobs
		}
	}
	if err := json.Unmarshal([]byte(body), &r); err != nil || len(r.Choices) != 1 {
		t.Fatalf("%v: %s", err, body)
	}
	c := r.Choices[0]
	a := matrixAnswer{Content: c.Message.Content, Reasoning: c.Message.ReasoningContent, Finish: c.Finish}
	for _, call := range c.Message.ToolCalls {
		a.Calls = append(a.Calls, call.Function)
	}
	a.addTokens(c.Logprobs)
	return a
}

func (a *matrixAnswer) addTokens(l *matrixLogprobs) {
	if l == nil {
		return
	}
	for _, token := range l.Content {
		a.Tokens += token.Token
		a.Count++
	}
}

func streamedAnswer(t *testing.T, body string) matrixAnswer {
	t.Helper()
	events, err := testkit.Events([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	var a matrixAnswer
	for _, e := range events {
		var chunk struct {
			Choices []struct {
				Delta    matrixMessage
				Finish   *string `json:"finish_reason"`
				Logprobs *matrixLogprobs
			}
		}
		if e.Data == "[DONE]" {
			continue
		}
		if err := json.Unmarshal([]byte(e.Data), &chunk); err != nil {
			t.Fatal(err)
		}
		for _, c := range chunk.Choices {
			a.Content += c.Delta.Content
			a.Reasoning += c.Delta.ReasoningContent
			for _, call := range c.Delta.ToolCalls {
				if call.Index == nil || *call.Index > len(a.Calls) {
					t.Fatalf("index of a call: %s", e.Data)
				}
				if *call.Index == len(a.Calls) {
					a.Calls = append(a.Calls, matrixCall{})
				}
				a.Calls[*call.Index].Name += call.Function.Name
				a.Calls[*call.Index].Arguments += call.Function.Arguments
			}
			if c.Finish != nil {
				if a.Finish != "" {
					t.Fatalf("two reasons for the end: %s", body)
				}
				a.Finish = *c.Finish
			}
			a.addTokens(c.Logprobs)
		}
	}
	return a
}
