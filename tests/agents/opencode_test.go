package agents_test

import (
	"bytes"
	"fmt"
	"net/http"
	"path/filepath"
	"testing"

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
	rec, url := record(t,
		use(t, "read", map[string]any{"filePath": file}),
		use(t, "edit", map[string]any{"filePath": file, "oldString": "blue", "newString": "green"}),
		script(t, "The colour is green now."))
	config := filepath.Join(home, "opencode.json")
	configure(t, config, opencodeConfig, url)
	perform(t, file, alone(home, "OPENCODE_CONFIG="+config, "OPENCODE_DISABLE_AUTOUPDATE=1",
		"OPENCODE_DISABLE_MODELS_FETCH=1", "OPENCODE_DISABLE_LSP_DOWNLOAD=1", "OPENCODE_DISABLE_DEFAULT_PLUGINS=1"),
		opencode, "run", "--format", "json")
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
