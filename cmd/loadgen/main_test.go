package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/portico-llm/portico/internal/loadgen"
)

// server answers every request with the status and a stream of one token, and returns its URL.
func server(t *testing.T, status int) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		fmt.Fprint(w, `data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"length"}]}`+"\n\n")
		fmt.Fprint(w, `data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1}}`+"\n\ndata: [DONE]\n\n")
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// TestRun looks at exit codes, by which scripts tell failures of the run from those of the command line.
func TestRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "report.json")
	args := func(url, out string) []string {
		return []string{"--url", url, "--model", "m", "--requests", "3", "--connections", "1", "--max-tokens", "1", "--tokens-per-word", "1", "--json", out}
	}
	for _, c := range []struct {
		name string
		args []string
		code int
	}{
		{"good", args(server(t, 200), file), 0},
		{"failures", args(server(t, 503), ""), 1},
		{"usage", []string{"--nonsense"}, 2},
		{"argument", []string{"more"}, 2},
		{"help", []string{"--help"}, 0},
		{"no server", []string{"--url", "http://127.0.0.1:1", "--model", "m"}, 1},
		{"no model", []string{}, 1},
		{"unwritable", args(server(t, 200), "/does/not/exist/x"), 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out, stderr bytes.Buffer
			if got := run(t.Context(), c.args, &out, &stderr); got != c.code {
				t.Errorf("exit code %d, want %d: %s%s", got, c.code, out.String(), stderr.String())
			}
		})
	}
	b, err := os.ReadFile(file)
	var r loadgen.Report
	if err != nil || json.Unmarshal(b, &r) != nil || r.Succeeded != 3 {
		t.Errorf("report %s, %v", b, err)
	}
	var out bytes.Buffer
	run(t.Context(), args(server(t, 200), "-"), &out, &out)
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Errorf("--json - wrote %v: %s", err, out.String())
	}
}
