package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/tests/golden/templates"
)

// printed is what the sub-command may print.
type printed struct {
	Prompt   *string  `json:"prompt"`
	TokenIDs []uint32 `json:"token_ids"`
	Error    *string  `json:"error"`
}

func renderOutput(t *testing.T, args ...string) (printed, int) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := runRender(args, &stdout, &stderr)
	if stderr.Len() > 0 && code != 2 {
		t.Errorf("standard error: %s", &stderr)
	}
	var out printed
	if code == 2 {
		return out, code
	}
	if err := json.Unmarshal(stdout.Bytes(), &out); err != nil {
		t.Fatalf("%q: %v", &stdout, err)
	}
	return out, code
}

func writeFile(t *testing.T, name, content string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// TestRenderGoldens runs the sub-command on every golden.
func TestRenderGoldens(t *testing.T) {
	set, err := templates.Load()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, g := range set.Templates {
		template := writeFile(t, filepath.Join(dir, g.Name+".jinja"), g.Source)
		for name, want := range g.Expected {
			vars, err := set.Arguments(&g, name)
			if err != nil {
				t.Fatal(err)
			}
			arguments := writeFile(t, filepath.Join(dir, "arguments.json"), string(vars))
			got, code := renderOutput(t, "--template", template, "--arguments", arguments, "--now", "2025-07-26T12:00:00")
			switch {
			case want.Output != nil && (code != 0 || got.Prompt == nil):
				t.Errorf("%s/%s: exit code %d, error %v", g.Name, name, code, got.Error)
			case want.Output != nil && *got.Prompt != *want.Output:
				t.Errorf("%s/%s (-want +got):\n%s", g.Name, name, cmp.Diff(*want.Output, *got.Prompt))
			case want.Error != nil && want.Error.Type == "TemplateError" &&
				(code != 1 || got.Error == nil || *got.Error != want.Error.Message):
				t.Errorf("%s/%s: exit code %d, %+v, want the error %q", g.Name, name, code, got, want.Error.Message)
			}
		}
	}
}

// tinyTokenizer knows the bytes of a few words.
const tinyTokenizer = `{"version":"1.0","added_tokens":[{"id":5,"content":"<|end|>","special":true,"single_word":false,` +
	`"lstrip":false,"rstrip":false,"normalized":false}],"normalizer":null,"pre_tokenizer":{"type":"ByteLevel",` +
	`"add_prefix_space":false,"trim_offsets":true,"use_regex":true},"post_processor":null,"decoder":{"type":"ByteLevel",` +
	`"add_prefix_space":true,"trim_offsets":true,"use_regex":true},"model":{"type":"BPE","dropout":null,"unk_token":null,` +
	`"continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,` +
	`"vocab":{"h":0,"i":1,"hi":2,"u":3,"s":4},"merges":["h i"]}}`

func tinyModel(t *testing.T) string {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "tokenizer.json"), tinyTokenizer)
	writeFile(t, filepath.Join(dir, "config.json"), `{"max_position_embeddings":64,"eos_token_id":5}`)
	writeFile(t, filepath.Join(dir, "tokenizer_config.json"), `{"eos_token":{"content":"<|end|>"},"chat_template":`+
		`"{% for m in messages %}{% if m.content == 'su' %}{{ raise_exception('not su') }}{% endif %}{{ m.content }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}{{ strftime_now('%Y') and 's' }}{% endif %}"}`)
	return dir
}

func TestRenderRequest(t *testing.T) {
	dir := tinyModel(t)
	tests := []struct {
		name, request, prompt, err string
		ids                        []uint32
	}{
		{name: "plain", request: `{"model":"m","messages":[{"role":"user","content":"hi"}]}`, prompt: "hi<|end|>s", ids: []uint32{2, 5, 4}},
		{name: "no model", request: ` {"messages":[{"role":"user","content":"hi"}]}`, prompt: "hi<|end|>s", ids: []uint32{2, 5, 4}},
		{name: "no generation prompt", request: `{"messages":[{"role":"user","content":"hi"}],"add_generation_prompt":false}`, prompt: "hi<|end|>", ids: []uint32{2, 5}},
		{name: "continued", request: `{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"us"}],"continue_final_message":true,"add_generation_prompt":false}`,
			prompt: "hi<|end|>us", ids: []uint32{2, 5, 3, 4}},
		{name: "raised", request: `{"messages":[{"role":"user","content":"su"}]}`, err: "not su"},
		{name: "not valid", request: `{"messages":[{"role":"user","content":"hi"}],"temperature":9}`, err: "temperature"},
		{name: "not JSON", request: `{`, err: ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			request := writeFile(t, filepath.Join(t.TempDir(), "request.json"), tt.request)
			got, code := renderOutput(t, "--model-path", dir, "--request", request)
			if tt.prompt == "" {
				if code != 1 || got.Error == nil || !strings.Contains(*got.Error, tt.err) {
					t.Fatalf("exit code %d, %+v, want an error with %q", code, got, tt.err)
				}
				return
			}
			if code != 0 || got.Prompt == nil || *got.Prompt != tt.prompt {
				t.Fatalf("exit code %d, %+v, want %q", code, got, tt.prompt)
			}
			if diff := cmp.Diff(tt.ids, got.TokenIDs); diff != "" {
				t.Errorf("ids (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRenderTemplateWithTokenizer(t *testing.T) {
	dir := t.TempDir()
	template := writeFile(t, filepath.Join(dir, "t.jinja"), "{{ x }}{{ strftime_now('%d') }}|u")
	arguments := writeFile(t, filepath.Join(dir, "a.json"), `{"x":"hi"}`)
	got, code := renderOutput(t, "--template", template, "--arguments", arguments, "--model-path", tinyModel(t), "--now", "2025-07-26T12:00:00")
	if code != 0 || got.Prompt == nil || *got.Prompt != "hi26|u" || len(got.TokenIDs) == 0 {
		t.Errorf("exit code %d, %+v", code, got)
	}
}

func TestRenderUsage(t *testing.T) {
	for _, args := range [][]string{
		{}, {"--request", "x"}, {"--template", "x"}, {"--model-path", "x"}, {"--no-such-flag"}, {"--request", "x", "--model-path", "y", "z"},
		{"--template", "-", "--arguments", "-"}, {"--template", "x", "--arguments", "y", "--now", "noon"},
		{"--request", "x", "--template", "y", "--arguments", "z"},
	} {
		if _, code := renderOutput(t, args...); code != 2 {
			t.Errorf("%q: exit code %d, want 2", args, code)
		}
	}
	for _, args := range [][]string{{"--template", "/no/such", "--arguments", "/no/such"}, {"--model-path", "/no/such", "--request", "/no/such"}} {
		if got, code := renderOutput(t, args...); code != 1 || got.Error == nil {
			t.Errorf("%q: exit code %d, %+v, want an error", args, code, got)
		}
	}
}

// TestRenderBinary builds the program and pipes a file in.
func TestRenderBinary(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program")
	}
	dir := t.TempDir()
	bin := filepath.Join(dir, "frontend")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), bin, "render", "--template", "-", "--arguments", writeFile(t, filepath.Join(dir, "a.json"), `{"x":"<é>"}`))
	cmd.Stdin = strings.NewReader("{{ x }}{{ x|tojson }}")
	out, err := cmd.Output()
	if err != nil || string(out) != `{"prompt":"<é>\"<é>\""}`+"\n" {
		t.Errorf("%q, %v", out, err)
	}
}
