package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/portico-llm/portico/tests/e2e/stack"
)

// The peers and the kind of frontend under test, set by TestMain.
var (
	tools *stack.Tools
	kind  = stack.Portico
)

func TestMain(m *testing.M) {
	if k := os.Getenv("PORTICO_E2E_FRONTEND"); k != "" {
		kind = k
	}
	if !stack.Installed("../..") {
		fmt.Fprintln(os.Stderr, "e2e: left out: the peers are not installed; make e2e does that")
		os.Exit(0)
	}
	var err error
	if tools, err = stack.FindTools("../..", true); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
	if _, err := os.Stat(filepath.Join(tools.Root, "bin", "frontend")); kind == stack.Portico && err != nil {
		fmt.Fprintln(os.Stderr, "e2e: bin/frontend is not built: run make build")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// model is the name the mocker serves. It generates at a leisurely pace, so that streams can be interrupted.
const model = "mock"

// deployment is a stack with a frontend and a client for it.
type deployment struct {
	*stack.Stack
	frontend *stack.Frontend
	client   *client
}

// cells are the combinations of request plane and discovery backend.
var cells = []struct{ plane, backend string }{
	{stack.PlaneTCP, stack.BackendFile},
	{stack.PlaneNATS, stack.BackendEtcd},
	{stack.PlaneTCP, stack.BackendEtcd},
	{stack.PlaneNATS, stack.BackendFile},
}

// eachCell runs f for every combination, or only for the first two in short mode.
func eachCell(t *testing.T, f func(t *testing.T, plane, backend string)) {
	for i, c := range cells {
		t.Run(c.plane+"/"+c.backend, func(t *testing.T) {
			if i >= 2 && testing.Short() {
				t.Skip("short: both planes and both backends have been seen")
			}
			f(t, c.plane, c.backend)
		})
	}
}

// newStack starts the servers of a stack that ends with the test. The logs stay when the test fails.
func newStack(t *testing.T, plane, backend string) *stack.Stack {
	t.Helper()
	dir, err := os.MkdirTemp("", "e2e-"+strings.NewReplacer("/", "-").Replace(t.Name())+"-")
	if err != nil {
		t.Fatal(err)
	}
	s, err := stack.New(tools, stack.Options{Dir: dir, Plane: plane, Backend: backend})
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

// deploy starts a mocker and a frontend that serves it.
func deploy(t *testing.T, plane, backend string) (*deployment, *stack.Process) {
	t.Helper()
	s := newStack(t, plane, backend)
	mocker := startMocker(t, s)
	d := &deployment{Stack: s, frontend: startFrontend(t, s)}
	d.client = newClient(t, d.frontend.URL)
	d.waitModel(t, model, true, time.Minute)
	return d, mocker
}

func startMocker(t *testing.T, s *stack.Stack, args ...string) *stack.Process {
	t.Helper()
	p, err := s.Mocker(tools.Model(), model, args...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func startFrontend(t *testing.T, s *stack.Stack, env ...string) *stack.Frontend {
	t.Helper()
	f, err := s.StartFrontend(kind, env...)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func (d *deployment) waitModel(t *testing.T, name string, want bool, within time.Duration) {
	t.Helper()
	start := time.Now()
	if err := d.frontend.WaitModel(name, want, within); err != nil {
		t.Fatalf("wait for model %s to be served: %v: %v\n%s", name, want, err, d.Ended())
	}
	t.Logf("model %s served: %v after %s", name, want, time.Since(start).Round(time.Millisecond))
}

// dynamoDiffers skips the rest of the test when the reference is under test, for the given reason.
func dynamoDiffers(t *testing.T, reason string) {
	t.Helper()
	if kind == stack.Dynamo {
		t.Skip("the reference differs: " + reason)
	}
}

// eventually retries f until it returns nil.
func eventually(t *testing.T, within time.Duration, f func() error) time.Duration {
	t.Helper()
	start := time.Now()
	for {
		err := f()
		if err == nil {
			return time.Since(start)
		}
		if time.Since(start) > within {
			t.Fatalf("not within %s: %v", within, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
