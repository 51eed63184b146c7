package replay_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/prepost/msgparse"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/server"
	"github.com/portico-llm/portico/internal/testkit"
)

// responsesCase is one recorded request of the Responses interface: what the worker got, what it sent, and what the
// client was told.
type responsesCase struct {
	Name         string                     `json:"name"`
	Model        string                     `json:"model"`
	Request      map[string]json.RawMessage `json:"request"`
	Items        testkit.Script             `json:"items"`
	Status       int                        `json:"status"`
	Body         json.RawMessage            `json:"body"`
	StreamStatus int                        `json:"stream_status"`
	SSE          []any                      `json:"sse"`
	RawSSE       string                     `json:"raw_sse"`
	StreamBody   json.RawMessage            `json:"stream_body"`
	Preprocessed map[string]any             `json:"preprocessed"` // nil: nothing reached the worker, or it wasn't noted
	PromptText   string                     `json:"prompt_text"`
}

// TestResponses replays every case in both modes, and compares what the worker got, too. What differs from the record
// has to be listed, and is then pinned to what we answer instead.
func TestResponses(t *testing.T) {
	qwen, harmony := fixtureSet(t, "qwen3", "plain"), fixtureSet(t, "gptoss", "plain")
	listed := readAllowed(t, "responses_differences.txt")
	var ours bytes.Buffer
	cases := 0
	for _, line := range readGzip(t, "responses.jsonl.gz") {
		var c responsesCase
		if err := json.Unmarshal(line, &c); err != nil {
			t.Fatal(err)
		}
		cases++
		set := qwen
		if strings.HasSuffix(c.Model, ".gpt_oss") {
			set = harmony
		}
		for _, mode := range []string{"unary", "stream", "worker"} {
			name := c.Name + " " + mode
			want, got := c.run(t, name, mode, set)
			if diff := cmp.Diff(listed.without(want), listed.without(got), approximately); diff == "" {
				continue
			} else if !listed.match(name) {
				t.Errorf("%s differs from the record and is not listed (-record +ours):\n%s", name, diff)
				continue
			}
			text, err := json.Marshal(got)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&ours, "%s\n\t%s\n", name, text)
		}
	}
	if cases != 59 {
		t.Errorf("%d cases, want 59", cases)
	}
	if !t.Failed() {
		listed.stale(t)
		testkit.Golden(t, "responses_ours.golden", ours.Bytes())
	}
}

// run plays a case in one mode and returns what was recorded and what came, both without what differs in every run. The
// mode worker is about the request that the worker got.
func (c *responsesCase) run(t *testing.T, name, mode string, set *catalog.Set) (want, got any) {
	d := &testkit.Dispatcher{Script: func(*router.Call, []byte) (testkit.Script, error) { return withoutPauses(c.Items), nil }}
	res := c.post(t, d, mode == "stream", set)
	if mode == "worker" {
		return c.worker(t, d, set)
	}
	status, body := c.Status, c.Body
	if mode == "stream" {
		status, body = c.StreamStatus, c.StreamBody
	}
	want = responseOutcome(status, decoded(t, body))
	if mode == "stream" && status == http.StatusOK {
		want = responseOutcome(status, c.events(t))
	}
	if mode == "unary" || res.Code != http.StatusOK {
		return want, responseOutcome(res.Code, decoded(t, res.Body.Bytes()))
	}
	if err := testkit.LintResponses(res.Body.Bytes()); err != nil {
		t.Errorf("%s: the stream breaks a rule: %v", name, err)
	}
	return want, responseOutcome(res.Code, eventList(t, res.Body.String()))
}

// post sends the request to our server, with the prompt's marker in place.
func (c *responsesCase) post(t *testing.T, d router.Dispatcher, stream bool, set *catalog.Set) *httptest.ResponseRecorder {
	t.Helper()
	request := maps.Clone(c.Request)
	request["model"] = json.RawMessage(`"plain"`)
	if stream {
		request["stream"] = json.RawMessage("true")
	}
	body, err := json.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	body = bytes.ReplaceAll(body, []byte("@"), []byte(c.marker()))
	served := withParsers(set, c.Model)
	if strings.HasSuffix(c.Model, ".gpt_oss") { // recorded with a template of three lines
		served.Renderer, served.EOS = recorded(c.PromptText), []uint32{200002, 199999, 200012}
	}
	log := slog.New(slog.DiscardHandler)
	o := server.Options{
		Pipeline: pipeline.New(pipeline.Options{Dispatcher: d, Log: log, Answers: msgparse.Plan}),
		Catalog:  testkit.Models{"plain": served}, FlatErrors: true, Log: log,
	}
	if string(c.Request["store"]) == "true" { // as for the recorded server, responses aren't kept unless asked to
		o.Responses.MaxCount = 1
	}
	srv, err := server.New(o)
	if err != nil {
		t.Fatal(err)
	}
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/responses", bytes.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	res := httptest.NewRecorder()
	testkit.LintHandler(t, srv.Handler()).ServeHTTP(res, req)
	return res
}

