package validate_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/portico-llm/portico/internal/fault"
)

// nested are the objects inside of a chat request: where each stands, and a request that is right but for the member
// under test. The members that have to be there are added unless they are it.
var nested = []struct {
	schema, prefix string
	needs          map[string]string // required members, right
	chat           func(object string) string
}{
	{"Message", "messages[0].", map[string]string{"role": `"assistant"`}, func(o string) string { return `"messages":[` + o + `]` }},
	{"ContentPart", "messages[0].content[0].", nil, inContent},
	{"MediaURL", "messages[0].content[0].image_url.", map[string]string{"url": `"http://h/i.png"`}, func(o string) string {
		return inContent(`{"type":"image_url","image_url":` + o + `}`)
	}},
	{"InputAudio", "messages[0].content[0].input_audio.", map[string]string{"data": `"AAAA"`, "format": `"wav"`}, func(o string) string {
		return inContent(`{"type":"input_audio","input_audio":` + o + `}`)
	}},
	{"ToolCall", "messages[0].tool_calls[0].", nil, inCalls},
	{"CalledFunction", "messages[0].tool_calls[0].function.", nil, func(o string) string { return inCalls(`{"function":` + o + `}`) }},
	{"Tool", "tools[0].", map[string]string{"function": `{"name":"f"}`}, func(o string) string { return `"tools":[` + o + `],` + plainMessages }},
	{"ToolFunction", "tools[0].function.", map[string]string{"name": `"f"`}, func(o string) string {
		return `"tools":[{"type":"function","function":` + o + `}],` + plainMessages
	}},
	{"ResponseFormat", "response_format.", map[string]string{"type": `"text"`}, func(o string) string {
		return `"response_format":` + o + `,` + plainMessages
	}},
	{"JSONSchema", "response_format.json_schema.", map[string]string{"name": `"n"`, "schema": `{"type":"object"}`}, func(o string) string {
		return `"response_format":{"type":"json_schema","json_schema":` + o + `},` + plainMessages
	}},
	{"Thinking", "thinking.", map[string]string{"type": `"enabled"`}, func(o string) string { return `"thinking":` + o + `,` + plainMessages }},
}

const plainMessages = `"messages":[{"role":"user","content":"a"}]`

func inContent(part string) string { return `"messages":[{"role":"user","content":[` + part + `]}]` }

func inCalls(call string) string {
	return `"messages":[{"role":"assistant","tool_calls":[` + call + `]},{"role":"user","content":"a"}]`
}

// rightNested are values for members that not every value of their type suits, by schema and member.
var rightNested = map[string]string{
	"Message.role": `"user"`, "Message.content": `"a"`, "Message.tool_calls": `[{"function":{"name":"f","arguments":"{}"}}]`,
	"ContentPart.type": `"text"`, "ContentPart.image_url": `{"url":"u"}`, "ContentPart.video_url": `{"url":"u"}`,
	"ContentPart.audio_url": `{"url":"u"}`, "ContentPart.input_audio": `{"data":"AA==","format":"mp3"}`,
	"ToolCall.function": `{"name":"f"}`, "CalledFunction.arguments": `"{}"`, "Tool.type": `"function"`,
	"Tool.function": `{"name":"f"}`, "ResponseFormat.type": `"text"`, "ResponseFormat.json_schema": `{"name":"n","schema":{}}`,
	"Thinking.type": `"disabled"`, "JSONSchema.schema": `{"type":"object"}`,
}

