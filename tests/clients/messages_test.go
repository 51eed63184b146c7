package clients_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/prepost/msgparse"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/server"
	"github.com/portico-llm/portico/internal/testkit"
)

// bytewise is a script that gives a text byte by byte and ends it.
func bytewise(t *testing.T, text string) testkit.Script {
	t.Helper()
	var script testkit.Script
	for i := range len(text) {
		item, err := json.Marshal(map[string]any{"token_ids": []int{int(text[i])}})
		if err != nil {
			t.Fatal(err)
		}
		script = append(script, item)
	}
	return append(script, json.RawMessage(`{"token_ids":[256],"finish_reason":"stop"}`))
}

// byLastWord is a worker that answers by the last word of the prompt, whose tokens are bytes.
type byLastWord struct {
	scripts  map[string]testkit.Script
	failures map[string]*fault.Error
}

func (b *byLastWord) script(call *router.Call, _ []byte) (testkit.Script, error) {
	var prompt []byte
	for _, id := range call.TokenIDs {
		prompt = append(prompt, byte(id))
	}
	words := strings.Fields(string(prompt))
	word := words[len(words)-1]
	if f := b.failures[word]; f != nil {
		return nil, f
	}
	if s, ok := b.scripts[word]; ok {
		return s, nil
	}
	return nil, fault.New(fault.Internal, "no script for %q", word)
}

// TestAnthropicClient runs the official client's checks: accumulated streams, tools, counting, and the exceptions it
// raises. A stream that is closed early stops its worker.
func TestAnthropicClient(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	python := filepath.Join(root, ".build/clients/anthropic/bin/python")
	if _, err := exec.LookPath(python); err != nil {
		t.Skipf("the client isn't installed: tests/clients/setup.sh (%v)", err)
	}
	endless := testkit.Items(`[{"token_ids":[97]},{"_wait":true}]`)
	worker := &byLastWord{
		scripts: map[string]testkit.Script{
			"text": bytewise(t, "Hello, wörld"), "calls": bytewise(t, answer), "json": bytewise(t, `{"city":"Oslo"}`),
			"long": testkit.Items(`[{"token_ids":[97,98,99,100,101],"finish_reason":"length"}]`),
			"cached": testkit.Items(`[{"token_ids":[97],"finish_reason":"stop","completion_usage":{"prompt_tokens":100,
				"completion_tokens":1,"total_tokens":101,"prompt_tokens_details":{"cached_tokens":64}}}]`),
			"fails":   testkit.Items(`[{"_raise":"boom"}]`),
			"breaks":  testkit.Items(`[{"token_ids":[97]},{"_sleep":0.05},{"token_ids":[98]},{"_sleep":0.05},{"_raise":"boom"}]`),
			"endless": endless,
		},
		failures: map[string]*fault.Error{
			"limited": fault.New(fault.RateLimited, "Slow down"), "full": fault.New(fault.Overloaded, "Full"),
		},
	}
	d := &testkit.Dispatcher{Script: worker.script}
	address := serveWith(t, d, 16<<10)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, filepath.Join(root, "tests/clients/anthropic/messages.py"), "http://"+address, "m")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
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
		if !check.OK {
			t.Errorf("%s: %s", check.Check, check.Detail)
		}
	}
	if checks != 12 {
		t.Errorf("%d checks ran, want 12", checks)
	}
	left := func(c *testkit.Played) bool { return c.Stops.Load() > 0 && !c.Ended.Load() }
	for end := time.Now().Add(10 * time.Second); !slices.ContainsFunc(d.Calls(), left); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no worker was told that its client had left")
		}
	}
}

// serveWith starts a server over a dispatcher, with bodies up to a limit.
func serveWith(t *testing.T, d router.Dispatcher, limit int64) string {
	t.Helper()
	set := testkit.ByteModel("m")
	set.ToolParser, set.ReasoningParser = "hermes", "qwen3"
	log := slog.New(slog.DiscardHandler)
	srv, err := server.New(server.Options{
		Pipeline: pipeline.New(pipeline.Options{Dispatcher: d, Log: log, Answers: msgparse.Plan}),
		Catalog:  testkit.Models{"m": set}, Log: log, BodyLimit: limit,
	})
	if err != nil {
		t.Fatal(err)
	}
	return listen(t, srv)
}
