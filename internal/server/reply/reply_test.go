package reply_test

import (
	"context"
	"encoding/json"
	"math"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/server/reply"
	"github.com/portico-llm/portico/internal/server/sse"
	"github.com/portico-llm/portico/internal/testkit"
)

// options are those of an ordinary request of either endpoint.
func options(chat bool) reply.Options {
	o := reply.Options{ID: "chatcmpl-1", Model: "org/m", Created: time.Unix(1700000000, 0), Chat: chat, SkipSpecial: true,
		RequestID: "1", Received: time.Now()}
	if !chat {
		o.ID = "cmpl-1"
	}
	return o
}

// prepared is a request with a token for each byte of its prompts.
func prepared(choices int, prompts ...string) *pipeline.Prepared {
	p := &pipeline.Prepared{Set: testkit.ByteModel("m"), Choices: choices, Prompt: "user: hi\n"}
	for _, s := range prompts {
		ids, _ := testkit.Bytes{}.Encode(context.Background(), s, false)
		p.Requests = append(p.Requests, &worker.Request{TokenIDs: ids})
	}
	return p
}

// stream writes deltas as a stream and returns it, after checking OpenAI's rules.
func stream(t *testing.T, o reply.Options, p *pipeline.Prepared, deltas ...pipeline.Delta) string {
	t.Helper()
	res := httptest.NewRecorder()
	out := sse.NewWriter(res, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil), sse.Options{})
	defer out.Close()
	s := reply.NewStream(out, o)
	if err := s.Start(p); err != nil {
		t.Fatal(err)
	}
	for i := range deltas {
		if err := s.Delta(&deltas[i]); err != nil {
			t.Fatal(err)
		}
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Finish(); err != nil {
		t.Fatal(err)
	}
	if p.Raw == nil {
		err := testkit.Lint(res.Body.Bytes(), testkit.LintOptions{Chat: o.Chat, Usage: o.Usage, ContinuousUsage: o.ContinuousUsage})
		if err != nil {
			t.Errorf("the stream breaks a rule: %v", err)
		}
	}
	return res.Body.String()
}

// fold gathers deltas and returns the body.
func fold(t *testing.T, o reply.Options, p *pipeline.Prepared, deltas ...pipeline.Delta) string {
	t.Helper()
	f := reply.NewFold(o)
	if err := f.Start(p); err != nil {
		t.Fatal(err)
	}
	for i := range deltas {
		if err := f.Delta(&deltas[i]); err != nil {
			t.Fatal(err)
		}
	}
	body, err := f.AppendBody(nil)
	if err != nil {
		t.Fatal(err)
	}
	if !json.Valid(body) {
		t.Fatalf("no JSON: %s", body)
	}
	return string(body)
}

func n(v int) *int { return &v }

