package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/tests/e2e/stack"
)

// The conversation that every SDK has: the second question means nothing without the first.
const (
	turnTokens = 16
	turnSystem = "Answer in one sentence."
)

var turnQuestions = []string{"What is the capital of France?", "And of Italy?"}

// modes are the answers of a conversation, in order: in one body each, and streamed.
type modes struct {
	Whole    []string `json:"whole"`
	Streamed []string `json:"streamed"`
}

// TestTurns has the same conversation with a real model through every SDK. At temperature 0 the model's answers follow
// from the prompt, so that all of them get the same ones, those of plain requests to each of the interfaces.
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
	c := newClient(t, d.frontend.URL)
	answers := plainTurns(t, c)
	if strings.TrimSpace(answers[0]) == "" || strings.TrimSpace(answers[1]) == "" || answers[0] == answers[1] {
		t.Fatalf("%q is no conversation", answers)
	}
	t.Logf("%q", answers)
	want := modes{answers, answers}
	for name, turns := range map[string]func(*testing.T, *client) modes{"responses": responsesTurns, "messages": messagesTurns} {
		t.Run(name, func(t *testing.T) {
			dynamoDiffers(t, "these interfaces are off by default")
			if diff := cmp.Diff(want, turns(t, c)); diff != "" {
				t.Error(diff)
			}
		})
	}

	url := linted(t, d.frontend.URL)
	for _, sdk := range []struct{ name, folder, script, arg string }{
		{"openai-python", "python", "python/turns.py", ""},
		{"openai-node", "node", "node/turns.mjs", "openai"},
		{"anthropic", "anthropic", "anthropic/turns.py", ""},
		{"ai", "node", "node/turns.mjs", "ai"},
		{"langchain", "sdks", "sdks/turns.py", "langchain"},
		{"llamaindex", "sdks", "sdks/turns.py", "llamaindex"},
		{"instructor", "sdks", "sdks/turns.py", "instructor"},
		{"openai-agents", "agents", "agents/turns.py", ""},
	} {
		t.Run(sdk.name, func(t *testing.T) {
			if sdk.name == "anthropic" || sdk.name == "openai-agents" {
				dynamoDiffers(t, "these interfaces are off by default")
			}
			installed := filepath.Join(tools.Root, ".build", "clients", sdk.folder)
			script := filepath.Join(tools.Root, "tests", "clients", sdk.script)
			args := []string{filepath.Join(installed, "bin", "python"), script}
			if sdk.folder == "node" {
				args = []string{"node", besidePackages(t, script, installed)}
			}
			if sdk.arg != "" {
				args = append(args, sdk.arg)
			}
			args = append(append(args, url, "smollm2", strconv.Itoa(turnTokens), turnSystem), turnQuestions...)
			if diff := cmp.Diff(want, turns(t, args)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// plainTurns has the conversation without any client's help, in both modes.
func plainTurns(t *testing.T, c *client) []string {
	t.Helper()
	messages := []object{{"role": "system", "content": turnSystem}}
	var answers []string
	for _, q := range turnQuestions {
		messages = append(messages, object{"role": "user", "content": q})
		request := object{"model": "smollm2", "messages": messages, "temperature": 0, "max_tokens": turnTokens}
		text := c.unary(t, chatPath, request).Choices[0].Message.Content
		if s := c.stream(t, chatPath, request); s.text[0] != text {
			t.Errorf("streamed %q, whole %q", s.text[0], text)
		}
		answers = append(answers, text)
		messages = append(messages, object{"role": "assistant", "content": text})
	}
	return answers
}

// turns runs a script that prints the answers it got.
func turns(t *testing.T, args []string) modes {
	t.Helper()
	if _, err := exec.LookPath(args[0]); err != nil {
		t.Skipf("the client isn't installed: tests/clients/setup.sh (%v)", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	// None of them is to send anything anywhere else.
	cmd.Env = append(os.Environ(), "LANGSMITH_TRACING=false", "ANONYMIZED_TELEMETRY=False", "AI_SDK_LOG_WARNINGS=false",
		"no_proxy=127.0.0.1", "PYTHONDONTWRITEBYTECODE=1")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, stderr.Bytes())
	}
	var got modes
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	return got
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
