package replay_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/busy"
	"github.com/portico-llm/portico/internal/server"
	"github.com/portico-llm/portico/internal/testkit"
)

// surfaceCase is one request to a whole frontend with a simulated engine, and its answer.
type surfaceCase struct {
	Name     string            `json:"name"`
	Method   string            `json:"method"`
	Path     string            `json:"path"`
	Headers  map[string]string `json:"headers"`
	Request  string            `json:"request"`
	Status   int               `json:"status"`
	Response map[string]string `json:"response_headers"`
	Body     string            `json:"body"`
}

// TestC1 replays the requests of a session with a whole frontend: each gets the same status and an answer of the same
// shape. The engine drew its tokens at random, so values are compared only where they come from the request.
func TestC1(t *testing.T) {
	listed := readAllowed(t, "c1_differences.txt")
	handler := surface(t)
	var ours bytes.Buffer
	for _, line := range readGzip(t, "c1.jsonl.gz") {
		var c surfaceCase
		if err := json.Unmarshal(line, &c); err != nil {
			t.Fatal(err)
		}
		t.Run(c.Name, func(t *testing.T) {
			c.restore()
			req := httptest.NewRequestWithContext(t.Context(), c.Method, c.Path, strings.NewReader(c.Request))
			for k, v := range c.Headers {
				req.Header.Set(k, v)
			}
			res := httptest.NewRecorder()
			handler.ServeHTTP(res, req)
			c.lint(t, res)
			want := c.view(t, c.Status, c.Response["content-type"], c.Body)
			got := c.view(t, res.Code, res.Header().Get("Content-Type"), res.Body.String())
			diff := cmp.Diff(listed.without(want), listed.without(got))
			if diff == "" {
				return
			}
			if !listed.match(c.Name) {
				t.Errorf("differs from the record and is not listed (-record +ours):\n%s", diff)
				return
			}
			line, err := json.Marshal(got)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&ours, "%s\n\t%s\n", c.Name, line)
		})
	}
	if !t.Failed() {
		listed.stale(t)
		testkit.Golden(t, "c1_ours.golden", ours.Bytes())
	}
}

// restore puts back the bodies that were too long to record.
func (c *surfaceCase) restore() {
	text := ""
	switch c.Name {
	case "huge_body_50mb":
		text = strings.Repeat("a", 50<<20)
	case "prompt_too_long":
		text = strings.Repeat("hello world ", 30000)
	default:
		return
	}
	c.Request = `{"model":"qwen3","max_tokens":8,"messages":[{"role":"user","content":"` + text + `"}]}`
}

// surface is our server with the recorded model and an engine that behaves as the simulated one did.
func surface(t *testing.T) http.Handler {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	reg := prometheus.NewRegistry()
	engine := &testkit.Dispatcher{Script: simulate}
	srv, err := server.New(server.Options{
		Pipeline: pipeline.New(pipeline.Options{Dispatcher: engine, Registerer: reg, Log: log}),
		Catalog:  answerModel(t, "qwen3"),
		Instances: func() []*worker.Instance {
			return []*worker.Instance{{
				Namespace: "dynamo", Component: "backend", Endpoint: "generate", InstanceID: 15802136853926196221,
				Transport:  worker.Transport{TCP: "127.0.0.1:43211/db4c77bece6133fd/dynamo/backend/generate"},
				DeviceType: "cuda", CodecName: "msgpack",
			}}
		},
		Thresholds: &operator{},
		OpenAPI:    []byte(`{"openapi":"3.1.0"}`),
		FlatErrors: true, Log: log, Registerer: reg, Gatherer: reg,
	})
	if err != nil {
		t.Fatal(err)
	}
	return testkit.LintHandler(t, srv.Handler())
}

// operator holds the thresholds of the one model that is served.
type operator struct{ now worker.LoadThresholds }

func (o *operator) List() any { return []busy.ModelThresholds{{Model: "qwen3", LoadThresholds: o.now}} }

func (o *operator) Of(model string) (worker.LoadThresholds, bool) { return o.now, model == "qwen3" }

