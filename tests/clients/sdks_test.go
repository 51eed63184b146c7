package clients_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/prepost/msgparse"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/server"
	"github.com/portico-llm/portico/internal/testkit"
)

// greeting is what the models that only chat say.
const greeting = "Hello there, friend."

// plays are the answers of the models that the SDKs' checks ask, by model.
var plays = map[string]func(messages int) testkit.Script{
	"chat":   func(int) testkit.Script { return spoken(greeting) },
	"tools":  func(int) testkit.Script { return spoken(answer) },
	"json":   func(int) testkit.Script { return spoken(`{"name": "Ada", "age": 36}`) },
	"forced": func(int) testkit.Script { return spoken(`{"city": "Oslo"}`) },
	"agent": func(messages int) testkit.Script { // asks for tools, and answers when it has their results
		if messages < 4 {
			return spoken(answer)
		}
		return spoken(greeting)
	},
	"shell": func(messages int) testkit.Script { // a command, and then what it has shown
		if messages < 4 {
			return spoken("<tool_call>\n{\"name\": \"local_shell\", \"arguments\": {\"command\": [\"ls\", \"-l\"]}}\n</tool_call>")
		}
		return spoken(greeting)
	},
	"own": func(messages int) testkit.Script { // two of OpenAI's own tools, and then what came of them
		if messages < 4 {
			return spoken("<tool_call>\n{\"name\": \"shell\", \"arguments\": {\"commands\": [\"ls\", \"wc a\"]}}\n</tool_call>\n" +
				"<tool_call>\n{\"name\": \"apply_patch\", \"arguments\": {\"diff\": \"+\\\"a\\\"\", \"type\": \"create_file\", \"path\": \"x\"}}\n</tool_call>")
		}
		return spoken(greeting)
	},
	"broken": func(int) testkit.Script { return testkit.Items(`[{"_raise":"secret"}]`) },
	"breaks": func(int) testkit.Script {
		return testkit.Items(`[{"token_ids":[72]},{"token_ids":[101]},{"token_ids":[108]},{"_raise":"secret"}]`)
	},
	"slow": func(int) testkit.Script { return testkit.Items(`[{"token_ids":[72,101,108,108,111]},{"_wait":true}]`) },
}

// spoken is a text token by token, which are bytes here.
func spoken(text string) testkit.Script {
	var s testkit.Script
	for _, b := range []byte(text) {
		item, err := json.Marshal(map[string]any{"token_ids": []int{int(b)}})
		if err != nil {
			panic(err)
		}
		s = append(s, item)
	}
	return append(s, json.RawMessage(`{"token_ids":[256],"finish_reason":"stop"}`))
}

// stage is a server whose workers play.
type stage struct {
	address    string
	dispatcher *testkit.Dispatcher

	mu   sync.Mutex
	sent []sentBody // guarded by mu
}

// sentBody is a request body as a client sent it.
type sentBody struct {
	Path string          `json:"path"`
	Body json.RawMessage `json:"body"`
}

// newStage starts a server; nobody but the tests' clients talks to it.
func newStage(t *testing.T) *stage {
	t.Helper()
	models := testkit.Models{"embed": testkit.TaskModel("embed", "Embedding", "Text")}
	for name := range plays {
		set := testkit.ByteModel(name)
		set.Renderer = turns{}
		if name == "tools" || name == "agent" || name == "forced" || name == "shell" || name == "own" {
			set.ToolParser = "hermes"
		}
		if name == "tools" || name == "agent" {
			set.ReasoningParser = "qwen3"
		}
		models[name] = set
	}
	s := &stage{dispatcher: &testkit.Dispatcher{Script: playFor(models)}}
	log := slog.New(slog.DiscardHandler)
	opts := server.Options{
		Pipeline: pipeline.New(pipeline.Options{Dispatcher: s.dispatcher, Log: log, Answers: msgparse.Plan}),
		Catalog:  models, Log: log, OpenAPI: document(t),
	}
	opts.Responses.MaxCount = 100 // some SDKs name items in place of sending them again
	srv, err := server.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.address = ln.Addr().String()
	hs := &http.Server{Handler: s.recording(testkit.LintHandler(t, srv.Handler())), ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- hs.Serve(ln) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = hs.Shutdown(ctx)
		<-served
	})
	return s
}

// playFor chooses the script by the model a worker is asked for.
func playFor(models map[string]*catalog.Set) func(*router.Call, []byte) (testkit.Script, error) {
	return func(_ *router.Call, body []byte) (testkit.Script, error) {
		var q struct {
			Model    string
			Input    json.RawMessage
			TokenIDs []int `json:"token_ids"`
		}
		if err := json.Unmarshal(body, &q); err != nil {
			return nil, err
		}
		if models[q.Model].TakesText() {
			return vectors(q.Input), nil
		}
		messages := 0
		for _, id := range q.TokenIDs {
			if id == '\n' {
				messages++
			}
		}
		return plays[q.Model](messages), nil
	}
}

// vectors answers an embeddings request: of each text its length, and a half.
func vectors(input json.RawMessage) testkit.Script {
	var lengths []int
	var texts []string
	var ids [][]uint32
	switch {
	case json.Unmarshal(input, &texts) == nil:
		for _, text := range texts {
			lengths = append(lengths, len(text))
		}
	case json.Unmarshal(input, &ids) == nil:
		for _, one := range ids {
			lengths = append(lengths, len(one))
		}
	default: // one text, or the ids of one
		lengths = []int{len(strings.Trim(string(input), `"`))}
	}
	data, tokens := []any{}, 0
	for i, n := range lengths {
		data = append(data, map[string]any{"index": i, "embedding": []float64{float64(n), 0.5}})
		tokens += n
	}
	item, err := json.Marshal(map[string]any{"data": data, "usage": map[string]int{"prompt_tokens": tokens, "total_tokens": tokens}})
	if err != nil {
		panic(err)
	}
	return testkit.Script{item}
}

