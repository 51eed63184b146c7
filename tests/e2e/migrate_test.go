package e2e_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

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
			d.client = newClient(d.frontend.URL)
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

// waitWorkers waits until requests are spread over n workers.
func (d *deployment) waitWorkers(t *testing.T, n int) {
	t.Helper()
	d.waitModel(t, model, true, waitWorker)
	eventually(t, waitWorker, func() error {
		_, b := d.client.get(t, "/health")
		if got := strings.Count(string(b), `"endpoint":"generate"`); got < n {
			return fmt.Errorf("%d workers: %s", got, b)
		}
		return nil
	})
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