// answers are deltas of requests, and the options they are written with.
var answers = []struct {
	name   string
	change func(o *reply.Options)
	p      *pipeline.Prepared
	deltas []pipeline.Delta
}{
	{"plain", nil, prepared(1, "hi"), []pipeline.Delta{
		{Text: []byte("Hel"), Tokens: 1, TokenIDs: []uint32{1}},
		{Tokens: 1, TokenIDs: []uint32{2}}, // nothing to show
		{Text: []byte("lo \"you\"\n\u2028"), Tokens: 1, TokenIDs: []uint32{3}},
		{Finish: worker.FinishLength},
	}},
	{"usage", func(o *reply.Options) { o.Usage, o.ContinuousUsage = true, true }, prepared(1, "hi"), []pipeline.Delta{
		{Text: []byte("a"), Tokens: 2},
		{Text: []byte("b"), Tokens: 1, Finish: worker.FinishEOS,
			Usage: &worker.Usage{PromptTokens: 40, CachedTokens: n(32), ReasoningTokens: n(2)}},
	}},
	{"choices", func(o *reply.Options) { o.Usage = true }, prepared(2, "hi", "you"), []pipeline.Delta{
		{Prompt: 1, Choice: 0, Text: []byte("c"), Tokens: 1},
		{Prompt: 0, Choice: 1, Text: []byte("b"), Tokens: 1, Finish: worker.FinishStop},
		{Prompt: 0, Choice: 0, Text: []byte("a"), Tokens: 1, Finish: worker.FinishStop},
		{Prompt: 1, Choice: 1, Tokens: 1, Finish: worker.FinishContentFilter},
		{Prompt: 1, Choice: 0, Tokens: 1, Finish: worker.FinishStop},
	}},
	{"logprobs", func(o *reply.Options) { o.LogProbs, o.TopLogProbs = true, 2 }, prepared(1, "hi"), []pipeline.Delta{
		{Text: []byte("a"), Tokens: 1, TokenIDs: []uint32{'a'}, LogProbs: []float64{-0.5},
			TopLogProbs: [][]worker.TopLogProb{{{TokenID: 'a', LogProb: -0.5}, {TokenID: 'b', LogProb: math.Inf(-1)}, {TokenID: 'c', LogProb: -9}}}},
		{Tokens: 1, TokenIDs: []uint32{0xc3}, LogProbs: []float64{math.NaN()}}, // half a character: no text, but its place
		{Text: []byte("ä"), Tokens: 1, TokenIDs: []uint32{0xa4}, LogProbs: []float64{-1}, TopLogProbs: [][]worker.TopLogProb{{
			{TokenID: 'x', HasToken: true, Token: "same", LogProb: -2}, {TokenID: 'y', HasToken: true, Token: "same", LogProb: -3}}}},
		{Text: []byte("z"), Tokens: 2, TokenIDs: []uint32{'z', testkit.EOS}, LogProbs: []float64{-1e300}, Finish: worker.FinishStop},
	}},
	{"fields", func(o *reply.Options) {
		o.Fields = reply.FieldsOf([]string{"worker_id", "stop_reason", "detailed_finish_reason", "completion_token_ids",
			"prompt_token_ids", "engine_data", "prompt_logprobs", "unheard_of"})
		o.Notes = reply.Notes{RequestID: true, Prompt: true, TokenIDs: true}
	}, prepared(1, "hi"), []pipeline.Delta{
		{Event: "note\n", Comment: []string{`"a"`, "b\nc"}},
		{Text: []byte("a"), Tokens: 1, TokenIDs: []uint32{'a'}, EngineData: []byte(`{"prompt_logprobs":[null]}`),
			Instance: &worker.Instance{InstanceID: 7}},
		{Tokens: 1, TokenIDs: []uint32{'b'}, Finish: worker.FinishStop, Instance: &worker.Instance{InstanceID: 7},
			StopReason: worker.StopReason{Kind: worker.StopString, Text: "b"}},
	}},
}

// TestGolden pins every byte of both kinds of answer, in both forms.
func TestGolden(t *testing.T) {
	for _, tt := range answers {
		for _, chat := range []bool{true, false} {
			o := options(chat)
			if tt.change != nil {
				tt.change(&o)
			}
			name := tt.name + "_completions"
			if chat {
				name = tt.name + "_chat"
			}
			t.Run(name, func(t *testing.T) {
				got := stream(t, o, tt.p, tt.deltas...) + "----\n" + fold(t, o, tt.p, tt.deltas...) + "\n"
				testkit.Golden(t, name+".golden", []byte(got))
			})
		}
	}
}

// TestTiming checks the field whose values differ in every run.
func TestTiming(t *testing.T) {
	o := options(true)
	o.Fields = reply.FieldsOf([]string{"timing"})
	o.Received = time.Now().Add(-2 * time.Second)
	var body struct {
		NvExt struct {
			Timing map[string]float64 `json:"timing"`
		} `json:"nvext"`
	}
	got := fold(t, o, prepared(1, "hi"), pipeline.Delta{Text: []byte("a"), Tokens: 1, Finish: worker.FinishStop})
	if err := json.Unmarshal([]byte(got), &body); err != nil {
		t.Fatal(err)
	}
	tm := body.NvExt.Timing
	if tm["ttft_ms"] < 2000 || tm["total_time_ms"] < tm["ttft_ms"] || tm["request_received_ms"] < 1e12 {
		t.Errorf("timing: %v", tm)
	}
	// The two parts of the time to the first token, each rounded down to a microsecond.
	wait, prefill := tm["prefill_wait_time_ms"], tm["prefill_time_ms"]
	if gap := tm["ttft_ms"] - wait - prefill; wait < 2000 || gap < -0.0005 || gap > 0.0025 || len(tm) != 5 {
		t.Errorf("parts of the time to the first token: %v", tm)
	}
}

