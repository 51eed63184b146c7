package openai_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/internal/fault"
)

// chatWith returns a chat request with further members, such as `"n":2`.
func chatWith(members string) string {
	if members != "" {
		members = "," + members
	}
	return `{"model":"m","messages":[{"role":"user","content":"hi"}]` + members + `}`
}

// conversation returns a chat request with one message.
func conversation(message string) string { return `{"model":"m","messages":[` + message + `]}` }

// asFault returns the failure of a decoding, which is always a bad request.
func asFault(t *testing.T, err error) *fault.Error {
	t.Helper()
	f, ok := errors.AsType[*fault.Error](err)
	if !ok {
		t.Fatalf("not a fault: %v", err)
	}
	if f.Kind != fault.BadRequest {
		t.Errorf("kind %v, want bad_request", f.Kind)
	}
	return f
}

// TestDecodeChatRefusals: every failure names the field by its path and says what is allowed there. part puts a content
// part behind a good one, so that its path has an index other than 0.
func TestDecodeChatRefusals(t *testing.T) {
	part := func(p string) string {
		return conversation(`{"role":"user","content":[{"type":"text","text":"a"},` + p + `]}`)
	}
	for _, c := range []struct{ name, body, param, says string }{
		{"empty body", ``, "", "empty"},
		{"blank body", " \n", "", "empty"},
		{"cut short", `{"model":"m","messages":[`, "messages", "not valid JSON"},
		{"cut inside a message", `{"model":"m","messages":[{"role":"user","content":"a`, "messages[0].content", "not valid JSON"},
		{"array", `[]`, "", "a JSON object"},
		{"number", `5`, "", "a JSON object, not a number"},
		{"trailing garbage", chatWith("") + `x`, "", "not valid JSON"},
		{"second value", chatWith("") + `{}`, "", "not valid JSON"},
		{"NaN", chatWith(`"temperature":NaN`), "temperature", "not valid JSON"},
		{"missing comma", `{"model":"m" "messages":[]}`, "", "not valid JSON"},
		{"no model", `{"messages":[{"role":"user","content":"a"}]}`, "model", "missing"},
		{"null model", `{"model":null,"messages":[{"role":"user","content":"a"}]}`, "model", "missing"},
		{"no messages", `{"model":"m"}`, "messages", "missing"},
		{"null messages", `{"model":"m","messages":null}`, "messages", "missing"},
		{"messages object", `{"model":"m","messages":{}}`, "messages", "array of messages, not an object"},
		{"message string", conversation(`"hi"`), "messages[0]", "message object, not a string"},
		{"message null", conversation(`null`), "messages[0]", "not null"},
		{"no role", conversation(`{"content":"a"}`), "messages[0].role", `"assistant"`},
		{"null role", conversation(`{"role":null,"content":"a"}`), "messages[0].role", `"assistant"`},
		{"unknown role", conversation(`{"role":"alien","content":"a"}`), "messages[0].role", "alien"},
		{"role number", conversation(`{"role":1,"content":"a"}`), "messages[0].role", "not a number"},
		{"null user content", conversation(`{"role":"user","content":null}`), "messages[0].content", "array of content parts"},
		{"no tool content", conversation(`{"role":"tool","tool_call_id":"c"}`), "messages[0].content", "content parts"},
		{"content number", conversation(`{"role":"user","content":5}`), "messages[0].content", "not a number"},
		{"content object", conversation(`{"role":"user","content":{}}`), "messages[0].content", "not an object"},
		{"second role", conversation(`{"role":"user","role":"tool","content":"a"}`), "messages[0].role", "only once"},
		{"name number", conversation(`{"role":"user","content":"a","name":3}`), "messages[0].name", "a string"},
		{"part string", part(`"a"`), "messages[0].content[1]", "not a string"},
		{"part without type", part(`{"text":"a"}`), "messages[0].content[1].type", `"image_url"`},
		{"part of unknown type", part(`{"type":"hologram"}`), "messages[0].content[1].type", "hologram"},
		{"part typed type", part(`{"type":"type"}`), "messages[0].content[1].type", "type"},
		{"text without text", part(`{"type":"text"}`), "messages[0].content[1].text", "a string"},
		{"text null", part(`{"type":"text","text":null}`), "messages[0].content[1].text", "a string"},
		{"text number", part(`{"type":"text","text":1}`), "messages[0].content[1].text", "not a number"},
		{"image without image", part(`{"type":"image_url"}`), "messages[0].content[1].image_url", "an object"},
		{"image number", part(`{"type":"image_url","image_url":5}`), "messages[0].content[1].image_url", "not a number"},
		{"image url number", part(`{"type":"image_url","image_url":{"url":7}}`), "messages[0].content[1].image_url.url", "not a number"},
		{"image without url", part(`{"type":"image_url","image_url":{}}`), "messages[0].content[1].image_url.url", "a URL"},
		{"audio without format", part(`{"type":"input_audio","input_audio":{"data":"AA"}}`), "messages[0].content[1].input_audio.format", "empty"},
		{"text twice", part(`{"type":"text","text":"a","text":"b"}`), "messages[0].content[1].text", "only once"},
		{"bad arguments", conversation(`{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"a\": "}}]}`),
			"messages[0].tool_calls[0].function.arguments", "JSON object"},
		{"arguments array", conversation(`{"role":"assistant","tool_calls":[{"function":{"arguments":"[]"}}]}`),
			"messages[0].tool_calls[0].function.arguments", "JSON object"},
		{"tool calls object", conversation(`{"role":"assistant","tool_calls":{}}`), "messages[0].tool_calls", "not an object"},
		{"field twice", chatWith(`"n":1,"n":2`), "n", "only once"},
		{"alias twice", chatWith(`"chat_template_args":{},"chat_template_kwargs":{}`), "chat_template_kwargs", "only once"},
		{"float n", chatWith(`"n":1.5`), "n", "without fraction"},
		{"exponent", chatWith(`"max_tokens":1e3`), "max_tokens", "without fraction or exponent"},
		{"huge integer", chatWith(`"seed":99999999999999999999`), "seed", "from -9223372036854775808"},
		{"infinite number", chatWith(`"temperature":1e999`), "temperature", "finite"},
		{"stop number", chatWith(`"stop":["a",1]`), "stop[1]", "not a number"},
		{"stop token id", chatWith(`"stop_token_ids":[1,-1]`), "stop_token_ids[1]", "from 0 to 4294967295"},
		{"bad words", chatWith(`"bad_words_token_ids":[[1],[2,"x"]]`), "bad_words_token_ids[1][1]", "not a string"},
		{"tool choice", chatWith(`"tool_choice":"sometimes"`), "tool_choice", "required"},
		{"allowed tools", chatWith(`"tool_choice":{"type":"allowed_tools"}`), "tool_choice", "required"},
		{"tool function", chatWith(`"tools":[{"type":"function","function":5}]`), "tools[0].function", "not a number"},
		{"tool name", chatWith(`"tools":[{"function":{"name":[]}}]`), "tools[0].function.name", "not an array"},
		{"schema", chatWith(`"response_format":{"type":"json_schema","json_schema":{"schema":"{}"}}`),
			"response_format.json_schema.schema", "not a string"},
		{"nvext", chatWith(`"nvext":[]`), "nvext", "not an array"},
		{"nvext field", chatWith(`"nvext":{"annotations":["a",null]}`), "nvext.annotations[1]", "not null"},
		{"agent hints", chatWith(`"nvext":{"agent_hints":{"osl":-1}}`), "nvext.agent_hints.osl", "from 0 to"},
		{"documents", chatWith(`"documents":[{},3]`), "documents[1]", "an object"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := openai.DecodeChat([]byte(c.body), openai.DecodeOptions{})
			if err == nil {
				t.Fatal("accepted")
			}
			f := asFault(t, err)
			if f.Param != c.param || !strings.Contains(f.Message, c.says) {
				t.Errorf("param %q, message %q\nwant %q and a text with %q", f.Param, f.Message, c.param, c.says)
			}
		})
	}
}

