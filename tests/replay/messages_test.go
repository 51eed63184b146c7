package replay_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/prepost/executor"
	"github.com/portico-llm/portico/internal/prepost/msgparse"
	"github.com/portico-llm/portico/internal/prepost/tokenizer"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/server"
	"github.com/portico-llm/portico/internal/testkit"
)

// messageCase is one recorded request in Anthropic's form: what a worker was told, and what the client was.
type messageCase struct {
	answerCase
	Request      json.RawMessage `json:"request"` // as text: the order of keys shows in prompts
	Preprocessed map[string]any  `json:"preprocessed"`
	PromptText   string          `json:"prompt_text"`
}

// TestMessages replays every recorded request in Anthropic's form in both modes. What reaches the worker and what
// reaches the client is compared with the record; what differs has to be listed, and is then pinned to ours.
func TestMessages(t *testing.T) {
	models := answerModel(t, "plain")
	models["p.hermes_qwen3"] = withParsers(models["plain"], "p.hermes_qwen3")
	prompt := &textModel{}
	models["p.gpt_oss"] = harmonyModel(t, models["plain"], prompt)
	listed := readAllowed(t, "messages_differences.txt")
	var ours bytes.Buffer
	judge := func(t *testing.T, name string, want, got any) {
		want, got = listed.without(normalMessage(want)), listed.without(normalMessage(got))
		diff := cmp.Diff(want, got, approximately)
		if diff == "" {
			return
		}
		if !listed.match(name) {
			t.Errorf("%s differs from the record and is not listed (-record +ours):\n%s", name, diff)
			return
		}
		line, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&ours, "%s\n\t%s\n", name, line)
	}
	ran := 0
	for _, line := range readGzip(t, "messages.jsonl.gz") {
		var c messageCase
		if err := json.Unmarshal(line, &c); err != nil {
			t.Fatal(err)
		}
		ran++
		prompt.prompt = c.PromptText
		t.Run(c.Name, func(t *testing.T) {
			c.unary(t, models, judge)
			if c.StreamStatus != 0 {
				c.streamed(t, models, judge)
			}
		})
	}
	if ran != 62 {
		t.Errorf("%d cases, want 62", ran)
	}
	if !t.Failed() {
		listed.stale(t)
		testkit.Golden(t, "messages_ours.golden", ours.Bytes())
	}
}

