package toolparse_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/internal/prepost/toolparse"
)

// The tests of this file are failures that users of other servers reported; each names one of the reports.

// recordedCase returns the whole recorded answers with a case's name, one per dialect.
func recordedCase(t *testing.T, name string) []recorded {
	t.Helper()
	var all []recorded
	for _, r := range lines[recorded](t, "tools.jsonl.gz") {
		if strings.HasSuffix(r.Name, "/"+name) {
			all = append(all, r)
		}
	}
	if len(all) < 10 {
		t.Fatalf("%d cases named %s", len(all), name)
	}
	return all
}

// TestFieldParallelCalls: clients merged parallel calls, because their index was always 0 (ai-dynamo/dynamo 4723,
// ollama/ollama 7881). The assembler fails on an index out of order or a name that comes twice.
func TestFieldParallelCalls(t *testing.T) {
	got := parse(t, "hermes", toolparse.Options{}, false, bytewise(
		`<tool_call>{"name":"a","arguments":{}}</tool_call><tool_call>{"name":"b","arguments":{"x":1}}</tool_call>`)...)
	want := []call{{Name: "a", Arguments: "{}"}, {Name: "b", Arguments: `{"x":1}`}}
	if diff := cmp.Diff(want, got.Calls); diff != "" {
		t.Error(diff)
	}
	tools := declaredTools(t)
	for _, r := range recordedCase(t, "three") {
		got := parse(t, r.Parser, r.Request.options(tools), false, bytewise(r.Text)...)
		if len(got.Calls) != 3 {
			t.Errorf("%s: %+v", r.Name, got.Calls)
		}
		for _, c := range got.Calls {
			if !json.Valid([]byte(c.Arguments)) {
				t.Errorf("%s: %s isn't JSON", r.Name, c.Arguments)
			}
		}
	}
}

// TestFieldNoArguments: a call without parameters lost its {} when it was streamed (vllm-project/vllm 28806).
func TestFieldNoArguments(t *testing.T) {
	tools := declaredTools(t)
	for _, r := range recordedCase(t, "noargs") {
		for _, texts := range [][]string{{r.Text}, bytewise(r.Text)} {
			got := parse(t, r.Parser, r.Request.options(tools), false, texts...)
			if len(got.Calls) != 1 || got.Calls[0].Arguments != "{}" {
				t.Errorf("%s: %+v", r.Name, got.Calls)
			}
		}
	}
}

// TestFieldBraces: braces in strings or at the end of nested objects were lost or doubled (vllm-project/vllm 19056,
// 10395, 15274). Every pair of cuts gives the arguments as they are.
func TestFieldBraces(t *testing.T) {
	for _, arguments := range []string{
		`{"a":{"b":{"c":{}}}}`, `{"a":"}"}`, `{"a":"{\"}}}"}`, `{"a":"</tool_call>"}`, `{"a":"\u00fc\ud83d\ude00"}`,
		`{"a":1e3,"b":[{}]}`, `{"a":"\\"}`,
	} {
		text := `<tool_call>{"name":"f","arguments":` + arguments + `}</tool_call>`
		for i := range len(text) {
			for j := i; j < len(text); j++ {
				got := parse(t, "hermes", toolparse.Options{}, false, text[:i], text[i:j], text[j:])
				if len(got.Calls) != 1 || got.Calls[0].Arguments != arguments || got.Content != "" {
					t.Fatalf("%s cut at %d and %d: %+v", text, i, j, got)
				}
			}
		}
	}
}

// TestFieldMarkup: markers were shown to users when a call was malformed, cut, or missing (ai-dynamo/dynamo 10725 and
// 8820, ai-dynamo/frontend-crates 60, 61, 63, 69).
func TestFieldMarkup(t *testing.T) {
	for _, test := range []struct {
		text      string
		truncated bool
		want      result
	}{
		{`<tool_call>{"name":"a","argum`, true, result{Segments: "|", Calls: []call{{Name: "a"}}, Cut: true}},
		{`<tool_call>{"name":"a","argum`, false, result{Segments: "|", Calls: []call{{Name: "a"}}, Cut: true}},
		{"</tool_call>", false, result{}},
		{"text <tool_call>not json</tool_call> more", false,
			result{Content: "text not json more", Segments: "text not json more"}},
		{`<tool_call>not json</tool_call><tool_call>{"name":"b"}</tool_call>`, false,
			result{Content: "not json", Segments: "not json|", Calls: []call{{Name: "b", Arguments: "{}"}}}},
		{`<tool_call>{"name":"a","arguments":{"x":"y</tool_call><tool_call>{"name":"b"}</tool_call>`, false,
			result{Segments: "||", Calls: []call{{Name: "a", Arguments: `{"x":"y`}, {Name: "b", Arguments: "{}"}}}},
	} {
		for _, texts := range [][]string{{test.text}, bytewise(test.text)} {
			if diff := cmp.Diff(test.want, parse(t, "hermes", toolparse.Options{}, test.truncated, texts...)); diff != "" {
				t.Errorf("%q:\n%s", test.text, diff)
			}
		}
	}
	got := parse(t, "mistral", toolparse.Options{}, false, "[TOOL_CALLS]")
	if diff := cmp.Diff(result{}, got); diff != "" {
		t.Errorf("mistral:\n%s", diff)
	}
}

