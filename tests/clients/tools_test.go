// Package clients_test runs the official clients against a server in this process whose worker plays a script.
package clients_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/prepost/msgparse"
	"github.com/portico-llm/portico/internal/server"
	"github.com/portico-llm/portico/internal/testkit"
)

// answer is what the worker generates: a thought, text, and three calls.
const answer = "<think>Three cities, three calls.</think>I'll look. " +
	"<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>\n" +
	"<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich \\\"HB\\\"\"}}\n</tool_call>\n" +
	"<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>"

// seen is a message as a client's own accumulator has it.
type seen struct {
	Content   *string `json:"content"`
	Reasoning *string `json:"reasoning"`
	Calls     [][]any `json:"calls"`
	IDs       int     `json:"ids"`
	Finish    string  `json:"finish"`
}

// TestToolCalls: what the official clients make of a stream with three calls is what they get in one body.
func TestToolCalls(t *testing.T) {
	address := serve(t)
	content, reasoning := "I'll look. ", "Three cities, three calls."
	calls := [][]any{
		{"get_weather", `{"city": "Oslo"}`}, {"get_weather", `{"city": "Zürich \"HB\""}`}, {"get_time", "{}"},
	}
	message := seen{&content, &reasoning, calls, 3, "tool_calls"}
	for _, tt := range []struct{ name, dir, program, script string }{
		{"python", "", ".build/clients/python/bin/python", "tests/clients/python/tools.py"},
		{"node", ".build/clients/node", "node", "tests/clients/node/tools.mjs"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root, err := filepath.Abs("../..")
			if err != nil {
				t.Fatal(err)
			}
			program, script := tt.program, filepath.Join(root, tt.script)
			if strings.Contains(program, "/") {
				program = filepath.Join(root, program)
			}
			if tt.dir != "" { // packages are found from where the script is
				script = copied(t, script, filepath.Join(root, tt.dir), "openai")
			}
			if _, err := exec.LookPath(program); err != nil {
				t.Skipf("the client isn't installed: tests/clients/setup.sh (%v)", err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, program, script, "http://"+address, "m")
			cmd.Stderr = os.Stderr
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			var got struct {
				Stream, Whole seen
				Done          [][]any
			}
			if err := json.Unmarshal(out, &got); err != nil {
				t.Fatalf("%v in %s", err, out)
			}
			if tt.name == "node" { // it joins the fields it knows, and keeps the last piece of others
				got.Stream.Reasoning = got.Whole.Reasoning
			}
			if diff := cmp.Diff(message, got.Stream); diff != "" {
				t.Errorf("streamed, - want, + got:\n%s", diff)
			}
			if diff := cmp.Diff(message, got.Whole); diff != "" {
				t.Errorf("whole, - want, + got:\n%s", diff)
			}
			var done [][]any
			for i, c := range calls {
				done = append(done, []any{c[0], float64(i), c[1]})
			}
			if diff := cmp.Diff(done, got.Done); diff != "" {
				t.Errorf("calls reported as complete, - want, + got:\n%s", diff)
			}
		})
	}
}

// copied puts a script where its packages are installed.
func copied(t *testing.T, script, dir, needs string) string {
	t.Helper()
	if _, err := os.Stat(filepath.Join(dir, "node_modules", needs)); err != nil {
		t.Skipf("the client isn't installed: tests/clients/setup.sh (%v)", err)
	}
	text, err := os.ReadFile(script)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.CreateTemp(dir, "check*.mjs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(f.Name()) })
	if _, err := f.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

// serve starts a server whose worker gives the answer byte by byte.
func serve(t *testing.T) string {
	t.Helper()
	var script testkit.Script
	for i := range len(answer) {
		item, err := json.Marshal(map[string]any{"token_ids": []int{int(answer[i])}})
		if err != nil {
			t.Fatal(err)
		}
		script = append(script, item)
	}
	script = append(script, json.RawMessage(`{"token_ids":[256],"finish_reason":"stop"}`))
	set := testkit.ByteModel("m")
	set.ToolParser, set.ReasoningParser = "hermes", "qwen3"
	log := slog.New(slog.DiscardHandler)
	srv, err := server.New(server.Options{
		Pipeline: pipeline.New(pipeline.Options{Dispatcher: testkit.Play(script), Log: log, Answers: msgparse.Plan}),
		Catalog:  testkit.Models{"m": set}, Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	return listen(t, srv)
}

// listen serves on a free port until the test ends. Every stream that goes out is linted.
func listen(t *testing.T, srv *server.Server) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	hs := &http.Server{Handler: testkit.LintHandler(t, srv.Handler()), ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- hs.Serve(ln) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = hs.Shutdown(ctx)
		if err := <-served; err != http.ErrServerClosed {
			t.Errorf("Serve: %v", err)
		}
	})
	return ln.Addr().String()
}
