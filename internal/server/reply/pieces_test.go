package reply_test

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/server/reply"
)

// parsed is a request whose answer comes in pieces.
func parsed(choices int, reasoning bool) *pipeline.Prepared {
	p := prepared(choices, "hi")
	p.Answer = &prepost.AnswerPlan{New: func() prepost.AnswerParser { return nil }, Reasoning: reasoning}
	return p
}

func content(text string) prepost.Piece { return prepost.Piece{Text: text} }
func thought(text string) prepost.Piece { return prepost.Piece{Kind: prepost.Reasoning, Text: text} }

func begin(call int, id, name string) prepost.Piece {
	return prepost.Piece{Kind: prepost.ToolCall, Call: call, ID: id, Name: name}
}

func arguments(call int, text string) prepost.Piece {
	return prepost.Piece{Kind: prepost.ToolCall, Call: call, Text: text}
}

var madeID = regexp.MustCompile(`"call_[0-9a-f]{24}"`)

// choicesOf returns the choices of each chunk, with the ids that were made written as CALL.
func choicesOf(t *testing.T, body string) []string {
	t.Helper()
	var out []string
	for event := range strings.SplitSeq(strings.TrimSpace(body), "\n\n") {
		var chunk struct{ Choices []json.RawMessage }
		if err := json.Unmarshal([]byte(strings.TrimPrefix(event, "data: ")), &chunk); err != nil {
			continue // the end mark
		}
		for _, c := range chunk.Choices {
			text := strings.ReplaceAll(string(c), `,"logprobs":null`, "")
			out = append(out, madeID.ReplaceAllString(strings.TrimPrefix(text, `{"index":0,"delta":`), `"CALL"`))
		}
	}
	return out
}

func TestStreamPieces(t *testing.T) {
	tests := []struct {
		name   string
		deltas []pipeline.Delta
		want   []string
	}{
		{"nothing yet", []pipeline.Delta{{Tokens: 1}, {Tokens: 1}, {Finish: worker.FinishEOS, Pieces: []prepost.Piece{content("a")}}},
			[]string{
				`{"content":"","role":"assistant"},"finish_reason":null}`,
				`{"content":"a"},"finish_reason":"stop"}`}},
		{"pieces of one kind are one text", []pipeline.Delta{
			{Pieces: []prepost.Piece{thought("a\""), thought("\n"), content("b"), content("c")}, Finish: worker.FinishStop}},
			[]string{`{"reasoning_content":"a\"\n","content":"bc","role":"assistant"},"finish_reason":"stop"}`}},
		{"a call by fragments", []pipeline.Delta{
			{Pieces: []prepost.Piece{begin(0, "", "f")}},
			{Pieces: []prepost.Piece{arguments(0, `{"a"`), arguments(0, `:1`)}},
			{Pieces: []prepost.Piece{arguments(0, `}`)}, Finish: worker.FinishEOS}},
			[]string{
				`{"content":null,"tool_calls":[{"index":0,"id":"CALL","type":"function","function":{"name":"f","arguments":""}}],"role":"assistant"},"finish_reason":null}`,
				`{"tool_calls":[{"index":0,"function":{"arguments":"{\"a\":1"}}]},"finish_reason":null}`,
				`{"tool_calls":[{"index":0,"function":{"arguments":"}"}}]},"finish_reason":"tool_calls"}`}},
		{"the end of one call and another", []pipeline.Delta{
			{Pieces: []prepost.Piece{begin(0, "a:0", "f"), arguments(0, "{")}},
			{Pieces: []prepost.Piece{arguments(0, "}"), begin(1, "a:1", "g"), arguments(1, "{}")}, Finish: worker.FinishStop}},
			[]string{
				`{"content":null,"tool_calls":[{"index":0,"id":"a:0","type":"function","function":{"name":"f","arguments":"{"}}],"role":"assistant"},"finish_reason":null}`,
				`{"tool_calls":[{"index":0,"function":{"arguments":"}"}},{"index":1,"id":"a:1","type":"function","function":{"name":"g","arguments":"{}"}}]},"finish_reason":"tool_calls"}`}},
		{"a step back begins a chunk", []pipeline.Delta{
			{Pieces: []prepost.Piece{content("a"), thought("b"), begin(0, "x", "f"), content("c")}, Finish: worker.FinishStop}},
			[]string{
				`{"content":"a","role":"assistant"},"finish_reason":null}`,
				`{"reasoning_content":"b","tool_calls":[{"index":0,"id":"x","type":"function","function":{"name":"f","arguments":""}}]},"finish_reason":null}`,
				`{"content":"c"},"finish_reason":"tool_calls"}`}},
		{"length stays", []pipeline.Delta{{Pieces: []prepost.Piece{begin(0, "x", "f")}, Finish: worker.FinishLength}},
			[]string{`{"content":null,"tool_calls":[{"index":0,"id":"x","type":"function","function":{"name":"f","arguments":""}}],"role":"assistant"},"finish_reason":"length"}`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := choicesOf(t, stream(t, options(true), parsed(1, false), tt.deltas...))
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("- want, + got:\n%s", diff)
			}
		})
	}
}

