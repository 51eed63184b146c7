package openai_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/internal/fault"
)

func decodeResponses(t *testing.T, members string) *openai.ResponsesRequest {
	t.Helper()
	req, err := openai.DecodeResponses([]byte(`{"model":"m",`+members+`}`), openai.DecodeOptions{Strict: true})
	if err != nil {
		t.Fatalf("%s: %v", members, err)
	}
	return req
}

// TestResponsesFields sends every field alone: with a value that suits it, as null, and with one of another type.
func TestResponsesFields(t *testing.T) {
	suits := map[string]string{
		"input": `"s"`, "tools": `[{"type":"function","name":"f"}]`, "tool_choice": `"auto"`, "text": `{"format":{"type":"text"}}`,
		"reasoning": `{"effort":"low"}`, "prompt": `{}`, "conversation": `"c"`,
	}
	for name, kind := range openai.Kinds()["ResponsesRequest"] {
		value := suits[name]
		for _, source := range []map[string]string{special, samples} {
			if value == "" {
				value = source[map[bool]string{true: name, false: kind}[reflect.DeepEqual(source, special)]]
			}
		}
		if value == "" {
			t.Fatalf("%s: no value of kind %s", name, kind)
		}
		head := `{"model":"m","input":"a",`
		switch name {
		case "input":
			head = `{"model":"m",`
		case "model":
			head = `{"input":"a",`
		}
		if _, err := openai.DecodeResponses([]byte(fmt.Sprintf(`%s%q:%s}`, head, name, value)), openai.DecodeOptions{}); err != nil {
			t.Errorf("%s: %s: %v", name, value, err)
		}
		_, err := openai.DecodeResponses([]byte(fmt.Sprintf(`%s%q:null}`, head, name)), openai.DecodeOptions{})
		if required := name == "input" || name == "model"; (err != nil) != required {
			t.Errorf("%s: null: %v", name, err)
		}
		if kind == "any" {
			continue
		}
		wrong := map[bool]string{true: `[[7]]`, false: `7`}[strings.Contains(kind, "integer") || strings.Contains(kind, "number")]
		_, err = openai.DecodeResponses([]byte(fmt.Sprintf(`%s%q:%s}`, head, name, wrong)), openai.DecodeOptions{})
		e, ok := errors.AsType[*fault.Error](err)
		if want := strings.Replace(name, "chat_template_kwargs", "chat_template_kwargs", 1); !ok || !strings.HasPrefix(e.Param, want) {
			t.Errorf("%s: %s: %v", name, wrong, err)
		}
	}
}

