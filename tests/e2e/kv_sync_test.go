package e2e_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/portico-llm/portico/tests/e2e/stack"
)

// TestKVReplicaSync has a frontend of each kind tell the other of its requests: a worker that one keeps busy is avoided by
// the other, until the requests have ended.
func TestKVReplicaSync(t *testing.T) {
	dynamoDiffers(t, "it can't be asked what it counts")
	for _, cell := range eventCells {
		t.Run(cell.events, func(t *testing.T) {
			s := kvStack(t, cell)
			for range 2 {
				startMocker(t, s, "--kv-bytes-per-token", "131072", "--block-size", "16")
			}
			sync1 := "DYN_ROUTER_REPLICA_SYNC=true"
			ours := kvFrontend(t, s, stack.Portico, 2, sync1)
			theirs := kvFrontend(t, s, stack.Dynamo, 2, sync1)
			theirs.waitServed(t)
			eventually(t, 30*time.Second, func() error {
				if n := ours.metric(t, "dynamo_frontend_events_publishers", ""); n < 5 { // the workers publish on two topics, the other frontend on one
					return fmt.Errorf("%v publishers", n)
				}
				return nil
			})
			var ids []uint64
			for id := range ours.instances(t) {
				ids = append(ids, id)
			}
			slices.Sort(ids)
			applied := func() float64 {
				return theirs.metric(t, "dynamo_component_router_active_sequence_ingress_events_applied_total", "")
			}
			active := func(want float64) {
				t.Helper()
				eventually(t, 20*time.Second, func() error {
					if n := ours.metric(t, "portico_kv_active_requests", ""); n != want {
						return fmt.Errorf("%v requests counted, want %v", n, want)
					}
					return nil
				})
			}
			hears(t, theirs, func() float64 { return ours.metric(t, "dynamo_frontend_events_received_total", "active_sequences") })
			hears(t, ours, applied)
			active(0)

			for i, busy := range ids {
				other := ids[1-i]
				release := theirs.occupy(t, busy, 100*i)
				active(occupants)
				for n := range 4 {
					if p := ours.place(t, longPrompt(1000+100*i+n)); p.worker != other {
						t.Errorf("request %d went to %d, which the other frontend keeps busy", n, p.worker)
					}
				}
				release()
				active(0)

				before := applied()
				release = ours.occupy(t, busy, 200+100*i)
				eventually(t, 20*time.Second, func() error {
					if n := applied() - before; n < 2*occupants { // come and begun
						return fmt.Errorf("the other frontend has heard %v", n)
					}
					return nil
				})
				for n := range 4 {
					if p := theirs.place(t, longPrompt(2000+100*i+n)); p.worker != other {
						t.Errorf("request %d of the other frontend's went to %d, which is kept busy here", n, p.worker)
					}
				}
				before = applied() - before
				release()
				active(0)
				t.Logf("the other frontend had heard %v events", before)
			}
		})
	}
}

// occupants is how many requests keep a worker busy.
const occupants = 8

// occupy keeps a worker busy with requests whose prompts are numbered from first on, until release is called.
func (d *deployment) occupy(t *testing.T, worker uint64, first int) (release func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var begun, done sync.WaitGroup
	begun.Add(occupants)
	for i := range occupants {
		done.Go(func() {
			res, err := d.client.try(ctx, chatPath, with(with(distinct(longPrompt(first+i), 6000), "stream", true), "nvext",
				object{"backend_instance_id": worker}))
			if err != nil {
				t.Error(err)
				begun.Done()
				return
			}
			defer res.Body.Close()
			if res.StatusCode != http.StatusOK {
				b, _ := io.ReadAll(res.Body)
				t.Errorf("status %d: %s", res.StatusCode, b)
			}
			body := &announced{Reader: res.Body, after: 1, reached: begun.Done}
			_, _ = io.Copy(io.Discard, body) // it is cut off
			body.end()
		})
	}
	begun.Wait()
	return func() {
		cancel()
		done.Wait()
	}
}

// hears sends requests until another frontend has heard of one: a publisher's socket learns of a subscription a moment
// after it was made.
func hears(t *testing.T, d *deployment, heard func() float64) {
	t.Helper()
	before, n := heard(), 0
	eventually(t, 30*time.Second, func() error {
		d.place(t, longPrompt(5000+n))
		if n++; heard() < before+3 {
			return fmt.Errorf("the other frontend has heard %v", heard()-before)
		}
		return nil
	})
}
