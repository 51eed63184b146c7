package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/testkit"
)

// batchChoice is a choice of a completion, whole or put together from a stream.
type batchChoice struct {
	Index    int
	Text     string
	Finish   string `json:"finish_reason"`
	Logprobs struct {
		Tokens  []string             `json:"tokens"`
		Probs   []*float64           `json:"token_logprobs"`
		Top     []map[string]float64 `json:"top_logprobs"`
		Offsets []int                `json:"text_offset"`
	}
}

// TestBatchLogprobs: a batch of prompts with several choices each, echoed, with log probabilities: every choice has its
// index, its own offsets and each token once; usage counts each prompt once and every answer.
func TestBatchLogprobs(t *testing.T) {
	d := &testkit.Dispatcher{Codec: worker.JSON, Script: func(_ *router.Call, body []byte) (testkit.Script, error) {
		q, err := worker.DecodeRequest(worker.JSON, body)
		if err != nil {
			return nil, err
		}
		first := q.TokenIDs[0] // of the answer, too, so that each can be told from the others
		item := func(index int, finish string, ids ...uint32) json.RawMessage {
			probs, top := make([]string, len(ids)), make([]string, len(ids))
			for i, id := range ids {
				probs[i] = fmt.Sprintf("-%d.5", index)
				top[i] = fmt.Sprintf(`[{"rank":1,"token_id":%d,"logprob":-0.5},{"rank":2,"token_id":33,"logprob":-1e300}]`, id)
			}
			all, _ := json.Marshal(ids)
			if finish != "" {
				finish = `,"finish_reason":"` + finish + `"`
			}
			return json.RawMessage(fmt.Sprintf(`{"index":%d,"token_ids":%s,"log_probs":[%s],"top_logprobs":[%s]%s}`,
				index, all, strings.Join(probs, ","), strings.Join(top, ","), finish))
		}
		return testkit.Script{item(1, "", first), item(0, "", first, 'x'), item(1, "length", 0xc3, 0xa9, 'z'), item(0, "stop", 'y')}, nil
	}}
	s := start(t, d, nil)
	const request = `{"model":"m","prompt":["ab","c"],"n":2,"echo":%v,"logprobs":2,"stream":%v,"stream_options":%s}`
	for _, echo := range []bool{true, false} {
		var whole struct {
			Choices []batchChoice
			Usage   map[string]any
		}
		_, body := s.do(t, http.MethodPost, "/v1/completions", fmt.Sprintf(request, echo, false, "null"))
		if err := json.Unmarshal([]byte(body), &whole); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		var got []string
		for _, c := range whole.Choices {
			got = append(got, fmt.Sprintf("%d %s %s %q %v", c.Index, c.Text, c.Finish, c.Logprobs.Tokens, c.Logprobs.Offsets))
			if n := len(c.Logprobs.Tokens); len(c.Logprobs.Probs) != n || len(c.Logprobs.Top) != n || len(c.Logprobs.Offsets) != n {
				t.Errorf("choice %d: %s", c.Index, body)
			}
			for i, p := range c.Logprobs.Probs {
				if own := i - len(c.Logprobs.Probs) + 3 + c.Index%2; own < 0 && p == nil { // of the prompt
					continue
				}
				if p == nil || *p != -0.5-float64(c.Index%2) {
					t.Errorf("choice %d, token %d: %s", c.Index, i, body)
				}
			}
		}
		want := []string{
			`0 abaxy stop ["a" "b" "a" "x" "y"] [0 1 2 3 4]`, `1 abaéz length ["a" "b" "a" "�" "�" "z"] [0 1 2 3 4 4]`,
			`2 ccxy stop ["c" "c" "x" "y"] [0 1 2 3]`, `3 ccéz length ["c" "c" "�" "�" "z"] [0 1 2 3 3]`,
		}
		if !echo {
			want = []string{
				`0 axy stop ["a" "x" "y"] [0 1 2]`, `1 aéz length ["a" "�" "�" "z"] [0 1 2 2]`,
				`2 cxy stop ["c" "x" "y"] [0 1 2]`, `3 céz length ["c" "�" "�" "z"] [0 1 2 2]`,
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("echo %v:\n%s", echo, diff)
		}
		if u := whole.Usage; u["prompt_tokens"] != 3.0 || u["completion_tokens"] != 14.0 || u["total_tokens"] != 17.0 {
			t.Errorf("usage %v", u)
		}
		_, stream := s.do(t, http.MethodPost, "/v1/completions", fmt.Sprintf(request, echo, true, `{"include_usage":true}`))
		joined, usage := joinChoices(t, stream, len(want))
		if diff := cmp.Diff(whole.Choices, joined); diff != "" {
			t.Errorf("echo %v: - whole, + streamed:\n%s", echo, diff)
		}
		if diff := cmp.Diff(whole.Usage, usage); diff != "" {
			t.Errorf("usage: - whole, + streamed:\n%s", diff)
		}
	}
}

// joinChoices puts the choices of a stream together.
func joinChoices(t *testing.T, stream string, n int) ([]batchChoice, map[string]any) {
	t.Helper()
	out := make([]batchChoice, n)
	var usage map[string]any
	for _, e := range events(t, stream) {
		var chunk struct {
			Choices []batchChoice
			Usage   map[string]any
		}
		if e.Data == "[DONE]" {
			continue
		}
		if err := json.Unmarshal([]byte(e.Data), &chunk); err != nil {
			t.Fatalf("%v: %s", err, e.Data)
		}
		if chunk.Usage != nil {
			usage = chunk.Usage
		}
		for _, c := range chunk.Choices {
			to := &out[c.Index]
			to.Index, to.Text = c.Index, to.Text+c.Text
			if c.Finish != "" {
				to.Finish = c.Finish
			}
			to.Logprobs.Tokens = append(to.Logprobs.Tokens, c.Logprobs.Tokens...)
			to.Logprobs.Probs = append(to.Logprobs.Probs, c.Logprobs.Probs...)
			to.Logprobs.Top = append(to.Logprobs.Top, c.Logprobs.Top...)
			to.Logprobs.Offsets = append(to.Logprobs.Offsets, c.Logprobs.Offsets...)
		}
	}
	return out, usage
}

// TestTopLogprobs: each token of each choice of each prompt has as many alternatives as were asked for, the likeliest
// first, and beside them the token that was drawn where it isn't among them.
func TestTopLogprobs(t *testing.T) {
	d := &testkit.Dispatcher{Codec: worker.JSON, Script: func(_ *router.Call, body []byte) (testkit.Script, error) {
		q, err := worker.DecodeRequest(worker.JSON, body)
		if err != nil {
			return nil, err
		}
		base := q.TokenIDs[0] - 'a' // of the prompt: a or b
		var s testkit.Script
		for index := range uint32(2) {
			v := base*2 + index // tells the choices apart
			s = append(s, json.RawMessage(fmt.Sprintf(`{"index":%d,"token_ids":[122],"log_probs":[-%d.75],"finish_reason":"stop","top_logprobs":[[`+
				`{"rank":1,"token_id":109,"logprob":-%d.125},{"rank":2,"token_id":110,"logprob":-%d.25},{"rank":3,"token_id":111,"logprob":-%d.5}]]}`,
				index, v, v, v, v)))
		}
		return s, nil
	}}
	s := start(t, d, nil)
	for limit := range 4 {
		var want []string
		for v := range 4 {
			list := []string{"m=-%d.125", "n=-%d.25", "o=-%d.5"}[:limit]
			if limit > 0 {
				list = append(list, "z=-%d.75")
			}
			want = append(want, fmt.Sprintf("%d: z=-%d.75 of ", v, v)+strings.ReplaceAll(strings.Join(list, " "), "%d", fmt.Sprint(v)))
		}
		_, body := s.do(t, http.MethodPost, "/v1/completions", fmt.Sprintf(`{"model":"m","prompt":["a","b"],"n":2,"logprobs":%d}`, limit))
		var completions struct {
			Choices []struct {
				Index    int
				Logprobs struct {
					Tokens []string             `json:"tokens"`
					Probs  []float64            `json:"token_logprobs"`
					Top    []map[string]float64 `json:"top_logprobs"`
				}
			}
		}
		if err := json.Unmarshal([]byte(body), &completions); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		var got []string
		for _, c := range completions.Choices {
			var list []string
			for token, p := range c.Logprobs.Top[0] {
				list = append(list, fmt.Sprintf("%s=%v", token, p))
			}
			slices.Sort(list) // an object has no order; the names have that of the likelihood
			got = append(got, fmt.Sprintf("%d: %s=%v of %s", c.Index, c.Logprobs.Tokens[0], c.Logprobs.Probs[0], strings.Join(list, " ")))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("completions, %d:\n%s", limit, diff)
		}

		topOfChat(t, s, limit)
	}
}

// topOfChat does the same with a chat, which has one prompt.
func topOfChat(t *testing.T, s *stack, limit int) {
	t.Helper()
	_, body := s.do(t, http.MethodPost, "/v1/chat/completions", fmt.Sprintf(
		`{"model":"m","n":2,"logprobs":true,"top_logprobs":%d,"messages":[{"role":"user","content":"a"}]}`, limit))
	type entry struct {
		Token   string
		Logprob float64
	}
	var chats struct {
		Choices []struct {
			Logprobs struct {
				Content []struct {
					entry
					Top []entry `json:"top_logprobs"`
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(body), &chats); err != nil || len(chats.Choices) != 2 {
		t.Fatalf("%v: %s", err, body)
	}
	first := chats.Choices[0].Logprobs.Content[0].Logprob
	for i, c := range chats.Choices {
		tokens := ""
		for _, e := range c.Logprobs.Content[0].Top {
			tokens += e.Token
		}
		if own := c.Logprobs.Content[0].Logprob; len(c.Logprobs.Content) != 1 || own != first-float64(i) ||
			tokens != []string{"", "mz", "mnz", "mnoz"}[limit] || limit > 0 && c.Logprobs.Content[0].Top[limit].Logprob != own {
			t.Errorf("chat, %d, choice %d: %s", limit, i, body)
		}
	}
}
