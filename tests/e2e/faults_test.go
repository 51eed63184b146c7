package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/portico-llm/portico/internal/testkit"
	"github.com/portico-llm/portico/tests/e2e/stack"
)

// long is a request whose answer takes the mocker about ten seconds.
func long() object { return with(chat(model, "Tell me a long story.", 2000), "stream", true) }

// openStream starts a long stream and reads its first events.
func (d *deployment) openStream(t *testing.T, ctx context.Context, request object) *http.Response {
	t.Helper()
	res := d.client.start(t, ctx, chatPath, request)
	if res.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(res.Body)
		t.Fatalf("status %d: %s", res.StatusCode, b)
	}
	seen := 0
	if err := events(res.Body, func(event) bool { seen++; return seen < 5 }); err != nil || seen < 5 {
		t.Fatalf("%d events, %v", seen, err)
	}
	return res
}

// workerMetrics reads a worker's counters from its own HTTP port.
func workerMetrics(t *testing.T, port int, name, labels string) int {
	t.Helper()
	res, err := testkit.Client(t).Get("http://127.0.0.1:" + strconv.Itoa(port) + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, name+"{") && strings.Contains(line, labels) {
			fields := strings.Fields(line)
			n, err := strconv.ParseFloat(fields[len(fields)-1], 64)
			if err != nil {
				t.Fatal(err)
			}
			return int(n)
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// TestDisconnect leaves at different stages and looks at the worker: one cancel each, within a second.
func TestDisconnect(t *testing.T) {
	for _, cell := range cells[:2] {
		t.Run(cell.plane+"/"+cell.backend, func(t *testing.T) {
			s := newStack(t, cell.plane, cell.backend)
			port, err := stack.FreePort()
			if err != nil {
				t.Fatal(err)
			}
			env := s.Env("DYN_SYSTEM_PORT="+strconv.Itoa(port), "DYN_SYSTEM_HOST=127.0.0.1")
			if _, err := s.Run("mocker", env, s.Python(), "-m", "dynamo.mocker", "--model-path", tools.Model(), "--model-name", model); err != nil {
				t.Fatal(err)
			}
			d := &deployment{Stack: s, frontend: startFrontend(t, s)}
			d.client = newClient(t, d.frontend.URL)
			d.waitModel(t, model, true, time.Minute)
			const labels = `dynamo_endpoint="generate"`
			cancelled := func() int { return workerMetrics(t, port, "dynamo_component_cancellation_total", labels) }
			inFlight := func() int { return workerMetrics(t, port, "dynamo_component_inflight_requests", labels) }
			want := 0
			check := func(t *testing.T) {
				t.Helper()
				want++
				took := eventually(t, time.Second, func() error {
					if c, n := cancelled(), inFlight(); c != want || n != 0 {
						return fmt.Errorf("%d cancels, want %d; %d in flight", c, want, n)
					}
					return nil
				})
				t.Logf("the worker knew after %s", took.Round(time.Millisecond))
			}
			t.Run("streaming", func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				res := d.openStream(t, ctx, long())
				cancel()
				res.Body.Close()
				check(t)
			})
			t.Run("unary", func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				wg.Go(func() { d.client.try(ctx, chatPath, chat(model, "Tell me a long story.", 2000)) })
				eventually(t, 5*time.Second, func() error {
					if inFlight() != 1 {
						return errors.New("not at the worker yet")
					}
					return nil
				})
				cancel()
				wg.Wait()
				check(t)
			})
			if c := cancelled(); c != want {
				t.Errorf("%d cancels in all, want %d", c, want)
			}
		})
	}
}

// TestWorkerKilled kills the only worker under a running stream.
func TestWorkerKilled(t *testing.T) {
	for _, cell := range cells[:2] {
		t.Run(cell.plane+"/"+cell.backend, func(t *testing.T) {
			d, mocker := deploy(t, cell.plane, cell.backend)
			res := d.openStream(t, t.Context(), long())
			defer res.Body.Close()
			mocker.Kill()
			s := fold(res.Body)
			if len(s.errors) == 0 {
				t.Errorf("no error event: %+v", s)
			}
			if len(s.finish) > 0 {
				t.Errorf("a clean end after the worker died: finish reasons %v", s.finish)
			}
			if kind == stack.Portico && !s.done {
				t.Error("no [DONE] after the error")
			}
			// Its records outlive it: by the lease with etcd, by the age of files otherwise.
			d.waitModel(t, model, false, 20*time.Second)
			if status, b := d.client.post(t, chatPath, chat(model, "Hi", 4)); status != http.StatusNotFound && status != http.StatusServiceUnavailable {
				t.Errorf("request without a worker: %d %s", status, b)
			}
			startMocker(t, d.Stack)
			d.waitModel(t, model, true, 30*time.Second)
			dynamoDiffers(t, "it tries the dead worker's record again while that has not expired")
			d.client.unary(t, chatPath, chat(model, "Hi", 4))
		})
	}
}