// TestFieldFiresWrongly: an answer in JSON became a tool call in a request without tools (ai-dynamo/dynamo 13176).
func TestFieldFiresWrongly(t *testing.T) {
	tools := []toolparse.Tool{{Name: "get_weather"}}
	answers := []string{
		`{"name": "Bob", "arguments": {"for": 1, "against": 2}}`, `[{"name": "Bob", "parameters": {}}]`,
		`{"name": "Bob"}`, `{"a": {"name": "get_weather", "arguments": 1}}`, `[1, {"b": 2}]`, "plain", `[f(x)]`, "[f(a==b)]",
		"[docs](https://example.com) and `f(x=1)`",
	}
	for _, name := range toolparse.Names() {
		for _, answer := range answers {
			for _, o := range []toolparse.Options{{Choice: toolparse.None}, {Tools: tools}, {Tools: tools, Choice: toolparse.None}} {
				got := parse(t, name, o, false, bytewise(answer)...)
				if got.Content != answer || len(got.Calls) > 0 {
					t.Errorf("%s, choice %d: %s became %+v", name, o.Choice, answer, got)
				}
			}
		}
	}
	call := `{"name": "get_weather", "arguments": {"city": "Paris"}}`
	for _, name := range []string{"hermes", "llama3_json", "default", "mistral"} {
		if got := parse(t, name, toolparse.Options{Choice: toolparse.None}, false, call); got.Content != call {
			t.Errorf("%s, no tools: %+v", name, got)
		}
		if got := parse(t, name, toolparse.Options{Tools: tools}, false, call); len(got.Calls) != 1 {
			t.Errorf("%s, with tools: %+v", name, got)
		}
	}
}

// TestFieldSpaceBesideCalls: white space beside calls was sent as content (lightseekorg/smg 1822).
func TestFieldSpaceBesideCalls(t *testing.T) {
	for _, text := range []string{
		"\n\n<tool_call>{\"name\":\"a\"}</tool_call>\n\n<tool_call>\n{\"name\":\"b\"}\n</tool_call>\n",
		" <tool_call> {\"name\":\"a\"} </tool_call> <tool_call>[{\"name\":\"b\"}]</tool_call> ",
	} {
		got := parse(t, "hermes", toolparse.Options{}, false, bytewise(text)...)
		if got.Content != "" || len(got.Calls) != 2 {
			t.Errorf("%q: %+v", text, got)
		}
	}
}

// TestFieldTypedTags: numbers in tags came as strings (lightseekorg/smg 1899, 1841).
func TestFieldTypedTags(t *testing.T) {
	tools := declaredTools(t)
	for parser, text := range map[string]string{
		"qwen3_coder": "<tool_call><function=get_weather><parameter=city>5</parameter><parameter=days>5</parameter></function></tool_call>",
		"minimax_m2":  `<invoke name="get_weather"><parameter name="city">5</parameter><parameter name="days">5</parameter></invoke>`,
		"glm47":       "<tool_call>get_weather<arg_key>city</arg_key><arg_value>5</arg_value><arg_key>days</arg_key><arg_value>5</arg_value></tool_call>",
	} {
		got := parse(t, parser, toolparse.Options{Tools: tools}, false, text)
		if len(got.Calls) != 1 || got.Calls[0].Arguments != `{"city":"5","days":5}` {
			t.Errorf("%s: %+v", parser, got)
		}
	}
}

// TestFieldEmojiBesideMarkers: a parser that cut within a character panicked (lightseekorg/smg 1676, 1677).
func TestFieldEmojiBesideMarkers(t *testing.T) {
	const text = "👩‍👩‍👧<tool_call>{\"name\":\"é\",\"arguments\":{\"ü\":\"👧\"}}</tool_call>🎉<tool_c🎉"
	got := parse(t, "hermes", toolparse.Options{}, false, bytewise(text)...)
	want := result{
		Content:  "👩‍👩‍👧🎉<tool_c🎉",
		Segments: "👩‍👩‍👧|🎉<tool_c🎉",
		Calls:    []call{{Name: "é", Arguments: `{"ü":"👧"}`}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestFieldManyStreams: one parser shared by all streams mixed them (lightseekorg/smg 1642).
func TestFieldManyStreams(t *testing.T) {
	var wait sync.WaitGroup
	for i := range 64 {
		wait.Go(func() {
			name := fmt.Sprintf("f%d", i)
			text := fmt.Sprintf(`<tool_call>{"name":"%s","arguments":{"n":%d}}</tool_call>`, name, i)
			got := parse(t, "hermes", toolparse.Options{}, false, bytewise(text)...)
			if len(got.Calls) != 1 || got.Calls[0].Name != name {
				t.Errorf("stream %d: %+v", i, got)
			}
		})
	}
	wait.Wait()
}