// TestDecodeChatKeepsWhatTemplatesSee: white space, escapes, key order and digits of messages and tools are the
// client's own.
func TestDecodeChatKeepsWhatTemplatesSee(t *testing.T) {
	messages := `[ {"role":"user", "content":"a\u0062<&>", "x":{"z":1,"a":1.0,"n":1e5}},{"content":null,"role":"assistant",` +
		`"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":""}}]} ]`
	tools := `[{"type":"function","function":{"parameters":{"z":1,"a":12345678901234567890},"name":"f","strict":true}}]`
	body := `{"messages": ` + messages + `,"tools":` + tools + `,"model":"m"}`
	req, err := openai.DecodeChat([]byte(body), openai.DecodeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{messages, tools}, []string{string(req.Messages), string(req.Tools)}); diff != "" {
		t.Error(diff)
	}
	strict := true
	wantTools := []openai.Tool{{Type: "function", Name: "f", Parameters: json.RawMessage(`{"z":1,"a":12345678901234567890}`), Strict: &strict}}
	if diff := cmp.Diff(wantTools, req.ToolList); diff != "" {
		t.Error(diff)
	}
	want := openai.Conversation{Messages: 2, LastRole: openai.RoleAssistant}
	if diff := cmp.Diff(want, req.Conversation); diff != "" {
		t.Error(diff)
	}
}

