package clients_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/prepost/msgparse"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/server"
	"github.com/portico-llm/portico/internal/testkit"
)

// asItems is the answer as a client of the Responses interface sees it.
type asItems struct {
	Status string   `json:"status"`
	Items  [][]any  `json:"items"`
	Text   string   `json:"text"`
	Total  *float64 `json:"total"`
}

// clientReport is what the scripts print.
type clientReport struct {
	Stream  asItems          `json:"stream"`
	Whole   asItems          `json:"whole"`
	Dense   bool             `json:"dense"`
	Done    [][]any          `json:"done"`
	Deltas  string           `json:"deltas"`
	Parsed  []map[string]any `json:"parsed"`
	Kept    []bool           `json:"kept"`
	Again   []bool           `json:"replayed"`
	Items   []string         `json:"items"`
	Counted int              `json:"counted"`
	Left    []string         `json:"left"`
	Errors  map[string][]any `json:"errors"`
}

// TestResponses: what the official clients make of /v1/responses, streamed and in one body.
func TestResponses(t *testing.T) {
	address, dispatcher := serveModels(t)
	total := float64(len("user: Weather in three cities?\n") + len(answer) + 1)
	message := asItems{"completed", [][]any{
		{"reasoning", "completed", "Three cities, three calls."}, {"message", "completed", "I'll look. "},
		{"function_call", "completed", "get_weather", `{"city": "Oslo"}`},
		{"function_call", "completed", "get_weather", `{"city": "Zürich \"HB\""}`}, {"function_call", "completed", "get_time", "{}"},
	}, "I'll look. ", &total}
	place := map[string]any{"city": "Oslo", "days": 3.0}
	want := clientReport{
		Stream: message, Whole: message, Dense: true, Deltas: "I'll look. ",
		Done:   [][]any{{2.0, "get_weather", `{"city": "Oslo"}`}, {3.0, "get_weather", `{"city": "Zürich \"HB\""}`}, {4.0, "get_time", "{}"}},
		Parsed: []map[string]any{place, place}, Kept: []bool{true, true, true}, Again: []bool{true, true, true}, Counted: len("user: Hello\n"),
		Items: []string{"message", "reasoning", "message", "function_call", "function_call", "function_call", "message"},
		Left:  []string{"response.created"},
		Errors: map[string][]any{
			"deleted": {"NotFoundError", "not_found", nil}, "unknown model": {"NotFoundError", "model_not_found", nil},
			"bad field": {"BadRequestError", "invalid_value", "temperature"},
			"lost":      {"InternalServerError", "service_unavailable", nil}, "lost in a stream": {"APIError", "service_unavailable", nil},
		},
	}
	for _, tt := range []struct{ name, program, dir, script string }{
		{"python", ".build/clients/python/bin/python", "", "tests/clients/python/responses.py"},
		{"node", "node", ".build/clients/node", "tests/clients/node/responses.mjs"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := len(dispatcher.Calls())
			var got clientReport
			if err := json.Unmarshal(runScript(t, tt.program, tt.dir, tt.script, "http://"+address), &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			// The one that was left in the middle has a worker that knows.
			stopped := func() (n int32) {
				for _, c := range dispatcher.Calls()[before:] {
					if c.Call.Endpoint.Name == "slow" {
						n += c.Stops.Load()
					}
				}
				return n
			}
			for end := time.Now().Add(5 * time.Second); stopped() != 1; time.Sleep(5 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("the worker was told %d times", stopped())
				}
			}
		})
	}
}

