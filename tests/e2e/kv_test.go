package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/portico-llm/portico/tests/e2e/stack"
)

// eventPlanes are how workers tell of their caches.
var eventPlanes = []string{"nats", "zmq"}

// kvStack is a stack whose workers publish their events on a plane.
func kvStack(t *testing.T, events string) *stack.Stack {
	t.Helper()
	dir, err := os.MkdirTemp("", "e2e-kv-")
	if err != nil {
		t.Fatal(err)
	}
	s, err := stack.New(tools, stack.Options{Dir: dir, Plane: stack.PlaneTCP, Backend: stack.BackendFile, ZMQEvents: events == "zmq"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		if t.Failed() {
			t.Logf("logs are in %s", dir)
			return
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Log(err)
		}
	})
	return s
}

// kvMocker starts a worker whose blocks have 16 tokens, and which takes no time worth mentioning.
func kvMocker(t *testing.T, s *stack.Stack) *stack.Process {
	t.Helper()
	return startMocker(t, s, "--kv-bytes-per-token", "131072", "--speedup-ratio", "1000000", "--block-size", "16")
}

// kvFrontend starts a frontend in mode kv and waits until it knows n workers.
func kvFrontend(t *testing.T, s *stack.Stack, kind string, n int, env ...string) *deployment {
	t.Helper()
	if s.NATS != nil {
		env = append(env, "NATS_SERVER="+s.NATS.URL(), "DYN_EVENT_PLANE=nats")
	}
	f, err := s.StartFrontend(kind, append(env, "DYN_ROUTER_MODE=kv", "DYN_LOG=info")...)
	if err != nil {
		t.Fatal(err)
	}
	d := &deployment{Stack: s, frontend: f, client: newClient(t, f.URL)}
	if kind == stack.Portico {
		d.waitWorkers(t, n)
		eventually(t, waitWorker, func() error {
			if got := d.metric(t, "portico_kv_recoveries_total", `outcome="ok"`); int(got) < n {
				return fmt.Errorf("%v workers have told of their caches", got)
			}
			return nil
		})
	} else {
		d.waitModel(t, model, true, waitWorker)
	}
	return d
}

// metric sums the samples of a metric whose labels contain a text.
func (d *deployment) metric(t *testing.T, name, label string) (sum float64) {
	t.Helper()
	_, b := d.client.get(t, "/metrics")
	for line := range strings.Lines(string(b)) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || (rest[0] != '{' && rest[0] != ' ') || !strings.Contains(rest, label) {
			continue
		}
		var v float64
		if _, err := fmt.Sscan(rest[strings.LastIndexByte(rest, ' ')+1:], &v); err != nil {
			t.Fatalf("metric %q: %v", line, err)
		}
		sum += v
	}
	return sum
}

// placed is where a request went, and what the worker found cached.
type placed struct {
	worker         uint64
	prompt, cached int
}

