package chaos_test

import (
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/portico-llm/portico/internal/testkit"
	"github.com/portico-llm/portico/tests/e2e/stack"
)

const (
	workers   = 4
	frontends = 2
	streams   = 200 // requests at a time

	// patience bounds one request: everything that may delay it is shorter, a lease and a handshake together included.
	patience = 75 * time.Second
)

// duration is how long there is chaos: PORTICO_CHAOS, or about half a minute; all scenes share it.
func duration(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("PORTICO_CHAOS")
	if text == "" {
		return 36 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("PORTICO_CHAOS: %v", err)
	}
	return d
}

// seed draws the chaos: PORTICO_CHAOS_SEED, or another one each time. What the machine makes of it is another matter.
func seed(t *testing.T) uint64 {
	t.Helper()
	if text := os.Getenv("PORTICO_CHAOS_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("PORTICO_CHAOS_SEED: %v", err)
		}
		return n
	}
	return rand.Uint64()
}

// scene is a deployment that chaos comes over.
type scene struct {
	name, plane string
	pools       bool // half of the workers read prompts for the others
	kv          bool // the workers are Dynamo's mockers, and requests follow their caches
	zmq         bool // workers tell of their caches on sockets of their own, and otherwise over NATS
}

// scenes come one after the other. The events of the mockers travel apart from the requests.
var scenes = []scene{
	{name: "nats", plane: stack.PlaneNATS},
	{name: "tcp, prefill and decode", plane: stack.PlaneTCP, pools: true},
	{name: "kv over tcp, events over nats", plane: stack.PlaneTCP, kv: true},
	{name: "kv over nats, events over zmq", plane: stack.PlaneNATS, kv: true, zmq: true},
}

// TestChaos is all of it.
func TestChaos(t *testing.T) {
	if !stack.Installed("../../..") {
		t.Skip("the peers are not installed; make e2e does that")
	}
	tools, err := stack.FindTools("../../..", true)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"frontend", "simworker"} {
		if _, err := os.Stat(filepath.Join(tools.Root, "bin", name)); err != nil {
			t.Fatalf("bin/%s is not built: run make build", name)
		}
	}
	var told table
	for _, scene := range scenes {
		t.Run(scene.name, func(t *testing.T) {
			told = append(told, chaos(t, tools, scene, duration(t)/time.Duration(len(scenes))))
		})
	}
	t.Logf("\n%s", told)
}

// chaos runs one deployment.
func chaos(t *testing.T, tools *stack.Tools, scene scene, lasts time.Duration) *tally {
	seed := seed(t)
	t.Logf("seed %d", seed)
	dir, err := os.MkdirTemp("", "chaos-")
	if err != nil {
		t.Fatal(err)
	}
	s, err := stack.New(tools, stack.Options{Dir: dir, Plane: scene.plane, Backend: stack.BackendEtcd, ZMQEvents: scene.zmq})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		if t.Failed() {
			t.Logf("logs are in %s", dir)
			return
		}
		_ = os.RemoveAll(dir)
	})
	kept := testkit.LintTransport{RoundTripper: &http.Transport{MaxIdleConnsPerHost: streams}, TB: t}
	d := &deployment{t: t, Stack: s, tools: tools, scene: scene, client: &http.Client{Transport: kept}}
	d.startAll()
	known := d.learn()
	sum := &tally{scene: scene.name, lasts: lasts, seed: seed, before: d.goroutines()}

	load := newLoad(d, known, seed)
	stop := make(chan struct{})
	var running sync.WaitGroup
	for i := range streams {
		running.Go(func() { load.run(i, stop) })
	}
	m := &monkey{d: d, random: rand.New(rand.NewPCG(seed, 1))}
	m.run(time.Now().Add(lasts))
	close(stop)
	running.Wait()

	sum.acts, sum.answers, sum.longest = m.counts, load.report(), load.longest
	// How many are refused says how fast refusals are; without any answers nothing is said of them.
	if whole := sum.answers["whole"]; whole < streams/4 {
		t.Errorf("only %d requests were answered", whole)
	}
	sum.healed = d.heals(known)
	if scene.kv {
		sum.blocks = d.agrees()
	}
	sum.moved = d.moved + d.sum(moves)
	sum.after = d.settles(sum.before)
	return sum
}

// moves counts how often a request was to go on at another worker.
const moves = "dynamo_frontend_model_migration_total"

// model is the name that the workers serve.
const model = "walk"

// deployment is a stack with its workers and frontends.
type deployment struct {
	*stack.Stack
	t     *testing.T
	tools *stack.Tools
	scene scene

	client *http.Client // shared by all: connections are kept and used again, and every stream is linted

	workers [workers]*stack.Process // the monkey's
	moved   float64                 // the monkey's: moves of frontends that have ended

	mu        sync.Mutex
	frontends [frontends]frontend // guarded by mu
}

// frontend is one of the frontends, which is another process after a restart.
type frontend struct {
	*stack.Frontend
	down bool // it is being restarted: whatever happens to its connections is no failure
	born int  // how often it has been restarted
}

