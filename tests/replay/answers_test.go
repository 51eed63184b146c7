package replay_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"slices"
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

// answerCase is one recorded script of a worker, and what the client was told of it, in one body and as a stream.
type answerCase struct {
	Name         string          `json:"name"`
	Path         string          `json:"path"`
	Model        string          `json:"model"`
	Request      map[string]any  `json:"request"`
	Items        testkit.Script  `json:"items"`
	Status       int             `json:"status"` // 0: no unary run was recorded
	Body         json.RawMessage `json:"body"`
	StreamStatus int             `json:"stream_status"` // 0: no streamed run
	SSE          []any           `json:"sse"`
	RawSSE       string          `json:"raw_sse"`
	StreamBody   json.RawMessage `json:"stream_body"`
	SawStop      bool            `json:"worker_saw_stop"`
}

// readGzip returns the lines of a compressed file.
func readGzip(t *testing.T, name string) [][]byte {
	t.Helper()
	f, err := os.Open(path.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var out [][]byte
	lines := bufio.NewReader(z)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			out = append(out, line)
		}
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func readAnswers(t *testing.T, name string) []answerCase {
	t.Helper()
	var out []answerCase
	for _, line := range readGzip(t, name) {
		var c answerCase
		if err := json.Unmarshal(line, &c); err != nil {
			t.Fatal(err)
		}
		out = append(out, c)
	}
	return out
}

// allowed is a file of intended differences: a pattern for names, a colon, and the reason.
type allowed struct {
	file   string
	lines  []allowedLine
	fields []string // lines "field NAME: reason": not compared anywhere
}

type allowedLine struct {
	pattern, reason string
	used            bool
}

func readAllowed(t *testing.T, file string) *allowed {
	t.Helper()
	b, err := os.ReadFile(path.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	a := &allowed{file: file}
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		pattern, reason, ok := strings.Cut(line, ": ")
		if !ok || reason == "" {
			t.Fatalf("%s: a line without a reason: %q", file, line)
		}
		if field, ok := strings.CutPrefix(pattern, "field "); ok {
			a.fields = append(a.fields, field)
			continue
		}
		a.lines = append(a.lines, allowedLine{pattern: pattern, reason: reason})
	}
	return a
}

// match reports whether a difference of the named run is intended. In patterns, * stands for anything.
func (a *allowed) match(name string) bool {
	found := false
	for i := range a.lines {
		if wildcard(a.lines[i].pattern, name) {
			a.lines[i].used, found = true, true
		}
	}
	return found
}

// without returns v without the fields that are not compared.
func (a *allowed) without(v any) any {
	switch v := v.(type) {
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = a.without(v[i])
		}
		return out
	case map[string]any:
		out := map[string]any{}
		for k, e := range v {
			if !slices.Contains(a.fields, k) {
				out[k] = a.without(e)
			}
		}
		return out
	}
	return v
}

// wildcard matches a pattern in which * stands for any text, slashes included.
func wildcard(pattern, s string) bool {
	parts := strings.Split(pattern, "*")
	if !strings.HasPrefix(s, parts[0]) {
		return false
	}
	s = s[len(parts[0]):]
	for i, p := range parts[1:] {
		if i == len(parts)-2 {
			return strings.HasSuffix(s, p)
		}
		at := strings.Index(s, p)
		if at < 0 {
			return false
		}
		s = s[at+len(p):]
	}
	return s == ""
}

// stale fails for lines that allow nothing any more.
func (a *allowed) stale(t *testing.T) {
	t.Helper()
	for _, l := range a.lines {
		if !l.used {
			t.Errorf("%s: nothing differs any more for %q", a.file, l.pattern)
		}
	}
}

