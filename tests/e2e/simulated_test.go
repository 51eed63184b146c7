package e2e_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/portico-llm/portico/internal/prepost/modelcard"
	"github.com/portico-llm/portico/internal/router/discovery/file"
	"github.com/portico-llm/portico/internal/simworker"
	"github.com/portico-llm/portico/tests/e2e/stack"
)

// simulate runs a simulated worker in this process, at a component of its own, until cancel or the test's end.
func simulate(t *testing.T, s *stack.Stack, name string, o simworker.Options) (w *simworker.Worker, cancel func()) {
	t.Helper()
	card, err := modelcard.FromFolder(tools.Model(), name)
	if err != nil {
		t.Fatal(err)
	}
	r := file.NewRegistrar(filepath.Join(s.Dir, "kv"))
	id, err := r.InstanceID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	o.Card, o.Registrar, o.InstanceID, o.Log = card, r, id, slog.New(slog.DiscardHandler)
	o.Endpoint.Namespace, o.Endpoint.Component, o.Endpoint.Name = "dynamo", name, "generate"
	if s.Plane == stack.PlaneNATS {
		o.NATSURL = s.NATS.URL()
	}
	if w, err = simworker.New(o); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	ended := false
	cancel = func() {
		stop()
		if ended {
			return
		}
		ended = true
		if err := <-done; err != nil {
			t.Errorf("simulated worker: %v", err)
		}
		if err := r.Close(); err != nil {
			t.Errorf("registrar: %v", err)
		}
	}
	t.Cleanup(cancel)
	select {
	case <-w.Ready():
	case <-time.After(10 * time.Second):
		t.Fatal("the simulated worker is not ready")
	}
	return w, cancel
}

// echo answers with the prompt, a token every millisecond.
func echo() *simworker.Generator {
	return &simworker.Generator{Source: simworker.Echo{}, Timing: simworker.Timing{ITL: time.Millisecond}}
}

// deploySimulated starts a frontend without any worker.
func deploySimulated(t *testing.T, plane string) *deployment {
	t.Helper()
	s := newStack(t, plane, stack.BackendFile)
	d := &deployment{Stack: s, frontend: startFrontend(t, s)}
	d.client = newClient(t, d.frontend.URL)
	return d
}

// TestAppearAndLeave bounds how long a frontend takes to notice a new worker, and one that left in good order.
func TestAppearAndLeave(t *testing.T) {
	for _, plane := range []string{stack.PlaneTCP, stack.PlaneNATS} {
		t.Run(plane, func(t *testing.T) {
			d := deploySimulated(t, plane)
			_, cancel := simulate(t, d.Stack, "sim", simworker.Options{Engine: echo()})
			d.waitModel(t, "sim", true, time.Second)
			a := d.client.unary(t, completionPath, object{"model": "sim", "prompt": "one two three", "max_tokens": 3})
			if got := a.Choices[0].Text; got != "one two three" {
				t.Errorf("echo %q", got)
			}
			cancel()
			d.waitModel(t, "sim", false, time.Second)
		})
	}
}

