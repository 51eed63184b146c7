package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/portico-llm/portico/tests/e2e/stack"
)

// The event planes: how workers tell of their caches.
const (
	eventsNATS = "nats"
	eventsZMQ  = "zmq"
)

// kvCell is a deployment in mode kv.
type kvCell struct{ plane, backend, events string }

// kvCells have every discovery backend with every event plane, and recovery queries over both request planes.
var kvCells = []kvCell{
	{stack.PlaneTCP, stack.BackendFile, eventsNATS},
	{stack.PlaneNATS, stack.BackendEtcd, eventsZMQ},
	{stack.PlaneTCP, stack.BackendEtcd, eventsNATS},
	{stack.PlaneTCP, stack.BackendFile, eventsZMQ},
}

// eventCells differ in the event plane alone.
var eventCells = []kvCell{kvCells[0], kvCells[3]}

func (c kvCell) String() string { return c.plane + "/" + c.backend + "/" + c.events }

// kvStack is the stack of a cell.
func kvStack(t *testing.T, c kvCell) *stack.Stack {
	t.Helper()
	dir, err := os.MkdirTemp("", "e2e-kv-")
	if err != nil {
		t.Fatal(err)
	}
	s, err := stack.New(tools, stack.Options{Dir: dir, Plane: c.plane, Backend: c.backend, ZMQEvents: c.events == eventsZMQ})
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
	env = append(append(s.EventEnv(), env...), "DYN_ROUTER_MODE=kv", "DYN_LOG=info")
	f, err := s.StartFrontend(kind, env...)
	if err != nil {
		t.Fatal(err)
	}
	d := &deployment{Stack: s, frontend: f, client: newClient(t, f.URL)}
	if kind == stack.Portico {
		d.waitWorkers(t, n)
		d.waitRecoveries(t, n)
	} else {
		d.waitModel(t, model, true, waitWorker)
	}
	return d
}

// waitRecoveries waits until workers have told n times of their caches.
func (d *deployment) waitRecoveries(t *testing.T, n int) {
	t.Helper()
	eventually(t, waitWorker, func() error {
		if got := d.recoveries(t); got < n {
			return fmt.Errorf("workers have told %d times of their caches, want %d", got, n)
		}
		return nil
	})
}

// recoveries is how often workers have told of their caches.
func (d *deployment) recoveries(t *testing.T) int {
	t.Helper()
	return int(d.metric(t, "portico_kv_recoveries_total", `outcome="ok"`))
}

// entries is how many blocks are in the index.
func (d *deployment) entries(t *testing.T) float64 {
	t.Helper()
	return d.metric(t, "dynamo_frontend_kv_index_entries", "")
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

// kvRun is a deployment in mode kv with prompts that have been sent.
type kvRun struct {
	*deployment
	at     map[int]uint64 // where each prompt was sent last
	blocks float64        // of the prompts that were sent for the first time, at least
}

// send sends prompts for the first time.
func (k *kvRun) send(t *testing.T, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		p := k.place(t, longPrompt(i))
		if p.worker == 0 || p.cached > 64 {
			t.Fatalf("prompt %d: %+v", i, p)
		}
		k.at[i] = p.worker
		k.blocks += float64(p.prompt / 16)
	}
}

// again sends all prompts once more: each is found where it was, and the router has known.
func (k *kvRun) again(t *testing.T) {
	t.Helper()
	predicted, reported := k.hits(t)
	for i, worker := range k.at {
		p := k.place(t, longPrompt(i))
		if p.worker != worker || p.cached < p.prompt-32 {
			t.Errorf("prompt %d was at %d, and now: %+v", i, worker, p)
		}
	}
	after, said := k.hits(t)
	if after -= predicted; after == 0 || after != said-reported {
		t.Errorf("%v tokens predicted as cached, %v reported", after, said-reported)
	}
}

// hits are the prompt tokens that the router thought cached, and those that the workers found.
func (d *deployment) hits(t *testing.T) (predicted, reported float64) {
	t.Helper()
	return d.metric(t, "portico_kv_predicted_cached_tokens_total", ""), d.metric(t, "dynamo_component_router_kv_worker_reused_tokens_total", "")
}

// agrees waits until the index equals that of a frontend that is started now, and asks the workers for all they hold. It
// returns how many blocks that is.
func (k *kvRun) agrees(t *testing.T, workers int) (blocks float64) {
	t.Helper()
	fresh := kvFrontend(t, k.Stack, stack.Portico, workers)
	defer fresh.frontend.Stop(10 * time.Second)
	eventually(t, waitWorker, func() error {
		ours, theirs := k.entries(t), fresh.entries(t)
		if blocks = ours; ours != theirs {
			return fmt.Errorf("%v blocks in the index, a fresh frontend has %v", ours, theirs)
		}
		return nil
	})
	if blocks < k.blocks {
		t.Errorf("%v blocks in the index, of %v that were sent", blocks, k.blocks)
	}
	return blocks
}