// TestWorkersComeAndGo keeps requests running while workers join and leave in good order: none may fail.
func TestWorkersComeAndGo(t *testing.T) {
	for _, cell := range cells[:2] {
		t.Run(cell.plane+"/"+cell.backend, func(t *testing.T) {
			d, first := deploy(t, cell.plane, cell.backend)
			ctx, stop := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			sent := 0
			wg.Go(func() {
				for ctx.Err() == nil {
					if status, b := d.client.post(t, chatPath, chat(model, "Hi", 4)); status != http.StatusOK {
						t.Errorf("request %d: status %d: %s", sent, status, b)
						return
					}
					sent++
				}
			})
			second := startMocker(t, d.Stack)
			time.Sleep(5 * time.Second) // the second worker registers meanwhile
			first.Stop(15 * time.Second)
			time.Sleep(time.Second)
			select {
			case <-second.Done():
				t.Errorf("the second worker ended:\n%s", second.Tail(10))
			default:
			}
			stop()
			wg.Wait()
			if sent < 20 {
				t.Errorf("only %d requests in all", sent)
			}
			t.Logf("%d requests", sent)
		})
	}
}

// TestDrain ends the frontend politely under a running stream.
func TestDrain(t *testing.T) {
	d, _ := deploy(t, stack.PlaneTCP, stack.BackendFile)
	res := d.openStream(t, t.Context(), with(long(), "max_tokens", 500))
	defer res.Body.Close()
	d.frontend.Signal(syscall.SIGTERM)
	if kind == stack.Portico {
		took := eventually(t, 2*time.Second, func() error {
			r, err := d.client.http.Get(d.client.base + "/ready")
			if err != nil {
				return err
			}
			r.Body.Close()
			if r.StatusCode != http.StatusServiceUnavailable {
				return fmt.Errorf("ready: status %d", r.StatusCode)
			}
			return nil
		})
		t.Logf("not ready after %s", took.Round(time.Millisecond))
	}
	s := fold(res.Body)
	if !s.done || s.finish[0] != "length" || len(s.errors) > 0 {
		t.Errorf("the running stream: %+v", s)
	}
	if code := d.frontend.ExitCode(20 * time.Second); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// outage is how long a server is taken away: two seconds, or PORTICO_E2E_OUTAGE (65s for the long test that a release
// goes through).
func outage(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("PORTICO_E2E_OUTAGE")
	if text == "" {
		return 2 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("PORTICO_E2E_OUTAGE: %v", err)
	}
	return d
}

// TestNATSOutage takes the NATS server away for a while.
func TestNATSOutage(t *testing.T) {
	d, _ := deploy(t, stack.PlaneNATS, stack.BackendFile)
	res := d.openStream(t, t.Context(), with(long(), "max_tokens", 1000))
	defer res.Body.Close()
	running := make(chan streamed, 1) // the stream is read all the time: a client that doesn't is given up after a minute
	go func() { running <- fold(res.Body) }()
	d.NATS.Stop()
	time.Sleep(outage(t))
	if err := d.NATS.Start(); err != nil {
		t.Fatal(err)
	}
	took := eventually(t, 30*time.Second, func() error {
		r, err := d.client.try(t.Context(), chatPath, chat(model, "Hi", 4))
		if err != nil {
			return err
		}
		defer r.Body.Close()
		if r.StatusCode != http.StatusOK {
			b, _ := io.ReadAll(r.Body)
			return fmt.Errorf("status %d: %s", r.StatusCode, b)
		}
		return nil
	})
	t.Logf("healed %s after the server was back", took.Round(time.Millisecond))
	// Answers don't travel over NATS: the stream that was running has not noticed.
	if s := <-running; !s.done || len(s.errors) > 0 {
		t.Errorf("the running stream: %+v", s)
	}
}

// TestEtcdOutage takes etcd away for less than a lease: workers stay known and requests go on.
func TestEtcdOutage(t *testing.T) {
	s, err := stack.New(tools, stack.Options{Dir: t.TempDir(), Plane: stack.PlaneTCP, Backend: stack.BackendEtcd, LeaseTTL: outage(t) + 20*time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	mocker := startMocker(t, s)
	d := &deployment{Stack: s, frontend: startFrontend(t, s)}
	d.client = newClient(t, d.frontend.URL)
	d.waitModel(t, model, true, time.Minute)
	d.Etcd.Stop()
	for away := time.Now(); time.Since(away) < outage(t); time.Sleep(500 * time.Millisecond) {
		d.client.unary(t, chatPath, chat(model, "Hi", 4))
	}
	if err := d.Etcd.Start(); err != nil {
		t.Fatal(err)
	}
	d.client.unary(t, chatPath, chat(model, "Hi", 4))
	// What changes after the outage must be seen again.
	mocker.Stop(15 * time.Second)
	d.waitModel(t, model, false, 40*time.Second+outage(t))
	startMocker(t, s)
	d.waitModel(t, model, true, 30*time.Second)
}

// TestTooLarge sends a body that NATS can't carry: a clear refusal, at once.
func TestTooLarge(t *testing.T) {
	d, _ := deploy(t, stack.PlaneNATS, stack.BackendFile)
	ids := make([]int, 400_000)
	for i := range ids {
		ids[i] = 1000 + i%20_000
	}
	start := time.Now()
	status, b := d.client.post(t, completionPath, object{"model": model, "prompt": ids, "max_tokens": 4})
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("refused after %s only", took)
	}
	if want := map[string]int{stack.Portico: http.StatusRequestEntityTooLarge, stack.Dynamo: http.StatusBadRequest}[kind]; status != want {
		t.Errorf("status %d, want %d: %.300s", status, want, b)
	}
	d.client.unary(t, chatPath, chat(model, "Hi", 4)) // the worker is not to blame
}

// TestLostBeforeItCalls has one of two workers accept requests and never begin. Over TCP it is killed then, which is noticed
// long before its record has gone; over NATS nothing tells but the time-out. Clients notice nothing of either.
func TestLostBeforeItCalls(t *testing.T) {
	dynamoDiffers(t, "it waits for the call back as long as the client does")
	const requests = 4
	for _, plane := range []string{stack.PlaneTCP, stack.PlaneNATS} {
		t.Run(plane, func(t *testing.T) {
			s := newStack(t, plane, stack.BackendFile)
			start := func(more ...string) *stack.Process {
				p, err := s.Run("simworker", s.Env(), append([]string{filepath.Join(tools.Root, "bin", "simworker"),
					"--model-path", tools.Model(), "--model-name", model}, more...)...)
				if err != nil {
					t.Fatal(err)
				}
				return p
			}
			doomed := start("--faults", "never-call")
			start()
			var env []string
			if plane == stack.PlaneNATS {
				env = []string{"PORTICO_HANDSHAKE_TIMEOUT=1"}
			}
			d := &deployment{Stack: s, frontend: startFrontend(t, s, env...)}
			d.client = newClient(t, d.frontend.URL)
			d.waitWorkers(t, 2)
			began := time.Now()
			var wg sync.WaitGroup
			for range requests {
				wg.Go(func() {
					if status, b := d.client.post(t, chatPath, chat(model, "Hi", 4)); status != http.StatusOK {
						t.Errorf("status %d: %s", status, b)
					}
				})
			}
			if plane == stack.PlaneTCP {
				// All are accepted, and only those that nobody begins with are left.
				eventually(t, 5*time.Second, func() error {
					sent, open := d.metric(t, "dynamo_request_plane_send_seconds_count", ""), d.metric(t, "dynamo_request_plane_inflight_requests", "")
					if sent != requests || open == 0 || open == requests {
						return fmt.Errorf("%v requests accepted, %v in flight", sent, open)
					}
					return nil
				})
				doomed.Kill()
			}
			wg.Wait()
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("after %s", took)
			}
			retries, aside := d.metric(t, "portico_dispatch_retries_total", ""), d.metric(t, "portico_dispatch_quarantines_total", "")
			if retries == 0 || (aside > 0) != (plane == stack.PlaneTCP) {
				t.Errorf("%v retries, left aside %v times", retries, aside)
			}
			t.Logf("%v of %d requests tried again, all answered after %s", retries, requests, time.Since(began).Round(time.Millisecond))
		})
	}
}
