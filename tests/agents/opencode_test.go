package agents_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/portico-llm/portico/internal/testkit"
)

// opencodeConfig makes a server its only provider.
const opencodeConfig = `{"autoupdate":false,"share":"disabled","model":"local/m","small_model":"local/m",
"provider":{"local":{"npm":"@ai-sdk/openai-compatible","name":"local","options":{"baseURL":"%s/v1","apiKey":"unused"},
"models":{"m":{"name":"m","tool_call":true,"reasoning":true,"limit":{"context":100000,"output":1000}}}}}}`

// lintChat checks a stream of a client that wants its usage.
func lintChat(body []byte) error {
	return testkit.Lint(body, testkit.LintOptions{Chat: true, Usage: true})
}

// TestOpencode lets opencode read a file, edit it and answer, over /v1/chat/completions.
func TestOpencode(t *testing.T) {
	opencode := installed(t, "opencode", "node_modules/opencode-*/bin/opencode")
	dir, home, file := task(t)
	next, _ := handler(t,
		use(t, "read", map[string]any{"filePath": file}),
		use(t, "edit", map[string]any{"filePath": file, "oldString": "blue", "newString": "green"}),
		script(t, "The colour is green now."))
	rec := &recorder{next: next}
	srv := httptest.NewServer(rec)
	defer srv.Close()
	config := filepath.Join(home, "opencode.json")
	if err := os.WriteFile(config, fmt.Appendf(nil, opencodeConfig, srv.URL), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, opencode, "run", "--format", "json", "Change the colour in note.txt to green.")
	cmd.Dir = dir
	cmd.Env = alone(home, "OPENCODE_CONFIG="+config, "OPENCODE_DISABLE_AUTOUPDATE=1", "OPENCODE_DISABLE_MODELS_FETCH=1",
		"OPENCODE_DISABLE_LSP_DOWNLOAD=1", "OPENCODE_DISABLE_DEFAULT_PLUGINS=1")
	perform(t, cmd, file)
	turns := 0
	for _, e := range rec.seen {
		if e.status != http.StatusOK {
			t.Errorf("%s: %d %s", e.path, e.status, e.answer)
			continue
		}
		if err := lintChat(e.answer); err != nil {
			t.Errorf("a stream breaks a rule: %v", err)
		}
		if !bytes.Contains(e.body, []byte(`"tools":`)) {
			continue // a title for the conversation
		}
		turns++
		if testkit.Updating() {
			testkit.Golden(t, fmt.Sprintf("opencode_%d.json", turns), cutDown(t, e.body, dir))
		}
	}
	if turns != 3 {
		t.Errorf("%d turns", turns)
	}
}

// TestOpencodeBodies replays the kept requests: each is taken, and the history is read back in full.
func TestOpencodeBodies(t *testing.T) {
	if got := replayed(t, "opencode", "/v1/chat/completions", lintChat); got != "system user assistant tool assistant tool" {
		t.Errorf("the last prompt has %s", got)
	}
}