// replayAnswers runs every case in both modes. What differs from the record has to be listed, and is then pinned to
// what we answer instead.
func replayAnswers(t *testing.T, suite string, count int) {
	plain := answerModel(t, "plain")
	marked := testkit.Models{"plain": fixtureSet(t, "qwen3", "plain", markerTokens()...)}
	listed := readAllowed(t, suite+"_differences.txt")
	var ours bytes.Buffer
	cases := readAnswers(t, suite+".jsonl.gz")
	if len(cases) != count {
		t.Errorf("%d cases, want %d", len(cases), count)
	}
	for _, c := range cases {
		tokens := plain
		if strings.HasPrefix(c.Model, "s.") {
			tokens = marked
		}
		for _, r := range runsOf(t, &c) {
			t.Run(r.name, func(t *testing.T) {
				got := r.play(t, &c, tokens)
				diff := cmp.Diff(listed.without(r.want), listed.without(got), approximately)
				if diff == "" {
					return
				}
				if !listed.match(r.name) {
					t.Errorf("differs from the record and is not listed (-record +ours):\n%s", diff)
					return
				}
				line, err := json.Marshal(got)
				if err != nil {
					t.Fatal(err)
				}
				fmt.Fprintf(&ours, "%s\n\t%s\n", r.name, line)
			})
		}
	}
	if !t.Failed() {
		listed.stale(t)
		testkit.Golden(t, suite+"_ours.golden", ours.Bytes())
	}
}

// approximately compares numbers as 32-bit floats, which is what the recorded server computed in.
var approximately = cmp.Comparer(func(a, b float64) bool {
	return a == b || math.Abs(a-b) <= 1e-6*math.Max(math.Abs(a), math.Abs(b))
})

// answerRun is one mode of a case.
type answerRun struct {
	name   string
	stream bool
	want   any // normalised
}

func runsOf(t *testing.T, c *answerCase) []answerRun {
	var out []answerRun
	if c.Status != 0 {
		var body any
		if err := json.Unmarshal(c.Body, &body); err != nil {
			t.Fatal(err)
		}
		out = append(out, answerRun{c.Name + " unary", false, outcome(c, c.Status, body)})
	}
	if c.StreamStatus == 0 {
		return out
	}
	var body any
	switch {
	case c.RawSSE != "":
		body = answerEvents(t, c.RawSSE)
	case c.SSE != nil:
		body = c.SSE
	default:
		if err := json.Unmarshal(c.StreamBody, &body); err != nil {
			t.Fatal(err)
		}
	}
	return append(out, answerRun{c.Name + " stream", true, outcome(c, c.StreamStatus, body)})
}

// play sends the request to our server, with a worker that follows the script.
func (r *answerRun) play(t *testing.T, c *answerCase, model testkit.Models) any {
	d := &testkit.Dispatcher{Script: func(*router.Call, []byte) (testkit.Script, error) { return withoutPauses(c.Items), nil }}
	request := map[string]any{}
	for k, v := range c.Request {
		request[k] = v
	}
	request["model"] = "plain"
	if request["tools"] != nil {
		request["tools"] = json.RawMessage(parserFile(t, "toolparse/testdata/tools_schema.json"))
	}
	model = testkit.Models{"plain": withParsers(model["plain"], c.Model)}
	if r.stream {
		request["stream"] = true
	} else {
		delete(request, "stream_options")
	}
	body, err := json.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	res := postAnswer(t, d, model, c.Path, body)
	calls := d.Calls()
	if c.SawStop && (len(calls) != 1 || calls[0].Stops.Load() != 1) {
		t.Errorf("the worker was not told to stop")
	}
	if !r.stream || res.Code != http.StatusOK {
		var v any
		if err := json.Unmarshal(res.Body.Bytes(), &v); err != nil {
			t.Fatalf("%d %q: %v", res.Code, res.Body, err)
		}
		return outcome(c, res.Code, v)
	}
	options, _ := request["stream_options"].(map[string]any)
	if err := testkit.Lint(res.Body.Bytes(), testkit.LintOptions{
		Chat: strings.HasPrefix(c.Path, "/v1/chat"), Usage: options["include_usage"] == true,
		ContinuousUsage: options["continuous_usage_stats"] == true,
	}); err != nil {
		t.Errorf("the stream breaks a rule: %v", err)
	}
	return outcome(c, res.Code, answerEvents(t, res.Body.String()))
}

