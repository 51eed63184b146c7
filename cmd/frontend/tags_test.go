package main

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/worker"
)

// TestTagNotes: settings that aren't followed are named, all others aren't.
func TestTagNotes(t *testing.T) {
	const all = `"scope":"always","schema":"strict","allow_tool_calls_with_structured_output":true,` +
		`"exclude_special_tokens":true,"tool_arguments_any_order":true`
	for _, tt := range []struct {
		config, tools, reasoning string
		want                     []string
	}{
		{`{}`, "hermes", "", nil},
		{`{"structural_tag":null}`, "hermes", "", nil},
		{`{"structural_tag":{}}`, "hermes", "", nil},
		{`{"structural_tag":{` + all + `,"reasoning_boundary":"backend"}}`, "qwen3_coder", "qwen3", nil},
		{`{"structural_tag":{` + all + `,"reasoning_boundary":"backend"}}`, "kimi_k3", "", []string{
			"exclude_special_tokens: the parser has no markers to keep out of texts",
			"tool_arguments_any_order: the parser's required arguments come first, in order",
			"allow_tool_calls_with_structured_output: an answer with a response format is that format, not calls",
			"reasoning_boundary: the model has no reasoning parser, nothing is waited for"}},
		{`{"structural_tag":{}}`, "pythonic", "", []string{
			"the parser has no structural tags: forced calls are held to JSON, others to nothing"}},
		{`{"structural_tag":{"scope":"sometimes","x":1}}`, "hermes", "", []string{
			"x: unknown, has no effect", "scope: unknown value, taken as auto"}},
		{`{"structural_tag":{"exclude_special_tokens":"x"}}`, "hermes", "", []string{
			"structural_tag can't be read: no structural tags but those that a parser can't do without"}},
		{`{"structural_tag":{"reasoning_boundary":"structural_tag"},"runtime_data":{"tool_call_structural_tag_excludes_reasoning":true}}`,
			"hermes", "qwen3", []string{"reasoning_boundary: the engine lets thoughts pass by itself, so the tags don't"}},
	} {
		var r worker.RuntimeConfig
		if err := json.Unmarshal([]byte(tt.config), &r); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, tagNotes(&r, tt.tools, tt.reasoning)); diff != "" {
			t.Errorf("%s: - want, + got:\n%s", tt.config, diff)
		}
	}
}