// TestRawStream checks what happens to the chunks of a worker that speaks the client's format.
func TestRawStream(t *testing.T) {
	p := &pipeline.Prepared{Choices: 1, Raw: []byte("{}")}
	chunks := []pipeline.Delta{
		{Raw: []byte("{\"id\":\"w\",\n \"choices\":[{\"index\":0}]}")},
		{Raw: []byte(`{"id":"w","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}`)},
	}
	first := "data: {\"id\":\"w\", \"choices\":[{\"index\":0}]}\n\n"
	usage := "data: " + string(chunks[1].Raw) + "\n\n"
	if diff := cmp.Diff(first+"data: [DONE]\n\n", stream(t, options(true), p, chunks...)); diff != "" {
		t.Error(diff)
	}
	o := options(true)
	o.Usage = true
	if diff := cmp.Diff(first+usage+"data: [DONE]\n\n", stream(t, o, p, chunks...)); diff != "" {
		t.Error(diff)
	}
}

// TestRawFold checks that such chunks fold into one body.
func TestRawFold(t *testing.T) {
	p := &pipeline.Prepared{Choices: 1, Raw: []byte("{}")}
	tests := []struct {
		name   string
		chat   bool
		chunks []string
		want   string
	}{
		{"chat", true, []string{
			`{"id":"w","created":5,"model":"wm","choices":[{"index":1,"delta":{"role":"assistant","content":"x"}}]}`,
			`{"choices":[{"index":0,"delta":{"content":"a","reasoning_content":"r"},"logprobs":{"content":[{"token":"a"}]}}]}`,
			`{"choices":[{"index":0,"delta":{"content":"b","tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"f","arguments":"{"}}]}}]}`,
			`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"}"}}]},"finish_reason":"tool_calls","logprobs":{"content":[{"token":"b"}]}},{"index":1,"delta":{},"finish_reason":"stop"}]}`,
			`{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}`,
		}, `{"id":"w","choices":[{"index":0,"message":{"content":"ab","refusal":null,"role":"assistant","reasoning_content":"r",` +
			`"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]},"finish_reason":"tool_calls",` +
			`"logprobs":{"content":[{"token":"a"},{"token":"b"}]}},{"index":1,"message":{"content":"x","refusal":null,"role":"assistant"},` +
			`"finish_reason":"stop","logprobs":null}],"created":5,"model":"wm","object":"chat.completion",` +
			`"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}`},
		{"completions", false, []string{
			`{"choices":[{"index":0,"text":"a"}]}`, `{"choices":[{"index":0,"text":"b","finish_reason":"length"}],"system_fingerprint":null}`,
		}, `{"id":"cmpl-1","choices":[{"index":0,"text":"ab","finish_reason":"length","logprobs":null}],"created":1700000000,` +
			`"model":"org/m","object":"text_completion"}`},
		{"whole", true, []string{`{"id":"w","choices":[{"index":0,"message":{"content":"all"}}]}`},
			`{"id":"w","choices":[{"index":0,"message":{"content":"all"}}]}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var deltas []pipeline.Delta
			for _, c := range tt.chunks {
				deltas = append(deltas, pipeline.Delta{Raw: []byte(c)})
			}
			if diff := cmp.Diff(tt.want, fold(t, options(tt.chat), p, deltas...)); diff != "" {
				t.Error(diff)
			}
		})
	}
	if err := reply.NewFold(options(true)).Delta(&pipeline.Delta{Raw: []byte("nonsense")}); err == nil {
		t.Error("nonsense was taken")
	}
}

// FuzzText checks that any text comes back from JSON as it was, whatever a worker sends, and never breaks a line.
func FuzzText(f *testing.F) {
	for _, s := range []string{"", "plain", "\"\\\x00\x1f\x7f", "ä€😀", "\u0085\u2028\u2029", "\xff\xc3(", "a\xf0\x9f"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := fold(t, options(false), prepared(1, "p"), pipeline.Delta{Text: []byte(s), Tokens: 1, Finish: worker.FinishStop})
		var body struct {
			Choices []struct{ Text string }
		}
		if err := json.Unmarshal([]byte(got), &body); err != nil {
			t.Fatal(err)
		}
		want := s
		if !utf8.ValidString(s) {
			want = string([]rune(s))
		}
		if body.Choices[0].Text != want {
			t.Errorf("got %q, want %q", body.Choices[0].Text, want)
		}
		if strings.ContainsAny(got, "\n\r\u0085\u2028\u2029") {
			t.Errorf("a line ends inside %q", got)
		}
	})
}

// TestReportsAreTotals checks that a worker that reports more than once is not counted twice, and that reports of
// several prompts and choices add up.
func TestReportsAreTotals(t *testing.T) {
	report := func(cached, reasoning int) *worker.Usage {
		return &worker.Usage{CachedTokens: n(cached), ReasoningTokens: n(reasoning)}
	}
	f := reply.NewFold(options(false))
	if err := f.Start(prepared(2, "hi", "you")); err != nil {
		t.Fatal(err)
	}
	for _, d := range []pipeline.Delta{
		{Tokens: 1, Usage: report(16, 1)},
		{Tokens: 1, Usage: report(16, 3)},
		{Choice: 1, Tokens: 1, Usage: report(16, 5)},
		{Prompt: 1, Tokens: 1, Usage: report(32, 7)},
		{Prompt: 1, Tokens: 1, Usage: &worker.Usage{}},
	} {
		if err := f.Delta(&d); err != nil {
			t.Fatal(err)
		}
	}
	if u := f.Usage(); *u.CachedTokens != 16+32 || *u.ReasoningTokens != 3+5+7 {
		t.Errorf("%d cached, %d of reasoning", *u.CachedTokens, *u.ReasoningTokens)
	}
}

// pairs is a vocabulary whose tokens are two bytes each, which may belong to different characters.
type pairs struct{ testkit.Bytes }

func (pairs) TokenBytes(id uint32) ([]byte, bool) { return []byte{byte(id >> 8), byte(id)}, true }

func (p pairs) Decode(ids []uint32, _ bool) (string, error) {
	var b []byte
	for _, id := range ids {
		own, _ := p.TokenBytes(id)
		b = append(b, own...)
	}
	return strings.ToValidUTF8(string(b), "\ufffd"), nil
}

// TestTokensBetweenCharacters checks tokens that hold a part of a character beside a whole one.
func TestTokensBetweenCharacters(t *testing.T) {
	p := prepared(1, "hi")
	set := *p.Set
	set.Tokenizer = pairs{}
	p.Set = &set
	deltas := []pipeline.Delta{{
		// "a€b" and "€", and a byte that belongs nowhere.
		Text: []byte("a€b€\ufffd!"), Tokens: 5, TokenIDs: []uint32{0x61e2, 0x82ac, 0x62e2, 0x82ac, 0x8021},
		LogProbs: []float64{-1, -1, -1, -1, -1}, Finish: worker.FinishStop,
	}}
	o := options(false)
	o.LogProbs = true
	if got := fold(t, o, p, deltas...); !strings.Contains(got, `"text_offset":[0,2,2,4,4]`) {
		t.Error(got)
	}
	o = options(true)
	o.LogProbs = true
	if got := fold(t, o, p, deltas...); !strings.Contains(got, `"bytes":[97,226]`) || !strings.Contains(got, `"bytes":[130,172]`) {
		t.Error(got)
	}
}

// TestRawCallsJoin: the cost of a long call grows with its length, however many fragments it comes in.
func TestRawCallsJoin(t *testing.T) {
	const fragments = 4000
	deltas := make([]pipeline.Delta, fragments)
	for i := range deltas {
		deltas[i].Raw = []byte(`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"` + strings.Repeat("x", 32) + `"}}]}}]}`)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	body := fold(t, options(true), &pipeline.Prepared{Choices: 1, Raw: []byte("{}")}, deltas...)
	runtime.ReadMemStats(&after)
	if !strings.Contains(body, strings.Repeat("x", 32*fragments)) {
		t.Errorf("%d bytes", len(body))
	}
	if mib := (after.TotalAlloc - before.TotalAlloc) >> 20; mib > 100 { // copied with every fragment: 250
		t.Errorf("%d MiB", mib)
	}
}
