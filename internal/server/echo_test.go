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
		{"text", `"prompt":"é\"","logprobs":0`, one, []string{`é"cd`}, []any{0.0, 1.0, 1.0, 2.0, 3.0}},
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

// TestEchoLogprobs: the tokens of an echoed prompt stand ahead of the answer's, with what the worker tells of them; null
// stands for what it doesn't, and for all of them in a stream, whose worker tells of them at its end.
func TestEchoLogprobs(t *testing.T) {
	const told = `{"prompt_logprobs":[null,{"98":{"logprob":-0.5,"rank":2,"decoded_token":"b"},"120":{"logprob":-0.25,"rank":1,"decoded_token":"x"},` +
		`"121":{"logprob":-3,"rank":3}}]}`
	tail := `"tokens":[%s"c"],"token_logprobs":[%s-1],"top_logprobs":[%s],"text_offset":[%s2]`
	for name, c := range map[string]struct {
		members, engine string
		asked           any
		want            string
	}{
		"alternatives": {`"logprobs":1`, told, 1.0,
			fmt.Sprintf(tail, `"a","b",`, `null,-0.5,`, `null,{"x":-0.25,"b":-0.5},{"d":-0.5,"c":-1}`, `0,1,`)},
		"none": {`"logprobs":0`, told, 0.0, fmt.Sprintf(tail, `"a","b",`, `null,-0.5,`, `null,{},{}`, `0,1,`)},
		"more": {`"logprobs":1,"prompt_logprobs":2`, told, 2.0,
			fmt.Sprintf(tail, `"a","b",`, `null,-0.5,`, `null,{"x":-0.25,"b":-0.5},{"d":-0.5,"c":-1}`, `0,1,`)},
		"nothing told": {`"logprobs":1`, `{}`, 1.0, fmt.Sprintf(tail, `"a","b",`, `null,null,`, `null,null,{"d":-0.5,"c":-1}`, `0,1,`)},
		"of another prompt": {`"logprobs":1`, `{"prompt_logprobs":[null,{"7":{"logprob":-1}},{"8":{"logprob":-1}}]}`, 1.0,
			fmt.Sprintf(tail, `"a","b",`, `null,null,`, `null,null,{"d":-0.5,"c":-1}`, `0,1,`)},
		"of another form": {`"logprobs":1`, `{"prompt_logprobs":{"a":1}}`, 1.0,
			fmt.Sprintf(tail, `"a","b",`, `null,null,`, `null,null,{"d":-0.5,"c":-1}`, `0,1,`)},
		"streamed": {`"logprobs":1,"stream":true`, told, nil,
			fmt.Sprintf(tail, `"a","b",`, `null,null,`, `null,null,{"d":-0.5,"c":-1}`, `0,1,`)},
	} {
		t.Run(name, func(t *testing.T) {
			d := testkit.Play(testkit.Items(`[{"token_ids":[99],"log_probs":[-1],"top_logprobs":[[{"token_id":100,"logprob":-0.5}]]},
				{"token_ids":[],"finish_reason":"stop","engine_data":` + c.engine + `}]`))
			s := start(t, d, nil)
			_, body := s.do(t, http.MethodPost, "/v1/completions", `{"model":"m","prompt":"ab","echo":true,`+c.members+`}`)
			if !strings.Contains(body, c.want) {
				t.Errorf("%s isn't in %s", c.want, body)
			}
			if asked := strings.Contains(c.members, `"prompt_logprobs"`); strings.Contains(body, `"prompt_logprobs"`) != asked {
				t.Errorf("asked for prompt_logprobs: %t: %s", asked, body)
			}
			var sent struct {
				Output struct {
					Prompt any `json:"prompt_logprobs"`
				} `json:"output_options"`
			}
			if err := json.Unmarshal(d.Calls()[0].Body, &sent); err != nil || sent.Output.Prompt != c.asked {
				t.Errorf("%v: the worker was asked for %v, want %v", err, sent.Output.Prompt, c.asked)
			}
		})
	}
}