// TestEveryNestedProperty is TestEveryProperty for the objects inside of a chat request.
func TestEveryNestedProperty(t *testing.T) {
	for _, n := range nested {
		for _, p := range propertiesOf(t, n.schema) {
			t.Run(n.schema+"/"+p.name, func(t *testing.T) {
				send := func(value string) error {
					members := []string{fmt.Sprintf(`%q:%s`, p.name, value)}
					for name, v := range n.needs {
						if name != p.name {
							members = append(members, fmt.Sprintf(`%q:%s`, name, v))
						}
					}
					switch {
					case n.schema == "ContentPart" && p.name == "type":
						members = append(members, `"text":"a"`)
					case n.schema == "ContentPart":
						members = append(members, fmt.Sprintf(`"type":%q`, p.name))
					case n.schema == "Message" && p.name == "role":
						members = append(members, `"content":"a"`)
					}
					return chatBody(`{"model":"m",` + n.chat("{"+strings.Join(members, ",")+"}") + `}`)
				}
				value, ok := rightNested[n.schema+"."+p.name]
				if !ok {
					value = samples[p.types[0]]
				}
				check(t, send(value), "")
				if n.schema == "Tool" && p.name == "type" {
					p.nullable = true // a tool is a function unless it says otherwise
				}
				if err := send("null"); p.nullable != (err == nil) {
					t.Errorf("null: %v", err)
				}
				for typ, value := range samples {
					if slices.Contains(p.types, typ) || typ == "integer" && slices.Contains(p.types, "number") {
						continue
					}
					f, ok := errors.AsType[*fault.Error](send(value))
					if want := n.prefix + p.name; !ok || f.Kind != fault.BadRequest || f.Param != want {
						t.Errorf("%s: %v, want a refusal of %s", value, f, want)
					}
				}
			})
		}
	}
}

// TestContentParts: every kind of part that OpenAI or vLLM documents is read, whichever way clients write it; what isn't
// one is refused by name.
func TestContentParts(t *testing.T) {
	for _, c := range []struct{ part, param string }{
		{`{"type":"text","text":""}`, ""},
		{`{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}`, ""},
		{`{"type":"refusal","refusal":"no"}`, ""},
		{`{"type":"image_url","image_url":{"url":"data:image/png;base64,AA==","detail":"low"}}`, ""},
		{`{"type":"image_url","image_url":"http://h/i.png"}`, ""},
		{`{"image_url":{"url":"http://h/i.png"},"type":"image_url","text":null}`, ""},
		{`{"type":"video_url","video_url":{"url":"http://h/v.mp4"}}`, ""},
		{`{"type":"audio_url","audio_url":{"url":"http://h/a.wav"}}`, ""},
		{`{"type":"input_audio","input_audio":{"data":"AA==","format":"wav"}}`, ""},
		{`{"type":"file","file":{"file_id":"f"}}`, ""},
		{`{"type":"image_url","image_url":""}`, "image_url"},
		{`{"type":"image_url","image_url":{"url":""}}`, "image_url.url"},
		{`{"type":"image_url","text":"a"}`, "image_url"},
		{`{"type":"input_audio","input_audio":{"data":"AA=="}}`, "input_audio.format"},
		{`{"type":"thought","thought":"a"}`, "type"},
		{`{"text":"a"}`, "type"},
		{`{"type":"text"}`, "text"},
		{`{"type":"text","text":"a","text":"b"}`, "text"},
	} {
		want := c.param
		if want != "" {
			want = "messages[0].content[0]." + want
		}
		t.Run(c.part, func(t *testing.T) { check(t, chatBody(`{"model":"m",`+inContent(c.part)+`}`), want) })
	}
}

// TestMessageFieldsOnce: a field that comes twice has no right reading.
func TestMessageFieldsOnce(t *testing.T) {
	for _, name := range []string{"role", "content", "tool_calls", "name", "tool_call_id", "refusal", "reasoning_content", "reasoning"} {
		value := `null`
		if name == "role" {
			value = `"assistant"`
		}
		body := fmt.Sprintf(`{"model":"m","messages":[{"role":"assistant",%q:%s,%[1]q:%[2]s}]}`, name, value)
		check(t, chatBody(body), "messages[0]."+name)
	}
}

// TestRoles: every documented role, with what such messages hold.
func TestRoles(t *testing.T) {
	body := `{"model":"m","messages":[{"role":"developer","content":"a","name":"n"},{"role":"system","content":[{"type":"text","text":"a"}]},` +
		`{"role":"user","content":"a","name":"bob"},{"role":"assistant","content":null,"refusal":"I can't","name":"n"},` +
		`{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},` +
		`{"role":"tool","tool_call_id":"1","content":[{"type":"text","text":"r"}]},{"role":"function","name":"f","content":null},` +
		`{"role":"user","content":"b"}]}`
	check(t, chatBody(body), "")
	check(t, chatBody(strings.Replace(body, `"developer"`, `"root"`, 1)), "messages[0].role")
}
