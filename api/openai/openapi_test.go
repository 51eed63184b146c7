package openai_test

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/portico-llm/portico/api/openai"
)

// schemas returns the schemas of the OpenAPI document.
func schemas(t *testing.T) map[string]any {
	t.Helper()
	raw, err := os.ReadFile("../openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var doc map[string]any
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	return doc["components"].(map[string]any)["schemas"].(map[string]any)
}

func properties(t *testing.T, all map[string]any, name string) map[string]any {
	t.Helper()
	s, ok := all[name].(map[string]any)
	if !ok {
		t.Fatalf("no schema %s", name)
	}
	return s["properties"].(map[string]any)
}

// tags returns the names of a struct's JSON fields, those of embedded structs included.
func tags(typ reflect.Type) []string {
	var out []string
	for i := range typ.NumField() {
		f := typ.Field(i)
		if f.Anonymous {
			out = append(out, tags(f.Type)...)
			continue
		}
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			out = append(out, name)
		}
	}
	return out
}

// TestOpenAPIMatchesTypes holds the document, the structs and the decoder against each other: the same fields, of the
// same types.
func TestOpenAPIMatchesTypes(t *testing.T) {
	all := schemas(t)
	types := map[string]reflect.Type{
		"ChatRequest":       reflect.TypeFor[openai.ChatRequest](),
		"CompletionRequest": reflect.TypeFor[openai.CompletionRequest](),
		"ResponsesRequest":  reflect.TypeFor[openai.ResponsesRequest](),
		"TextConfig":        reflect.TypeFor[openai.TextConfig](),
		"TextFormat":        reflect.TypeFor[openai.TextFormat](),
		"NvExt":             reflect.TypeFor[openai.NvExt](),
		"AgentHints":        reflect.TypeFor[openai.AgentHints](),
		"StreamOptions":     reflect.TypeFor[openai.StreamOptions](),
		"ResponseFormat":    reflect.TypeFor[openai.ResponseFormat](),
		"JSONSchema":        reflect.TypeFor[openai.JSONSchema](),
		"Thinking":          reflect.TypeFor[openai.Thinking](),
		"Error":             reflect.TypeFor[openai.Error](),
		"FlatError":         reflect.TypeFor[openai.FlatError](),
	}
	kinds := openai.Kinds()
	for name, typ := range types {
		t.Run(name, func(t *testing.T) {
			documented := properties(t, all, name)
			var names []string
			for p := range documented {
				if p != "chat_template_kwargs" { // another name of chat_template_args
					names = append(names, p)
				}
			}
			fields := tags(typ)
			slices.Sort(names)
			slices.Sort(fields)
			if diff := cmp.Diff(fields, names); diff != "" {
				t.Errorf("fields (-Go +document):\n%s", diff)
			}
		})
	}
	for name, want := range kinds {
		t.Run(name+"/kinds", func(t *testing.T) {
			got := map[string]string{}
			for p, schema := range properties(t, all, name) {
				got[p] = documentedKind(schema.(map[string]any))
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("types (-decoder +document):\n%s", diff)
			}
		})
	}
}

// documentedKind returns the JSON types a property takes beside null.
func documentedKind(schema map[string]any) string {
	if schema["$ref"] != nil {
		return "object"
	}
	if choices, ok := schema["anyOf"].([]any); ok {
		var out []string
		for _, one := range choices {
			if kind := documentedKind(one.(map[string]any)); kind != "null" {
				out = append(out, kind)
			}
		}
		return strings.Join(out, "|")
	}
	switch typ := schema["type"].(type) {
	case string:
		return typ
	case []any:
		var out []string
		for _, one := range typ {
			if one != "null" {
				out = append(out, one.(string))
			}
		}
		return strings.Join(out, "|")
	}
	return "any"
}