// TestFoldPieces: the body holds what the stream shows, and nothing that isn't there.
func TestFoldPieces(t *testing.T) {
	o := options(true)
	o.ReasoningField = "reasoning"
	f := reply.NewFold(o)
	if err := f.Start(parsed(2, true)); err != nil {
		t.Fatal(err)
	}
	for _, d := range []pipeline.Delta{
		{Tokens: 3, Reasoning: 2, Pieces: []prepost.Piece{thought("a"), begin(0, "", "f"), arguments(0, "{")}},
		{Choice: 1, Tokens: 1, Pieces: []prepost.Piece{content("b")}, Finish: worker.FinishStop},
		{Tokens: 1, Reasoning: 1, Pieces: []prepost.Piece{arguments(0, "}"), begin(1, "x", "g"), thought("c")}, Finish: worker.FinishEOS},
	} {
		if err := f.Delta(&d); err != nil {
			t.Fatal(err)
		}
	}
	body, err := f.AppendBody(nil)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"id":"chatcmpl-1","choices":[{"index":0,"message":{"content":null,"refusal":null,"role":"assistant",` +
		`"reasoning":"ac","tool_calls":[{"id":"CALL","type":"function","function":{"name":"f","arguments":"{}"}},` +
		`{"id":"x","type":"function","function":{"name":"g","arguments":""}}]},"finish_reason":"tool_calls","logprobs":null},` +
		`{"index":1,"message":{"content":"b","refusal":null,"role":"assistant"},"finish_reason":"stop","logprobs":null}],` +
		`"created":1700000000,"model":"org/m","object":"chat.completion","usage":{"prompt_tokens":2,"completion_tokens":5,` +
		`"total_tokens":7,"completion_tokens_details":{"reasoning_tokens":3}}}`
	if diff := cmp.Diff(want, madeID.ReplaceAllString(string(body), `"CALL"`)); diff != "" {
		t.Errorf("- want, + got:\n%s", diff)
	}
}

// TestReasoningTokensOfTheWorker: a worker that counts them itself is believed.
func TestReasoningTokensOfTheWorker(t *testing.T) {
	f := reply.NewFold(options(true))
	if err := f.Start(parsed(1, true)); err != nil {
		t.Fatal(err)
	}
	seven := 7
	d := pipeline.Delta{Tokens: 1, Reasoning: 1, Finish: worker.FinishStop, Usage: &worker.Usage{ReasoningTokens: &seven}}
	if err := f.Delta(&d); err != nil {
		t.Fatal(err)
	}
	if u := f.Usage(); u.ReasoningTokens == nil || *u.ReasoningTokens != 7 {
		t.Errorf("%+v", u)
	}
}
