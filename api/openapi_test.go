package api_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/portico-llm/portico/api"
)

// document returns the OpenAPI document as the server serves it.
func document(t *testing.T) map[string]any {
	t.Helper()
	raw, err := api.OpenAPI()
	if err != nil {
		t.Fatal(err)
	}
	var doc map[string]any
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	return doc
}

func TestOpenAPIServesEveryRoute(t *testing.T) {
	doc := document(t)
	if doc["openapi"] != "3.1.0" {
		t.Errorf("openapi = %v", doc["openapi"])
	}
	paths := doc["paths"].(map[string]any)
	routes := []string{
		"post /v1/chat/completions", "post /v1/completions", "post /v1/responses",
		"post /v1/responses/input_tokens", "get /v1/responses/{id}", "delete /v1/responses/{id}",
		"get /v1/responses/{id}/input_items", "post /v1/responses/{id}/cancel",
		"post /v1/embeddings", "post /v1/rerank", "post /v1/score", "post /v1/classify", "post /v1/pooling",
		"post /v1/images/generations", "post /v1/images/edits", "post /v1/videos",
		"post /v1/videos/stream", "post /v1/audio/speech",
		"get /v1/models", "get /v1/models/{model}",
		"post /v1/messages", "post /v1/messages/count_tokens",
		"post /tokenize", "post /detokenize", "post /v1/tokenize", "post /v1/detokenize",
		"get /v1/models/{model}/ready", "get /health", "get /live", "get /ready", "get /metrics", "get /openapi.json",
	}
	documented := map[string]bool{}
	for _, route := range routes {
		method, path, _ := strings.Cut(route, " ")
		documented[path] = true
		item, ok := paths[path].(map[string]any)
		if !ok || item[method] == nil {
			t.Errorf("no %s", route)
		}
	}
	if len(paths) != len(documented) {
		t.Errorf("%d paths, want %d", len(paths), len(documented))
	}
}

// TestOpenAPIRefsResolve follows every $ref of the document.
func TestOpenAPIRefsResolve(t *testing.T) {
	doc := document(t)
	refs := 0
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, e := range v {
				walk(e)
			}
		case map[string]any:
			if ref, ok := v["$ref"].(string); ok {
				refs++
				var at any = doc
				for _, name := range strings.Split(strings.TrimPrefix(ref, "#/"), "/") {
					m, _ := at.(map[string]any)
					at = m[name]
				}
				if at == nil {
					t.Errorf("%s leads nowhere", ref)
				}
			}
			for _, e := range v {
				walk(e)
			}
		}
	}
	walk(doc)
	if refs < 30 {
		t.Errorf("only %d references", refs)
	}
}
