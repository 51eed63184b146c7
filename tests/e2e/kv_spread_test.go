package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/portico-llm/portico/tests/e2e/stack"
)

// TestKVSpread sends 512 prompts that share nothing to four frontends at once, which tell each other of their requests:
// none of five equal workers gets many more than its share.
func TestKVSpread(t *testing.T) {
	dynamoDiffers(t, "how it spreads requests is a matter of its own")
	const workers, frontends, prompts, most = 5, 4, 512, 1.3
	for _, cell := range eventCells {
		t.Run(cell.events, func(t *testing.T) {
			s := kvStack(t, cell)
			for range workers {
				startMocker(t, s, "--kv-bytes-per-token", "131072", "--block-size", "16")
			}
			var list []*deployment
			for range frontends {
				list = append(list, kvFrontend(t, s, stack.Portico, workers, "DYN_ROUTER_REPLICA_SYNC=true"))
			}
			for _, d := range list { // the workers publish on two topics, the other frontends on one
				eventually(t, waitWorker, func() error {
					if n := d.metric(t, "dynamo_frontend_events_publishers", ""); n < 2*workers+frontends-1 {
						return fmt.Errorf("%v publishers", n)
					}
					return nil
				})
			}
			var mu sync.Mutex
			counts := map[uint64]int{}
			var sent sync.WaitGroup
			for i := range prompts {
				sent.Go(func() {
					worker, err := list[i%frontends].where(t, longPrompt(i))
					if err != nil {
						t.Errorf("prompt %d: %v", i, err)
						return
					}
					mu.Lock()
					defer mu.Unlock()
					counts[worker]++
				})
			}
			sent.Wait()
			largest := 0
			for _, n := range counts {
				largest = max(largest, n)
			}
			ratio := float64(largest) * workers / prompts
			t.Logf("most at one worker is %.2f of the mean: %v", ratio, counts)
			if ratio > most || len(counts) != workers {
				t.Errorf("most at one worker is %.2f of the mean, want %v at most", ratio, most)
			}
			for i, d := range list {
				eventually(t, 20*time.Second, func() error {
					if n := d.metric(t, "portico_kv_active_requests", ""); n != 0 {
						return fmt.Errorf("frontend %d counts %v requests", i, n)
					}
					return nil
				})
			}
		})
	}
}

// where sends a prompt and tells which worker has answered. It may run on any goroutine.
func (d *deployment) where(t *testing.T, prompt string) (worker uint64, err error) {
	res, err := d.client.try(t.Context(), chatPath, with(distinct(prompt, 20), "nvext", object{"extra_fields": []string{"worker_id"}}))
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	var a struct {
		NvExt struct {
			Worker struct {
				Decode uint64 `json:"decode_worker_id"`
			} `json:"worker_id"`
		} `json:"nvext"`
	}
	if err := json.NewDecoder(res.Body).Decode(&a); err != nil {
		return 0, err
	}
	if res.StatusCode != http.StatusOK || a.NvExt.Worker.Decode == 0 {
		return 0, fmt.Errorf("status %d, worker %d", res.StatusCode, a.NvExt.Worker.Decode)
	}
	return a.NvExt.Worker.Decode, nil
}