// TestBrokenWorkers checks what a client sees of each way in which a worker breaks the protocol. A failure before the
// first token is a status, later it is an error event; it is never a clean end, and never silence.
func TestBrokenWorkers(t *testing.T) {
	d := deploySimulated(t, stack.PlaneTCP)
	for _, c := range []struct {
		fault  simworker.Fault
		stream bool   // the failure comes after the stream has begun
		reason string // why the reference behaves otherwise
	}{
		{fault: simworker.Fault{Kind: simworker.Overloaded}},
		{fault: simworker.Fault{Kind: simworker.Unknown}},
		{fault: simworker.Fault{Kind: simworker.NoAck}},
		{fault: simworker.Fault{Kind: simworker.NeverCall}, reason: "it waits for the call back as long as the client does"},
		{fault: simworker.Fault{Kind: simworker.NoHandshake}, reason: "it waits for the call back as long as the client does"},
		{fault: simworker.Fault{Kind: simworker.BadSubject}, reason: "it waits for the call back as long as the client does"},
		{fault: simworker.Fault{Kind: simworker.HandshakeOnly}},
		{fault: simworker.Fault{Kind: simworker.ErrorPrologue}},
		{fault: simworker.Fault{Kind: simworker.DieAfter, After: 3}, stream: true},
		{fault: simworker.Fault{Kind: simworker.ErrorAfter, After: 3}, stream: true},
		{fault: simworker.Fault{Kind: simworker.GarbageAfter, After: 3}, stream: true},
		{fault: simworker.Fault{Kind: simworker.BadItemAfter, After: 3}, stream: true},
	} {
		t.Run(string(c.fault.Kind), func(t *testing.T) {
			if c.reason != "" {
				dynamoDiffers(t, c.reason)
			}
			name := "sim-" + string(c.fault.Kind)
			w, cancel := simulate(t, d.Stack, name, simworker.Options{
				Engine: echo(), CloseWait: time.Second,
				Fault: func(*simworker.Request) simworker.Fault { return c.fault },
			})
			defer cancel()
			d.waitModel(t, name, true, 10*time.Second)
			request := object{"model": name, "prompt": "one two three four five six", "max_tokens": 6, "stream": true}
			checkBroken(t, d.client, request, c.stream)
			if s := w.Stats(); s.Received+s.Refused == 0 && c.fault.Kind != simworker.Unknown && c.fault.Kind != simworker.NoAck {
				t.Errorf("the worker saw nothing: %+v", s)
			}
		})
	}
}

// TestEndMarkMissing loses a worker between the last finish reason and its end mark: the client has all there is.
func TestEndMarkMissing(t *testing.T) {
	d := deploySimulated(t, stack.PlaneTCP)
	simulate(t, d.Stack, "sim", simworker.Options{
		Engine: echo(), CloseWait: time.Second,
		Fault: func(*simworker.Request) simworker.Fault { return simworker.Fault{Kind: simworker.NoFinal} },
	})
	d.waitModel(t, "sim", true, 10*time.Second)
	s := d.client.stream(t, completionPath, object{"model": "sim", "prompt": "one two three", "max_tokens": 3})
	if !s.done || len(s.errors) > 0 || s.cut != nil || s.text[0] != "one two three" || s.finish[0] != "length" {
		t.Errorf("stream %+v", s)
	}
}

// checkBroken sends a streamed request that must fail.
func checkBroken(t *testing.T, c *client, request object, inStream bool) {
	t.Helper()
	began := time.Now()
	res := c.start(t, t.Context(), completionPath, request)
	defer res.Body.Close()
	if !inStream {
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		if res.StatusCode < http.StatusInternalServerError {
			t.Errorf("status %d: %s", res.StatusCode, b)
		}
		t.Logf("status %d after %s: %s", res.StatusCode, time.Since(began).Round(time.Millisecond), b)
		return
	}
	s := fold(res.Body)
	if res.StatusCode != http.StatusOK || len(s.errors) != 1 {
		t.Errorf("status %d, stream %+v", res.StatusCode, s)
	}
	t.Logf("after %s: %q", time.Since(began).Round(time.Millisecond), s.errors)
}

// TestSlowWorkerIsNotBroken has a worker that dials back late and sends slowly: nothing fails.
func TestSlowWorkerIsNotBroken(t *testing.T) {
	d := deploySimulated(t, stack.PlaneTCP)
	for _, fault := range []simworker.Fault{
		{Kind: simworker.SlowCall, Delay: 2 * time.Second}, {Kind: simworker.SlowItems, Delay: 300 * time.Millisecond},
		{Kind: simworker.NoSentinel},
	} {
		t.Run(string(fault.Kind), func(t *testing.T) {
			name := "sim-" + string(fault.Kind)
			_, cancel := simulate(t, d.Stack, name, simworker.Options{
				Engine: echo(), Fault: func(*simworker.Request) simworker.Fault { return fault },
			})
			defer cancel()
			d.waitModel(t, name, true, 10*time.Second)
			s := d.client.stream(t, completionPath, object{"model": name, "prompt": "one two three", "max_tokens": 3})
			if !s.done || len(s.errors) > 0 || s.text[0] != "one two three" {
				t.Errorf("stream %+v", s)
			}
		})
	}
}
