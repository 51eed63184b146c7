package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/portico-llm/portico/tests/e2e/stack"
)

// startPools starts a prefill and a decode worker of Dynamo's and a frontend. With rooms the two meet at a port of the
// prefill worker's.
func startPools(t *testing.T, plane, backend string, rooms bool) (d *deployment, prefill, decode *stack.Process) {
	t.Helper()
	s := newStack(t, plane, backend)
	d = &deployment{Stack: s}
	prefill, decode = d.startPrefill(t, rooms), startMocker(t, s, "--disaggregation-mode", "decode", "--block-size", "16")
	d.frontend = startFrontend(t, s)
	d.client = newClient(t, d.frontend.URL)
	d.waitModel(t, model, true, waitWorker)
	d.waitServed(t)
	return d, prefill, decode
}

// startPrefill starts a prefill worker.
func (d *deployment) startPrefill(t *testing.T, rooms bool, more ...string) *stack.Process {
	t.Helper()
	args := append([]string{"--disaggregation-mode", "prefill", "--block-size", "16"}, more...)
	if rooms {
		port, err := stack.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		args = append(args, "--bootstrap-ports", strconv.Itoa(port))
	}
	return startMocker(t, d.Stack, args...)
}

// waitServed waits until a request is answered: a model may be listed before all its workers are there.
func (d *deployment) waitServed(t *testing.T) {
	t.Helper()
	eventually(t, waitWorker, func() error {
		if status, b := d.client.post(t, chatPath, chat(model, "Hi", 2)); status != http.StatusOK {
			return fmt.Errorf("status %d: %s", status, b)
		}
		return nil
	})
}

// eachPools runs f for both ways of handing over, over both planes.
func eachPools(t *testing.T, f func(t *testing.T, plane, backend string, rooms bool)) {
	for _, cell := range cells[:2] {
		for _, rooms := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%s/bootstrap %v", cell.plane, cell.backend, rooms), func(t *testing.T) {
				f(t, cell.plane, cell.backend, rooms)
			})
		}
	}
}

// TestDisaggregated sends requests through a prefill and a decode worker, and asks which they were.
func TestDisaggregated(t *testing.T) {
	eachPools(t, func(t *testing.T, plane, backend string, rooms bool) {
		d, _, _ := startPools(t, plane, backend, rooms)
		request := with(chat(model, "Tell me a story about two workers.", 20), "nvext", object{"extra_fields": []string{"worker_id"}})
		var cached []int
		for range 2 {
			_, b := d.client.post(t, chatPath, request)
			var whole struct {
				NVExt struct {
					Worker struct {
						Prefill uint64 `json:"prefill_worker_id"`
						Decode  uint64 `json:"decode_worker_id"`
					} `json:"worker_id"`
				} `json:"nvext"`
				Usage struct {
					Completion int `json:"completion_tokens"`
					Details    struct {
						Cached int `json:"cached_tokens"`
					} `json:"prompt_tokens_details"`
				} `json:"usage"`
			}
			if err := json.Unmarshal(b, &whole); err != nil {
				t.Fatal(err)
			}
			if w := whole.NVExt.Worker; w.Prefill == 0 || w.Decode == 0 || w.Prefill == w.Decode {
				t.Errorf("workers %+v in %s", w, b)
			}
			if whole.Usage.Completion != 20 {
				t.Errorf("%d tokens: %s", whole.Usage.Completion, b)
			}
			cached = append(cached, whole.Usage.Details.Cached)
		}
		t.Logf("cached tokens: %v", cached)
		s := d.client.stream(t, chatPath, with(with(chat(model, "Tell me another.", 30), "stream", true),
			"stream_options", object{"include_usage": true}))
		checkUsage(t, s.usage, 30)
		if rooms {
			return // a mocker that hands over by itself fails requests that come together, whoever sends them
		}
		d.client.unary(t, completionPath, object{"model": model, "prompt": []string{"One", "Two", "Three"}, "max_tokens": 5})
	})
}

// TestDisaggregatedByCaches routes prompts by the prefill workers' caches: what two of them have read before is found
// again, and the decode worker, which publishes nothing, is no obstacle.
func TestDisaggregatedByCaches(t *testing.T) {
	for _, rooms := range []bool{false, true} {
		t.Run(fmt.Sprintf("bootstrap %v", rooms), func(t *testing.T) {
			s := newStack(t, stack.PlaneNATS, stack.BackendFile)
			d := &deployment{Stack: s}
			d.startPrefill(t, rooms)
			d.startPrefill(t, rooms)
			startMocker(t, s, "--disaggregation-mode", "decode", "--block-size", "16")
			d.frontend = startFrontend(t, s, "DYN_ROUTER_MODE=kv")
			d.client = newClient(t, d.frontend.URL)
			d.waitModel(t, model, true, waitWorker)
			d.waitServed(t)
			eventually(t, waitWorker, func() error {
				if n := d.known(t, "prefill"); n < 2 {
					return fmt.Errorf("%d prefill workers", n)
				}
				return nil
			})
			for _, topic := range []string{"rivers", "mountains", "deserts", "oceans"} {
				request := with(chat(model, "Tell me about "+topic+strings.Repeat(" and more", 40), 4), "nvext",
					object{"extra_fields": []string{"worker_id"}})
				var readers []uint64
				for range 4 {
					_, b := d.client.post(t, chatPath, request)
					var whole struct {
						NVExt struct {
							Worker struct {
								Prefill uint64 `json:"prefill_worker_id"`
							} `json:"worker_id"`
						} `json:"nvext"`
					}
					if err := json.Unmarshal(b, &whole); err != nil || whole.NVExt.Worker.Prefill == 0 {
						t.Fatalf("%v in %s", err, b)
					}
					readers = append(readers, whole.NVExt.Worker.Prefill)
					time.Sleep(50 * time.Millisecond) // the worker's events arrive
				}
				for _, id := range readers[1:] {
					if id != readers[0] {
						t.Errorf("the prompt about %s was read by %v", topic, readers)
						break
					}
				}
			}
		})
	}
}

