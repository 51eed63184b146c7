package e2e_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/tests/e2e/stack"
)

// TestWorkerKilledAmongTwo kills one of two workers under twenty streams: the other goes on with all of them.
func TestWorkerKilledAmongTwo(t *testing.T) {
	dynamoDiffers(t, "it lets requests move only when it is told to")
	const streams, tokens = 20, 400
	for _, cell := range cells[:2] {
		t.Run(cell.plane+"/"+cell.backend, func(t *testing.T) {
			s := newStack(t, cell.plane, cell.backend)
			doomed := startMocker(t, s)
			startMocker(t, s)
			d := &deployment{Stack: s, frontend: startFrontend(t, s)}
			d.client = newClient(t, d.frontend.URL)
			d.waitWorkers(t, 2)

			request := with(with(chat(model, "Tell me a long story.", tokens), "stream", true),
				"stream_options", object{"include_usage": true})
			answers := make([]streamed, streams)
			var running, done sync.WaitGroup
			running.Add(streams)
			for i := range answers {
				done.Go(func() {
					res := d.client.start(t, t.Context(), chatPath, request)
					defer res.Body.Close()
					body := &announced{Reader: res.Body, after: 4 << 10, reached: running.Done}
					answers[i] = fold(body)
					body.end()
				})
			}
			running.Wait()
			doomed.Kill()
			done.Wait()
			for i, a := range answers {
				if !a.done || a.cut != nil || len(a.errors) > 0 || a.finish[0] != "length" || a.roles != 1 || a.trailing > 0 {
					t.Errorf("stream %d: done %t, cut %v, errors %v, finish %v, %d roles", i, a.done, a.cut, a.errors, a.finish, a.roles)
				}
				checkUsage(t, a.usage, tokens)
				if a.usage != nil && answers[0].usage != nil && a.usage.Prompt != answers[0].usage.Prompt {
					t.Errorf("stream %d: %d prompt tokens, another has %d", i, a.usage.Prompt, answers[0].usage.Prompt)
				}
			}
			moved := d.moved(t)
			t.Logf("%d of %d streams went on at the other worker", moved, streams)
			if moved == 0 {
				t.Error("no stream has moved: the worker was killed too late to say anything")
			}
		})
	}
}

// TestModelMoves freezes a worker with a real model in the middle of its answer, lets another one join, and kills the
// first: what the client reads is what the model would have said anyway.
func TestModelMoves(t *testing.T) {
	dynamoDiffers(t, "it lets requests move only when it is told to")
	s := newStack(t, stack.PlaneTCP, stack.BackendFile)
	first, err := s.RealWorker()
	if err != nil {
		t.Fatal(err)
	}
	d := &deployment{Stack: s, frontend: startFrontend(t, s)}
	d.client = newClient(t, d.frontend.URL)
	d.waitModel(t, "smollm2", true, waitWorker)
	request := with(with(with(chat("smollm2", "Tell me a story in French about a café.", 120), "temperature", 0),
		"stream", true), "stream_options", object{"include_usage": true})
	want := d.client.stream(t, chatPath, request)
	known := d.instances(t)

	res := d.client.start(t, t.Context(), chatPath, request)
	defer res.Body.Close()
	frozen := make(chan struct{})
	body := &announced{Reader: res.Body, after: 6 << 10, reached: func() {
		first.Signal(syscall.SIGSTOP)
		close(frozen)
	}}
	read := make(chan streamed, 1)
	go func() {
		read <- fold(body)
		body.end()
	}()
	<-frozen
	if _, err := s.RealWorker(); err != nil {
		t.Fatal(err)
	}
	eventually(t, waitWorker, func() error {
		for id := range d.instances(t) {
			if !known[id] {
				return nil
			}
		}
		return errors.New("the other worker hasn't joined")
	})
	first.Kill()
	got := <-read
	if diff := cmp.Diff(want.text, got.text); diff != "" {
		t.Errorf("text (-unfailed +got):\n%s", diff)
	}
	if diff := cmp.Diff(want.usage, got.usage); diff != "" || !got.done || len(got.errors) > 0 || got.finish[0] != want.finish[0] {
		t.Errorf("usage (-unfailed +got):\n%s\nstream %+v", diff, got)
	}
	if n := d.moved(t); n != 1 {
		t.Errorf("%d requests moved", n)
	}
}

// announced is a body that tells once when enough of it has been read, or it has ended.
type announced struct {
	io.Reader
	after   int // bytes still to be read
	reached func()
	told    bool
}

// Read implements io.Reader.
func (a *announced) Read(p []byte) (int, error) {
	n, err := a.Reader.Read(p)
	if a.after -= n; a.after <= 0 {
		a.end()
	}
	return n, err
}

func (a *announced) end() {
	if !a.told {
		a.told = true
		a.reached()
	}
}

// waitWorker bounds the start of a worker.
const waitWorker = time.Minute

// waitWorkers waits until requests are spread over n workers.
func (d *deployment) waitWorkers(t *testing.T, n int) {
	t.Helper()
	d.waitModel(t, model, true, waitWorker)
	eventually(t, waitWorker, func() error {
		if got := len(d.instances(t)); got < n {
			return fmt.Errorf("%d workers", got)
		}
		return nil
	})
}

// instances returns the ids of the workers.
func (d *deployment) instances(t *testing.T) map[uint64]bool {
	t.Helper()
	_, b := d.client.get(t, "/health")
	var h struct {
		Instances []struct {
			ID uint64 `json:"instance_id"`
		} `json:"instances"`
	}
	if err := json.Unmarshal(b, &h); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	out := map[uint64]bool{}
	for _, in := range h.Instances {
		out[in.ID] = true
	}
	return out
}

// moved returns how many requests went on at another worker.
func (d *deployment) moved(t *testing.T) (n int) {
	t.Helper()
	_, b := d.client.get(t, "/metrics")
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, "dynamo_frontend_model_migration_total{") && strings.Contains(line, `"ongoing_request"`) &&
			strings.Contains(line, `outcome="success"`) {
			fmt.Sscanf(line[strings.LastIndex(line, " ")+1:], "%d", &n)
		}
	}
	return n
}