func TestDecodeChatMedia(t *testing.T) {
	body := conversation(`{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"a"},
		{"image_url":{"detail":"low","url":"http:\/\/h\/a.png"},"type":"image_url"},
		{"type":"input_audio","input_audio":{"data":"AAAA","format":"wav"}},
		{"type":"file","file":{"file_id":"f"}},
		{"type":"video_url","video_url":{"url":"v"},"image_url":null}]}`)
	req, err := openai.DecodeChat([]byte(body), openai.DecodeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := []openai.Media{
		{Message: 1, Part: 1, Kind: "image_url", URL: "http://h/a.png"},
		{Message: 1, Part: 2, Kind: "input_audio", URL: "data:audio/wav;base64,AAAA"},
		{Message: 1, Part: 3, Kind: "file"},
		{Message: 1, Part: 4, Kind: "video_url", URL: "v"},
	}
	if diff := cmp.Diff(want, req.Conversation.Media); diff != "" {
		t.Error(diff)
	}
}

// TestDecodeChatMends: what JSON doesn't allow in strings becomes what was most likely meant, and nothing else changes.
func TestDecodeChatMends(t *testing.T) {
	for _, c := range []struct{ name, content, want string }{
		{"newline", "a\nb\tc", `"a\u000ab\u0009c"`},
		{"invalid UTF-8", "a\xffb\xe2\x82", "\"a\uFFFDb\uFFFD\uFFFD\""},
		{"half a pair", `a\ud83d b`, `"a\ufffd b"`},
		{"other half", `a\ude00`, `"a\ufffd"`},
		{"whole pair stays", `\ud83d\ude00` + "\n", `"\ud83d\ude00\u000a"`},
		{"escapes stay", `\"\\` + "\x00", `"\"\\\u0000"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			body := conversation(`{"role":"user","content":"` + c.content + `"}`)
			req, err := openai.DecodeChat([]byte(body), openai.DecodeOptions{})
			if err != nil {
				t.Fatal(err)
			}
			want := `[{"role":"user","content":` + c.want + `}]`
			if got := string(req.Messages); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
			if !json.Valid(req.Messages) {
				t.Error("not valid JSON")
			}
		})
	}
	if _, err := openai.DecodeChat([]byte("\uFEFF"+chatWith("")), openai.DecodeOptions{}); err != nil {
		t.Errorf("byte order mark: %v", err)
	}
}

func TestDecodeUnknownFields(t *testing.T) {
	body := []byte(chatWith(`"zzz":{"deep":[1]},"nvext":{"yyy":1},"verbosity":"low","stream_options":{"new":1},"zzz":2`))
	req, err := openai.DecodeChat(body, openai.DecodeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := openai.Unknown{Names: []string{"zzz", "nvext.yyy", "zzz"}, Count: 3}
	if diff := cmp.Diff(want, req.Unknown); diff != "" {
		t.Error(diff)
	}
	_, err = openai.DecodeChat(body, openai.DecodeOptions{Strict: true})
	f := asFault(t, err)
	if f.Param != "zzz" || f.Message != "Unsupported parameter(s): `zzz`, `nvext.yyy`, `verbosity`, `zzz`" {
		t.Errorf("%q: %s", f.Param, f.Message)
	}
}

func TestDecodeUnknownFieldsAreBounded(t *testing.T) {
	var members []string
	for i := range 1000 {
		members = append(members, fmt.Sprintf(`"%d%s":1`, i, strings.Repeat("é", 100)))
	}
	req, err := openai.DecodeChat([]byte(chatWith(strings.Join(members, ","))), openai.DecodeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if u := req.Unknown; u.Count != 1000 || len(u.Names) != 16 || len(u.Names[0]) > 70 {
		t.Errorf("count %d, %d names, first %q", u.Count, len(u.Names), u.Names[0])
	}
}

func TestDecodeDepth(t *testing.T) {
	nested := func(n int) []byte {
		return []byte(chatWith(`"metadata":{"a":` + strings.Repeat("[", n) + strings.Repeat("]", n) + `}`))
	}
	if _, err := openai.DecodeChat(nested(498), openai.DecodeOptions{}); err != nil {
		t.Error(err)
	}
	for _, n := range []int{499, 20_000} {
		if _, err := openai.DecodeChat(nested(n), openai.DecodeOptions{}); err == nil {
			t.Errorf("accepted %d levels", n)
		}
	}
	flat := []byte(chatWith(`"metadata":{"a":[` + strings.Repeat(`{"[{\"":"[["},`, 1000) + `{}]}`))
	if _, err := openai.DecodeChat(flat, openai.DecodeOptions{}); err != nil {
		t.Errorf("many brackets, few levels: %v", err)
	}
	if _, err := openai.DecodeChat(nested(10), openai.DecodeOptions{MaxDepth: 5}); err == nil {
		t.Error("MaxDepth ignored")
	}
}

func TestDecodeIgnoreNvExt(t *testing.T) {
	body := []byte(chatWith(`"nvext":{"greed_sampling":true,"cache_salt":"s","zzz":1}`))
	req, err := openai.DecodeChat(body, openai.DecodeOptions{IgnoreNvExt: true, Strict: true})
	if err != nil {
		t.Fatal(err)
	}
	salt := "s"
	if diff := cmp.Diff(&openai.NvExt{CacheSalt: &salt}, req.NvExt); diff != "" {
		t.Error(diff)
	}
	if got := string(req.Forward()); !strings.Contains(got, `"nvext":{"cache_salt":"s"}`) {
		t.Errorf("forwarded %s", got)
	}
}

func TestDecodeCompletionPrompts(t *testing.T) {
	for _, c := range []struct {
		prompt string
		want   openai.Prompt
	}{
		{`"a"`, openai.Prompt{Given: true, Texts: []string{"a"}}},
		{`["a","b\n"]`, openai.Prompt{Given: true, Batch: true, Texts: []string{"a", "b\n"}}},
		{`[1,2]`, openai.Prompt{Given: true, Tokens: [][]uint32{{1, 2}}}},
		{`[[1,2],[3]]`, openai.Prompt{Given: true, Batch: true, Tokens: [][]uint32{{1, 2}, {3}}}},
		{`[]`, openai.Prompt{Given: true, Batch: true}},
		{`[[]]`, openai.Prompt{Given: true, Batch: true, Tokens: [][]uint32{{}}}},
	} {
		t.Run(c.prompt, func(t *testing.T) {
			req, err := openai.DecodeCompletion([]byte(`{"model":"m","prompt":`+c.prompt+`}`), openai.DecodeOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, req.Prompt); diff != "" {
				t.Error(diff)
			}
		})
	}
	for _, c := range []struct{ prompt, param string }{
		{`null`, "prompt"}, {`5`, "prompt"}, {`{}`, "prompt"}, {`["a",1]`, "prompt[1]"}, {`[1,"a"]`, "prompt[1]"},
		{`[[1],2]`, "prompt[1]"}, {`[[1,"x"]]`, "prompt[0][1]"}, {`[-1]`, "prompt[0]"}, {`[4294967296]`, "prompt[0]"},
		{`[null]`, "prompt[0]"}, {`[1.5]`, "prompt[0]"},
	} {
		t.Run(c.prompt, func(t *testing.T) {
			_, err := openai.DecodeCompletion([]byte(`{"model":"m","prompt":`+c.prompt+`}`), openai.DecodeOptions{})
			if f := asFault(t, err); f.Param != c.param {
				t.Errorf("param %q (%s), want %q", f.Param, f.Message, c.param)
			}
		})
	}
	if _, err := openai.DecodeCompletion([]byte(`{"model":"m"}`), openai.DecodeOptions{}); asFault(t, err).Param != "prompt" {
		t.Errorf("no prompt: %v", err)
	}
}

func TestForward(t *testing.T) {
	body := `{"model":"m","stream":false,"stream_options":null,"zzz":1,"n":null,"chat_template_kwargs":{"a":1},` +
		`"messages":[{"role":"user","content":"h\u0069"}],"nvext":{"annotations":["x"]}}`
	for _, c := range []struct{ name, body, want string }{
		{"unary", body, `{"stream":true,"stream_options":{"include_usage":true},"model":"m","chat_template_args":{"a":1},` +
			`"messages":[{"role":"user","content":"h\u0069"}],"nvext":{"annotations":["x"]}}`},
		{"stream", strings.Replace(body, `"stream":false,"stream_options":null`, `"stream":true,"stream_options":{"include_usage":false}`, 1),
			`{"stream":true,"model":"m","stream_options":{"include_usage":false},"chat_template_args":{"a":1},` +
				`"messages":[{"role":"user","content":"h\u0069"}],"nvext":{"annotations":["x"]}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			req, err := openai.DecodeChat([]byte(c.body), openai.DecodeOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, string(req.Forward())); diff != "" {
				t.Error(diff)
			}
		})
	}
	req, err := openai.DecodeCompletion([]byte(`{"prompt":[1],"model":"m","zzz":0}`), openai.DecodeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := `{"stream":true,"stream_options":{"include_usage":true},"prompt":[1],"model":"m"}`
	if got := string(req.Forward()); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestHelpers(t *testing.T) {
	req, err := openai.DecodeChat([]byte(chatWith(`"max_tokens":3,"max_completion_tokens":2,"stream":true,`+
		`"nvext":{"annotations":["a"],"extra_fields":["b"]}`)), openai.DecodeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var none *openai.NvExt
	for name, ok := range map[string]bool{
		"limit": *req.TokenLimit() == 2, "streaming": req.Streaming(),
		"wants": req.NvExt.Wants("a") && !req.NvExt.Wants("b") && !none.Wants("a"),
		"extra": req.NvExt.HasExtra("b") && !req.NvExt.HasExtra("a") && !none.HasExtra("a"),
	} {
		if !ok {
			t.Error(name)
		}
	}
	req.MaxCompletionTokens = nil
	if *req.TokenLimit() != 3 {
		t.Error("max_tokens not used")
	}
}
