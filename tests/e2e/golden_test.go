package e2e_test

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/tests/e2e/stack"
)

// golden is a request at temperature 0 with its recorded answer.
type golden struct {
	Path         string          `json:"path"`
	Request      object          `json:"request"`
	ResponseText string          `json:"response_text"`
	FinishReason string          `json:"finish_reason"`
	Usage        usage           `json:"usage"`
	Logprobs     json.RawMessage `json:"logprobs"`
}

// TestGolden sends recorded requests to a real model: template, tokens, stop handling and text must all be right for
// the answers to be the recorded ones.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("../peers/golden/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("golden answers: %v, %d files", err, len(files))
	}
	for _, cell := range cells[:2] {
		t.Run(cell.plane+"/"+cell.backend, func(t *testing.T) {
			s := newStack(t, cell.plane, cell.backend)
			if _, err := s.RealWorker(); err != nil {
				t.Fatal(err)
			}
			d := &deployment{Stack: s, frontend: startFrontend(t, s)}
			d.client = newClient(t, d.frontend.URL)
			d.waitModel(t, "smollm2", true, time.Minute)
			for _, file := range files {
				t.Run(filepath.Base(file), func(t *testing.T) { checkGolden(t, d.client, file) })
			}
		})
	}
}

func checkGolden(t *testing.T, c *client, file string) {
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var g golden
	if err := json.Unmarshal(b, &g); err != nil {
		t.Fatal(err)
	}
	a := c.unary(t, g.Path, g.Request)
	if len(a.Choices) != 1 || a.Choices[0].FinishReason == nil {
		t.Fatalf("answer %+v", a)
	}
	one := a.Choices[0]
	text := one.Text
	if one.Message != nil {
		text = one.Message.Content
	}
	if diff := cmp.Diff(g.ResponseText, text); diff != "" {
		t.Errorf("text (-recorded +got):\n%s", diff)
	}
	if *one.FinishReason != g.FinishReason {
		t.Errorf("finish reason %q, recorded %q", *one.FinishReason, g.FinishReason)
	}
	if a.Usage == nil || *a.Usage != g.Usage {
		t.Errorf("usage %+v, recorded %+v", a.Usage, g.Usage)
	}
	if g.Logprobs != nil {
		checkLogprobs(t, &a, g.Logprobs)
	}
	s := c.stream(t, g.Path, with(g.Request, "stream_options", object{"include_usage": true}))
	if diff := cmp.Diff(g.ResponseText, s.text[0]); diff != "" {
		t.Errorf("streamed text (-recorded +got):\n%s", diff)
	}
	if s.finish[0] != g.FinishReason || !s.done || s.usage == nil || *s.usage != g.Usage {
		t.Errorf("streamed: finish reason %q, done %v, usage %+v", s.finish[0], s.done, s.usage)
	}
}

// checkLogprobs compares tokens exactly and probabilities within what float arithmetic on another CPU may change.
func checkLogprobs(t *testing.T, a *answer, recorded json.RawMessage) {
	t.Helper()
	want := a.Choices[0].Logprobs
	if want == nil {
		t.Fatal("no logprobs")
	}
	got := *want
	want = nil
	if err := json.Unmarshal(recorded, &want); err != nil {
		t.Fatal(err)
	}
	near := cmp.Comparer(func(x, y float64) bool { return math.Abs(x-y) <= 1e-3 })
	if diff := cmp.Diff(*want, got, near); diff != "" {
		t.Errorf("logprobs (-recorded +got):\n%s", diff)
	}
}

// TestClients runs the official clients.
func TestClients(t *testing.T) {
	d, _ := deploy(t, stack.PlaneTCP, stack.BackendFile)
	runClients(t, d.frontend.URL)
}
