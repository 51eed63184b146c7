package simworker_test

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/simworker"
)

// collect is an Output that keeps what it gets.
type collect struct {
	answer
	at   []time.Duration
	from time.Time
	top  [][]worker.TopLogProb
	raw  []string
}

func (c *collect) Send(it *worker.Item) error {
	if c.tokens == nil {
		c.tokens, c.finish = map[uint32][]uint32{}, map[uint32]worker.FinishReason{}
	}
	c.add(it)
	c.at = append(c.at, time.Since(c.from))
	c.top = append(c.top, it.Output.TopLogProbs...)
	return nil
}

func (c *collect) SendJSON(b []byte) error {
	c.raw = append(c.raw, string(b))
	c.at = append(c.at, time.Since(c.from))
	return nil
}

// generate runs an engine without a worker around it.
func generate(t *testing.T, e simworker.Engine, req *worker.Request) *collect {
	t.Helper()
	c := &collect{from: time.Now()}
	if err := e.Generate(t.Context(), &simworker.Request{ID: "r", Tokens: req}, c); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestGenerator asks an echo of the prompt 1, 2, 3 for eight tokens at most, with one thing changed in each case.
func TestGenerator(t *testing.T) {
	const eos = 99
	for _, c := range []struct {
		name   string
		change func(*worker.Request)
		want   []uint32
		finish worker.FinishReason
	}{
		{"natural end", nil, []uint32{1, 2, 3, eos}, worker.FinishEOS},
		{"no end token", func(r *worker.Request) { r.EOSTokenIDs = nil }, []uint32{1, 2, 3}, worker.FinishEOS},
		{"max tokens", func(r *worker.Request) { r.Stop.MaxTokens = ptr[uint32](2) }, []uint32{1, 2}, worker.FinishLength},
		{"stop id", func(r *worker.Request) { r.Stop.StopTokenIDs = []uint32{2} }, []uint32{1, 2}, worker.FinishStop},
		{"hidden stop id", func(r *worker.Request) { r.Stop.StopTokenIDsHidden = []uint32{3} }, []uint32{1, 2, 3}, worker.FinishStop},
		{"min tokens above a stop id", func(r *worker.Request) {
			r.Stop.StopTokenIDs, r.Stop.MinTokens = []uint32{2}, ptr[uint32](3)
		}, []uint32{1, 2, 3, eos}, worker.FinishEOS},
		{"min tokens above the end", func(r *worker.Request) { r.Stop.MinTokens = ptr[uint32](6) },
			[]uint32{1, 2, 3, 1, 2, 3, eos}, worker.FinishEOS},
		{"ignore end", func(r *worker.Request) { r.Stop.IgnoreEOS, r.EOSTokenIDs = ptr(true), nil }, []uint32{1, 2, 3, 1, 2, 3, 1, 2}, worker.FinishLength},
	} {
		t.Run(c.name, func(t *testing.T) {
			req := request(8, 1, 2, 3)
			req.EOSTokenIDs = []uint32{eos}
			if c.change != nil {
				c.change(req)
			}
			got := generate(t, echo(), req)
			if diff := cmp.Diff(c.want, got.tokens[0]); diff != "" {
				t.Errorf("tokens (-want +got):\n%s", diff)
			}
			if got.finish[0] != c.finish {
				t.Errorf("finish %q, want %q", got.finish[0], c.finish)
			}
		})
	}
}

func TestGeneratorChoices(t *testing.T) {
	req := request(4, 1, 2, 3)
	req.Sampling.N = ptr[uint8](3)
	req.Output.Logprobs = ptr[uint32](2)
	ids := []uint32{10, 11, 12, 13, 14, 15, 16, 17, 18, 19}
	e := &simworker.Generator{Source: simworker.Random{IDs: ids}, Seed: 1}
	a, b := generate(t, e, req), generate(t, e, req)
	if diff := cmp.Diff(a.tokens, b.tokens); diff != "" {
		t.Errorf("equal requests differ:\n%s", diff)
	}
	for i := range uint32(3) {
		if len(a.tokens[i]) != 4 || a.finish[i] != worker.FinishLength {
			t.Errorf("choice %d: %v, finish %q", i, a.tokens[i], a.finish[i])
		}
	}
	if slices.Equal(a.tokens[0], a.tokens[1]) && slices.Equal(a.tokens[0], a.tokens[2]) {
		t.Errorf("all choices are equal: %v", a.tokens)
	}
	if a.logs != 12 {
		t.Errorf("%d log probabilities, want 12", a.logs)
	}
	for _, alternatives := range a.top {
		sum := 0.0
		for _, p := range alternatives {
			sum += math.Exp(p.LogProb)
		}
		if len(alternatives) != 2 || sum > 1+1e-9 || alternatives[0].TokenID == alternatives[1].TokenID {
			t.Errorf("alternatives %+v", alternatives)
		}
	}
	req.Sampling.Seed = ptr[int64](7)
	if c := generate(t, e, req); slices.Equal(c.tokens[0], a.tokens[0]) {
		t.Errorf("the seed changes nothing: %v", c.tokens[0])
	}
}

func TestGeneratorRefusesText(t *testing.T) {
	if err := echo().Admit(&simworker.Request{JSON: []byte(`{}`)}); err == nil {
		t.Error("a request without tokens was admitted")
	}
}

func TestTiming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &simworker.Generator{Source: simworker.Echo{}, Timing: simworker.Timing{
			TTFT: 100 * time.Millisecond, PerPromptToken: 10 * time.Millisecond, ITL: 20 * time.Millisecond, Speed: 2,
		}}
		got := generate(t, e, request(3, 1, 2, 3, 4))
		ms := time.Millisecond
		if diff := cmp.Diff([]time.Duration{70 * ms, 80 * ms, 90 * ms}, got.at); diff != "" {
			t.Errorf("times (-want +got):\n%s", diff)
		}
	})
}

func TestTimingJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &simworker.Generator{Source: simworker.Random{IDs: []uint32{1}}, Timing: simworker.Timing{ITL: 10 * time.Millisecond, Jitter: 0.5}}
		const n = 2000
		got := generate(t, e, request(n, 1))
		mean := got.at[n-1] / (n - 1)
		if mean < 9*time.Millisecond || mean > 11*time.Millisecond {
			t.Errorf("mean gap %s, want 10ms", mean)
		}
		if got.at[1]-got.at[0] == got.at[2]-got.at[1] {
			t.Error("no jitter")
		}
	})
}

func TestTimingStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &simworker.Generator{Source: simworker.Echo{}, Timing: simworker.Timing{TTFT: time.Hour}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if err := e.Generate(ctx, &simworker.Request{Tokens: request(1, 1)}, &collect{}); err == nil {
			t.Error("no error")
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("returned after %s", took)
		}
	})
}

func TestScript(t *testing.T) {
	s, err := simworker.ParseScript([]byte(`[
		{"output":{"token_ids":[1]}}, {"delay_ms":30,"item":{"event":"note","comment":["1"]}}, {"error":{"class":"Internal"}}]`))
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		got := generate(t, s, nil)
		want := []string{`{"data":{"token_ids":[1]}}`, `{"event":"note","comment":["1"]}`, `{"event":"error","error":{"class":"Internal"}}`}
		if diff := cmp.Diff(want, got.raw); diff != "" {
			t.Errorf("items (-want +got):\n%s", diff)
		}
		if got.at[1] != 30*time.Millisecond {
			t.Errorf("times %v", got.at)
		}
	})
	if _, err := simworker.ParseScript([]byte(`{`)); err == nil {
		t.Error("a broken script was accepted")
	}
}

func TestVocabulary(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("..", "..", "configs", "models", "smollm2-135m-instruct", "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	v, err := simworker.ParseVocabulary(b)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(v.Plain()); n < 1000 {
		t.Errorf("%d plain tokens", n)
	}
	text, err := simworker.NewText(v.Encode)
	if err != nil || len(text.Passages) < 2 {
		t.Fatalf("%v, %d passages", err, len(text.Passages))
	}
	// " the" and "." are single tokens of any English vocabulary.
	ids, err := v.Encode(" the.")
	if err != nil || len(ids) != 2 {
		t.Errorf("Encode: %v, %v", ids, err)
	}
	if _, err := simworker.ParseVocabulary([]byte(`{"model":{"vocab":{"a":1}}}`)); err == nil {
		t.Error("a vocabulary without all bytes was accepted")
	}
}

func TestTextDependsOnPrompt(t *testing.T) {
	text := &simworker.Text{Passages: [][]uint32{{1}, {2}, {3}, {4}}}
	seen := map[uint32]bool{}
	for i := range uint32(40) {
		got := generate(t, &simworker.Generator{Source: text}, request(1, i))
		seen[got.tokens[0][0]] = true
	}
	if len(seen) < 2 {
		t.Errorf("all prompts had the same answer: %v", seen)
	}
}
