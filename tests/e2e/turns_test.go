package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/tests/e2e/stack"
)

// TestTurns has the same conversation with a real model through every SDK. At temperature 0 the model's answers follow
// from the prompt, so that all of them get the same ones, those of plain requests.
func TestTurns(t *testing.T) {
	if testing.Short() {
		t.Skip("short: a real model is slow")
	}
	s := newStack(t, stack.PlaneTCP, stack.BackendFile)
	if _, err := s.RealWorker(); err != nil {
		t.Fatal(err)
	}
	d := &deployment{Stack: s, frontend: startFrontend(t, s)}
	d.waitModel(t, "smollm2", true, time.Minute)
	questions := []string{"What is the capital of France?", "And of Italy?", "Which of the two is larger?"}
	want := plainTurns(t, newClient(t, d.frontend.URL), questions)
	t.Logf("%q", want)

	scripts := filepath.Join(tools.Root, "tests", "clients")
	installed := filepath.Join(tools.Root, ".build", "clients")
	python := func(name string) string { return filepath.Join(installed, name, "bin", "python") }
	for _, c := range []struct {
		name string
		args []string
	}{
		{"openai-python", []string{python("python"), filepath.Join(scripts, "python", "turns.py")}},
		{"langchain", []string{python("sdks"), filepath.Join(scripts, "sdks", "turns.py"), "langchain"}},
		{"llamaindex", []string{python("sdks"), filepath.Join(scripts, "sdks", "turns.py"), "llamaindex"}},
		{"instructor", []string{python("sdks"), filepath.Join(scripts, "sdks", "turns.py"), "instructor"}},
		{"openai-node", []string{"node", filepath.Join(scripts, "node", "turns.mjs"), "openai"}},
		{"ai", []string{"node", filepath.Join(scripts, "node", "turns.mjs"), "ai"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := append(append([]string{}, c.args...), d.frontend.URL, "smollm2")
			if args[0] == "node" {
				args[1] = besidePackages(t, args[1], filepath.Join(installed, "node"))
			}
			if diff := cmp.Diff(want, turns(t, append(args, questions...))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// plainTurns has the conversation without any client's help.
func plainTurns(t *testing.T, c *client, questions []string) []string {
	t.Helper()
	messages := []object{{"role": "system", "content": "Answer in one sentence."}}
	var answers []string
	for _, q := range questions {
		messages = append(messages, object{"role": "user", "content": q})
		a := c.unary(t, chatPath, object{"model": "smollm2", "messages": messages, "temperature": 0, "max_tokens": 24})
		answers = append(answers, a.Choices[0].Message.Content)
		messages = append(messages, object{"role": "assistant", "content": a.Choices[0].Message.Content})
	}
	return answers
}

// turns runs a script that prints the answers it got.
func turns(t *testing.T, args []string) []string {
	t.Helper()
	if _, err := exec.LookPath(args[0]); err != nil {
		t.Skipf("the client isn't installed: tests/clients/setup.sh (%v)", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, stderr.Bytes())
	}
	var answers []string
	if err := json.Unmarshal(out, &answers); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	return answers
}

// besidePackages copies a script to where its packages are: Node looks for them from there.
func besidePackages(t *testing.T, script, dir string) string {
	t.Helper()
	if _, err := os.Stat(filepath.Join(dir, "node_modules", "ai")); err != nil {
		t.Skipf("the client isn't installed: tests/clients/setup.sh (%v)", err)
	}
	text, err := os.ReadFile(script)
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(dir, strings.TrimSuffix(filepath.Base(script), ".mjs")+"-e2e.mjs")
	if err := os.WriteFile(copied, text, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(copied) })
	return copied
}