// TestPrefillWorkerGone kills the prefill worker and brings another: meanwhile there is a clear answer.
func TestPrefillWorkerGone(t *testing.T) {
	dynamoDiffers(t, "it goes on to ask the dead worker while its record is there")
	eachPools(t, func(t *testing.T, plane, backend string, rooms bool) {
		d, prefill, _ := startPools(t, plane, backend, rooms)
		prefill.Kill()
		began := time.Now()
		status, b := d.client.post(t, chatPath, chat(model, "Is anybody there?", 8))
		// Over NATS a request may still be passed on to the dead worker, until the server has noticed; then it is the end of
		// the worker's lease that tells, and etcd looks for those only now and then.
		bound := 5 * time.Second
		if plane == stack.PlaneNATS {
			bound += d.LeaseTTL
		}
		if status != http.StatusServiceUnavailable || !strings.Contains(string(b), `"message":`) || time.Since(began) > bound {
			t.Errorf("after %s: status %d: %s", time.Since(began), status, b)
		}
		eventually(t, 30*time.Second, func() error {
			status, b := d.client.post(t, chatPath, chat(model, "Is anybody there?", 8))
			if status != http.StatusServiceUnavailable {
				t.Fatalf("status %d: %s", status, b)
			}
			if !strings.Contains(string(b), "is not ready to serve requests yet") {
				return fmt.Errorf("%s", b)
			}
			return nil
		})
		d.startPrefill(t, rooms)
		d.waitServed(t)
	})
}

// TestPrefillWorkerKilledWhileItReads kills a prefill worker in the middle of its work; another does it again. With a
// meeting place the mocker's decode worker fails by itself when it has to wait for seconds, so that is left to simulated
// workers.
func TestPrefillWorkerKilledWhileItReads(t *testing.T) {
	dynamoDiffers(t, "it lets requests move only when it is told to")
	for _, cell := range cells[:2] {
		t.Run(cell.plane+"/"+cell.backend, func(t *testing.T) {
			s := newStack(t, cell.plane, cell.backend)
			d := &deployment{Stack: s}
			slow := d.startPrefill(t, false, "--speedup-ratio", "0.01") // seconds for a prompt
			startMocker(t, s, "--disaggregation-mode", "decode", "--block-size", "16")
			d.frontend = startFrontend(t, s)
			d.client = newClient(t, d.frontend.URL)
			d.waitModel(t, model, true, waitWorker)
			request := with(with(chat(model, strings.Repeat("A long prompt. ", 50), 20), "stream", true),
				"stream_options", object{"include_usage": true})
			answer := make(chan streamed, 1)
			go func() {
				res := d.client.start(t, t.Context(), chatPath, request)
				defer res.Body.Close()
				answer <- fold(res.Body)
			}()
			eventually(t, waitWorker, func() error {
				if n := d.series(t, `dynamo_frontend_stage_requests{phase="prefill",stage="dispatch"}`); n != 1 {
					return fmt.Errorf("%v prompts being read", n)
				}
				return nil
			})
			d.startPrefill(t, false)
			eventually(t, waitWorker, func() error {
				if n := d.known(t, "prefill"); n < 2 {
					return fmt.Errorf("%d prefill workers", n)
				}
				return nil
			})
			slow.Kill()
			a := <-answer
			if !a.done || len(a.errors) > 0 || a.finish[0] != "length" {
				t.Errorf("%+v", a)
			}
			checkUsage(t, a.usage, 20)
			if n := d.series(t, `portico_prefill_total{model="mock",outcome="lost"}`); n != 1 {
				t.Errorf("%v prompts lost", n)
			}
		})
	}
}

// series reads one series of the frontend's, 0 when it isn't there.
func (d *deployment) series(t *testing.T, series string) float64 {
	t.Helper()
	_, b := d.client.get(t, "/metrics")
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, series+" "); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	return 0
}

// known counts the workers of a component that the frontend knows.
func (d *deployment) known(t *testing.T, component string) int {
	t.Helper()
	_, b := d.client.get(t, "/health")
	var h struct {
		Instances []struct {
			Component string `json:"component"`
			Endpoint  string `json:"endpoint"`
		} `json:"instances"`
	}
	if err := json.Unmarshal(b, &h); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	n := 0
	for _, in := range h.Instances {
		if in.Component == component && in.Endpoint == "generate" {
			n++
		}
	}
	return n
}
