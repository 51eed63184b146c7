package validate_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/server/validate"
)

// chat decodes and validates a chat request with further members.
func chat(members string) error {
	body := `{"model":"m","messages":[{"role":"user","content":"hi"}]`
	if members != "" {
		body += "," + members
	}
	return chatBody(body + "}")
}

// chatBody does the same with a whole body.
func chatBody(body string) error {
	req, err := openai.DecodeChat([]byte(body), openai.DecodeOptions{})
	if err != nil {
		return err
	}
	return validate.Chat(req, validate.Options{})
}

// completion decodes and validates a completion request.
func completion(prompt, members string) error {
	body := `{"model":"m","prompt":` + prompt
	if members != "" {
		body += "," + members
	}
	return completionBody(body + "}")
}

// completionBody does the same with a whole body.
func completionBody(body string) error {
	req, err := openai.DecodeCompletion([]byte(body), openai.DecodeOptions{})
	if err != nil {
		return err
	}
	return validate.Completion(req, validate.Options{})
}

// check compares a failure with the field it should name; an empty param wants none.
func check(t *testing.T, err error, param string) {
	t.Helper()
	if param == "" {
		if err != nil {
			t.Errorf("refused: %v", err)
		}
		return
	}
	f, ok := errors.AsType[*fault.Error](err)
	if !ok {
		t.Fatalf("err = %v, want a fault about %s", err, param)
	}
	// Dynamo's form of an error has no place for the field: the message has to name it.
	if root := strings.FieldsFunc(param, func(r rune) bool { return r == '.' || r == '[' })[0]; !strings.Contains(f.Message, root) {
		t.Errorf("the message %q does not name %s", f.Message, root)
	}
	if f.Param != param || f.Kind != fault.BadRequest {
		t.Errorf("param %q, kind %v (%s), want %q", f.Param, f.Kind, f.Message, param)
	}
}

const (
	tool  = `{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}`
	named = `"tool_choice":{"type":"function","function":{"name":"f"}}`
)

// strictTool is the tools member with one strict tool of these parameters.
func strictTool(parameters string) string {
	return `"tools":[{"type":"function","function":{"name":"f","strict":true,"parameters":` + parameters + `}}]`
}