// place sends a prompt and tells what became of it.
func (d *deployment) place(t *testing.T, prompt string) placed {
	t.Helper()
	status, b := d.client.post(t, chatPath, with(distinct(prompt, 4), "nvext", object{"extra_fields": []string{"worker_id"}}))
	if status != http.StatusOK {
		t.Fatalf("status %d: %s", status, b)
	}
	var a struct {
		Usage struct {
			Prompt  int `json:"prompt_tokens"`
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
		NvExt struct {
			Worker struct {
				Decode uint64 `json:"decode_worker_id"`
			} `json:"worker_id"`
		} `json:"nvext"`
	}
	if err := json.Unmarshal(b, &a); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	return placed{a.NvExt.Worker.Decode, a.Usage.Prompt, a.Usage.Details.Cached}
}

// distinct is a request whose rendered prompt differs from others from the first block on: what a template puts in front
// would be cached after the first request, and draw all others to the same worker.
func distinct(prompt string, maxTokens int) object {
	return with(chat(model, "", maxTokens), "messages", []object{{"role": "system", "content": prompt}, {"role": "user", "content": "Go on."}})
}

// longPrompt makes a prompt of some hundred tokens that begins like no other.
func longPrompt(kind int) string {
	return strings.Repeat(fmt.Sprintf("Story %d of the fox and the %d dogs. ", kind, kind*7), 40)
}

// TestKVRouting sends prompts again and finds that each goes where it was; a frontend that is started later learns the
// same by asking, and one whose workers have gone doesn't wait for them.
func TestKVRouting(t *testing.T) {
	dynamoDiffers(t, "its metrics and fields are others")
	for _, events := range eventPlanes {
		t.Run(events, func(t *testing.T) {
			s := kvStack(t, events)
			workers := []*stack.Process{kvMocker(t, s), kvMocker(t, s), kvMocker(t, s)}
			d := kvFrontend(t, s, stack.Portico, len(workers))
			const prompts = 24
			at := map[int]uint64{}
			used := map[uint64]int{}
			blocks := 0.0 // at least
			for i := range prompts {
				p := d.place(t, longPrompt(i))
				if p.worker == 0 || p.cached > 64 {
					t.Fatalf("prompt %d: %+v", i, p)
				}
				at[i] = p.worker
				used[p.worker]++
				blocks += float64(p.prompt / 16)
			}
			if len(used) != len(workers) {
				t.Errorf("%d workers were given prompts: %v", len(used), used)
			}
			entries := func() float64 { return d.metric(t, "dynamo_frontend_kv_index_entries", "") }
			again := func(d *deployment) {
				t.Helper()
				for i := range prompts {
					p := d.place(t, longPrompt(i))
					if p.worker != at[i] || p.cached < p.prompt-32 {
						t.Errorf("prompt %d was at %d, and now: %+v", i, at[i], p)
					}
				}
			}
			eventually(t, 10*time.Second, func() error { // events are quick, but not at once
				if now := entries(); now < blocks {
					return fmt.Errorf("%v blocks of %v are in the index", now, blocks)
				}
				return nil
			})
			again(d)
			if hit, said := d.metric(t, "portico_kv_predicted_cached_tokens_total", ""), d.metric(t, "dynamo_component_router_kv_worker_reused_tokens_total", ""); hit == 0 || hit != said {
				t.Errorf("%v tokens predicted as cached, %v reported", hit, said)
			}
			if gaps := d.metric(t, "portico_kv_event_gaps_total", ""); gaps != 0 {
				t.Errorf("%v gaps", gaps)
			}

			// A restart begins with an empty index and asks.
			d.frontend.Stop(10 * time.Second)
			d = kvFrontend(t, s, stack.Portico, len(workers))
			if got := entries(); got < blocks {
				t.Errorf("%v blocks of %v are in the index after a restart", got, blocks)
			}
			again(d)
			workers[0].Kill()
			for i := range prompts {
				d.place(t, longPrompt(i))
			}
		})
	}
}

// TestKVReplicaSync has a frontend of each kind tell the other of its requests: what one has sent, the other counts.
func TestKVReplicaSync(t *testing.T) {
	dynamoDiffers(t, "it can't be asked what it counts")
	for _, events := range eventPlanes {
		t.Run(events, func(t *testing.T) {
			s := kvStack(t, events)
			startMocker(t, s, "--kv-bytes-per-token", "131072", "--block-size", "16")
			sync1 := "DYN_ROUTER_REPLICA_SYNC=true"
			ours := kvFrontend(t, s, stack.Portico, 1, sync1)
			theirs := kvFrontend(t, s, stack.Dynamo, 1, sync1)
			active := func() float64 { return ours.metric(t, "portico_kv_active_requests", "") }
			eventually(t, 30*time.Second, func() error {
				if n := ours.metric(t, "dynamo_frontend_events_publishers", ""); n < 3 { // the worker publishes on two topics, the other frontend on one
					return fmt.Errorf("%v publishers", n)
				}
				return nil
			})
			time.Sleep(time.Second) // until the publishers know that they are listened to
			var done sync.WaitGroup
			for i := range 8 {
				done.Go(func() { theirs.client.post(t, chatPath, distinct(longPrompt(i), 300)) })
			}
			eventually(t, 20*time.Second, func() error {
				if n := active(); n < 8 {
					return fmt.Errorf("%v requests", n)
				}
				return nil
			})
			done.Wait()
			eventually(t, 20*time.Second, func() error {
				if n := active(); n != 0 {
					return fmt.Errorf("%v requests", n)
				}
				return nil
			})
			// And the other way round: Dynamo counts the messages that it applies.
			before := theirs.metric(t, "dynamo_component_router_active_sequence_ingress_events_applied_total", "")
			ours.place(t, longPrompt(99))
			eventually(t, 20*time.Second, func() error {
				if n := theirs.metric(t, "dynamo_component_router_active_sequence_ingress_events_applied_total", ""); n < before+3 {
					return fmt.Errorf("%v events, %v before", n, before)
				}
				return nil
			})
		})
	}
}