// harmonyModel is a model that writes Harmony, with a template that isn't at hand.
func harmonyModel(t *testing.T, base *catalog.Set, template prepost.Renderer) *catalog.Set {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testkit.Fixture(t, "gptoss"), "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	registry := executor.NewRegistry(executor.Options{Workers: 1, Log: log})
	tok, err := tokenizer.Load(t.Context(), tokenizer.Options{JSON: text, Registry: registry, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, c := range []interface{ Close() error }{tok, registry} {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	set := withParsers(base, "p.gpt_oss")
	set.Renderer, set.Tokenizer = template, tok
	set.EOS = []uint32{200002, 199999, 200012}
	return set
}

// marker is what recorded prompts have in the place of @.
var marker = regexp.MustCompile(`SCRIPT:\w+;`)

// post sends the request and returns the answer, and what the worker was told: nil when there was no worker.
func (c *messageCase) post(t *testing.T, models testkit.Models, stream bool) (*httptest.ResponseRecorder, []byte) {
	t.Helper()
	body := bytes.Clone(c.Request)
	if stream {
		body = append([]byte(`{"stream":true,`), body[1:]...)
	}
	if m := marker.FindString(c.PromptText); m != "" {
		body = bytes.ReplaceAll(body, []byte("@"), []byte(m))
	}
	d := &testkit.Dispatcher{Script: func(*router.Call, []byte) (testkit.Script, error) { return withoutPauses(c.Items), nil }}
	log := slog.New(slog.DiscardHandler)
	srv, err := server.New(server.Options{
		Pipeline: pipeline.New(pipeline.Options{Dispatcher: d, Log: log, Answers: msgparse.Plan}), Catalog: models, Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, c.Path, bytes.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Anthropic-Version", "2023-06-01")
	res := httptest.NewRecorder()
	testkit.LintHandler(t, srv.Handler()).ServeHTTP(res, req)
	if calls := d.Calls(); len(calls) == 1 {
		return res, calls[0].Body
	}
	return res, nil
}

func (c *messageCase) unary(t *testing.T, models testkit.Models, judge func(*testing.T, string, any, any)) {
	res, told := c.post(t, models, false)
	var want, got any
	for _, v := range []struct {
		text []byte
		to   *any
	}{{c.Body, &want}, {res.Body.Bytes(), &got}} {
		if err := json.Unmarshal(v.text, v.to); err != nil {
			t.Fatalf("%v in %s", err, v.text)
		}
	}
	judge(t, c.Name+" unary", map[string]any{"status": float64(c.Status), "body": want},
		map[string]any{"status": float64(res.Code), "body": got})
	if c.Preprocessed == nil {
		return
	}
	sent := map[string]any{}
	if err := json.Unmarshal(told, &sent); err != nil {
		t.Fatalf("%v in %s", err, told)
	}
	delete(sent, "mdc_sum")
	delete(c.Preprocessed, "mdc_sum")
	sent["model"] = c.Model
	judge(t, c.Name+" worker", c.Preprocessed, sent)
}

func (c *messageCase) streamed(t *testing.T, models testkit.Models, judge func(*testing.T, string, any, any)) {
	res, _ := c.post(t, models, true)
	var want any
	switch {
	case c.RawSSE != "":
		want = messageEvents(t, c.RawSSE)
	case c.SSE != nil:
		var list []any
		for _, e := range c.SSE {
			if data := e.(map[string]any)["data"]; data != "[DONE]" {
				list = append(list, data)
			}
		}
		want = list
	default:
		if err := json.Unmarshal(c.StreamBody, &want); err != nil {
			t.Fatal(err)
		}
	}
	var got any
	if res.Code == http.StatusOK {
		if err := testkit.LintMessages(res.Body.Bytes()); err != nil {
			t.Errorf("the stream breaks a rule: %v\n%s", err, res.Body)
		}
		got = messageEvents(t, res.Body.String())
	} else if err := json.Unmarshal(res.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	judge(t, c.Name+" stream", map[string]any{"status": float64(c.StreamStatus), "body": want},
		map[string]any{"status": float64(res.Code), "body": got})
}

// normalMessage drops what differs from run to run or says nothing: ids, nulls, no cached tokens. The deltas of a block
// become one: how an answer is cut is not what is compared. Recorded deltas have a usage, which no client of
// Anthropic's reads; recorded message_starts have an estimate of the prompt's length, ours have the length.
func normalMessage(v any) any {
	switch v := v.(type) {
	case []any:
		out := []any{}
		for _, e := range v {
			m, _ := e.(map[string]any)
			if m["type"] == "content_block_delta" {
				delete(m, "usage")
				if n := len(out); n > 0 && joinDeltas(out[n-1], m) {
					continue
				}
			}
			out = append(out, normalMessage(e))
		}
		return out
	case map[string]any:
		out := map[string]any{}
		for k, e := range v {
			id, _ := e.(string)
			switch {
			case k == "id" && (strings.HasPrefix(id, "msg_") || strings.HasPrefix(id, "toolu_")):
				e, _, _ = strings.Cut(id, "_")
			case k == "request_id", k == "cache_read_input_tokens" && e == 0.0:
				continue
			case k == "message" && v["type"] == "message_start":
				e.(map[string]any)["usage"].(map[string]any)["input_tokens"] = "any"
			}
			if e = normalMessage(e); e != nil {
				out[k] = e
			}
		}
		return out
	}
	return v
}

// joinDeltas adds a delta to the one before it, if both are of one block and one type.
func joinDeltas(before any, next map[string]any) bool {
	b, _ := before.(map[string]any)
	x, _ := b["delta"].(map[string]any)
	y, _ := next["delta"].(map[string]any)
	if b["type"] != "content_block_delta" || x["type"] != y["type"] || b["index"] != next["index"] {
		return false
	}
	for _, k := range []string{"text", "thinking", "partial_json"} {
		if s, ok := y[k].(string); ok {
			x[k] = x[k].(string) + s
		}
	}
	return true
}

// messageEvents are the data of a stream's events, but for pings and the end mark that the record has.
func messageEvents(t *testing.T, body string) []any {
	t.Helper()
	events, err := testkit.Events([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	var out []any
	for _, e := range events {
		if e.Data == "[DONE]" || e.Name == "ping" {
			continue
		}
		var v any
		if err := json.Unmarshal([]byte(e.Data), &v); err != nil {
			t.Fatalf("%v in %q", err, e.Data)
		}
		if !strings.Contains(e.Data, `"type":"`+e.Name+`"`) {
			t.Errorf("an event of the name %s: %s", e.Name, e.Data)
		}
		out = append(out, v)
	}
	return out
}
