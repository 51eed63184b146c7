package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/internal/testkit"
)

// TestEcho: with echo a completion begins with its prompt, each choice of each prompt with its own, in both modes, and
// text_offset counts it in.
func TestEcho(t *testing.T) {
	one := testkit.Items(`[{"token_ids":[99],"log_probs":[-1]},{"token_ids":[100],"log_probs":[-1],"finish_reason":"stop"}]`)
	two := testkit.Items(`[{"token_ids":[99],"index":0},{"token_ids":[100],"index":1,"finish_reason":"stop"},
		{"token_ids":[101],"index":0,"finish_reason":"length"}]`)
	for _, c := range []struct {
		name, members string
		script        testkit.Script
		want          []string
		offsets       []any
	}{
		{"text", `"prompt":"é\"","logprobs":0`, one, []string{`é"cd`}, []any{2.0, 3.0}},
		{"tokens", `"prompt":[97,98]`, one, []string{"abcd"}, nil},
		{"batch", `"prompt":["a","b"]`, one, []string{"acd", "bcd"}, nil},
		{"choices", `"prompt":"a","n":2`, two, []string{"ace", "ad"}, nil},
		{"nothing generated", `"prompt":"a"`, testkit.Items(`[{"token_ids":[],"finish_reason":"stop"}]`), []string{"a"}, nil},
		{"not asked", `"prompt":"a","echo":false`, one, []string{"cd"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := start(t, testkit.Play(c.script), nil)
			members := c.members
			if !strings.Contains(members, "echo") {
				members += `,"echo":true`
			}
			_, body := s.do(t, http.MethodPost, "/v1/completions", `{"model":"m",`+members+`}`)
			var whole struct {
				Choices []struct {
					Text     string
					Logprobs *struct {
						Offsets []any `json:"text_offset"`
					}
				}
			}
			if err := json.Unmarshal([]byte(body), &whole); err != nil {
				t.Fatalf("%v: %s", err, body)
			}
			var texts []string
			for _, choice := range whole.Choices {
				texts = append(texts, choice.Text)
			}
			if diff := cmp.Diff(c.want, texts); diff != "" {
				t.Errorf("whole: %s", diff)
			}
			if c.offsets != nil {
				if diff := cmp.Diff(c.offsets, whole.Choices[0].Logprobs.Offsets); diff != "" {
					t.Errorf("offsets: %s", diff)
				}
			}
			_, stream := s.do(t, http.MethodPost, "/v1/completions", `{"model":"m","stream":true,`+members+`}`)
			if err := testkit.Lint([]byte(stream), testkit.LintOptions{}); err != nil {
				t.Error(err)
			}
			joined := make([]string, len(c.want))
			for _, e := range events(t, stream) {
				var chunk struct {
					Choices []struct {
						Index int
						Text  string
					}
				}
				if e.Data == "[DONE]" || json.Unmarshal([]byte(e.Data), &chunk) != nil {
					continue
				}
				joined[chunk.Choices[0].Index] += chunk.Choices[0].Text
			}
			if diff := cmp.Diff(c.want, joined); diff != "" {
				t.Errorf("streamed: %s", diff)
			}
		})
	}
}

// TestPromptLogprobs: what the worker tells of the prompt's tokens stands where clients of vLLM look for it, for those
// who asked.
func TestPromptLogprobs(t *testing.T) {
	const given = `[null,{"7":{"logprob":-0.5,"rank":1,"decoded_token":"a"}}]`
	d := testkit.Play(testkit.Items(fmt.Sprintf(
		`[{"token_ids":[99],"engine_data":{"prompt_logprobs":%s}},{"token_ids":[100],"engine_data":{"x":1},"finish_reason":"stop"}]`, given)))
	s := start(t, d, nil)
	chat, completion := `{"model":"m","messages":[{"role":"user","content":"a"}]`, `{"model":"m","prompt":["a","b"]`
	for _, c := range []struct {
		path, body string
		count      int
	}{
		{"/v1/chat/completions", chat + `,"prompt_logprobs":1}`, 1},
		{"/v1/completions", completion + `,"prompt_logprobs":0}`, 2},
		{"/v1/chat/completions", chat + `}`, 0}, {"/v1/completions", completion + `}`, 0},
	} {
		_, body := s.do(t, http.MethodPost, c.path, c.body)
		if !json.Valid([]byte(body)) || strings.Count(body, `"prompt_logprobs":`+given) != c.count {
			t.Errorf("%s: %s", c.body, body)
		}
	}
}
