// Package agents_test runs agents as clients: each does one small task with a scripted worker in the model's part.
package agents_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/prepost/msgparse"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/server"
	"github.com/portico-llm/portico/internal/testkit"
)

// script gives a text token by token and ends it.
func script(t *testing.T, text string) testkit.Script {
	t.Helper()
	var s testkit.Script
	for i := range len(text) {
		s = append(s, json.RawMessage(fmt.Sprintf(`{"token_ids":[%d]}`, text[i])))
	}
	return append(s, json.RawMessage(`{"token_ids":[256],"finish_reason":"stop"}`))
}

// use is an answer that thinks, speaks and uses a tool.
func use(t *testing.T, name string, input map[string]any) testkit.Script {
	t.Helper()
	call, err := json.Marshal(map[string]any{"name": name, "arguments": input})
	if err != nil {
		t.Fatal(err)
	}
	return script(t, "<think>Next step.</think>I'll use "+name+".\n<tool_call>\n"+string(call)+"\n</tool_call>")
}

// handler is a server whose worker goes on by the number of results in the conversation.
func handler(t *testing.T, steps ...testkit.Script) (http.Handler, *testkit.Dispatcher) {
	t.Helper()
	d := &testkit.Dispatcher{Script: func(call *router.Call, _ []byte) (testkit.Script, error) {
		var prompt []byte
		for _, id := range call.TokenIDs {
			prompt = append(prompt, byte(id))
		}
		if n := bytes.Count(prompt, []byte("\ntool: ")); n < len(steps) {
			return steps[n], nil
		}
		return nil, fault.New(fault.Internal, "asked once more")
	}}
	set := testkit.ByteModel("m")
	set.ToolParser, set.ReasoningParser = "hermes", "qwen3"
	log := slog.New(slog.DiscardHandler)
	srv, err := server.New(server.Options{
		Pipeline: pipeline.New(pipeline.Options{Dispatcher: d, Log: log, Answers: msgparse.Plan}),
		Catalog:  testkit.Models{"m": set}, Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	return testkit.LintHandler(t, srv.Handler()), d
}

// exchange is one request and its answer.
type exchange struct {
	path         string
	body, answer []byte
	status       int
}

// recorder notes what goes through it.
type recorder struct {
	next http.Handler
	mu   sync.Mutex
	seen []exchange
}

func (r *recorder) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return
	}
	req.Body = io.NopCloser(bytes.NewReader(body))
	res := httptest.NewRecorder()
	r.next.ServeHTTP(res, req)
	r.mu.Lock()
	r.seen = append(r.seen, exchange{req.Method + " " + req.URL.Path, body, res.Body.Bytes(), res.Code})
	r.mu.Unlock()
	for k, v := range res.Header() {
		w.Header()[k] = v
	}
	w.WriteHeader(res.Code)
	_, _ = w.Write(res.Body.Bytes())
}

// TestClaudeCode lets Claude Code read a file, edit it and answer, over /v1/messages.
func TestClaudeCode(t *testing.T) {
	claude, err := filepath.Abs("../../.build/agents/claude/node_modules/.bin/claude")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(claude); err != nil {
		t.Skipf("Claude Code isn't installed: tests/agents/claude/setup.sh (%v)", err)
	}
	dir, home := t.TempDir(), t.TempDir()
	file := filepath.Join(dir, "note.txt")
	if err := os.WriteFile(file, []byte("colour: blue\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	next, _ := handler(t,
		use(t, "Read", map[string]any{"file_path": file}),
		use(t, "Edit", map[string]any{"file_path": file, "old_string": "blue", "new_string": "green"}),
		script(t, "The colour is green now."))
	rec := &recorder{next: next}
	srv := httptest.NewServer(rec)
	defer srv.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, claude, "-p", "Change the colour in note.txt to green.", "--output-format", "json",
		"--model", "m", "--allowedTools", "Read,Edit")
	cmd.Dir = dir
	// Whatever else it may want to reach is refused by a proxy that isn't there.
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "CLAUDE_CONFIG_DIR=" + home,
		"ANTHROPIC_BASE_URL=" + srv.URL, "ANTHROPIC_API_KEY=unused", "ANTHROPIC_DEFAULT_HAIKU_MODEL=m",
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_TELEMETRY=1", "DISABLE_ERROR_REPORTING=1", "DISABLE_AUTOUPDATER=1",
		"HTTPS_PROXY=http://127.0.0.1:9", "HTTP_PROXY=http://127.0.0.1:9", "NO_PROXY=127.0.0.1"}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, stderr.Bytes())
	}
	var result struct {
		Result  string
		Turns   int  `json:"num_turns"`
		IsError bool `json:"is_error"`
	}
	if err := json.Unmarshal(out, &result); err != nil || result.IsError || result.Turns != 3 || result.Result != "The colour is green now." {
		t.Errorf("%v, %+v of %s", err, result, out)
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "colour: green\n" {
		t.Errorf("%v, the file is %q", err, b)
	}
	turns := 0
	for _, e := range rec.seen {
		if e.status != http.StatusOK {
			t.Errorf("%s: %d %s", e.path, e.status, e.answer)
			continue
		}
		if e.path != "POST /v1/messages" {
			continue
		}
		turns++
		if err := testkit.LintMessages(e.answer); err != nil {
			t.Errorf("turn %d: the stream breaks a rule: %v", turns, err)
		}
		if testkit.Updating() {
			testkit.Golden(t, fmt.Sprintf("claude_%d.json", turns), cutDown(t, e.body, dir))
		}
	}
	if turns != 3 {
		t.Errorf("%d turns", turns)
	}
}