func TestChat(t *testing.T) {
	many := func(n int, one string) string { return strings.TrimSuffix(strings.Repeat(one+",", n), ",") }
	for _, c := range []struct{ members, param string }{
		{``, ""},
		// Ranges, at both sides of each bound.
		{`"temperature":0`, ""}, {`"temperature":2`, ""}, {`"temperature":2.01`, "temperature"}, {`"temperature":-0.1`, "temperature"},
		{`"temperature":1e308`, "temperature"},
		{`"top_p":1`, ""}, {`"top_p":0.0001`, ""}, {`"top_p":0`, "top_p"}, {`"top_p":1.5`, "top_p"},
		{`"top_k":-1`, ""}, {`"top_k":0`, ""}, {`"top_k":-2`, "top_k"}, {`"top_k":2147483648`, "top_k"},
		{`"min_p":0`, ""}, {`"min_p":1.1`, "min_p"},
		{`"frequency_penalty":-2`, ""}, {`"frequency_penalty":-2.1`, "frequency_penalty"},
		{`"presence_penalty":2`, ""}, {`"presence_penalty":3`, "presence_penalty"},
		{`"repetition_penalty":2`, ""}, {`"repetition_penalty":0`, "repetition_penalty"}, {`"repetition_penalty":-1`, "repetition_penalty"},
		{`"n":1`, ""}, {`"n":128`, ""}, {`"n":0`, "n"}, {`"n":129`, "n"}, {`"n":100000`, "n"},
		{`"n":2,"temperature":0`, "n"}, {`"n":1,"temperature":0`, ""},
		{`"max_tokens":1`, ""}, {`"max_tokens":0`, "max_tokens"}, {`"max_tokens":-1`, "max_tokens"},
		{`"max_tokens":1048576`, ""}, {`"max_tokens":1048577`, "max_tokens"}, {`"max_completion_tokens":1048577`, "max_completion_tokens"},
		{`"max_tokens":1048577,"max_completion_tokens":1`, "max_tokens"}, {`"max_tokens":1000000000000000000`, "max_tokens"},
		{`"max_completion_tokens":0`, "max_completion_tokens"}, {`"min_tokens":-1`, "min_tokens"},
		{`"top_logprobs":20`, ""}, {`"top_logprobs":21`, "top_logprobs"}, {`"top_logprobs":-1`, "top_logprobs"},
		{`"prompt_logprobs":-1`, "prompt_logprobs"}, {`"thinking_token_budget":-1`, "thinking_token_budget"},
		{`"nvext":{"max_thinking_tokens":-1}`, "nvext.max_thinking_tokens"}, {`"nvext":{"token_data":[]}`, "nvext.token_data"},
		{`"nvext":{"token_data":[1]}`, ""}, {`"user":""`, "user"}, {`"user":"u"`, ""},
		// Stop strings.
		{`"stop":"x"`, ""}, {`"stop":[]`, "stop"}, {`"stop":""`, "stop[0]"}, {`"stop":["a",""]`, "stop[1]"},
		{`"stop":[` + many(32, `"a"`) + `]`, ""}, {`"stop":[` + many(33, `"a"`) + `]`, "stop"},
		{`"stop":"` + strings.Repeat("a", 65536) + `"`, ""}, {`"stop":["a","` + strings.Repeat("a", 65536) + `"]`, "stop"},
		// logit_bias.
		{`"logit_bias":{"5":-100,"6":100}`, ""}, {`"logit_bias":{"x":1}`, "logit_bias"}, {`"logit_bias":{"5":101}`, "logit_bias.5"},
		{`"logit_bias":{"4294967296":1}`, "logit_bias"}, {`"logit_bias":{"-1":1}`, "logit_bias"}, {`"logit_bias":{"5":"1"}`, "logit_bias.5"},
		{`"logit_bias":{` + many(16385, `"1":1`) + `}`, "logit_bias"},
		// Streams.
		{`"stream_options":{}`, "stream_options"}, {`"stream":true,"stream_options":{"include_usage":true}`, ""},
		{`"stream":false,"stream_options":{}`, "stream_options"}, {`"stream":null,"stream_options":null`, ""},
		// Guided decoding.
		{`"guided_json":{"type":"object"}`, ""}, {`"guided_json":"{}"`, ""}, {`"guided_json":"{"`, "guided_json"},
		{`"guided_json":"[]"`, "guided_json"}, {`"guided_json":"{} {}"`, "guided_json"},
		{`"guided_json":"{\"a\":` + strings.Repeat("[", 501) + strings.Repeat("]", 501) + `}"`, "guided_json"},
		{`"guided_regex":"a+","guided_choice":["a"]`, "guided_choice"}, {`"guided_json":{},"guided_grammar":"g"`, "guided_grammar"},
		{`"guided_regex":"a+","guided_choice":[]`, ""}, {`"guided_grammar":""`, "guided_grammar"}, {`"guided_regex":""`, "guided_regex"},
		{`"guided_regex":"["`, "guided_regex"}, {`"guided_regex":"(a"`, "guided_regex"}, {`"guided_regex":"a)"`, "guided_regex"},
		{`"guided_regex":"\\"`, "guided_regex"}, {`"guided_regex":"[]a)(]\\([^]x]"`, ""}, {`"guided_regex":"(a|[b(])+\\["`, ""},
		{`"guided_regex":"((a+)+)+$"`, "guided_regex"}, {`"guided_regex":"(\\d{1,3}\\.){3}\\d{1,3}"`, ""},
		{`"guided_json":{"$ref":"https://example.com/a.json"}`, "guided_json"}, {`"guided_json":"{\"pattern\":\"(a|a)*b\"}"`, "guided_json"},
		{`"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"items":{"$ref":"other.json#/a"}}}}`, "response_format.json_schema.schema"},
		{`"tools":[` + strings.Replace(tool, `{"type":"object"}`, `{"$ref":"http://a/b"}`, 1) + `],"tool_choice":"required"`, "tools[0].function.parameters"},
		{`"tools":[` + strings.Replace(tool, `{"type":"object"}`, `{"$ref":"http://a/b"}`, 1) + `]`, ""},
		{`"response_format":{"type":"text"},"guided_regex":"a"`, ""}, {`"response_format":{"type":"json_object"},"guided_regex":"a"`, "guided_regex"},
		{`"response_format":{}`, "response_format.type"}, {`"response_format":{"type":"xml"}`, "response_format.type"},
		{`"response_format":{"type":"json_schema"}`, "response_format.json_schema"},
		{`"response_format":{"type":"json_schema","json_schema":{"schema":{}}}`, "response_format.json_schema.name"},
		{`"response_format":{"type":"json_schema","json_schema":{"name":"n"}}`, "response_format.json_schema.schema"},
		{`"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{}}}`, ""},
		// Tools.
		{`"tools":[]`, "tools"}, {`"tools":[` + tool + `]`, ""}, {`"tools":[{"function":{}}]`, "tools[0].function.name"},
		{`"tools":[{"type":"x","function":{"name":"f"}}]`, "tools[0].type"}, {`"tools":[{"function":{"name":"f"}}]`, ""},
		{`"tools":[{"function":{"name":"` + strings.Repeat("f", 129) + `"}}]`, "tools[0].function.name"},
		{`"tools":[` + many(1537, tool) + `]`, "tools"},
		{`"tool_choice":"required"`, "tools"}, {`"tool_choice":"none"`, ""}, {`"tool_choice":"auto"`, ""}, {named, "tools"},
		{`"tools":[` + tool + `],` + named, ""}, {`"tools":[` + tool + `],"tool_choice":"required"`, ""},
		{`"tools":[` + tool + `],"tool_choice":{"type":"function","function":{"name":"g"}}`, "tool_choice.function.name"},
		{`"tools":[` + tool + `],"tool_choice":"required","guided_json":{}`, "guided_json"},
		{`"tools":[` + tool + `],"tool_choice":"required","response_format":{"type":"json_object"}`, ""},
		// Strict tools.
		{strictTool(`{"type":"object"}`), "tools[0].function.parameters"},
		{strictTool(`{"properties":{}}`), "tools[0].function.parameters"},
		{strictTool(`{"type":"object","additionalProperties":true}`), "tools[0].function.parameters"},
		{strictTool(`{"type":"object","additionalProperties":false}`), ""},
		{strictTool(`{"additionalProperties":false,"properties":{"type":{"type":"string"},"o":{"type":"object"}}}`), "tools[0].function.parameters"},
		{strictTool(`{"additionalProperties":false,"properties":{"a":{"type":"array","items":{"properties":{}}}}}`), "tools[0].function.parameters"},
		{strictTool(`{"additionalProperties":false,"$defs":{"A":{"anyOf":[{"type":"null"},{"type":"object"}]}}}`), "tools[0].function.parameters"},
		{strictTool(`{"additionalProperties":false,"properties":{"properties":{"type":"string"}},"default":{"type":"object"}}`), ""},
		// Reasoning and the template.
		{`"reasoning_effort":"none"`, ""}, {`"reasoning_effort":"huge"`, "reasoning_effort"},
		{`"thinking":{"type":"disabled"}`, ""}, {`"thinking":{}`, "thinking.type"},
		{`"continue_final_message":true`, "add_generation_prompt"}, {`"continue_final_message":true,"add_generation_prompt":true`, "add_generation_prompt"},
		{`"continue_final_message":true,"add_generation_prompt":false`, ""}, {`"continue_final_message":false`, ""},
		{`"structured_outputs":{"regex":"a+"}`, "structured_outputs"}, {`"structured_outputs":null`, ""},
		{`"chat_template":"{{ x }}"`, "chat_template"}, {`"chat_template_kwargs":{"x":{}}`, ""},
		{`"chat_template_kwargs":{"x":1,"messages":[]}`, "chat_template_kwargs.messages"},
	} {
		name := c.members
		if len(name) > 60 {
			name = name[:60]
		}
		t.Run(name, func(t *testing.T) { check(t, chat(c.members), c.param) })
	}
}

