package responses_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/server/reply"
	"github.com/portico-llm/portico/internal/server/responses"
)

// converted makes a chat of a request with the given members.
func converted(t *testing.T, members string) *responses.Turn {
	t.Helper()
	req, err := openai.DecodeResponses([]byte(`{"model":"m",`+members+`}`), openai.DecodeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	turn, err := responses.Convert(req, req.Items, openai.DecodeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return turn
}

// same compares JSON texts.
func same(t *testing.T, want, got string) {
	t.Helper()
	var w, g any
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		t.Fatalf("%v: %s", err, want)
	}
	if err := json.Unmarshal([]byte(got), &g); err != nil {
		t.Fatalf("%v: %s", err, got)
	}
	if diff := cmp.Diff(w, g); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestConvertItems(t *testing.T) {
	for name, tt := range map[string]struct{ members, want string }{
		"a text":             {`"input":"hi"`, `[{"role":"user","content":"hi"}]`},
		"a text of nothing":  {`"input":""`, `[{"role":"user","content":""}]`},
		"null is absent":     {`"input":"hi","instructions":null,"tools":null,"reasoning":null,"text":null`, `[{"role":"user","content":"hi"}]`},
		"one text is string": {`"input":[{"role":"user","content":[{"type":"input_text","text":"hi"}]}]`, `[{"role":"user","content":"hi"}]`},
		"bare parts":         {`"input":[{"role":"user","content":["a","b"]}]`, `[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]`},
		"instructions are joined": {
			`"instructions":"I","input":[{"role":"system","content":"S"},{"role":"developer","content":"D"},{"role":"user","content":"u"},` +
				`{"role":"developer","content":"later"}]`,
			`[{"role":"system","content":"I\n\nS\n\nD"},{"role":"user","content":"u"},{"role":"system","content":"later"}]`},
		"an image": {
			`"input":[{"role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_image","image_url":"data:x","detail":"low"}]}]`,
			`[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"data:x","detail":"low"}}]}]`},
		"an image in the form of chat": {
			`"input":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:x","detail":"high"}}]}]`,
			`[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:x","detail":"high"}}]}]`},
		"audio": {
			`"input":[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"AA==","format":"wav"}}]}]`,
			`[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"AA==","format":"wav"}}]}]`},
		"one turn is one message": {
			`"input":[{"role":"user","content":"q"},{"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"Hm."}]},` +
				`{"type":"message","role":"assistant","content":[{"type":"output_text","text":"A","annotations":[]}]},` +
				`{"type":"function_call","call_id":"c1","name":"f","arguments":"{\"a\":1}"},{"type":"function_call","call_id":"c2","name":"g","arguments":""},` +
				`{"role":"assistant","content":"B"},{"type":"function_call_output","call_id":"c1","output":"1"},` +
				`{"type":"function_call_output","call_id":"c2","output":[{"type":"input_text","text":"2"}]}]`,
			`[{"role":"user","content":"q"},{"role":"assistant","content":[{"type":"text","text":"A"},{"type":"text","text":"B"}],"reasoning_content":"Hm.",` +
				`"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}},` +
				`{"id":"c2","type":"function","function":{"name":"g","arguments":"{}"}}]},` +
				`{"role":"tool","tool_call_id":"c1","content":"1"},{"role":"tool","tool_call_id":"c2","content":"2"}]`},
		"two turns are two": {
			`"input":[{"role":"assistant","content":"A"},{"role":"assistant","content":"B"},{"type":"reasoning","summary":[{"type":"summary_text","text":"s"}]},` +
				`{"role":"assistant","content":"C"}]`,
			`[{"role":"assistant","content":"A"},{"role":"assistant","content":"B"},{"role":"assistant","content":"C","reasoning_content":"s"}]`},
		"a thought in its summary": {
			`"input":[{"type":"reasoning","summary":[{"type":"summary_text","text":"s"}],"content":[]},{"role":"assistant","content":[]}]`,
			`[{"role":"assistant","content":"","reasoning_content":"s"}]`},
		"a call alone has no null": {
			`"input":[{"type":"function_call","call_id":"c","name":"f","arguments":{"a":[1]},"namespace":"n"},{"type":"function_call_output","call_id":"c","output":""}]`,
			`[{"role":"assistant","content":"","tool_calls":[{"id":"c","type":"function","function":{"name":"n__f","arguments":"{\"a\":[1]}"}}]},` +
				`{"role":"tool","tool_call_id":"c","content":""}]`},
		"arguments that are no object": {
			`"input":[{"type":"function_call","call_id":"c","name":"f","arguments":"{\"a\": "},{"role":"user","content":"u"}]`,
			`[{"role":"assistant","content":"","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"arguments\":\"{\\\"a\\\": \"}"}}]},` +
				`{"role":"user","content":"u"}]`},
		"custom tools": {
			`"input":[{"type":"custom_tool_call","call_id":"c","name":"patch","input":"a\n\"b\""},{"type":"custom_tool_call_output","call_id":"c","output":"ok"}]`,
			`[{"role":"assistant","content":"","tool_calls":[{"id":"c","type":"function","function":{"name":"patch","arguments":"{\"input\":\"a\\n\\\"b\\\"\"}"}}]},` +
				`{"role":"tool","tool_call_id":"c","content":"ok"}]`},
		"a shell of another server's": {
			`"input":[{"type":"local_shell_call","id":"l","call_id":"c","action":{"type":"exec","command":["ls"]}},` +
				`{"type":"local_shell_call_output","call_id":"c","output":"x"},{"type":"web_search_call","id":"w","action":{"query":"q"}}]`,
			`[{"role":"assistant","content":"","tool_calls":[{"id":"c","type":"function","function":{"name":"local_shell",` +
				`"arguments":"{\"type\":\"exec\",\"command\":[\"ls\"]}"}}]},{"role":"tool","tool_call_id":"c","content":"x"}]`},
		"OpenAI's own tools": {
			`"input":[{"type":"shell_call","call_id":"c","status":"completed","action":{"commands":["ls"]}},` +
				`{"type":"apply_patch_call","call_id":"d","status":"completed","operation":{"type":"delete_file","path":"x"}},` +
				`{"type":"shell_call_output","call_id":"c","output":[{"stdout":"a\n","stderr":"","outcome":{"type":"exit","exit_code":0}},` +
				`{"stdout":"b","stderr":"","outcome":{"type":"timeout"}}]},` +
				`{"type":"apply_patch_call_output","call_id":"d","status":"failed","output":"no such file"}]`,
			`[{"role":"assistant","content":"","tool_calls":[{"id":"c","type":"function","function":{"name":"shell",` +
				`"arguments":"{\"commands\":[\"ls\"]}"}},{"id":"d","type":"function","function":{"name":"apply_patch",` +
				`"arguments":"{\"type\":\"delete_file\",\"path\":\"x\"}"}}]},` +
				`{"role":"tool","tool_call_id":"c","content":"a\nb\n[timed out]"},{"role":"tool","tool_call_id":"d","content":"failed: no such file"}]`},
	} {
		t.Run(name, func(t *testing.T) {
			same(t, tt.want, string(converted(t, tt.members).Chat.Messages))
		})
	}
}

// TestConvertSealed: a thought comes back in the form that a client was given, and nobody else's form is taken for it.
func TestConvertSealed(t *testing.T) {
	for seal, want := range map[string]string{
		"portico-thought-1:SG0u":  `[{"role":"assistant","content":"","reasoning_content":"Hm."}]`,
		"portico-thought-1:*":     `[{"role":"assistant","content":""}]`,
		"gAAAAABo-another-server": `[{"role":"assistant","content":""}]`,
	} {
		same(t, want, string(converted(t, `"input":[{"type":"reasoning","summary":[],"encrypted_content":"`+seal+`"}]`).Chat.Messages))
	}
	if got := reply.OpenThought("SG0u"); got != "" {
		t.Errorf("%q", got)
	}
}

func TestConvertTools(t *testing.T) {
	turn := converted(t, `"input":"a","tools":[
		{"type":"function","name":"f","description":"F","parameters":{"type":"object"},"strict":false},
		{"type":"function","function":{"name":"old","parameters":{}}},
		{"type":"custom","name":"patch","description":"P","format":{"type":"grammar","syntax":"lark","definition":"start: X"}},
		{"type":"namespace","name":"ns","tools":[{"type":"function","name":"f"},{"type":"function","name":"h"}]},
		{"type":"function","name":"f","description":"second"},
		{"type":"web_search"},{"type":"local_shell"},{"type":"mcp","server_label":"x","server_url":"http://127.0.0.1"}],
		"tool_choice":{"type":"custom","name":"patch"},"parallel_tool_calls":false`)
	same(t, `[{"type":"function","function":{"name":"f","description":"F","parameters":{"type":"object"},"strict":false}},
		{"type":"function","function":{"name":"old","parameters":{}}},
		{"type":"function","function":{"name":"patch","description":"P\n\nThe input must match this lark grammar:\nstart: X",
			"parameters":{"type":"object","properties":{"input":{"type":"string","description":"The whole input of the tool"}},
				"required":["input"],"additionalProperties":false}}},
		{"type":"function","function":{"name":"ns__f"}},{"type":"function","function":{"name":"ns__h"}},
		{"type":"function","function":{"name":"local_shell","description":"Runs a command in the user's shell and returns its output",
			"parameters":{"type":"object","properties":{
				"command":{"type":"array","items":{"type":"string"},"description":"The program and its arguments"},
				"env":{"type":"object","additionalProperties":{"type":"string"},"description":"Further environment variables"},
				"working_directory":{"type":"string","description":"The folder to run in"},
				"timeout_ms":{"type":"integer","description":"The longest time it may take, in milliseconds"}},
				"required":["command"],"additionalProperties":false}}}]`, string(turn.Chat.Tools))
	want := map[string]reply.CalledAs{"patch": {Name: "patch", Kind: reply.CallCustom}, "ns__f": {Name: "f", Namespace: "ns"}, "ns__h": {Name: "h", Namespace: "ns"},
		"local_shell": {Kind: reply.CallLocalShell}}
	if diff := cmp.Diff(want, turn.Tools); diff != "" || turn.Left.Tools != 2 {
		t.Errorf("%d tools left out (-want +got):\n%s", turn.Left.Tools, diff)
	}
	if c := turn.Chat.ToolChoice; c == nil || c.Mode != "function" || c.Name != "patch" || *turn.Chat.ParallelToolCalls {
		t.Errorf("%+v", c)
	}
	allowed := converted(t, `"input":"a","tools":[{"type":"function","name":"f"},{"type":"function","name":"g"}],
		"tool_choice":{"type":"allowed_tools","mode":"required","tools":[{"type":"function","name":"g"}]}`)
	if l := allowed.Chat.ToolList; len(l) != 1 || l[0].Name != "g" || allowed.Chat.ToolChoice.Mode != "required" {
		t.Errorf("%+v", l)
	}
	shell := converted(t, `"input":"a","tools":[{"type":"function","name":"f"},{"type":"local_shell"}],
		"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{"type":"local_shell"}]}`)
	if l := shell.Chat.ToolList; len(l) != 1 || l[0].Name != "local_shell" {
		t.Errorf("%+v", l)
	}
	own := converted(t, `"input":"a","tools":[{"type":"shell","environment":{"type":"local","skills":[]}},{"type":"apply_patch"},
		{"type":"function","name":"shell"},{"type":"shell","environment":{"type":"container_auto"}}],"tool_choice":{"type":"apply_patch"}`)
	if l := own.Chat.ToolList; len(l) != 2 || l[0].Name != "shell" || l[1].Name != "apply_patch" || own.Left.Tools != 1 ||
		own.Chat.ToolChoice.Name != "apply_patch" {
		t.Errorf("%+v, %+v, %d left out", l, own.Chat.ToolChoice, own.Left.Tools)
	}
	// With nothing on offer there is nothing to choose.
	if none := converted(t, `"input":"a","tools":[{"type":"web_search"}],"tool_choice":"auto"`).Chat; none.Tools != nil || none.ToolChoice != nil {
		t.Errorf("%s", none.Tools)
	}
}

func TestConvertSettings(t *testing.T) {
	chat := converted(t, `"input":"a","max_output_tokens":5,"max_tokens":9,"temperature":0.5,"stop":["x"],"seed":3,"stream":true,
		"stream_options":{"include_obfuscation":false},"reasoning":{"effort":"low","summary":"auto"},"top_logprobs":2,
		"chat_template_kwargs":{"a":1},"metadata":{"k":"v"},"nvext":{"annotations":["x"]},"frequency_penalty":1,
		"text":{"verbosity":"low","format":{"type":"json_schema","name":"n","schema":{"type":"object"},"strict":true}}`).Chat
	type settings struct {
		Limit, Max, Seed, Top int64
		Temperature, Penalty  float64
		Logprobs, Stream      bool
		Effort, Format, Name  string
		Schema, Args          string
	}
	got := settings{*chat.TokenLimit(), 0, *chat.Seed, *chat.TopLogprobs, *chat.Temperature, *chat.FrequencyPenalty, *chat.Logprobs,
		chat.Streaming(), *chat.ReasoningEffort, chat.ResponseFormat.Type, chat.ResponseFormat.JSONSchema.Name,
		string(chat.ResponseFormat.JSONSchema.Schema), string(chat.ChatTemplateArgs)}
	if chat.MaxTokens != nil {
		got.Max = *chat.MaxTokens
	}
	want := settings{5, 0, 3, 2, 0.5, 1, true, true, "low", "json_schema", "n", `{"type":"object"}`, `{"a":1}`}
	if diff := cmp.Diff(want, got); diff != "" || chat.StreamOptions != nil || chat.Metadata != nil || chat.NvExt == nil {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if chat := converted(t, `"input":"a","max_tokens":9,"text":{"format":{"type":"json_object"}}`).Chat; *chat.TokenLimit() != 9 ||
		chat.ResponseFormat.Type != "json_object" {
		t.Errorf("%+v", chat)
	}
}

// TestInTerms: a failure names the field that the client wrote.
func TestInTerms(t *testing.T) {
	for given, want := range map[string]string{
		"messages[2].content": "input", "max_completion_tokens": "max_output_tokens", "reasoning_effort": "reasoning.effort",
		"response_format.json_schema.schema": "text.format.schema", "messagesX": "messagesX", "temperature": "temperature", "": "",
	} {
		f := fault.From(responses.InTerms(fault.Bad(given, "`%s` is wrong", given)))
		if f.Param != want || (given != "" && f.Message != "`"+want+"` is wrong") {
			t.Errorf("%s: %s %q", given, f.Param, f.Message)
		}
	}
}

// FuzzConvert: whatever passes decoding becomes a chat that is whole JSON, or a failure that names a field; what is kept
// of it can be read again.
func FuzzConvert(f *testing.F) {
	for _, seed := range []string{
		`{"model":"m","input":"a"}`, `{"model":"m","input":[{"role":"user","content":[{"type":"input_text","text":"a"}]}],"tools":[{"type":"custom","name":"c"}]}`,
		`{"model":"m","input":[{"type":"function_call","call_id":"c","name":"f","arguments":"{"},{"type":"function_call_output","call_id":"c","output":[]}]}`,
		`{"model":"m","input":[{"type":"reasoning","summary":[{"type":"summary_text","text":"s"}],"id":null}],"instructions":"i","text":{"format":{"type":"text"}}}`,
		`{"model":"m","input":[{"type":"x","output":{},"content":null}],"tool_choice":{"type":"allowed_tools","tools":[{"name":"f"}]}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		req, err := openai.DecodeResponses(body, openai.DecodeOptions{})
		if err != nil {
			if fault.From(err).Kind != fault.BadRequest {
				t.Fatal(err)
			}
			return
		}
		store := responses.NewStore(responses.StoreOptions{MaxCount: 2})
		req.PreviousID = nil
		talk, err := store.Join(req, "", openai.DecodeOptions{})
		if err != nil {
			return // a reference
		}
		turn, err := responses.Convert(req, talk.Items, openai.DecodeOptions{})
		if err != nil {
			if fault.From(err).Kind != fault.BadRequest {
				t.Fatal(err)
			}
			return
		}
		if !json.Valid(turn.Chat.Messages) || !json.Valid(append(append([]byte(`{"a":1`), turn.Echo(true)...), '}')) {
			t.Fatalf("%s\n%s", turn.Chat.Messages, turn.Echo(true))
		}
		talk.Keeper("resp_0123456789abcdef0123456789abcdef")(reply.Kept{Body: []byte("{}"), Output: []byte("[]")})
		id := "resp_0123456789abcdef0123456789abcdef"
		next := &openai.ResponsesRequest{PreviousID: &id}
		again, err := store.Join(next, "", openai.DecodeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		second, err := responses.Convert(req, again.Items, openai.DecodeOptions{})
		if err != nil || string(second.Chat.Messages) != string(turn.Chat.Messages) {
			t.Fatalf("%v: read again, %s has become %s", err, turn.Chat.Messages, second.Chat.Messages)
		}
	})
}