// TestClaudeCodeBodies replays the kept requests: each is taken, and the history the agent wrote is read back in full.
func TestClaudeCodeBodies(t *testing.T) {
	next, d := handler(t, script(t, "a"), script(t, "b"), script(t, "c"))
	for i := 1; i <= 3; i++ {
		body, err := os.ReadFile(fmt.Sprintf("testdata/claude_%d.json", i))
		if err != nil {
			t.Fatal(err)
		}
		req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/messages?beta=true", bytes.NewReader(body))
		req.Header.Set("Content-Type", "application/json")
		res := httptest.NewRecorder()
		next.ServeHTTP(res, req)
		if res.Code != http.StatusOK {
			t.Fatalf("turn %d: %d %s", i, res.Code, res.Body)
		}
		if err := testkit.LintMessages(res.Body.Bytes()); err != nil {
			t.Errorf("turn %d: the stream breaks a rule: %v", i, err)
		}
	}
	var prompt []byte
	for _, id := range d.Calls()[2].Call.TokenIDs {
		prompt = append(prompt, byte(id))
	}
	var roles []string
	for line := range strings.Lines(string(prompt)) {
		if role, _, ok := strings.Cut(line, ": "); ok && regexp.MustCompile(`^(system|user|assistant|tool)$`).MatchString(role) {
			roles = append(roles, role)
		}
	}
	if got := strings.Join(roles, " "); got != "system user assistant tool assistant tool" {
		t.Errorf("the last prompt has %s:\n%s", got, prompt)
	}
	if bytes.Contains(prompt, []byte("billing-header")) {
		t.Errorf("the prompt holds what differs from request to request:\n%s", prompt)
	}
}

// Bounds of what is kept of a text. Prompts are their authors'; what counts here is the form of a request.
const (
	keptText = 24
)

// cutDown shortens texts, drops descriptions, and replaces what tells machines and people apart.
func cutDown(t *testing.T, body []byte, dir string) []byte {
	t.Helper()
	body = bytes.ReplaceAll(body, []byte(dir), []byte("/tmp/work"))
	var v any
	if err := json.Unmarshal(body, &v); err != nil {
		t.Fatal(err)
	}
	out, err := json.MarshalIndent(cutValue("", v), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return append(out, '\n')
}

func cutValue(key string, v any) any {
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = cutValue(key, v[i])
		}
	case map[string]any:
		for k, e := range v {
			switch k {
			case "description":
				if _, ok := e.(string); ok {
					v[k] = "…"
					continue
				}
			case "user_id":
				v[k] = "user"
				continue
			}
			v[k] = cutValue(k, e)
		}
	case string:
		most := keptText
		if key == "type" || key == "name" || key == "file_path" || key == "id" || key == "tool_use_id" || key == "arguments" || key == "include" || strings.HasPrefix(key, "$") ||
			strings.HasPrefix(v, "x-anthropic-billing-header") {
			most = 4 * keptText
		}
		if r := []rune(v); len(r) > most {
			return string(r[:most]) + "…"
		}
	}
	return v
}
