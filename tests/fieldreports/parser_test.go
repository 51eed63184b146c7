package fieldreports_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/prepost/msgparse"
	"github.com/portico-llm/portico/internal/server"
	"github.com/portico-llm/portico/internal/testkit"
)

// play returns a server of one model, m, whose worker says text one byte at a time. Its answers have a dialect of calls
// and of thoughts.
func play(t *testing.T, text string) http.Handler {
	t.Helper()
	var script testkit.Script
	for _, b := range []byte(text) {
		script = append(script, json.RawMessage(fmt.Sprintf(`{"token_ids":[%d]}`, b)))
	}
	script = append(script, json.RawMessage(`{"token_ids":[256],"finish_reason":"stop"}`))
	set := testkit.ByteModel("m")
	set.ToolParser, set.ReasoningParser = "hermes", "qwen3"
	log := slog.New(slog.DiscardHandler)
	srv, err := server.New(server.Options{
		Pipeline: pipeline.New(pipeline.Options{Dispatcher: testkit.Play(script), Log: log, Answers: msgparse.Plan}),
		Catalog:  testkit.Models{"m": set}, Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	return testkit.LintHandler(t, srv.Handler())
}

// ask sends a chat request with further members.
func ask(t *testing.T, h http.Handler, members string) *httptest.ResponseRecorder {
	t.Helper()
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/chat/completions",
		strings.NewReader(`{"model":"m","messages":[{"role":"user","content":"hi"}]`+members+`}`))
	req.Header.Set("Content-Type", "application/json")
	res := httptest.NewRecorder()
	h.ServeHTTP(res, req)
	return res
}

// said is what a client makes of an answer.
type said struct {
	content, reasoning string
	calls              []string // name and arguments
	finish             string
}

// whole reads an answer in one body.
func whole(t *testing.T, res *httptest.ResponseRecorder) said {
	t.Helper()
	var body struct {
		Choices []struct {
			FinishReason string `json:"finish_reason"`
			Message      struct {
				Content          string
				ReasoningContent string `json:"reasoning_content"`
				ToolCalls        []struct {
					Function struct{ Name, Arguments string }
				} `json:"tool_calls"`
			}
		}
	}
	if err := json.Unmarshal(res.Body.Bytes(), &body); err != nil || len(body.Choices) != 1 {
		t.Fatalf("%v: %d %s", err, res.Code, res.Body)
	}
	c := body.Choices[0]
	out := said{content: c.Message.Content, reasoning: c.Message.ReasoningContent, finish: c.FinishReason}
	for _, call := range c.Message.ToolCalls {
		out.calls = append(out.calls, call.Function.Name+call.Function.Arguments)
	}
	return out
}

// streamed puts a stream together, after the linter has looked at it.
func streamed(t *testing.T, res *httptest.ResponseRecorder) said {
	t.Helper()
	if err := testkit.Lint(res.Body.Bytes(), testkit.LintOptions{Chat: true}); err != nil {
		t.Fatalf("%v\n%s", err, res.Body)
	}
	events, err := testkit.Events(res.Body.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	var out said
	for _, e := range events {
		var chunk struct {
			Choices []struct {
				FinishReason string `json:"finish_reason"`
				Delta        struct {
					Content          string
					ReasoningContent string `json:"reasoning_content"`
					ToolCalls        []struct {
						Index    int
						Function struct{ Name, Arguments string }
					} `json:"tool_calls"`
				}
			}
		}
		if e.Data == "[DONE]" || json.Unmarshal([]byte(e.Data), &chunk) != nil || len(chunk.Choices) == 0 {
			continue
		}
		c := chunk.Choices[0]
		out.content, out.reasoning = out.content+c.Delta.Content, out.reasoning+c.Delta.ReasoningContent
		for _, call := range c.Delta.ToolCalls {
			for len(out.calls) <= call.Index {
				out.calls = append(out.calls, "")
			}
			out.calls[call.Index] += call.Function.Name + call.Function.Arguments
		}
		if c.FinishReason != "" {
			out.finish = c.FinishReason
		}
	}
	return out
}

// TestParserFiresOnlyWhenAsked: an answer is taken for calls when the request has tools and lets the model call them,
// and never because of what it looks like. Both modes agree in every case.
func TestParserFiresOnlyWhenAsked(t *testing.T) {
	const call = `{"name": "f", "arguments": {"x": 1}}`
	outputs := map[string]string{
		"plain": "It is sunny.", "looks like a call": call, "call": "<tool_call>\n" + call + "\n</tool_call>",
	}
	tools := map[string]string{
		"absent": "", "set": `,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}]`,
	}
	formats := map[string]string{
		"text": "", "json_object": `,"response_format":{"type":"json_object"}`,
		"json_schema": `,"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"object"}}}`,
	}
	for tool, toolMember := range tools {
		for _, choice := range []string{"", "none", "auto"} {
			choiceMember := ""
			if choice != "" {
				choiceMember = `,"tool_choice":"` + choice + `"`
			}
			for format, formatMember := range formats {
				for output, text := range outputs {
					t.Run(strings.Join([]string{tool, "choice " + choice, format, output}, "/"), func(t *testing.T) {
						members := toolMember + choiceMember + formatMember
						h := play(t, text)
						one := whole(t, ask(t, h, members))
						two := streamed(t, ask(t, h, members+`,"stream":true`))
						if fmt.Sprint(one) != fmt.Sprint(two) {
							t.Errorf("whole %+v, streamed %+v", one, two)
						}
						want := said{content: text, finish: "stop"}
						switch {
						case tool != "set" || output == "plain":
						case choice == "none" && output == "call": // markup that nobody asked for isn't shown
							want.content = ""
						case choice == "none":
						// Models of the dialect leave the markers out, but not where JSON is the answer asked for.
						case output == "call" || format == "text":
							want = said{calls: []string{`f{"x": 1}`}, finish: "tool_calls"}
						}
						if fmt.Sprint(one) != fmt.Sprint(want) {
							t.Errorf("%+v, want %+v", one, want)
						}
					})
				}
			}
		}
	}
}

// TestStructuredAnswerIsContent: JSON that was asked for is the answer, wherever the model thinks before it.
func TestStructuredAnswerIsContent(t *testing.T) {
	const schema = `,"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"object"}}}`
	for text, want := range map[string]said{
		`{"a": 1}`:                           {content: `{"a": 1}`, finish: "stop"},
		`<think>Hm.</think>{"a": 1}`:         {content: `{"a": 1}`, reasoning: "Hm.", finish: "stop"},
		`{"a": "<tool_call>{}</tool_call>"}`: {content: `{"a": "<tool_call>{}</tool_call>"}`, finish: "stop"},
	} {
		h := play(t, text)
		one, two := whole(t, ask(t, h, schema)), streamed(t, ask(t, h, schema+`,"stream":true`))
		if fmt.Sprint(one) != fmt.Sprint(want) || fmt.Sprint(two) != fmt.Sprint(want) {
			t.Errorf("%s: whole %+v, streamed %+v, want %+v", text, one, two, want)
		}
	}
}

// TestForcedCalls: a call that was forced is one in whichever form the model writes it, with and without a form for the
// answer; what is no call stays content, without markers. Both modes agree in every case. A list of no tools is refused,
// and so is a call of none.
func TestForcedCalls(t *testing.T) {
	const tools = `,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}]`
	called := said{calls: []string{`f{"x": 1}`}, finish: "tool_calls"}
	for choice, member := range map[string]string{
		"required": `,"tool_choice":"required"`, "named": `,"tool_choice":{"type":"function","function":{"name":"f"}}`,
	} {
		for format, formatMember := range map[string]string{"text": "", "json_object": `,"response_format":{"type":"json_object"}`} {
			for text, isCall := range map[string]bool{
				`{"name": "f", "arguments": {"x": 1}}`:                                    choice == "required", // else arguments of these names
				"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>": true,
				`[{"name": "f", "parameters": {"x": 1}}]`:                                 choice == "required",
				`{"x": 1}`:     choice == "named",
				"It is sunny.": false,
			} {
				t.Run(choice+"/"+format+"/"+text, func(t *testing.T) {
					h := play(t, text)
					one := whole(t, ask(t, h, tools+member+formatMember))
					two := streamed(t, ask(t, h, tools+member+formatMember+`,"stream":true`))
					if fmt.Sprint(one) != fmt.Sprint(two) {
						t.Errorf("whole %+v, streamed %+v", one, two)
					}
					if isCall && fmt.Sprint(one) != fmt.Sprint(called) {
						t.Errorf("%+v, want %+v", one, called)
					}
					if strings.Contains(one.content, "tool_call") {
						t.Errorf("markers are shown: %+v", one)
					}
				})
			}
		}
		for _, none := range []string{"", `,"tools":[]`} {
			if res := ask(t, play(t, "x"), none+member); res.Code != http.StatusBadRequest || !strings.Contains(res.Body.String(), `"tools`) {
				t.Errorf("%s of none: %d %s", choice, res.Code, res.Body)
			}
		}
	}
}

// TestNoContentBesideCalls: line feeds around calls are nobody's text. In one body the content is null, and a stream has
// none.
func TestNoContentBesideCalls(t *testing.T) {
	const tools = `,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}]`
	const call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>"
	for _, text := range []string{"\n\n" + call + "\n", call + "\n" + call, "<think>Hm.</think>\n\n" + call + " \n"} {
		h := play(t, text)
		if res := ask(t, h, tools); !strings.Contains(res.Body.String(), `"content":null`) || !strings.Contains(res.Body.String(), `"tool_calls":[`) {
			t.Errorf("%q: %s", text, res.Body)
		}
		if res := ask(t, h, tools+`,"stream":true`); strings.Contains(res.Body.String(), `\n`) {
			t.Errorf("%q, streamed: %s", text, res.Body)
		}
	}
}
