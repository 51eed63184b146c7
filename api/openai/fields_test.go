package openai_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/openai"
)

// samples are values for the kinds of field, in the order they are tried; special are for those none of them suits.
var (
	samples = map[string]string{"boolean": `true`, "integer": `7`, "number": `0.5`, "string": `"s"`, "array": `["s"]`,
		"object": `{"type":"enabled","name":"n"}`, "any": `1`, "string|array": `"s"`, "string|object": `{}`,
		"object|boolean": `true`}
	special = map[string]string{
		"messages": `[{"role":"user","content":"a"}]`, "stop_token_ids": `[1]`, "allowed_token_ids": `[1]`, "token_data": `[1]`,
		"logprob_token_ids": `[1]`, "bad_words_token_ids": `[[1]]`, "documents": `[{}]`, "tools": `[{"function":{"name":"f"}}]`,
		"tool_choice": `{"type":"function","function":{"name":"f"}}`,
	}
)

// setFields returns the JSON names of the fields of a struct that aren't zero, sorted.
func setFields(v reflect.Value) []string {
	var out []string
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous:
			out = append(out, setFields(v.Field(i))...)
		case name != "" && name != "-" && !v.Field(i).IsZero():
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// TestEachFieldHasItsPlace sends every field alone: it sets the struct field of its name and no other, and null sets
// nothing.
func TestEachFieldHasItsPlace(t *testing.T) {
	chat := func(members string) (*openai.ChatRequest, error) {
		return openai.DecodeChat([]byte(chatWith(members)), openai.DecodeOptions{Strict: false})
	}
	nested := func(format string, pick func(*openai.ChatRequest) any) func(string) (any, error) {
		return func(members string) (any, error) {
			req, err := chat(fmt.Sprintf(format, members))
			if err != nil {
				return nil, err
			}
			return pick(req), nil
		}
	}
	for _, c := range []struct {
		schema   string
		required []string
		decode   func(members string) (any, error)
	}{
		{"ChatRequest", []string{"messages", "model"}, func(m string) (any, error) { return chat(m) }},
		{"CompletionRequest", []string{"model", "prompt"}, func(m string) (any, error) {
			return openai.DecodeCompletion([]byte(`{"model":"m","prompt":"a",`+m+`}`), openai.DecodeOptions{})
		}},
		{"NvExt", nil, nested(`"nvext":{%s}`, func(r *openai.ChatRequest) any { return r.NvExt })},
		{"AgentHints", nil, nested(`"nvext":{"agent_hints":{%s}}`, func(r *openai.ChatRequest) any { return r.NvExt.AgentHints })},
		{"StreamOptions", nil, nested(`"stream_options":{%s}`, func(r *openai.ChatRequest) any { return r.StreamOptions })},
		{"ResponseFormat", nil, nested(`"response_format":{%s}`, func(r *openai.ChatRequest) any { return r.ResponseFormat })},
		{"JSONSchema", nil, nested(`"response_format":{"json_schema":{%s}}`, func(r *openai.ChatRequest) any {
			return r.ResponseFormat.JSONSchema
		})},
		{"Thinking", nil, nested(`"thinking":{%s}`, func(r *openai.ChatRequest) any { return r.Thinking })},
	} {
		for name, kind := range openai.Kinds()[c.schema] {
			if slices.Contains(c.required, name) {
				continue
			}
			t.Run(c.schema+"/"+name, func(t *testing.T) {
				value := samples[kind]
				if v, ok := special[name]; ok {
					value = v
				}
				want := append(slices.Clone(c.required), strings.Replace(name, "template_kwargs", "template_args", 1))
				slices.Sort(want)
				for v, want := range map[string][]string{value: want, "null": c.required} {
					req, err := c.decode(fmt.Sprintf("%q:%s", name, v))
					if err != nil {
						t.Fatal(err)
					}
					if diff := cmp.Diff(want, setFields(reflect.ValueOf(req).Elem())); diff != "" {
						t.Errorf("%s sets (-want +got):\n%s", v, diff)
					}
				}
			})
		}
	}
}

// TestNumbersKeepTheirValue sends numbers at the edges of what their fields hold.
func TestNumbersKeepTheirValue(t *testing.T) {
	req, err := openai.DecodeChat([]byte(chatWith(`"seed":-9223372036854775808,"temperature":1e-300,"n":-0,`+
		`"nvext":{"backend_instance_id":18446744073709551615,"agent_hints":{"priority":-2147483648,"osl":4294967295}}`)),
		openai.DecodeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprint(*req.Seed, *req.Temperature, *req.N, *req.NvExt.BackendInstanceID, *req.NvExt.AgentHints.Priority,
		*req.NvExt.AgentHints.OSL)
	if want := "-9223372036854775808 1e-300 0 18446744073709551615 -2147483648 4294967295"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for members, param := range map[string]string{
		`"nvext":{"backend_instance_id":-1}`:                   "nvext.backend_instance_id",
		`"nvext":{"backend_instance_id":18446744073709551616}`: "nvext.backend_instance_id",
		`"nvext":{"backend_instance_id":"1"}`:                  "nvext.backend_instance_id",
		`"nvext":{"agent_hints":{"priority":2147483648}}`:      "nvext.agent_hints.priority",
		`"nvext":{"dp_rank":4294967296}`:                       "nvext.dp_rank",
		`"logprobs":"yes"`:                                     "logprobs",
		`"stop":true`:                                          "stop",
		`"tool_choice":true`:                                   "tool_choice",
		`"thinking":1`:                                         "thinking",
		`"\u006e":"escaped name"`:                              "n",
		`"tool_choice":{"type":"function","function":{}}`:      "tool_choice",
		`"messages2":0,"temperature":"` + "\xff" + `"`:         "temperature",
		`"audio":[]`:                                           "audio",
	} {
		_, err := openai.DecodeChat([]byte(chatWith(members)), openai.DecodeOptions{})
		if f := asFault(t, err); f.Param != param {
			t.Errorf("%s: param %q (%s)", members, f.Param, f.Message)
		}
	}
}
