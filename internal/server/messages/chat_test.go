package messages_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/anthropic"
	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/server/messages"
	"github.com/portico-llm/portico/internal/server/validate"
)

// kwargs are the template's variables where the client says nothing of thinking.
const kwargs = `"chat_template_kwargs":{"enable_thinking":true,"thinking":true,"truncate_history_thinking":false}`

func chat(t *testing.T, body string, opts messages.ChatOptions) *messages.Chat {
	t.Helper()
	req, err := anthropic.Decode([]byte(body), anthropic.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := messages.NewChat(req, opts)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestConversations(t *testing.T) {
	for name, tt := range map[string]struct{ in, want string }{
		"text":        {`[{"role":"user","content":"hi"}]`, `[{"role":"user","content":"hi"}]`},
		"text blocks": {`[{"role":"user","content":[{"type":"text","text":"a "},{"type":"text","text":"b"}]}]`, `[{"role":"user","content":"a b"}]`},
		"empty turn":  {`[{"role":"user","content":[]}]`, `[{"role":"user","content":""}]`},
		"images": {`[{"role":"user","content":[{"type":"text","text":"what?"},{"type":"image","source":{"type":"base64",
			"media_type":"image/png","data":"AAAA"}},{"type":"image","source":{"type":"url","url":"http://x/y.png"}}]}]`,
			`[{"role":"user","content":[{"type":"text","text":"what?"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}},{"type":"image_url","image_url":{"url":"http://x/y.png"}}]}]`},
		"documents": {`[{"role":"user","content":[{"type":"document","title":"T","context":"C","source":{"type":"text",
			"media_type":"text/plain","data":"D"}},{"type":"document","source":{"type":"content","content":[{"type":"text","text":"E"}]}},
			{"type":"search_result","title":"S","source":"http://x","content":[{"type":"text","text":"F"}]}]}]`,
			`[{"role":"user","content":"T\nC\nDES\nF"}]`},
		"uses and results": {`[{"role":"user","content":"q"},
			{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"redacted_thinking","data":"x"},
				{"type":"text","text":"ok"},{"type":"tool_use","id":"t1","name":"f","input":{"b": 1, "a": [ 2 ]}},
				{"type":"tool_use","id":"t2","name":"g"}]},
			{"role":"user","content":[{"type":"text","text":"now"},
				{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"x"},{"type":"text","text":"y"},
					{"type":"image","source":{"type":"url","url":"u"}}]},
				{"type":"tool_result","tool_use_id":"t2","is_error":true}]}]`,
			`[{"role":"user","content":"q"},` +
				`{"role":"assistant","content":"ok","reasoning_content":"hm","tool_calls":[` +
				`{"id":"t1","type":"function","function":{"name":"f","arguments":"{\"b\":1,\"a\":[2]}"}},` +
				`{"id":"t2","type":"function","function":{"name":"g","arguments":"{}"}}]},` +
				`{"role":"tool","content":"x\ny","tool_call_id":"t1"},{"role":"tool","content":"Error","tool_call_id":"t2"},` +
				`{"role":"user","content":[{"type":"image_url","image_url":{"url":"u"}},{"type":"text","text":"now"}]}]`},
		"only a use": {`[{"role":"user","content":"q"},{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{}}]},
			{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"r"}]}]`,
			`[{"role":"user","content":"q"},{"role":"assistant","content":"","tool_calls":[{"id":"t","type":"function","function":{"name":"f","arguments":"{}"}}]},` +
				`{"role":"tool","content":"r","tool_call_id":"t"}]`},
		"system among them": {`[{"role":"user","content":"q"},{"role":"system","content":[{"type":"text","text":"s"}]},
			{"role":"assistant","content":"a"},{"role":"system","content":"later"},{"role":"user","content":"r"}]`,
			`[{"role":"system","content":"s"},{"role":"user","content":"q"},{"role":"assistant","content":"a"},` +
				`{"role":"system","content":"later"},{"role":"user","content":"r"}]`},
		"references": {`[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[
			{"type":"tool_reference","tool_name":"f"},{"type":"tool_reference","tool_name":"g"}]}]}]`,
			`[{"role":"tool","content":"f\ng","tool_call_id":"t"}]`},
	} {
		t.Run(name, func(t *testing.T) {
			got := string(chat(t, `{"model":"m","max_tokens":5,"messages":`+tt.in+`}`, messages.ChatOptions{}).Body)
			want := `{"model":"m","messages":` + tt.want + `,"max_tokens":5,` + kwargs + `}`
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestFields(t *testing.T) {
	const user = `[{"role":"user","content":"q"}]`
	const begin = `{"model":"m","messages":` + user + `,"max_tokens":5`
	for name, tt := range map[string]struct{ in, want string }{
		"sampling": {`"temperature":0.5,"top_p":0.25,"top_k":3,"stop_sequences":["x"],"metadata":{"user_id":"u"}`,
			begin + `,"stop":["x"],"temperature":0.5,"top_p":0.25,"top_k":3,` + kwargs + `}`},
		"empty lists": {`"stop_sequences":[],"tools":[],"system":[]`, begin + `,` + kwargs + `}`},
		"system": {`"system":[{"type":"text","text":"a"},{"type":"text","text":"b","cache_control":{"type":"ephemeral"}}]`,
			`{"model":"m","messages":[{"role":"system","content":"a\nb"},{"role":"user","content":"q"}],"max_tokens":5,` + kwargs + `}`},
		"preamble": {`"system":[{"type":"text","text":"x-anthropic-billing-header: cc_version=1"},{"type":"text","text":"b"}]`,
			`{"model":"m","messages":[{"role":"system","content":"b"},{"role":"user","content":"q"}],"max_tokens":5,` + kwargs + `}`},
		"preamble of a string": {`"system":"x-anthropic-billing-header: cc_version=1\n\nb"`,
			`{"model":"m","messages":[{"role":"system","content":"b"},{"role":"user","content":"q"}],"max_tokens":5,` + kwargs + `}`},
		"tools": {`"tools":[{"name":"f","description":"d","input_schema":{"type":"object","properties":{"z":{},"a":{}}},"strict":false},
			{"type":"custom","name":"g"}],"tool_choice":{"type":"any","disable_parallel_tool_use":true}`,
			begin + `,"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","properties":{"z":{},"a":{}}},"strict":false}},` +
				`{"type":"function","function":{"name":"g"}}],"tool_choice":"required","parallel_tool_calls":false,` + kwargs + `}`},
		"one tool": {`"tools":[{"name":"f"}],"tool_choice":{"type":"tool","name":"f"}`,
			begin + `,"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"type":"function","function":{"name":"f"}},` + kwargs + `}`},
		"no tool": {`"tool_choice":{"type":"none"}`, begin + `,"tool_choice":"none",` + kwargs + `}`},
		"thinking": {`"thinking":{"type":"enabled","budget_tokens":64}`, begin + `,"thinking":{"type":"enabled"},"thinking_token_budget":64,` +
			`"chat_template_kwargs":{"enable_thinking":true,"thinking":true,"thinking_budget":64,"truncate_history_thinking":false}}`},
		"no thinking": {`"thinking":{"type":"disabled"}`,
			begin + `,"thinking":{"type":"disabled"},"chat_template_kwargs":{"truncate_history_thinking":false}}`},
		"effort": {`"thinking":{"type":"adaptive"},"output_config":{"effort":"high"}`,
			begin + `,"thinking":{"type":"adaptive"},"reasoning_effort":"high",` + kwargs + `}`},
		"form": {`"output_config":{"format":{"type":"json_schema","schema":{"type":"object"}}},"output_format":{"type":"json_schema","schema":{}}`,
			begin + `,"response_format":{"type":"json_schema","json_schema":{"name":"answer","schema":{"type":"object"}}},` + kwargs + `}`},
		"older form": {`"output_format":{"type":"json_schema","schema":{}}`,
			begin + `,"response_format":{"type":"json_schema","json_schema":{"name":"answer","schema":{}}},` + kwargs + `}`},
		"extensions": {`"nvext":{"cache_salt":"s"},"chat_template_kwargs":{"enable_thinking":false,"x":1}`,
			begin + `,"chat_template_kwargs":{"enable_thinking":false,"thinking":true,"truncate_history_thinking":false,"x":1},"nvext":{"cache_salt":"s"}}`},
		"stream": {`"stream":true`, `{"model":"m","messages":` + user + `,"stream":true,"max_tokens":5,` + kwargs + `}`},
	} {
		t.Run(name, func(t *testing.T) {
			c := chat(t, `{"model":"m","max_tokens":5,"messages":`+user+`,`+tt.in+`}`, messages.ChatOptions{})
			if diff := cmp.Diff(tt.want, string(c.Body)); diff != "" {
				t.Error(diff)
			}
			req, err := openai.DecodeChat(c.Body, openai.DecodeOptions{Strict: true})
			if err == nil {
				err = validate.Chat(req, validate.Options{})
			}
			if err != nil {
				t.Errorf("no valid chat: %v", err)
			}
		})
	}
	kept := chat(t, `{"model":"m","max_tokens":5,"messages":`+user+`,"system":"x-anthropic-billing-header: 1"}`, messages.ChatOptions{KeepPreamble: true})
	if want := `{"model":"m","messages":[{"role":"system","content":"x-anthropic-billing-header: 1"},{"role":"user","content":"q"}],"max_tokens":5,` + kwargs + `}`; string(kept.Body) != want {
		t.Errorf("got %s", kept.Body)
	}
}

func TestContinues(t *testing.T) {
	for content, want := range map[string]bool{
		`"The answer is"`: true, `""`: false, `" "`: false, `[]`: false,
		`[{"type":"text","text":"{"}]`:                                                              true,
		`[{"type":"thinking","thinking":"x"},{"type":"text","text":"a"}]`:                           true,
		`[{"type":"text","text":"a"},{"type":"thinking","thinking":"x"}]`:                           false,
		`[{"type":"text","text":"a"},{"type":"tool_use","id":"t","name":"f"}]`:                      false,
		`[{"type":"tool_use","id":"t","name":"f"},{"type":"text","text":"behind a use, no start"}]`: false,
	} {
		c := chat(t, `{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"q"},{"role":"assistant","content":`+content+`}]}`, messages.ChatOptions{})
		req, err := openai.DecodeChat(c.Body, openai.DecodeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got := req.ContinueFinal != nil; got != want {
			t.Errorf("%s: continues %v, want %v", content, got, want)
		}
	}
}

func TestOwnNames(t *testing.T) {
	c := chat(t, `{"model":"m","max_tokens":5,"system":"s","messages":[{"role":"user","content":[
		{"type":"tool_result","tool_use_id":"t"},{"type":"text","text":"x"}]},{"role":"user","content":"y"}]}`, messages.ChatOptions{})
	for in, want := range map[string]string{
		"messages[0]": "system", "messages[1].content": "messages[0]", "messages[2].content[0].image_url": "messages[0]",
		"messages[3]": "messages[1]", "messages[9]": "messages", "messages": "messages",
		"stop": "stop_sequences", "stop[3]": "stop_sequences[3]", "tools[2].function.name": "tools[2].name",
		"tools[2].function.parameters": "tools[2].input_schema", "tool_choice.function.name": "tool_choice.name",
		"thinking_token_budget": "thinking.budget_tokens", "reasoning_effort": "output_config.effort",
		"response_format.json_schema.schema": "output_config.format", "max_tokens": "max_tokens", "": "",
	} {
		f, ok := errors.AsType[*fault.Error](c.Own(fault.Bad(in, "`%s` is wrong", in)))
		if !ok || f.Param != want || f.Message != "`"+want+"` is wrong" {
			t.Errorf("%s: %v", in, f)
		}
	}
	if err := errors.New("other"); c.Own(err) != err {
		t.Error("an error without a field was changed")
	}
}