// withParsers is the set with the parsers of a recorded model: t. and s. have a tool parser, r. a reasoning parser, p.
// both, and o. a reasoning parser whose thought the prompt opens.
func withParsers(set *catalog.Set, model string) *catalog.Set {
	out := *set
	switch family, parser, _ := strings.Cut(model, "."); family {
	case "t", "s":
		if parser != "none" {
			out.ToolParser = parser
		}
	case "r":
		out.ReasoningParser = parser
	case "o":
		out.ReasoningParser = parser
		out.Renderer = opening{out.Renderer, (&parsedCase{Name: model, ReasoningParser: parser}).prompt()}
	case "p":
		out.ToolParser, out.ReasoningParser = bothParsers(parser)
	}
	return &out
}

// opening renders prompts with another end.
type opening struct {
	prepost.Renderer
	end string
}

func (o opening) Render(ctx context.Context, in *prepost.ChatInput) (string, error) {
	prompt, err := o.Renderer.Render(ctx, in)
	return prompt + o.end, err
}

// withoutPauses drops the pauses a script makes for a recording.
func withoutPauses(s testkit.Script) testkit.Script {
	return slices.DeleteFunc(slices.Clone(s), func(step json.RawMessage) bool {
		return bytes.Contains(step, []byte(`"_sleep"`))
	})
}

func postAnswer(t *testing.T, d router.Dispatcher, models testkit.Models, path string, body []byte) *httptest.ResponseRecorder {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	srv, err := server.New(server.Options{
		Pipeline: pipeline.New(pipeline.Options{Dispatcher: d, Log: log, Answers: msgparse.Plan}), Catalog: models, FlatErrors: true, Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, bytes.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	res := httptest.NewRecorder()
	testkit.LintHandler(t, srv.Handler()).ServeHTTP(res, req)
	return res
}

// answerEvents turns a stream into the recordings' form.
func answerEvents(t *testing.T, body string) []any {
	t.Helper()
	events, err := testkit.Events([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	var out []any
	for _, e := range events {
		switch {
		case e.Data == "[DONE]":
			out = append(out, "[DONE]")
		case e.Data != "":
			var v any
			if err := json.Unmarshal([]byte(e.Data), &v); err != nil {
				t.Fatal(err)
			}
			out = append(out, v)
		default:
			var comments []any
			for _, s := range e.Comments {
				comments = append(comments, s)
			}
			out = append(out, map[string]any{"event": e.Name, "comment": comments})
		}
	}
	return out
}

// outcome is a status and a body without what is different in every run.
func outcome(c *answerCase, status int, body any) any {
	counted := bytes.Contains(bytes.Join(rawItems(c.Items), nil), []byte(`"prompt_tokens"`))
	return map[string]any{"status": float64(status), "body": normal(body, counted)}
}

func rawItems(s testkit.Script) [][]byte {
	var out [][]byte
	for _, i := range s {
		out = append(out, i)
	}
	return out
}

// normal drops ids, times and nulls, and prompt counts that the worker didn't make: recorded prompts named a script.
func normal(v any, counted bool) any {
	switch v := v.(type) {
	case []any:
		out := []any{}
		for _, e := range v {
			out = append(out, normal(e, counted))
		}
		return out
	case map[string]any:
		out := map[string]any{}
		for k, e := range v {
			switch k {
			case "id", "created", "object", "model", "system_fingerprint", "audio_tokens", "request_id":
				continue
			case "prompt_tokens", "total_tokens":
				if !counted {
					continue
				}
			case "content", "text":
				if e == "" {
					continue
				}
			case "worker_id", "prompt_token_ids", "timing", "token_ids":
				e = "any"
			case "comment":
				if v["event"] == "request_id" || v["event"] == "token_ids" || v["event"] == "formatted_prompt" {
					e = "any"
				}
			}
			if e = normal(e, counted); e != nil {
				out[k] = e
			}
		}
		return out
	}
	return v
}