// TestAgentsSDK lets OpenAI's agents SDK do a small task, in which each call has its result.
func TestAgentsSDK(t *testing.T) {
	address, dispatcher := serveModels(t)
	var got map[string]any
	out := runScript(t, ".build/clients/agents/bin/python", "", "tests/clients/agents/check.py", "http://"+address)
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"called": []any{"Oslo", "Bergen", "Oslo", "Bergen"}, "answer": "Rain in both.", "streamed": "Rain in both.", "deltas": "Rain in both.",
		"items": []any{"reasoning_item", "tool_call_item", "tool_call_item", "tool_call_output_item", "tool_call_output_item", "message_output_item"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// The last request goes on from all that was said before it.
	calls := dispatcher.Calls()
	if last := promptOf(&calls[len(calls)-1].Call); len(calls) != 4 || last != "system: Be brief.\nuser: Weather?\nassistant: \n"+
		"tool: Oslo: rain\ntool: Bergen: rain\nassistant: Rain in both.\nuser: And today?\nassistant: \n"+
		"tool: Oslo: rain\ntool: Bergen: rain\n" {
		t.Errorf("%d calls, the last of them %q", len(calls), last)
	}
}

// promptOf is the prompt of a call to a model whose tokens are bytes.
func promptOf(call *router.Call) string {
	var b []byte
	for _, id := range call.TokenIDs {
		b = append(b, byte(id))
	}
	return string(b)
}

// runScript runs a script with the packages it needs, and returns what it prints.
func runScript(t *testing.T, program, dir, script string, args ...string) []byte {
	t.Helper()
	root := testkit.Root()
	script = filepath.Join(root, script)
	if dir == "" {
		program = filepath.Join(root, program)
	} else { // packages are found from where the script is
		text, err := os.ReadFile(script)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(root, dir, "node_modules")); err != nil {
			t.Skipf("the client isn't installed: tests/clients/setup.sh (%v)", err)
		}
		script = filepath.Join(root, dir, fmt.Sprintf("script-%d.mjs", os.Getpid()))
		if err := os.WriteFile(script, text, 0o600); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(script)
	}
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("the client isn't installed: tests/clients/setup.sh (%v)", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, append([]string{script}, args...)...)
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s%s", err, out, complaints.Bytes())
	}
	return out
}

// serveModels starts a server with a model for each thing that can happen.
func serveModels(t *testing.T) (string, *testkit.Dispatcher) {
	t.Helper()
	bytewise := func(text string) (s testkit.Script) {
		for i := range len(text) {
			s = append(s, json.RawMessage(fmt.Sprintf(`{"token_ids":[%d]}`, text[i])))
		}
		return append(s, json.RawMessage(`{"token_ids":[256],"finish_reason":"stop"}`))
	}
	scripts := map[string]testkit.Script{
		"m": bytewise(answer), "json": bytewise(`{"city": "Oslo", "days": 3}`),
		"agent": bytewise("<think>Two.</think>" + "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>\n" +
			"<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Bergen\"}}\n</tool_call>"),
		"lost": testkit.Items(`[{"token_ids":[65]},{"_lost":true}]`), "slow": testkit.Items(`[{"token_ids":[65]},{"_wait":true}]`),
	}
	models := testkit.Models{}
	for name := range scripts {
		models[name] = testkit.ByteModel(name)
		models[name].Endpoint.Name = name
	}
	for _, name := range []string{"m", "agent"} {
		models[name].ToolParser, models[name].ReasoningParser = "hermes", "qwen3"
	}
	d := &testkit.Dispatcher{Script: func(call *router.Call, _ []byte) (testkit.Script, error) {
		if prompt := promptOf(call); call.Endpoint.Name == "agent" && strings.HasSuffix(prompt, "tool: Bergen: rain\n") {
			return bytewise("Rain in both."), nil
		}
		return scripts[call.Endpoint.Name], nil
	}}
	log := slog.New(slog.DiscardHandler)
	o := server.Options{
		Pipeline: pipeline.New(pipeline.Options{Dispatcher: d, Log: log, Answers: msgparse.Plan}), Catalog: models, Log: log,
	}
	o.Responses.MaxCount = 100
	srv, err := server.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return listen(t, srv), d
}

// TestOpenResponses holds every kind of answer against the published types of the Open Responses specification.
func TestOpenResponses(t *testing.T) {
	address, _ := serveModels(t)
	const tools = `"tools":[{"type":"function","name":"get_weather","parameters":{"type":"object"}},{"type":"function","name":"get_time"}]`
	out := runScript(t, ".build/clients/openresponses/bin/python", "", "tests/clients/openresponses/check.py", "http://"+address,
		`{"model":"m","input":"a",`+tools+`}`,
		`{"model":"m","input":"a",`+tools+`,"reasoning":{"effort":"low","summary":"auto"},"include":["reasoning.encrypted_content"]}`,
		`{"model":"m","input":"a","top_logprobs":1,"instructions":"b","metadata":{"k":"v"},"tool_choice":"none",`+tools+`}`,
		`{"model":"json","input":"a","text":{"format":{"type":"json_schema","name":"n","schema":{"type":"object"}}},"max_output_tokens":50}`,
		`{"model":"lost","input":"a"}`)
	if got := strings.TrimSpace(string(out)); got != "[]" {
		t.Errorf("against the specification: %s", got)
	}
}