// marker is the text that named the script.
func (c *responsesCase) marker() string {
	if i := strings.Index(c.PromptText, "SCRIPT:"); i >= 0 {
		if end := strings.IndexByte(c.PromptText[i:], ';'); end >= 0 {
			return c.PromptText[i : i+end+1]
		}
	}
	return "@"
}

// recorded is a template that has one prompt.
type recorded string

func (r recorded) Render(context.Context, *prepost.ChatInput) (string, error) { return string(r), nil }

// worker compares what the worker got with what was recorded.
func (c *responsesCase) worker(t *testing.T, d *testkit.Dispatcher, set *catalog.Set) (want, got any) {
	t.Helper()
	calls := d.Calls()
	if c.Preprocessed == nil && (c.Status != http.StatusOK) != (len(calls) == 0) {
		return "a request reaches the worker: " + fmt.Sprint(c.Status == http.StatusOK), fmt.Sprint(len(calls))
	}
	if c.Preprocessed == nil {
		return nil, nil
	}
	if len(calls) != 1 {
		return "a call", fmt.Sprintf("%d calls", len(calls))
	}
	var sent map[string]any
	if err := json.Unmarshal(calls[0].Body, &sent); err != nil {
		t.Fatal(err)
	}
	text, err := set.Tokenizer.Decode(calls[0].Call.TokenIDs, false)
	if err != nil {
		t.Fatal(err)
	}
	sent["prompt"] = text
	c.Preprocessed["prompt"] = c.PromptText
	for _, m := range []map[string]any{sent, c.Preprocessed} {
		for _, k := range []string{"token_ids", "mdc_sum", "model"} {
			delete(m, k)
		}
	}
	return withoutNulls(c.Preprocessed), withoutNulls(sent)
}

// withoutNulls drops what says nothing.
func withoutNulls(v any) any {
	m, ok := v.(map[string]any)
	if !ok {
		return v
	}
	out := map[string]any{}
	for k, e := range m {
		if e = withoutNulls(e); e != nil {
			out[k] = e
		}
	}
	return out
}

func decoded(t *testing.T, body []byte) any {
	t.Helper()
	if len(body) == 0 {
		return nil
	}
	var v any
	if err := json.Unmarshal(body, &v); err != nil {
		t.Fatalf("%v: %q", err, body)
	}
	return v
}

// events returns the recorded stream.
func (c *responsesCase) events(t *testing.T) []any {
	t.Helper()
	if c.RawSSE != "" {
		return eventList(t, c.RawSSE)
	}
	var out []any
	for _, e := range c.SSE {
		if e.(map[string]any)["data"] == "[DONE]" {
			out = append(out, "[DONE]")
			continue
		}
		out = append(out, e.(map[string]any)["data"])
	}
	return out
}

// eventList is a stream's data. Their names are checked by the linter.
func eventList(t *testing.T, body string) []any {
	t.Helper()
	events, err := testkit.Events([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	var out []any
	for _, e := range events {
		if e.Data == "[DONE]" {
			out = append(out, "[DONE]")
			continue
		}
		out = append(out, decoded(t, []byte(e.Data)))
	}
	return out
}

// responseOutcome is a status and a body without ids, times and nulls.
func responseOutcome(status int, body any) any {
	return map[string]any{"status": float64(status), "body": responseNormal(body)}
}

func responseNormal(v any) any {
	switch v := v.(type) {
	case []any:
		out := []any{}
		for _, e := range v {
			out = append(out, responseNormal(e))
		}
		return out
	case map[string]any:
		out := map[string]any{}
		for k, e := range v {
			switch k {
			case "object": // left out in recorded bodies
				continue
			case "id", "item_id", "call_id", "created_at", "completed_at", "timing", "model":
				if e != nil {
					e = "any"
				}
			}
			if e = responseNormal(e); e != nil {
				out[k] = e
			}
		}
		return out
	}
	return v
}
