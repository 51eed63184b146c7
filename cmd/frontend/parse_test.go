package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/internal/testkit"
)

func TestParse(t *testing.T) {
	tools := filepath.Join(t.TempDir(), "tools.json")
	if err := os.WriteFile(tools, []byte(`[{"type":"function","function":{"name":"f","parameters":
		{"type":"object","properties":{"n":{"type":"integer"},"s":{"type":"string"}}}}}]`), 0o644); err != nil {
		t.Fatal(err)
	}
	const coder = "<tool_call>\n<function=f>\n<parameter=n>\n1\n</parameter>\n<parameter=s>\n1\n</parameter>\n</function>\n</tool_call>"
	tests := []struct {
		name  string
		args  []string
		input string
		want  string
	}{
		{"a call", []string{"--tool-call-parser", "hermes"}, `Hi <tool_call>{"name": "f", "arguments": {}}</tool_call>`,
			`{"content":"Hi ","tool_calls":[{"type":"function","function":{"name":"f","arguments":"{}"}}],
			  "finish_reason":"tool_calls","tool_call_parser":"hermes"}`},
		{"pieces", []string{"--tool-call-parser", "hermes", "--pieces"},
			`["<tool_", "call>{\"name\": \"f\", \"argu", "ments\": {}}", "</tool_call>"]`,
			`{"content":null,"tool_calls":[{"type":"function","function":{"name":"f","arguments":"{}"}}],
			  "finish_reason":"tool_calls","tool_call_parser":"hermes"}`},
		{"a thought", []string{"--reasoning-parser", "qwen3"}, "<think>Hm.</think><b>",
			`{"content":"<b>","reasoning_content":"Hm.","finish_reason":"stop","reasoning_parser":"qwen3"}`},
		{"opened by the prompt", []string{"--reasoning-parser", "qwen3", "--prompt", "<think>\n", "--finish", "length"}, "Hm.",
			`{"content":null,"reasoning_content":"Hm.","finish_reason":"length","reasoning_parser":"qwen3"}`},
		{"schema", []string{"--tool-call-parser", "qwen3_coder", "--tools", tools}, coder,
			`{"content":null,"tool_calls":[{"type":"function","function":{"name":"f","arguments":"{\"n\":1,\"s\":\"1\"}"}}],
			  "finish_reason":"tool_calls","tool_call_parser":"qwen3_coder"}`},
		{"cut", []string{"--tool-call-parser", "hermes"}, `<tool_call>{"name": "f", "arguments": {"a"`,
			`{"content":null,"tool_calls":[{"type":"function","function":{"name":"f","arguments":"{\"a\""}}],
			  "finish_reason":"length","tool_call_parser":"hermes"}`},
		{"named", []string{"--tool-call-parser", "hermes", "--tool-choice", "f", "--tools", tools}, `{"n": 1}`,
			`{"content":null,"tool_calls":[{"type":"function","function":{"name":"f","arguments":"{\"n\": 1}"}}],
			  "finish_reason":"tool_calls","tool_call_parser":"hermes"}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { compareParsed(t, tt.args, tt.input, tt.want) })
	}
}

// TestParseModel: the model's own template tells which parsers it needs.
func TestParseModel(t *testing.T) {
	dir := testkit.Fixture(t, "qwen3")
	compareParsed(t, []string{"--model-path", dir},
		"<think>Hm.</think><tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
		`{"content":null,"reasoning_content":"Hm.","tool_calls":[{"type":"function","function":{"name":"f","arguments":"{}"}}],
		  "finish_reason":"tool_calls","tool_call_parser":"hermes","reasoning_parser":"qwen3"}`)
}

func compareParsed(t *testing.T, args []string, input, want string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if code := runParse(args, strings.NewReader(input), &stdout, &stderr); code != exitOK || stderr.Len() > 0 {
		t.Fatalf("exit code %d, %s", code, &stderr)
	}
	var g, w any
	if err := json.Unmarshal(stdout.Bytes(), &g); err != nil {
		t.Fatalf("%v in %s", err, &stdout)
	}
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(w, g); diff != "" {
		t.Errorf("- want, + got:\n%s", diff)
	}
}

func TestParseFailures(t *testing.T) {
	tests := []struct {
		name, input, stderr string
		args                []string
		code                int
	}{
		{"no parser", "", "give --tool-call-parser", nil, exitUsage},
		{"unknown parser", "", "the parsers are ", []string{"--tool-call-parser", "herms"}, exitUsage},
		{"unknown reasoning parser", "", "the parsers are ", []string{"--reasoning-parser", "qwen"}, exitUsage},
		{"argument", "", `unexpected argument "x"`, []string{"--reasoning-parser", "qwen3", "x"}, exitUsage},
		{"finish", "", "--finish eos", []string{"--reasoning-parser", "qwen3", "--finish", "eos"}, exitUsage},
		{"no array", "hi", "no JSON array", []string{"--reasoning-parser", "qwen3", "--pieces"}, exitFailure},
		{"no file", "hi", "no such file", []string{"--tool-call-parser", "hermes", "--tools", "/nowhere"}, exitFailure},
		{"no model", "hi", "nowhere", []string{"--model-path", "/nowhere"}, exitFailure},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := runParse(tt.args, strings.NewReader(tt.input), &stdout, &stderr)
			if code != tt.code || !strings.Contains(stderr.String(), tt.stderr) || stdout.Len() > 0 {
				t.Errorf("exit code %d, want %d\nstdout: %s\nstderr: %s", code, tt.code, &stdout, &stderr)
			}
		})
	}
}
