package agents_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/portico-llm/portico/internal/testkit"
)

// codexConfig makes a server its only provider, and keeps it from anything else.
const codexConfig = `model = "m"
model_provider = "local"
check_for_update_on_startup = false
[model_providers.local]
name = "local"
base_url = "%s/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
[analytics]
enabled = false
[otel]
exporter = "none"
`

// installed returns the program of an agent, or skips the test.
func installed(t *testing.T, agent, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(testkit.Root(), ".build/agents", agent, pattern))
	if err != nil {
		t.Fatal(err)
	}
	if len(found) == 0 {
		t.Skipf("it isn't installed: tests/agents/setup.sh %s", agent)
	}
	return found[0]
}

// alone is the environment of an agent that reaches this machine only: all else is refused by a proxy that isn't there.
func alone(home string, more ...string) []string {
	return append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "HTTPS_PROXY=http://127.0.0.1:9",
		"HTTP_PROXY=http://127.0.0.1:9", "ALL_PROXY=http://127.0.0.1:9", "NO_PROXY=127.0.0.1,localhost"}, more...)
}

// task is a folder with a file whose colour an agent is to change.
func task(t *testing.T) (dir, home, file string) {
	t.Helper()
	dir, home = t.TempDir(), t.TempDir()
	file = filepath.Join(dir, "note.txt")
	if err := os.WriteFile(file, []byte("colour: blue\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir, home, file
}

// record answers an agent with the steps, and keeps what it asks.
func record(t *testing.T, steps ...testkit.Script) (rec *recorder, url string) {
	t.Helper()
	next, _ := handler(t, steps...)
	rec = &recorder{next: next}
	srv := httptest.NewServer(rec)
	t.Cleanup(srv.Close)
	return rec, srv.URL
}

// configure writes an agent's configuration, which names the server.
func configure(t *testing.T, file, form, url string) {
	t.Helper()
	if err := os.WriteFile(file, fmt.Appendf(nil, form, url), 0o600); err != nil {
		t.Fatal(err)
	}
}

// perform has an agent change the colour in a file, and checks that it has done and said so.
func perform(t *testing.T, file string, environ []string, program string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, append(args, "Change the colour in note.txt to green.")...)
	cmd.Dir, cmd.Env = filepath.Dir(file), environ
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, complaints.Bytes())
	}
	if !strings.Contains(string(out), "The colour is green now.") {
		t.Errorf("the answer isn't in what it prints:\n%s\n%s", out, complaints.Bytes())
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "colour: green\n" {
		t.Errorf("%v, the file is %q\n%s\n%s", err, b, out, complaints.Bytes())
	}
}

// TestCodex lets Codex read a file, edit it and answer, over /v1/responses.
func TestCodex(t *testing.T) {
	codex := installed(t, "codex", "node_modules/@openai/codex-*/vendor/*/bin/codex")
	dir, home, file := task(t)
	rec, url := record(t,
		use(t, "exec_command", map[string]any{"cmd": "cat note.txt"}),
		use(t, "exec_command", map[string]any{"cmd": "sed -i s/blue/green/ note.txt"}),
		script(t, "The colour is green now."))
	configure(t, filepath.Join(home, "config.toml"), codexConfig, url)
	perform(t, file, alone(home, "CODEX_HOME="+home), codex, "exec", "--skip-git-repo-check",
		"--sandbox", "danger-full-access", "--json")
	turns := 0
	for _, e := range rec.seen {
		if e.path != "POST /v1/responses" {
			continue
		}
		turns++
		if e.status != http.StatusOK {
			t.Errorf("turn %d: %d %s", turns, e.status, e.answer)
			continue
		}
		if err := testkit.LintResponses(e.answer); err != nil {
			t.Errorf("turn %d: the stream breaks a rule: %v", turns, err)
		}
		if testkit.Updating() {
			testkit.Golden(t, fmt.Sprintf("codex_%d.json", turns), cutDown(t, anonymous(t, e.body), dir))
		}
	}
	if turns != 3 {
		t.Errorf("%d turns", turns)
	}
}

// madeIDs are ids that are made anew for every run.
var madeIDs = regexp.MustCompile(`"(msg|rs|fco|fc)_[-0-9a-f]+"`)

// anonymous takes out of a request what tells machines and sessions apart.
func anonymous(t *testing.T, body []byte) []byte {
	t.Helper()
	var request map[string]any
	if err := json.Unmarshal(madeIDs.ReplaceAll(body, []byte(`"${1}_1"`)), &request); err != nil {
		t.Fatal(err)
	}
	request["prompt_cache_key"] = "key"
	request["client_metadata"] = map[string]any{"session_id": "session"}
	out, err := json.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// replayed sends the kept requests of an agent again, and returns the roles of the last prompt.
func replayed(t *testing.T, agent, path string, lint func([]byte) error) string {
	t.Helper()
	next, d := handler(t, script(t, "a"), script(t, "b"), script(t, "c"))
	kept, err := filepath.Glob("testdata/" + agent + "_?.json")
	if err != nil || len(kept) != 3 {
		t.Fatalf("%v, %d requests are kept", err, len(kept))
	}
	for _, name := range kept {
		body, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, bytes.NewReader(body))
		req.Header.Set("Content-Type", "application/json")
		res := httptest.NewRecorder()
		next.ServeHTTP(res, req)
		if res.Code != http.StatusOK {
			t.Fatalf("%s: %d %s", name, res.Code, res.Body)
		}
		if err := lint(res.Body.Bytes()); err != nil {
			t.Errorf("%s: the stream breaks a rule: %v", name, err)
		}
	}
	var prompt []byte
	for _, id := range d.Calls()[2].Call.TokenIDs {
		prompt = append(prompt, byte(id))
	}
	var roles []string
	for _, m := range regexp.MustCompile(`(?m)^(system|user|assistant|tool): `).FindAllSubmatch(prompt, -1) {
		roles = append(roles, string(m[1]))
	}
	return strings.Join(roles, " ")
}

// TestCodexBodies replays the kept requests: each is taken, and the history is read back in full.
func TestCodexBodies(t *testing.T) {
	if got := replayed(t, "codex", "/v1/responses", testkit.LintResponses); got != "system user user assistant tool assistant tool" {
		t.Errorf("the last prompt has %s", got)
	}
}