// TestKVRouting sends prompts again and finds that each goes where it was: while nothing happens, after a restart of the
// frontend, of the NATS server, and of a worker.
func TestKVRouting(t *testing.T) {
	dynamoDiffers(t, "its metrics and fields are others")
	const workers, prompts = 3, 40
	for i, cell := range kvCells {
		t.Run(cell.String(), func(t *testing.T) {
			if i >= 2 && testing.Short() {
				t.Skip("short: both backends and both event planes have been seen")
			}
			s := kvStack(t, cell)
			first := kvMocker(t, s)
			for range workers - 1 {
				kvMocker(t, s)
			}
			k := &kvRun{deployment: kvFrontend(t, s, stack.Portico, workers), at: map[int]uint64{}}
			k.send(t, 0, prompts)
			used := map[uint64]bool{}
			for _, worker := range k.at {
				used[worker] = true
			}
			if len(used) != workers {
				t.Errorf("%d workers were given prompts", len(used))
			}
			k.agrees(t, workers)
			k.again(t)
			if gaps := k.metric(t, "portico_kv_event_gaps_total", ""); gaps != 0 {
				t.Errorf("%v gaps, though nothing was lost", gaps)
			}
			k.restart(t, workers)
			if s.NATS != nil {
				k.natsOutage(t, cell, workers)
			}
			k.workerRestart(t, cell, first, workers)
		})
	}
}

// restart starts the frontend again: it begins with an empty index and asks.
func (k *kvRun) restart(t *testing.T, workers int) {
	t.Helper()
	want := k.agrees(t, workers)
	k.frontend.Stop(10 * time.Second)
	k.deployment = kvFrontend(t, k.Stack, stack.Portico, workers)
	eventually(t, waitWorker, func() error {
		if got := k.entries(t); got != want {
			return fmt.Errorf("%v blocks in the index, %v before the restart", got, want)
		}
		return nil
	})
	k.again(t)
}

// natsOutage takes the NATS server away, with prompts sent meanwhile where requests don't need it: no event of those
// arrives, and workers are asked when it is back.
func (k *kvRun) natsOutage(t *testing.T, cell kvCell, workers int) {
	t.Helper()
	before, known := k.recoveries(t), len(k.at)
	k.NATS.Stop()
	if cell.plane == stack.PlaneTCP {
		k.send(t, known, known+12)
	}
	if err := k.NATS.Start(); err != nil {
		t.Fatal(err)
	}
	if cell.events == eventsNATS {
		k.waitRecoveries(t, before+workers)
	} else {
		eventually(t, waitWorker, func() error {
			if status, b := k.client.post(t, chatPath, chat(model, "Hi", 2)); status != http.StatusOK {
				return fmt.Errorf("status %d: %s", status, b)
			}
			return nil
		})
	}
	k.agrees(t, workers)
	k.again(t)
	t.Logf("%v gaps in events, workers asked %d times", k.metric(t, "portico_kv_event_gaps_total", ""), k.recoveries(t)-before)
}

// workerRestart ends a worker and starts another: what the first had is found nowhere, and is soon cached elsewhere.
func (k *kvRun) workerRestart(t *testing.T, cell kvCell, doomed *stack.Process, workers int) {
	t.Helper()
	known := k.instances(t)
	if cell.backend == stack.BackendEtcd {
		doomed.Kill() // its record stays for a lease
	} else {
		doomed.Stop(15 * time.Second)
	}
	lost := 0
	for i, worker := range k.at { // nobody waits for the one that has gone
		p := k.place(t, longPrompt(i))
		if p.worker == worker {
			continue
		}
		if lost++; p.cached > 64 {
			t.Errorf("prompt %d was at %d only, and now: %+v", i, worker, p)
		}
		k.at[i] = p.worker
	}
	if lost == 0 || lost == len(k.at) {
		t.Errorf("%d of %d prompts were at the worker that has gone", lost, len(k.at))
	}
	before := k.recoveries(t)
	kvMocker(t, k.Stack)
	k.waitRecoveries(t, before+1)
	fresh := func(id uint64) bool { return !known[id] }
	next := len(k.at)
	eventually(t, waitWorker, func() error { // it has nothing to do, and is given new prompts
		k.send(t, next, next+1)
		if next++; !fresh(k.at[next-1]) {
			return fmt.Errorf("prompt %d went to %d", next-1, k.at[next-1])
		}
		return nil
	})
	eventually(t, waitWorker, func() error {
		if n := len(k.instances(t)); n != workers {
			return fmt.Errorf("%d workers", n)
		}
		return nil
	})
	k.blocks = 0 // those of the worker that has gone aren't known any more
	k.agrees(t, workers)
	k.again(t)
}
