package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/prepost/modelcard"
	"github.com/portico-llm/portico/internal/router/discovery/file"
	"github.com/portico-llm/portico/internal/simworker"
	"github.com/portico-llm/portico/internal/testkit"
)

// startWorkers runs simulated workers of one model that register in a folder.
func startWorkers(t *testing.T, n int, folder string) {
	t.Helper()
	card, err := modelcard.FromFolder(model, "m")
	if err != nil {
		t.Fatal(err)
	}
	g := lifecycle.New(t.Context())
	for range n {
		registrar := file.NewRegistrar(folder)
		id, err := registrar.InstanceID(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		w, err := simworker.New(simworker.Options{
			Endpoint:   worker.EndpointID{Namespace: "dynamo", Component: "backend", Name: "generate"},
			InstanceID: id, Codec: worker.Msgpack, Registrar: registrar, Card: card,
			Engine: &simworker.Generator{Source: simworker.Echo{}}, CloseWait: time.Second, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		g.Go("worker", w.Run)
		<-w.Ready()
		t.Cleanup(func() { _ = registrar.Close() })
	}
	t.Cleanup(func() {
		if err := g.Stop(); err != nil {
			t.Error(err)
		}
	})
}

// answerer asks for a few words and returns the worker that answers.
func answerer(t *testing.T, c *http.Client, s *started, session string, headers ...string) uint64 {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+"/v1/chat/completions", strings.NewReader(
		`{"model":"m","max_tokens":2,"messages":[{"role":"user","content":"Hello"}],"nvext":{"extra_fields":["worker_id"]}}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Dynamo-Session-Id", session)
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var whole struct {
		NVExt struct {
			Worker struct {
				Decode uint64 `json:"decode_worker_id"`
			} `json:"worker_id"`
		} `json:"nvext"`
	}
	b, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK || json.Unmarshal(b, &whole) != nil || whole.NVExt.Worker.Decode == 0 {
		t.Fatalf("%d %s %v", res.StatusCode, b, err)
	}
	return whole.NVExt.Worker.Decode
}

// bound returns how many sessions a frontend knows.
func bound(t *testing.T, c *http.Client, s *started) int {
	t.Helper()
	res, err := c.Get(s.url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		var n int
		if _, err := fmt.Sscanf(line, `portico_sessions{endpoint="dynamo/backend/generate"} %d`, &n); err == nil {
			return n
		}
	}
	return 0
}

// TestSessionsOfReplicas: a session's second request goes to its worker through another frontend, too, and its end holds
// at both.
func TestSessionsOfReplicas(t *testing.T) {
	leaks := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, leaks) })
	c := testkit.Client(t)
	folder := t.TempDir()
	startWorkers(t, 5, folder)
	args := []string{"--discovery-backend", "file", "--file-kv", folder, "--tcp-response-stream-host", "127.0.0.1",
		"--router-mode", "random", "--router-session-affinity-ttl-secs", "600"}
	one, two := startProgram(t, args...), startProgram(t, args...)
	// Frontends that have just come don't hear each other yet: what they miss they are told within seconds.
	until(t, "frontends to hear each other", func() bool {
		answerer(t, c, one, "probe")
		answerer(t, c, two, "probe of the other")
		return bound(t, c, one) == 2 && bound(t, c, two) == 2
	})
	const sessions = 20
	homes := map[string]uint64{}
	for i := range sessions {
		id := fmt.Sprint("session ", i)
		from := one
		if i%2 == 0 {
			from = two
		}
		homes[id] = answerer(t, c, from, id)
	}
	until(t, "both frontends to know all", func() bool { return bound(t, c, one) == sessions+2 && bound(t, c, two) == sessions+2 })
	for id, home := range homes {
		if here, there := answerer(t, c, one, id), answerer(t, c, two, id); here != home || there != home {
			t.Errorf("%s went to %d, %d here and %d there", id, home, here, there)
		}
	}
	for id, home := range homes {
		if last := answerer(t, c, two, id, "x-dynamo-session-final", "true"); last != home {
			t.Errorf("the last of %s went to %d, not %d", id, last, home)
		}
	}
	until(t, "the end of all at both", func() bool { return bound(t, c, one) == 2 && bound(t, c, two) == 2 })
}