func (o *operator) Set(model string, t worker.LoadThresholds) (worker.LoadThresholds, bool, error) {
	if model != "qwen3" {
		return worker.LoadThresholds{}, false, nil
	}
	o.now = t
	return o.now, true, nil
}

// simulate answers with as many tokens as were asked for, one in each item, and then the reason and the count.
func simulate(_ *router.Call, body []byte) (testkit.Script, error) {
	q, err := worker.DecodeRequest(worker.JSON, body)
	if err != nil {
		return nil, err
	}
	n := 8
	if q.Stop.MaxTokens != nil {
		n = int(min(*q.Stop.MaxTokens, 64))
	}
	var s testkit.Script
	for range n {
		s = append(s, json.RawMessage(`{"token_ids":[9707]}`))
	}
	return append(s, json.RawMessage(fmt.Sprintf(
		`{"token_ids":[],"finish_reason":"length","completion_usage":{"prompt_tokens":%d,"completion_tokens":%d,`+
			`"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":0}}}`,
		len(q.TokenIDs), n, len(q.TokenIDs)+n))), nil
}

// lint checks our stream against OpenAI's rules.
func (c *surfaceCase) lint(t *testing.T, res *httptest.ResponseRecorder) {
	t.Helper()
	if res.Header().Get("Content-Type") != "text/event-stream" {
		return
	}
	var req struct {
		StreamOptions struct {
			IncludeUsage         bool `json:"include_usage"`
			ContinuousUsageStats bool `json:"continuous_usage_stats"`
		} `json:"stream_options"`
	}
	if err := json.Unmarshal([]byte(c.Request), &req); err != nil {
		t.Fatal(err)
	}
	if c.Path == "/v1/responses" {
		if err := testkit.LintResponses(res.Body.Bytes()); err != nil {
			t.Errorf("the stream breaks a rule: %v", err)
		}
		return
	}
	if err := testkit.Lint(res.Body.Bytes(), testkit.LintOptions{
		Chat: c.Path == "/v1/chat/completions", Usage: req.StreamOptions.IncludeUsage,
		ContinuousUsage: req.StreamOptions.ContinuousUsageStats,
	}); err != nil {
		t.Errorf("the stream breaks a rule: %v", err)
	}
}

// view is what of an answer is compared: the status, the type, and the body's shape.
func (c *surfaceCase) view(t *testing.T, status int, contentType, body string) any {
	t.Helper()
	out := map[string]any{"status": status, "type": contentType}
	switch {
	case c.Method == http.MethodHead || strings.HasPrefix(c.Name, "get_metrics") || c.Name == "get_openapi":
		if strings.HasPrefix(contentType, "text/plain") {
			out["type"] = "text/plain"
		}
	case contentType == "text/event-stream":
		events := slices.CompactFunc(answerEvents(t, body), func(a, b any) bool {
			return cmp.Equal(shape("", a), shape("", b))
		})
		out["body"] = shape("", events)
	case contentType == "application/json":
		var v any
		if err := json.Unmarshal([]byte(body), &v); err != nil {
			t.Fatal(err)
		}
		out["body"] = shape("", v)
	default:
		out["body"] = len(body) > 0
	}
	return out
}

// kept are the fields whose values come from the request.
var kept = []string{"object", "model", "role", "prompt_tokens", "type", "code", "owned_by", "status", "index"}

// shape replaces values by their kinds. Null is the same as absent.
func shape(field string, v any) any {
	switch v := v.(type) {
	case []any:
		out := []any{}
		for _, e := range v {
			s := shape("", e)
			if len(out) == 0 || !cmp.Equal(out[len(out)-1], s) {
				out = append(out, s)
			}
		}
		return out
	case map[string]any:
		out := map[string]any{}
		for k, e := range v {
			if s := shape(k, e); s != nil {
				out[k] = s
			}
		}
		return out
	case nil:
		return nil
	}
	if slices.Contains(kept, field) {
		return v
	}
	return fmt.Sprintf("%T", v)
}