// recording keeps what clients send.
func (s *stage) recording(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil && json.Valid(body) {
			s.mu.Lock()
			s.sent = append(s.sent, sentBody{r.URL.Path, body})
			s.mu.Unlock()
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r)
	})
}

// TestSDKs runs each SDK's checks. What they send is kept with -update.
func TestSDKs(t *testing.T) {
	if testing.Short() {
		t.Skip("short: the SDKs take long to load")
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	python := func(env string) string { return filepath.Join(root, ".build", "clients", env, "bin", "python") }
	for _, sdk := range []struct {
		name, program, script string
		cancels               int // streams that the checks leave early
	}{
		{"openai-python", python("python"), "python/sdk_check.py", 1},
		{"openai-node", "node", "node/openai.mjs", 1},
		{"openai-agents", python("agents"), "agents/sdk_check.py", 1},
		{"ai", "node", "node/ai.mjs", 2},
		{"langchain", python("sdks"), "sdks/langchain_check.py", 1},
		{"llamaindex", python("sdks"), "sdks/llamaindex_check.py", 1},
		{"instructor", python("sdks"), "sdks/instructor_check.py", 1},
	} {
		t.Run(sdk.name, func(t *testing.T) {
			script := filepath.Join(root, "tests", "clients", sdk.script)
			if sdk.program == "node" {
				script = copied(t, script, filepath.Join(root, ".build", "clients", "node"), "ai")
			}
			if _, err := exec.LookPath(sdk.program); err != nil {
				t.Skipf("the SDK isn't installed: tests/clients/setup.sh (%v)", err)
			}
			s := newStage(t)
			s.run(t, sdk.program, script, "PYTHONPATH="+filepath.Join(root, "tests", "clients", "sdks"))
			s.stopped(t, sdk.cancels)
			if testkit.Updating() {
				s.keep(t, sdk.name)
			}
		})
	}
}

// run runs a script that prints a JSON line per check.
func (s *stage) run(t *testing.T, program, script string, env ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, script, "http://"+s.address)
	// None of them is to send anything anywhere else.
	cmd.Env = append(os.Environ(), "LANGSMITH_TRACING=false", "ANONYMIZED_TELEMETRY=False", "AI_SDK_LOG_WARNINGS=false",
		"no_proxy=127.0.0.1", "PYTHONDONTWRITEBYTECODE=1")
	cmd.Env = append(cmd.Env, env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s%s", err, out, stderr.Bytes())
	}
	checks := 0
	for line := range strings.Lines(string(out)) {
		var check struct {
			Check, Detail string
			OK            bool
		}
		if err := json.Unmarshal([]byte(line), &check); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		checks++
		t.Run(check.Check, func(t *testing.T) {
			if !check.OK {
				t.Error(check.Detail)
			}
		})
	}
	if checks == 0 {
		t.Error("no checks ran")
	}
}

// stopped waits until the workers of abandoned streams have been told.
func (s *stage) stopped(t *testing.T, want int) {
	t.Helper()
	got := 0
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		got = 0
		for _, call := range s.dispatcher.Calls() {
			if bytes.Contains(call.Body, []byte(`"model":"slow"`)) {
				got += int(call.Stops.Load())
			}
		}
		if got >= want {
			break
		}
	}
	if got != want {
		t.Errorf("workers were told %d times that nobody listens, want %d", got, want)
	}
}

// keep writes what the SDK sent, each body of a shape of its own once.
func (s *stage) keep(t *testing.T, name string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var out bytes.Buffer
	seen := map[string]bool{}
	for _, b := range s.sent {
		line, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		if !seen[string(line)] {
			seen[string(line)] = true
			out.Write(append(line, '\n'))
		}
	}
	if err := os.WriteFile(filepath.Join("testdata", "bodies", name+".jsonl"), out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestKeptBodies: what the SDKs send is accepted, also where they aren't installed. Bodies that were sent to be refused
// ask for temperature 17 or a model that isn't there.
func TestKeptBodies(t *testing.T) {
	files, err := filepath.Glob("testdata/bodies/*.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ai", "instructor", "langchain", "llamaindex", "openai-agents", "openai-node", "openai-python"} {
		if !slices.Contains(files, filepath.Join("testdata", "bodies", name+".jsonl")) {
			t.Errorf("nothing is kept of what %s sends", name)
		}
	}
	for _, file := range files {
		lines, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(strings.TrimSuffix(filepath.Base(file), ".jsonl"), func(t *testing.T) {
			s := newStage(t)
			for line := range bytes.Lines(lines) {
				var b sentBody
				if err := json.Unmarshal(line, &b); err != nil {
					t.Fatal(err)
				}
				var q struct {
					Model       string
					Temperature float64
				}
				_ = json.Unmarshal(b.Body, &q)
				if q.Temperature == 17 || q.Model == "none" || q.Model == "broken" || q.Model == "slow" {
					continue
				}
				res, err := testkit.Client(t).Post("http://"+s.address+b.Path, "application/json", bytes.NewReader(b.Body))
				if err != nil {
					t.Fatal(err)
				}
				text, _ := io.ReadAll(res.Body)
				_ = res.Body.Close()
				if res.StatusCode != http.StatusOK {
					t.Errorf("%d for %s: %s", res.StatusCode, b.Body, text)
				}
			}
		})
	}
}