func TestChatDeprecated(t *testing.T) {
	for _, members := range []string{`"functions":[]`, `"function_call":"auto"`} {
		f, ok := errors.AsType[*fault.Error](chat(members))
		if !ok || f.Kind != fault.NotImplemented || !strings.Contains(members, `"`+f.Param+`"`) {
			t.Errorf("%s: %v", members, f)
		}
	}
	if err := chat(`"functions":null,"function_call":null`); err != nil {
		t.Error(err)
	}
}

func TestChatMessages(t *testing.T) {
	req, err := openai.DecodeChat([]byte(`{"model":"m","messages":[]}`), openai.DecodeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	check(t, validate.Chat(req, validate.Options{}), "messages")
	req.Conversation.Messages = 3
	check(t, validate.Chat(req, validate.Options{}), "")
	check(t, validate.Chat(req, validate.Options{MaxMessages: 2}), "messages")
}

func TestCompletion(t *testing.T) {
	embeds := func(n int) string {
		return fmt.Sprintf(`"prompt_embeds":%q`, base64.StdEncoding.EncodeToString(make([]byte, n)))
	}
	prompts := func(n int) string { return "[" + strings.TrimSuffix(strings.Repeat(`"a",`, n), ",") + "]" }
	for _, c := range []struct{ prompt, members, param string }{
		{`"a"`, ``, ""}, {`""`, ``, "prompt"}, {`["a",""]`, ``, "prompt[1]"}, {`[]`, ``, "prompt"}, {`[[]]`, ``, "prompt[0]"},
		{`[[1],[]]`, ``, "prompt[1]"}, {`[1]`, ``, ""},
		{`""`, embeds(100), ""}, {`null`, embeds(100), ""}, {`""`, embeds(3), "prompt_embeds"}, {`"a"`, `"prompt_embeds":"` + strings.Repeat("?", 200) + `"`, "prompt_embeds"},
		{`"a"`, `"logprobs":5`, ""}, {`"a"`, `"logprobs":6`, "logprobs"}, {`"a"`, `"logprobs":-1`, "logprobs"},
		{`"a"`, `"best_of":20`, ""}, {`"a"`, `"best_of":21`, "best_of"}, {`"a"`, `"n":3,"best_of":2`, "best_of"}, {`"a"`, `"best_of":0`, ""},
		{prompts(64), `"n":2`, ""}, {prompts(65), `"n":2`, "n"}, {prompts(128), ``, ""}, {prompts(129), ``, "n"},
		{`"a"`, `"temperature":3`, "temperature"}, {`"a"`, `"stop":[]`, "stop"}, {`"a"`, `"n":200`, "n"},
		{`"a"`, `"guided_regex":"a","guided_choice":["b"]`, "guided_choice"},
	} {
		t.Run(c.prompt[:min(len(c.prompt), 20)]+c.members[:min(len(c.members), 40)], func(t *testing.T) {
			check(t, completion(c.prompt, c.members), c.param)
		})
	}
}

func BenchmarkChat(b *testing.B) {
	for _, size := range []int{600, 20_000} {
		var body strings.Builder
		body.WriteString(`{"model":"qwen3","stream":true,"stream_options":{"include_usage":true},"temperature":0.7,"top_p":0.9,` +
			`"max_tokens":512,"stop":["\n\n"],"messages":[{"role":"system","content":"You are helpful."}`)
		for body.Len() < size-20 {
			fmt.Fprintf(&body, `,{"role":"user","content":%q}`, strings.Repeat("The quick brown fox. ", min(40, (size-body.Len())/22+1)))
		}
		body.WriteString("]}")
		raw := []byte(body.String())
		b.Run(fmt.Sprintf("%d_bytes", len(raw)), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				req, err := openai.DecodeChat(raw, openai.DecodeOptions{})
				if err == nil {
					err = validate.Chat(req, validate.Options{})
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