// TestResponsesItemsRead compares items with what is read of them.
func TestResponsesItemsRead(t *testing.T) {
	text := func(s string) []openai.InputPart { return []openai.InputPart{{Kind: "text", Text: s}} }
	for item, want := range map[string]openai.InputItem{
		`{"role":"user","content":"a"}`:                                             {Type: "message", Role: "user", Parts: text("a"), Plain: true},
		`{"type":"message","role":"system","content":[{"type":"text","text":"a"}]}`: {Type: "message", Role: "system", Parts: text("a")},
		`{"type":"message","role":"assistant","id":"msg_1","content":[{"type":"refusal","refusal":"no"}]}`: {Type: "message", Role: "assistant",
			ID: "msg_1", Parts: []openai.InputPart{{Kind: "refusal", Text: "no"}}},
		`{"role":"user","content":[{"type":"input_image","image_url":{"url":"u","detail":"low"}},{"type":"input_video","video_url":"v"},` +
			`{"type":"audio_url","audio_url":"w"},{"type":"input_audio","input_audio":{"data":"x"}}]}`: {Type: "message", Role: "user",
			Parts: []openai.InputPart{{Kind: "image_url", URL: "u", Detail: "low"}, {Kind: "video_url", URL: "v"}, {Kind: "audio_url", URL: "w"},
				{Kind: "input_audio", Raw: []byte(`{"data":"x"}`)}}},
		`{"type":"function_call","call_id":"c","name":"f","arguments":"{}","namespace":"n","status":"completed"}`: {Type: "function_call",
			CallID: "c", Name: "f", Arguments: "{}", Namespace: "n", Status: "completed"},
		`{"type":"function_call","call_id":"c","name":"f","arguments":{"a":1}}`: {Type: "function_call", CallID: "c", Name: "f", Arguments: `{"a":1}`},
		`{"type":"function_call_output","call_id":"c","output":["a"]}`:          {Type: "function_call_output", CallID: "c", Parts: text("a")},
		`{"type":"custom_tool_call","call_id":"c","name":"f","input":"x"}`:      {Type: "custom_tool_call", CallID: "c", Name: "f", Arguments: "x"},
		`{"type":"local_shell_call","id":"i","action":{"type":"exec"}}`:         {Type: "local_shell_call", ID: "i", Action: []byte(`{"type":"exec"}`)},
		`{"type":"shell_call","call_id":"c","action":{"commands":["ls"]},"status":null}`: {Type: "shell_call", CallID: "c",
			Action: []byte(`{"commands":["ls"]}`)},
		`{"type":"shell_call_output","call_id":"c","output":[{"stdout":"a\n","stderr":"b","outcome":{"type":"exit","exit_code":2}},{"stdout":""}]}`: {
			Type: "shell_call_output", CallID: "c", Parts: append(text("a\nb\n[exit code 2]"), text("")...)},
		`{"type":"apply_patch_call","call_id":"c","operation":{"type":"delete_file"}}`: {Type: "apply_patch_call", CallID: "c",
			Action: []byte(`{"type":"delete_file"}`)},
		`{"type":"apply_patch_call_output","call_id":"c","status":"failed"}`: {Type: "apply_patch_call_output", CallID: "c", Status: "failed"},
		`{"type":"reasoning","content":[{"type":"reasoning_text","text":"a"}],"summary":[{"type":"summary_text","text":"b"}],` +
			`"encrypted_content":"e"}`: {Type: "reasoning", Parts: text("a"), Encrypted: "e"},
		`{"type":"reasoning","content":null,"summary":[{"type":"summary_text","text":"b"}]}`: {Type: "reasoning", Parts: text("b")},
		`{"type":"item_reference","id":"i"}`:                                                 {Type: "item_reference", ID: "i"},
		`{"type":"computer_call_output","output":{"type":"computer_screenshot"}}`:            {Type: "computer_call_output"},
	} {
		want.Raw = []byte(item)
		req := decodeResponses(t, `"input": [ `+item+` , {"role":"user","content":"z"}]`)
		if diff := cmp.Diff(want, req.Items[0]); diff != "" || len(req.Items) != 2 {
			t.Errorf("%s (-want +got):\n%s", item, diff)
		}
		again, err := openai.DecodeItems([]byte("["+item+"]"), openai.DecodeOptions{})
		if err != nil || cmp.Diff(req.Items[:1], again) != "" {
			t.Errorf("%s: read again: %v %s", item, err, cmp.Diff(req.Items[:1], again))
		}
	}
	if _, err := openai.DecodeItems([]byte(`[7]`), openai.DecodeOptions{}); err == nil {
		t.Error("a number is no item")
	}
}

// TestResponsesToolsRead: tools of a namespace are listed each for itself, and the older form is taken.
func TestResponsesToolsRead(t *testing.T) {
	req := decodeResponses(t, `"input":"a","include":["x"],"tools":[{"type":"function","function":{"name":"f","description":"d","strict":true}},
		{"type":"namespace","name":"n","tools":[{"type":"function","name":"g"},{"type":"function","name":"h","tools":[7]}]},
		{"type":"custom","name":"c","format":{"type":"grammar","syntax":"lark","definition":"x"}},{"type":"web_search","filters":{"a":1}},
		{"type":"shell","environment":{"type":"container_auto","file_ids":[]}},{"type":"apply_patch"}],
		"tool_choice":{"type":"allowed_tools","tools":[{"type":"function","name":"g"},{"type":"web_search"},{"type":"shell"}]}`)
	yes, d := true, "d"
	want := []openai.ResponsesTool{
		{Type: "function", Name: "f", Description: &d, Strict: &yes}, {Type: "function", Name: "g", Namespace: "n", Index: 1},
		{Type: "function", Name: "h", Namespace: "n", Index: 1},
		{Type: "custom", Name: "c", Format: &openai.ToolFormat{Type: "grammar", Syntax: "lark", Definition: "x"}, Index: 2},
		{Type: "web_search", Index: 3}, {Type: "shell", Where: "container_auto", Index: 4}, {Type: "apply_patch", Index: 5},
	}
	if diff := cmp.Diff(want, req.ToolList); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if c := req.ToolChoice; c.Mode != "auto" || !cmp.Equal(c.Allowed, []string{"g", "shell"}) || !strings.HasPrefix(string(c.Raw), `{"type":"allowed_tools"`) {
		t.Errorf("%+v", c)
	}
	if !req.Wants("x") || req.Wants("y") || req.Reasoning.WantsSummary() {
		t.Error("include and summary are misread")
	}
	for text, want := range map[string]bool{`{"summary":"auto"}`: true, `{"generate_summary":"concise"}`: true, `{"summary":"none"}`: false, `{}`: false} {
		if got := decodeResponses(t, `"input":"a","reasoning":`+text).Reasoning.WantsSummary(); got != want {
			t.Errorf("%s: %t", text, got)
		}
	}
}

