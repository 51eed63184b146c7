package server_test

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/portico-llm/portico/internal/admission"
	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/server"
	"github.com/portico-llm/portico/internal/testkit"
)

// countingText counts how often anything is rendered or tokenised.
type countingText struct {
	prepost.Tokenizer
	prepost.Renderer
	calls *atomic.Int64
}

func (c countingText) Encode(ctx context.Context, text string, special bool) ([]prepost.TokenID, error) {
	c.calls.Add(1)
	return c.Tokenizer.Encode(ctx, text, special)
}

func (c countingText) Render(ctx context.Context, in *prepost.ChatInput) (string, error) {
	c.calls.Add(1)
	return c.Renderer.Render(ctx, in)
}

// gated starts a server whose requests pass a gate. The count is of what was rendered and tokenised.
func gated(t *testing.T, d router.Dispatcher, gate admission.Options, o pipeline.Options, status int) (*stack, *atomic.Int64) {
	t.Helper()
	calls := new(atomic.Int64)
	set := testkit.ByteModel("m")
	text := countingText{set.Tokenizer, set.Renderer, calls}
	set.Tokenizer, set.Renderer = text, text
	o.Dispatcher, o.Gate = d, admission.New(gate)
	return start(t, d, func(so *server.Options) {
		so.Pipeline, so.OverloadStatus = pipeline.New(o), status
		so.Catalog = testkit.Models{"m": set, "text": testkit.TextModel("text")}
	}), calls
}

// streaming opens a stream and returns once its first event is there. The worker goes on until the client leaves.
func (s *stack) streaming(t *testing.T) (leave func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/v1/chat/completions", strings.NewReader(chatStream))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := s.Client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := res.Body.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return func() { cancel(); _ = res.Body.Close() }
}

// TestOverload: beyond the limit and the queue, requests are refused before they cost anything, with the status that
// operators chose and a time to come again; those that waited go on when somebody leaves.
func TestOverload(t *testing.T) {
	endless := testkit.Play(testkit.Items(`[{"token_ids":[72]},{"_wait":true}]`))
	s, calls := gated(t, endless, admission.Options{Limit: 1, Queue: 1, MaxWait: 20 * time.Second}, pipeline.Options{}, 503)
	leave := s.streaming(t)
	type outcome struct {
		leave func()
	}
	waiting := make(chan outcome, 1)
	go func() { waiting <- outcome{s.streaming(t)} }()
	eventually(t, "a request waits", func() bool { return s.metric(t, `dynamo_frontend_queued_requests{model="m"}`) == "1" })
	before := calls.Load()
	for path, body := range endpoints {
		res, got := s.do(t, http.MethodPost, path, body+"}")
		if res.StatusCode != 503 || res.Header.Get("Retry-After") == "" || !strings.Contains(got, `"code":"overloaded"`) {
			t.Errorf("%s: %d %q %s", path, res.StatusCode, res.Header.Get("Retry-After"), got)
		}
	}
	if n := calls.Load() - before; n != 0 {
		t.Errorf("%d calls to render or tokenise for requests that were refused", n)
	}
	// Another model has places of its own.
	if res, got := s.do(t, http.MethodPost, "/v1/chat/completions",
		strings.ReplaceAll(chatBody, `"m"`, `"nobody"`)); res.StatusCode != http.StatusNotFound {
		t.Errorf("an unknown model: %d %s", res.StatusCode, got)
	}
	leave()
	(<-waiting).leave()
	eventually(t, "all places are free", func() bool {
		return s.metric(t, `dynamo_frontend_inflight_requests{model="m"}`) == "0"
	})
	// A mistake of the client's takes no place, nor does a failure on the way.
	for range 3 {
		if res, got := s.do(t, http.MethodPost, "/v1/chat/completions",
			`{"model":"m","messages":[{"role":"user","content":[]}],"nvext":{"token_data":[999]}}`); res.StatusCode != 400 {
			t.Errorf("%d %s", res.StatusCode, got)
		}
	}
	s.streaming(t)()
}

// TestClientLeavesTheQueue: its place goes to the next at once.
func TestClientLeavesTheQueue(t *testing.T) {
	endless := testkit.Play(testkit.Items(`[{"token_ids":[72]},{"_wait":true}]`))
	s, _ := gated(t, endless, admission.Options{Limit: 1, Queue: 1, MaxWait: 20 * time.Second}, pipeline.Options{}, 0)
	leave := s.streaming(t)
	defer leave()
	for range 5 {
		ctx, cancel := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/v1/chat/completions", strings.NewReader(chatBody))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		left := make(chan error, 1)
		go func() {
			res, err := s.Client.Do(req)
			if err == nil {
				_ = res.Body.Close()
			}
			left <- err
		}()
		eventually(t, "a request waits", func() bool { return s.metric(t, `dynamo_frontend_queued_requests{model="m"}`) == "1" })
		cancel()
		if err := <-left; err == nil {
			t.Error("the request was answered")
		}
		eventually(t, "it has left", func() bool { return s.metric(t, `dynamo_frontend_queued_requests{model="m"}`) == "0" })
	}
}

// TestBusyWorkers: when all workers of a model are overloaded, its requests are refused before they cost anything.
func TestBusyWorkers(t *testing.T) {
	var state atomic.Int64
	o := pipeline.Options{Workers: func(set *catalog.Set) func(int64) admission.State {
		return func(int64) admission.State { return admission.State(state.Load()) }
	}}
	s, calls := gated(t, testkit.Play(hello), admission.Options{}, o, 0)
	state.Store(int64(admission.Overloaded))
	res, got := s.do(t, http.MethodPost, "/v1/chat/completions", chatBody)
	if res.StatusCode != 529 || res.Header.Get("Retry-After") != "1" || calls.Load() != 0 {
		t.Errorf("%d %s, %d calls", res.StatusCode, got, calls.Load())
	}
	state.Store(int64(admission.Ready))
	if res, got := s.do(t, http.MethodPost, "/v1/chat/completions", chatBody); res.StatusCode != 200 || calls.Load() != 2 {
		t.Errorf("%d %s, %d calls", res.StatusCode, got, calls.Load())
	}
}
