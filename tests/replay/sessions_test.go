package replay_test

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/server"
	"github.com/portico-llm/portico/internal/testkit"
)

// sessionCase is one request with an agent's headers, and what its workers were told of the agent.
type sessionCase struct {
	Name    string           `json:"name"`
	Path    string           `json:"path"`
	Headers [][2]string      `json:"headers"`
	Request json.RawMessage  `json:"request"`
	Status  int              `json:"status"`
	Workers []map[string]any `json:"workers"`
}

// sessionDifferences are the cases that this frontend answers otherwise, with the reason.
var sessionDifferences = map[string]string{
	"resp_tool":    "a turn of calls without content is rendered instead of refused",
	"msg_tool":     "a turn of calls without content is rendered instead of refused",
	"chat_manyhdr": "of more than 64 headers the first by name are passed on, upstream the first that came",
}

// TestSessions: workers are told of sessions and agents as they were told in the recordings.
func TestSessions(t *testing.T) {
	var mu sync.Mutex // the prompts of a batch are sent side by side
	var got []map[string]any
	engine := &testkit.Dispatcher{Script: func(call *router.Call, body []byte) (testkit.Script, error) {
		var q map[string]any
		if err := json.Unmarshal(body, &q); err != nil {
			return nil, err
		}
		told := map[string]any{}
		for _, name := range []string{"agent_context", "image_cache_scope"} {
			if v, ok := q[name]; ok {
				told[name] = v
			}
		}
		mu.Lock()
		defer mu.Unlock()
		got = append(got, told)
		return simulate(call, body)
	}}
	srv, err := server.New(server.Options{
		Pipeline: pipeline.New(pipeline.Options{Dispatcher: engine, Log: slog.New(slog.DiscardHandler)}),
		Catalog:  testkit.Models{"plain": testkit.ByteModel("plain")},
		Decode:   openai.DecodeOptions{Strict: true},
		Log:      slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	handler := testkit.LintHandler(t, srv.Handler())
	for _, line := range readGzip(t, "sessions.jsonl.gz") {
		var c sessionCase
		if err := json.Unmarshal(line, &c); err != nil {
			t.Fatal(err)
		}
		t.Run(c.Name, func(t *testing.T) {
			mu.Lock()
			got = []map[string]any{}
			mu.Unlock()
			req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, c.Path, strings.NewReader(string(c.Request)))
			req.Header.Set("Content-Type", "application/json")
			for _, h := range c.Headers {
				req.Header.Add(h[0], h[1])
			}
			res := httptest.NewRecorder()
			handler.ServeHTTP(res, req)
			mu.Lock()
			diff := cmp.Diff(c.Workers, got)
			mu.Unlock()
			if res.Code != c.Status {
				diff = res.Body.String()
			}
			if reason, listed := sessionDifferences[c.Name]; listed != (diff != "") {
				t.Errorf("status %d, differs (listed: %q):\n%s", res.Code, reason, diff)
			}
		})
	}
}