// startAll starts everything.
func (d *deployment) startAll() {
	d.t.Helper()
	for i := range d.workers {
		d.startWorker(i)
	}
	for i := range d.frontends {
		if err := d.startFrontend(i); err != nil {
			d.t.Fatal(err)
		}
	}
	for i := range d.frontends {
		if err := d.frontends[i].WaitModel(model, true, 30*time.Second); err != nil {
			d.t.Fatal(err)
		}
	}
}

// startWorker starts one worker; the one before it has ended.
func (d *deployment) startWorker(i int) {
	d.t.Helper()
	if d.scene.kv {
		d.startMocker(i)
		return
	}
	args := []string{
		filepath.Join(d.tools.Root, "bin", "simworker"), "--model-path", d.tools.Model(), "--model-name", model,
		"--engine", "walk", "--itl", "40ms", "--ttft", "20ms", "--jitter", "0.3",
	}
	switch {
	case d.scene.pools && i%2 == 0:
		args = append(args, "--disaggregation-mode", "prefill")
		if i == 0 { // the other hands over by way of the frontend
			args = append(args, "--bootstrap-ports", "0")
		}
	case d.scene.pools:
		args = append(args, "--disaggregation-mode", "decode")
	}
	p, err := d.Run("simworker", d.Env(), args...)
	if err != nil {
		d.t.Fatal(err)
	}
	d.workers[i] = p
}

// startFrontend starts one frontend and waits until it answers.
func (d *deployment) startFrontend(i int) error {
	env := []string{"DYN_HTTP_GRACEFUL_SHUTDOWN_TIMEOUT_SECS=2"}
	if d.scene.kv {
		env = append(append(env, d.EventEnv()...), "DYN_ROUTER_MODE=kv")
	}
	f, err := d.StartFrontend(stack.Portico, env...)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.frontends[i] = frontend{Frontend: f, born: d.frontends[i].born + 1}
	return nil
}

// at returns a frontend as it is now.
func (d *deployment) at(i int) frontend {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.frontends[i]
}

// leaves marks a frontend as being restarted and returns it.
func (d *deployment) leaves(i int) frontend {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.frontends[i].down = true
	return d.frontends[i]
}

// series adds up the series of a metric of one frontend.
func (d *deployment) series(f frontend, name string) (float64, error) {
	c := http.Client{Timeout: 5 * time.Second, Transport: testkit.LintTransport{RoundTripper: http.DefaultTransport, TB: d.t}}
	res, err := c.Get(f.URL + "/metrics")
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err
	}
	sum, found := 0.0, false
	for line := range strings.Lines(string(b)) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || (rest[0] != ' ' && rest[0] != '{') {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndex(rest, " ")+1:]), 64)
		if err != nil {
			return 0, err
		}
		sum, found = sum+v, true
	}
	if !found {
		return 0, errors.New("no metric " + name)
	}
	return sum, nil
}

// sum adds up a metric over all frontends; those that don't have it count nothing.
func (d *deployment) sum(name string) (sum float64) {
	for i := range d.frontends {
		if v, err := d.series(d.at(i), name); err == nil {
			sum += v
		}
	}
	return sum
}

// goroutines returns how many each frontend has at rest.
func (d *deployment) goroutines() (out [frontends]float64) {
	d.t.Helper()
	for i := range d.frontends {
		v, err := d.series(d.at(i), "go_goroutines")
		if err != nil {
			d.t.Fatal(err)
		}
		out[i] = v
	}
	return out
}

// heals waits until every frontend answers every prompt again, and returns how long it took.
func (d *deployment) heals(known []reference) time.Duration {
	d.t.Helper()
	began := time.Now()
	var asking sync.WaitGroup
	for i := range d.frontends {
		for n := range known {
			asking.Go(func() {
				for {
					got, err := d.ask(i, &known[n], 8)
					if err == nil && (known[n].tokens == nil || got == known[n].text(8)) {
						return
					}
					if time.Since(began) > time.Minute {
						d.t.Errorf("frontend %d doesn't answer a minute later: %q, %v", i, got, err)
						return
					}
					time.Sleep(100 * time.Millisecond)
				}
			})
		}
	}
	asking.Wait()
	return time.Since(began)
}

// settles waits until no frontend has a request or more goroutines than it had at rest, but for some that serve idle
// connections. It returns how many they have.
func (d *deployment) settles(before [frontends]float64) (after [frontends]float64) {
	d.t.Helper()
	const slack = 25
	d.client.CloseIdleConnections() // each has a goroutine at the other end
	began := time.Now()
	for i := range d.frontends {
		for {
			inFlight, err1 := d.series(d.at(i), "dynamo_request_plane_inflight_requests")
			goroutines, err2 := d.series(d.at(i), "go_goroutines")
			after[i] = goroutines
			if err1 == nil && err2 == nil && inFlight == 0 && goroutines <= before[i]+slack {
				break
			}
			if time.Since(began) > 30*time.Second {
				d.t.Errorf("frontend %d: %v requests in flight, %v goroutines (%v at first), %v", i, inFlight, goroutines,
					before[i], errors.Join(err1, err2))
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	return after
}
