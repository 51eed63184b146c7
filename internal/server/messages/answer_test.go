package messages_test

import (
	"encoding/json"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/server/messages"
	"github.com/portico-llm/portico/internal/server/sse"
	"github.com/portico-llm/portico/internal/testkit"
)

var options = messages.Options{ID: "msg_1", Model: "m", Stops: []string{"END"}}

func content(text string) prepost.Piece { return prepost.Piece{Text: text} }
func thought(text string) prepost.Piece { return prepost.Piece{Kind: prepost.Reasoning, Text: text} }
func call(id, name string) prepost.Piece {
	return prepost.Piece{Kind: prepost.ToolCall, ID: id, Name: name}
}
func input(text string) prepost.Piece { return prepost.Piece{Kind: prepost.ToolCall, Text: text} }

func pieces(p ...prepost.Piece) pipeline.Delta { return pipeline.Delta{Pieces: p, Tokens: 1} }

func finished(r worker.FinishReason) pipeline.Delta { return pipeline.Delta{Finish: r} }

// prepared is a request with a prompt of seven tokens.
func prepared() *pipeline.Prepared {
	return &pipeline.Prepared{Choices: 1, Requests: []*worker.Request{{TokenIDs: make([]uint32, 7)}}}
}

func folded(t *testing.T, deltas []pipeline.Delta) string {
	t.Helper()
	f := messages.NewFold(options)
	if err := f.Start(prepared()); err != nil {
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
	return string(body)
}

// streamed returns the stream of the deltas. After end, which ends it, nothing is left in it.
func streamed(t *testing.T, deltas []pipeline.Delta, end func(*messages.Stream) error) string {
	t.Helper()
	res := httptest.NewRecorder()
	out := sse.NewWriter(res, httptest.NewRequest("POST", "/", nil), sse.Options{})
	defer out.Close()
	s := messages.NewStream(out, options)
	if err := s.Start(prepared()); err != nil {
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
	if err := end(s); err != nil {
		t.Fatal(err)
	}
	body := res.Body.String()
	if err := testkit.LintMessages([]byte(body)); err != nil {
		t.Errorf("the stream breaks a rule: %v\n%s", err, body)
	}
	return body
}

var madeID = regexp.MustCompile(`"toolu_[0-9a-f]{24}"`)

// TestBlocks compares the blocks of whole messages, and what a client makes of the stream.
func TestBlocks(t *testing.T) {
	for name, tt := range map[string]struct {
		deltas []pipeline.Delta
		want   string // the content, and how it ended
	}{
		"text": {[]pipeline.Delta{{Text: []byte("Hel"), Tokens: 1}, {Text: []byte("lo"), Tokens: 1}, finished(worker.FinishEOS)},
			`[{"type":"text","text":"Hello"}] end_turn`},
		"nothing":           {[]pipeline.Delta{finished(worker.FinishEOS)}, `[{"type":"text","text":""}] end_turn`},
		"white space":       {[]pipeline.Delta{pieces(content(" \n")), finished(worker.FinishEOS)}, `[{"type":"text","text":" \n"}] end_turn`},
		"white thought":     {[]pipeline.Delta{pieces(thought("\n\n"), content("\n\na")), finished(worker.FinishEOS)}, `[{"type":"text","text":"\n\na"}] end_turn`},
		"no end":            {nil, `[{"type":"text","text":""}] end_turn`},
		"quotes":            {[]pipeline.Delta{pieces(content("\"\\\n\u2028\x01")), finished(worker.FinishEOS)}, `[{"type":"text","text":"\"\\\n\u2028\u0001"}] end_turn`},
		"thought":           {[]pipeline.Delta{pieces(thought("I "), thought("see")), pieces(content("\n\n")), pieces(content("Yes")), finished(worker.FinishStop)}, `[{"type":"thinking","thinking":"I see","signature":"erased"},{"type":"text","text":"\n\nYes"}] end_turn`},
		"only a thought":    {[]pipeline.Delta{pieces(thought("I")), finished(worker.FinishLength)}, `[{"type":"thinking","thinking":"I","signature":"erased"}] max_tokens`},
		"thoughts between":  {[]pipeline.Delta{pieces(content("a"), thought(" "), content("b"), thought("c"), content("d")), finished(worker.FinishEOS)}, `[{"type":"text","text":"ab"},{"type":"thinking","thinking":"c","signature":"erased"},{"type":"text","text":"d"}] end_turn`},
		"calls":             {[]pipeline.Delta{pieces(content("ok\n"), call("", "f"), input(`{"a"`)), pieces(input(`: 1}`), content("\n"), call("x:1", "g"), input("{}"), content("\n")), finished(worker.FinishEOS)}, `[{"type":"text","text":"ok\n"},{"type":"tool_use","id":"MADE","name":"f","input":{"a": 1}},{"type":"tool_use","id":"x:1","name":"g","input":{}}] tool_use`},
		"a call and text":   {[]pipeline.Delta{pieces(call("c", "f"), content("done")), finished(worker.FinishEOS)}, `[{"type":"tool_use","id":"c","name":"f","input":{}},{"type":"text","text":"done"}] tool_use`},
		"a call by length":  {[]pipeline.Delta{pieces(call("c", "f"), input(`{"a":"b","c":[1,{"d":"e`)), finished(worker.FinishLength)}, `[{"type":"tool_use","id":"c","name":"f","input":{"a":"b","c":[1,{}]}}] max_tokens`},
		"a call of no JSON": {[]pipeline.Delta{pieces(call("c", "f"), input(`none`)), finished(worker.FinishStop)}, `[{"type":"tool_use","id":"c","name":"f","input":{}}] tool_use`},
		"stop sequence": {[]pipeline.Delta{pieces(content("a")), {Finish: worker.FinishStop, StopReason: worker.StopReason{Kind: worker.StopString, Text: "END"}}},
			`[{"type":"text","text":"a"}] stop_sequence "END"`},
		"another stop": {[]pipeline.Delta{pieces(content("a")), {Finish: worker.FinishStop, StopReason: worker.StopReason{Kind: worker.StopString, Text: "else"}}},
			`[{"type":"text","text":"a"}] end_turn`},
		"a stop token": {[]pipeline.Delta{pieces(content("a")), {Finish: worker.FinishStop, StopReason: worker.StopReason{Kind: worker.StopToken, ID: 5}}},
			`[{"type":"text","text":"a"}] end_turn`},
		"filtered": {[]pipeline.Delta{finished(worker.FinishContentFilter)}, `[{"type":"text","text":""}] refusal`},
		"chunks of the client's format": {[]pipeline.Delta{
			{Raw: []byte(`{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}`)},
			{Raw: []byte(`{"choices":[{"index":0,"delta":{"reasoning_content":"hm"}}]}`)},
			{Raw: []byte(`{"choices":[{"index":0,"delta":{"content":"a"}}]}`)},
			{Raw: []byte(`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":"f","arguments":""}}]}}]}`)},
			{Raw: []byte(`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]},"finish_reason":"tool_calls"}]}`)},
			{Raw: []byte(`{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":9}}`)}},
			`[{"type":"thinking","thinking":"hm","signature":"erased"},{"type":"text","text":"a"},{"type":"tool_use","id":"c","name":"f","input":{}}] tool_use`},
		"annotation": {[]pipeline.Delta{{Event: "x", Comment: []string{"1"}}, finished(worker.FinishEOS)}, `[{"type":"text","text":""}] end_turn`},
	} {
		t.Run(name, func(t *testing.T) {
			var m struct {
				Content  json.RawMessage
				Reason   string  `json:"stop_reason"`
				Sequence *string `json:"stop_sequence"`
			}
			body := folded(t, tt.deltas)
			if err := json.Unmarshal([]byte(body), &m); err != nil {
				t.Fatalf("%v in %s", err, body)
			}
			got := madeID.ReplaceAllString(string(m.Content), `"MADE"`) + " " + m.Reason
			if m.Sequence != nil {
				got += ` "` + *m.Sequence + `"`
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
			stream := streamed(t, tt.deltas, (*messages.Stream).Finish)
			if diff := cmp.Diff(sameAsStreamed(t, m.Content), assembled(t, stream)); diff != "" {
				t.Errorf("the stream says something else (-whole +stream):\n%s", diff)
			}
			if !strings.Contains(stream, `"stop_reason":"`+m.Reason+`"`) {
				t.Errorf("the stream ends otherwise: %s", stream)
			}
		})
	}
}

// sameAsStreamed is a content with the inputs of its calls as JSON values, and made ids alike.
func sameAsStreamed(t *testing.T, content json.RawMessage) []map[string]any {
	t.Helper()
	var out []map[string]any
	if err := json.Unmarshal(madeID.ReplaceAll(content, []byte(`"MADE"`)), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// assembled puts a stream together as clients do. Of an input that breaks off they keep what is whole: here only that
// it does is looked at, so that it is taken from the test's own reading of the whole members.
func assembled(t *testing.T, stream string) []map[string]any {
	t.Helper()
	events, err := testkit.Events([]byte(madeID.ReplaceAllString(stream, `"MADE"`)))
	if err != nil {
		t.Fatal(err)
	}
	var out []map[string]any
	inputs := map[int]string{}
	for _, e := range events {
		var m struct {
			Type  string
			Index int
			Block map[string]any `json:"content_block"`
			Delta map[string]any
		}
		if err := json.Unmarshal([]byte(e.Data), &m); err != nil {
			t.Fatal(err)
		}
		switch m.Type {
		case "content_block_start":
			out = append(out, m.Block)
		case "content_block_delta":
			for k, v := range m.Delta {
				switch k {
				case "type":
				case "partial_json":
					inputs[m.Index] += v.(string)
				default:
					out[m.Index][k] = out[m.Index][k].(string) + v.(string)
				}
			}
		}
	}
	for i, text := range inputs {
		var v map[string]any
		for end := ""; json.Unmarshal([]byte(text+end), &v) != nil; {
			switch { // the cases of the test
			case text == "none":
				text = "{}"
			default:
				text, end = strings.TrimSuffix(text, `"d":"e`), "}]}"
			}
		}
		out[i]["input"] = v
	}
	return out
}

// TestEvents pins the bytes of a stream.
func TestEvents(t *testing.T) {
	cached := 3
	got := streamed(t, []pipeline.Delta{
		pieces(thought("hm")), pieces(content("a")), pieces(content("b"), content("c"), call("c1", "f"), input(`{"x":`), input(`1}`)),
		{Finish: worker.FinishEOS, Tokens: 1, Usage: &worker.Usage{PromptTokens: 9, CachedTokens: &cached}},
	}, (*messages.Stream).Finish)
	testkit.Golden(t, "stream.golden", []byte(got))
}

func TestFailedStream(t *testing.T) {
	got := streamed(t, []pipeline.Delta{pieces(content("a"))}, func(s *messages.Stream) error {
		return s.Fail([]byte(`{"type":"error","error":{"type":"t","message":"m"}}`))
	})
	if strings.Contains(got, "message_stop") || strings.Contains(got, "[DONE]") {
		t.Errorf("a broken stream has an end: %s", got)
	}
}

func TestUsage(t *testing.T) {
	cached := 4
	f := messages.NewFold(options)
	if err := f.Start(prepared()); err != nil {
		t.Fatal(err)
	}
	if err := f.Delta(&pipeline.Delta{Tokens: 2, Text: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	if u := f.Usage(); u.PromptTokens != 7 || u.CompletionTokens != 2 || u.TotalTokens != 9 || u.CachedTokens != nil {
		t.Errorf("%+v", u)
	}
	if err := f.Delta(&pipeline.Delta{Usage: &worker.Usage{PromptTokens: 10, CachedTokens: &cached}}); err != nil {
		t.Fatal(err)
	}
	if u := f.Usage(); u.PromptTokens != 10 || *u.CachedTokens != 4 {
		t.Errorf("%+v", u)
	}
	body, err := f.AppendBody(nil)
	if want := `"usage":{"input_tokens":6,"output_tokens":2,"cache_creation_input_tokens":0,"cache_read_input_tokens":4}}`; err != nil || !strings.HasSuffix(string(body), want) {
		t.Errorf("%v %s", err, body)
	}
}

func TestUnreadableChunk(t *testing.T) {
	if err := messages.NewFold(options).Delta(&pipeline.Delta{Raw: []byte("[")}); err == nil {
		t.Error("no failure")
	}
}
