package e2e_test

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/portico-llm/portico/tests/e2e/stack"
)

// TestKVBlockSize has two workers of one model whose blocks differ in size, and another frontend that is told a third
// size: an error in the log and a metric say so, and requests are served. A worker with another card waits until those
// that came first have gone; then its blocks are the right ones.
func TestKVBlockSize(t *testing.T) {
	dynamoDiffers(t, "its metrics are others")
	s := kvStack(t, kvCells[0])
	start := func(size string) *stack.Process {
		return startMocker(t, s, "--kv-bytes-per-token", "131072", "--speedup-ratio", "1000000", "--block-size", size)
	}
	first := start("16")
	d := kvFrontend(t, s, stack.Portico, 1)
	before := d.instances(t)
	start("32")
	d.waitWorkers(t, 2)
	d.differing(t, 1)
	d.complaint(t, "KV block size of a worker differs")
	for i := range 4 {
		if p := d.place(t, longPrompt(i)); !before[p.worker] {
			t.Errorf("prompt %d went to %d", i, p.worker)
		}
	}
	d.finds(t, longPrompt(0), true)

	other := kvFrontend(t, s, stack.Portico, 2, "DYN_KV_CACHE_BLOCK_SIZE=64")
	other.differing(t, 2)
	other.complaint(t, "KV block size of a worker's card differs from the configured one")
	for range 2 { // the worker has it, and nobody knows
		other.place(t, longPrompt(0))
	}
	other.finds(t, longPrompt(0), false)

	first.Stop(15 * time.Second)
	eventually(t, waitWorker, func() error {
		if status, b := d.client.post(t, chatPath, chat(model, "Hi", 2)); status != http.StatusOK {
			return fmt.Errorf("status %d: %s", status, b)
		}
		return nil
	})
	d.differing(t, 0)
	if p := d.place(t, longPrompt(1)); p.worker == 0 || before[p.worker] {
		t.Errorf("a prompt went to %d", p.worker)
	}
	d.finds(t, longPrompt(1), true)
}

// finds sends a prompt that the worker has cached: it is thought to be cached, if known, within a while.
func (d *deployment) finds(t *testing.T, prompt string, known bool) {
	t.Helper()
	eventually(t, 20*time.Second, func() error {
		before, _ := d.hits(t)
		p := d.place(t, prompt)
		after, _ := d.hits(t)
		if p.cached < p.prompt/2 || (after > before) != known {
			return fmt.Errorf("%d of %d tokens were cached, and %v thought to be", p.cached, p.prompt, after-before)
		}
		return nil
	})
}

// differing waits until so many workers' block sizes differ.
func (d *deployment) differing(t *testing.T, want float64) {
	t.Helper()
	eventually(t, 20*time.Second, func() error {
		if n := d.metric(t, "portico_kv_block_size_mismatch_workers", ""); n != want {
			return fmt.Errorf("%v workers differ, want %v", n, want)
		}
		return nil
	})
}

// complaint waits for an error in the frontend's log, one for each worker that differs.
func (d *deployment) complaint(t *testing.T, text string) {
	t.Helper()
	eventually(t, 10*time.Second, func() error {
		b, err := os.ReadFile(d.frontend.Log)
		if err != nil {
			return err
		}
		n := 0
		for line := range strings.Lines(string(b)) {
			if strings.Contains(line, "level=ERROR") && strings.Contains(line, text) {
				n++
			}
		}
		if want := int(d.metric(t, "portico_kv_block_size_mismatch_workers", "")); n != want {
			return fmt.Errorf("%d errors %q for %d workers", n, text, want)
		}
		return nil
	})
}
