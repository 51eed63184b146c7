package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const model = "../../configs/models/smollm2-135m-instruct"

// TestRun starts two workers with file discovery and ends them: their records come and go.
func TestRun(t *testing.T) {
	kv := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var stderr bytes.Buffer
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, []string{"--model-path", model, "--num-workers", "2"},
			environment(map[string]string{"DYN_DISCOVERY_BACKEND": "file", "DYN_FILE_KV": kv}), &stderr)
	}()
	count := func(bucket string) int {
		files, _ := os.ReadDir(filepath.Join(kv, "v1", bucket))
		n := 0
		for _, f := range files {
			if !strings.HasPrefix(f.Name(), ".") {
				n++
			}
		}
		return n
	}
	deadline := time.Now().Add(10 * time.Second)
	for count("instances") != 2 || count("mdc") != 2 {
		if time.Now().After(deadline) {
			t.Fatalf("%d endpoint records, %d model records", count("instances"), count("mdc"))
		}
		time.Sleep(5 * time.Millisecond)
	}
	cancel()
	select {
	case c := <-code:
		if c != 0 {
			t.Errorf("exit code %d: %s", c, stderr.String())
		}
	case <-time.After(10 * time.Second):
		t.Fatal("run didn't return")
	}
	if count("instances") != 0 || count("mdc") != 0 {
		t.Error("records are left")
	}
}

// TestRunFails looks at the exit codes of what ends before a worker runs: 2 for the command line, 1 for what it names.
func TestRunFails(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		code int
	}{
		{"usage", []string{"--nonsense"}, 2},
		{"help", []string{"--help"}, 0},
		{"no model", []string{"--model-path", "/does/not/exist", "--discovery-backend", "file"}, 1},
		{"no script", []string{"--model-path", model, "--script", "/does/not/exist", "--discovery-backend", "file"}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			var stderr bytes.Buffer
			env := environment(map[string]string{"DYN_FILE_KV": t.TempDir()})
			if got := run(t.Context(), c.args, env, &stderr); got != c.code {
				t.Errorf("exit code %d, want %d: %s", got, c.code, stderr.String())
			}
		})
	}
}

func TestEngines(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "script.json")
	if err := os.WriteFile(script, []byte(`[{"output":{"token_ids":[1]}}]`), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, s := range []settings{{kind: "text"}, {kind: "text", text: "Hello there."}, {kind: "echo"}, {kind: "random"}, {kind: "walk"}, {script: script}} {
		s.modelPath = model
		if _, err := s.engine(); err != nil {
			t.Errorf("%+v: %v", s, err)
		}
	}
}

// TestRoles starts workers of each role and looks at their cards.
func TestRoles(t *testing.T) {
	for _, c := range []struct {
		args  []string
		place string // of the endpoint, in the record's name
		want  []string
	}{
		{[]string{"--disaggregation-mode", "prefill", "--bootstrap-ports", "0"}, "dynamo%2Fprefill%2Fgenerate", []string{
			`"worker_type":"prefill"`, `"model_type":""`, `"needs":[["decode"]]`, `"bootstrap_host":"127.0.0.1"`,
		}},
		{[]string{"--disaggregation-mode", "prefill"}, "dynamo%2Fprefill%2Fgenerate", []string{`"worker_type":"prefill"`}},
		{[]string{"--disaggregation-mode", "decode"}, "dynamo%2Fbackend%2Fgenerate", []string{
			`"worker_type":"decode"`, `"model_type":"Chat | Completions"`, `"needs":[["prefill"]]`,
		}},
	} {
		kv := t.TempDir()
		ctx, cancel := context.WithCancel(t.Context())
		var stderr bytes.Buffer
		code := make(chan int, 1)
		go func() {
			code <- run(ctx, append([]string{"--model-path", model}, c.args...),
				environment(map[string]string{"DYN_DISCOVERY_BACKEND": "file", "DYN_FILE_KV": kv}), &stderr)
		}()
		var card []byte
		for deadline := time.Now().Add(10 * time.Second); len(card) == 0 && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
			names, _ := filepath.Glob(filepath.Join(kv, "v1", "mdc", c.place+"*"))
			if len(names) == 1 {
				card, _ = os.ReadFile(names[0])
			}
		}
		cancel()
		if got := <-code; got != 0 {
			t.Errorf("%v: exit code %d: %s", c.args, got, stderr.String())
		}
		for _, want := range c.want {
			if !strings.Contains(string(card), want) {
				t.Errorf("%v: no %s in %s", c.args, want, card)
			}
		}
	}
}
