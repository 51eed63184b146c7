package validate_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/portico-llm/portico/api"
	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/server/validate"
)

// schema returns a schema of the OpenAPI document.
func schema(t *testing.T, name string) map[string]any {
	t.Helper()
	raw, err := api.OpenAPI()
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Components struct {
			Schemas map[string]map[string]any `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	return doc.Components.Schemas[name]
}

// property is what the document says of a field: the JSON types it takes and whether null is one.
type property struct {
	name     string
	types    []string
	nullable bool
	schema   map[string]any
}

func propertiesOf(t *testing.T, name string) []property {
	t.Helper()
	var out []property
	for field, v := range schema(t, name)["properties"].(map[string]any) {
		p := property{name: field, schema: v.(map[string]any)}
		switch typ := p.schema["type"].(type) {
		case string:
			p.types = []string{typ}
		case []any:
			for _, one := range typ {
				if one == "null" {
					p.nullable = true
				} else {
					p.types = append(p.types, one.(string))
				}
			}
		default:
			choices, ok := p.schema["anyOf"].([]any)
			if p.schema["$ref"] != nil {
				choices = []any{p.schema}
			} else if !ok { // any value
				continue
			}
			for _, one := range choices {
				switch typ, _ := one.(map[string]any)["type"].(string); typ {
				case "": // a reference
					p.types = append(p.types, "object")
				case "null":
					p.nullable = true
				default:
					p.types = append(p.types, typ)
				}
			}
		}
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b property) int { return strings.Compare(a.name, b.name) })
	return out
}

// samples are values of each JSON type; wrong ones are picked from them.
var samples = map[string]string{
	"boolean": `true`, "integer": `7`, "number": `0.5`, "string": `"text"`, "array": `[{"unexpected":[null]}]`, "object": `{}`,
}

// right are values for fields that not every value of their type suits.
var right = map[string]string{
	"messages": `[{"role":"user","content":"a"}]`, "prompt": `"a"`, "stop": `["a"]`, "stop_token_ids": `[1]`,
	"token_data": `[1]`, "n": `1`, "best_of": `1`, "logprobs": `true`, "top_logprobs": `1`, "prompt_logprobs": `1`,
	"stream_options": `{}`, "tools": `[{"type":"function","function":{"name":"f"}}]`, "tool_choice": `"auto"`,
	"reasoning_effort": `"low"`, "thinking": `{"type":"enabled"}`, "response_format": `{"type":"text"}`, "documents": `[{}]`,
	"encoding_format": `"float"`, "data_source": `"url"`, "speed": `1.5`,
	"guided_choice": `["a"]`, "modalities": `["text"]`, "allowed_token_ids": `[1]`, "logprob_token_ids": `[1]`,
	"bad_words_token_ids": `[[1]]`, "continue_final_message": `false`, "guided_json": `"{}"`, "annotations": `["a"]`, "extra_fields": `["a"]`,
}

// TestEveryProperty sends each documented field absent, null, right and of every wrong type: only the wrong ones are
// refused, and the failure names the field.
func TestEveryProperty(t *testing.T) {
	for _, c := range []struct {
		schema, prefix string
		send           func(field, value string) error
	}{
		{"ChatRequest", "", func(f, v string) error { return sendRoot(f, v, "messages", right["messages"], chatBody) }},
		{"CompletionRequest", "", func(f, v string) error { return sendRoot(f, v, "prompt", right["prompt"], completionBody) }},
		{"EmbeddingRequest", "", func(f, v string) error { return sendTask(openai.TaskEmbed, f, v, "input") }},
		{"RerankRequest", "", func(f, v string) error { return sendTask(openai.TaskRerank, f, v, "query", "documents") }},
		{"ScoreRequest", "", func(f, v string) error {
			names := []string{"text_1", "text_2"}
			switch f {
			case "data_1", "queries":
				names[0] = f
			case "data_2", "documents", "items":
				names[1] = f
			}
			return sendTask(openai.TaskScore, f, v, names...)
		}},
		{"ClassifyRequest", "", func(f, v string) error { return sendTask(openai.TaskClassify, f, v, "input") }},
		{"PoolingRequest", "", func(f, v string) error { return sendTask(openai.TaskPool, f, v, "input") }},
		{"ImageRequest", "", func(f, v string) error { return sendTask(openai.TaskImage, f, v, "prompt") }},
		{"VideoRequest", "", func(f, v string) error { return sendTask(openai.TaskVideo, f, v, "prompt") }},
		{"SpeechRequest", "", func(f, v string) error { return sendTask(openai.TaskSpeech, f, v, "input") }},
		{"NvExt", "nvext.", func(f, v string) error { return chat(fmt.Sprintf(`"nvext":{%q:%s}`, f, v)) }},
		{"AgentHints", "nvext.agent_hints.", func(f, v string) error {
			return chat(fmt.Sprintf(`"nvext":{"agent_hints":{%q:%s}}`, f, v))
		}},
		{"StreamOptions", "stream_options.", func(f, v string) error {
			return chat(fmt.Sprintf(`"stream":true,"stream_options":{%q:%s}`, f, v))
		}},
	} {
		for _, p := range propertiesOf(t, c.schema) {
			t.Run(c.schema+"/"+p.name, func(t *testing.T) { everyValue(t, p, c.schema, c.prefix, c.send) })
		}
	}
}

func everyValue(t *testing.T, p property, schema, prefix string, send func(field, value string) error) {
	if p.name == "chat_template" || p.name == "structured_outputs" { // always refused
		return
	}
	value := samples[p.types[0]]
	if v, ok := right[p.name]; ok {
		value = v
	}
	if p.name == "logprobs" && schema == "CompletionRequest" {
		value = "1"
	}
	switch schema + "." + p.name {
	case "RerankRequest.documents", "ScoreRequest.documents", "ScoreRequest.text_1":
		value = `["a"]`
	case "ImageRequest.response_format", "VideoRequest.response_format", "SpeechRequest.response_format":
		value = `"url"`
	}
	if p.name == "prompt_embeds" {
		value = `"` + strings.Repeat("AAAA", 40) + `"`
	}
	check(t, send(p.name, value), "")
	if err := send(p.name, "null"); p.nullable != (err == nil) && p.name != "prompt" { // prompt may be null beside embeds
		t.Errorf("null: %v", err)
	}
	for typ, value := range samples {
		if slices.Contains(p.types, typ) || typ == "integer" && slices.Contains(p.types, "number") {
			continue
		}
		f, ok := errors.AsType[*fault.Error](send(p.name, value))
		if want := prefix + p.name; !ok || f.Kind != fault.BadRequest || f.Param != want {
			t.Errorf("%s: %v, want a refusal of %s", value, f, want)
		}
	}
}

// sendTask makes a task's request of one field and the required ones, and checks it.
func sendTask(task openai.Task, field, value string, required ...string) error {
	body := fmt.Sprintf(`{%q:%s`, field, value)
	if field != "model" {
		body += `,"model":"m"`
	}
	for _, name := range required {
		if name == field {
			continue
		}
		if body += fmt.Sprintf(`,%q:"a"`, name); name == "documents" {
			body = strings.TrimSuffix(body, `"a"`) + `["a"]`
		}
	}
	req, err := openai.DecodeTask(task, []byte(body+"}"), openai.DecodeOptions{})
	if err != nil {
		return err
	}
	return validate.Task(req, validate.Options{})
}

// sendRoot makes a request of one field and the required ones, and sends it.
func sendRoot(field, value, required, requiredValue string, send func(string) error) error {
	members := fmt.Sprintf(`%q:%s`, field, value)
	if field != "model" {
		members += `,"model":"m"`
	}
	if field != required && (field != "prompt_embeds" || value == "null") {
		members += fmt.Sprintf(`,%q:%s`, required, requiredValue)
	}
	if field == "stream_options" {
		members += `,"stream":true`
	}
	return send("{" + members + "}")
}