// TestResponsesRefused: what can't be read is refused with the path to it.
func TestResponsesRefused(t *testing.T) {
	many := strings.Repeat(`{"type":"namespace","name":"n","tools":[]},`, 64)
	for members, param := range map[string]string{
		`"input":[7]`: "input[0]", `"input":[{"role":7}]`: "input[0].role", `"input":[{"role":"user","content":7}]`: "input[0].content",
		`"input":[{"role":"user","content":[7]}]`:                                   "input[0].content[0]",
		`"input":[{"role":"user","content":[{"text":"a"}]}]`:                        "input[0].content[0].type",
		`"input":[{"role":"user","content":[{"type":"zzz"}]}]`:                      "input[0].content[0].type",
		`"input":[{"role":"user","content":[{"type":"refusal"}]}]`:                  "input[0].content[0].refusal",
		`"input":[{"role":"user","content":[{"type":"input_audio"}]}]`:              "input[0].content[0].input_audio",
		`"input":[{"role":"user","content":[{"type":"image_url","image_url":7}]}]`:  "input[0].content[0].image_url",
		`"input":[{"type":"item_reference"}]`:                                       "input[0].id",
		`"input":[{"type":"function_call","call_id":"c","name":"f","arguments":7}]`: "input[0].arguments",
		`"input":[{"type":"function_call","name":"f"}]`:                             "input[0].call_id",
		`"input":"a","tools":[{"type":"namespace","tools":[7]}]`:                    "tools[0].tools[0]",
		`"input":"a","tools":[` + many + `{"type":"namespace","name":"n"}]`:         "tools[64]",
		`"input":"a","tool_choice":"some"`:                                          "tool_choice",
		`"input":"a","tool_choice":7`:                                               "tool_choice",
		`"input":"a","tool_choice":{"type":"function"}`:                             "tool_choice.name",
		`"input":"a","tool_choice":{"type":"allowed_tools","mode":"x"}`:             "tool_choice.mode",
		`"input":"a","input":"b"`:                                                   "input",
		`"input":"a","text":{"format":{"type":"json_schema","schema":7}}`:           "text.format.schema",
	} {
		_, err := openai.DecodeResponses([]byte(`{"model":"m",`+members+`}`), openai.DecodeOptions{})
		e, ok := errors.AsType[*fault.Error](err)
		if !ok || e.Param != param || e.Kind != fault.BadRequest {
			t.Errorf("%s: %v, want %s", members, err, param)
		}
	}
	if _, err := openai.DecodeResponses([]byte(`{"input":"a"}`), openai.DecodeOptions{}); err == nil {
		t.Error("a request without a model is taken")
	}
	// Unknown fields are noted, whatever a strict server does with those of chat.
	if req := decodeResponses(t, `"input":"a","zzz":1`); req.Unknown.Count != 1 {
		t.Errorf("%+v", req.Unknown)
	}
}

// TestResponsesSharedWithChat: what both requests have goes over as it was sent.
func TestResponsesSharedWithChat(t *testing.T) {
	req := decodeResponses(t, `"input":"a","stop":"x","temperature":1.50,"metadata":{},"user":"u","n":1,"max_tokens":3,"stream":true,
		"stream_options":{},"nvext":{"annotations":["x"],"cache_salt":"s"},"top_k":null,"parallel_tool_calls":false`)
	if got, want := string(req.Chat(nil)), `"model":"m","stop":"x","temperature":1.50,"stream":true,`+
		`"nvext":{"annotations":["x"],"cache_salt":"s"},"parallel_tool_calls":false,`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	salted, err := openai.DecodeResponses([]byte(`{"model":"m","input":"a","nvext":{"annotations":["x"],"cache_salt":"s"}}`),
		openai.DecodeOptions{IgnoreNvExt: true})
	if err != nil {
		t.Fatal(err)
	}
	if got := string(salted.Chat(nil)); got != `"model":"m","nvext":{"cache_salt":"s"},` {
		t.Error(got)
	}
}
