package stack

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The request planes and discovery backends, in the words of DYN_REQUEST_PLANE and DYN_DISCOVERY_BACKEND.
const (
	PlaneTCP    = "tcp"
	PlaneNATS   = "nats"
	BackendFile = "file"
	BackendEtcd = "etcd"
)

// The frontends a stack can run.
const (
	Dynamo  = "dynamo"
	Portico = "portico"
)

// startTimeout bounds the start of one program: Python takes seconds, more on a busy machine.
const startTimeout = 90 * time.Second

// Tools are the programs outside the repository's Go code. They are shared by all stacks and not changed.
type Tools struct {
	Root string // of the repository
	Venv string // with Dynamo and the real model's packages
	Etcd string // binary; empty until a stack needs it
}

// Installed reports whether the Python peers are there: installing them takes minutes, which a plain go test shall not.
func Installed(root string) bool {
	// Whoever keeps an environment of their own has installed it.
	if os.Getenv("PORTICO_VENV") != "" {
		return true
	}
	_, err := os.Stat(filepath.Join(root, ".build", "venv", ".stamp"))
	return err == nil
}

// FindTools prepares the peers and returns where they are. root is the repository's folder. The scripts do nothing when
// all is there; the first time they install and build for minutes, from the network.
func FindTools(root string, etcd bool) (*Tools, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("repository folder: %w", err)
	}
	t := &Tools{Root: root}
	if t.Venv, err = script(filepath.Join(root, "tests", "peers", "setup.sh")); err != nil {
		return nil, err
	}
	if etcd {
		if _, err := script(filepath.Join(root, "tests", "etcdserver", "build.sh")); err != nil {
			return nil, err
		}
		t.Etcd = filepath.Join(root, ".build", "bin", "etcd")
	}
	return t, nil
}

// script runs a set-up script and returns the last line it printed: the path of what it has prepared. Its progress goes
// to this program's error output.
func script(path string) (string, error) {
	cmd := exec.Command(path)
	cmd.Stderr = os.Stderr
	// No bound on the time: installing depends on the network, and go test has a time-out of its own.
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1], nil
}

// Options describe a stack. Plane and Backend are needed.
type Options struct {
	Dir      string // for logs and data
	Plane    string
	Backend  string
	LeaseTTL time.Duration // of etcd leases; 0 is 5 s: a killed worker is gone soon
	// ZMQEvents has workers publish their events on sockets of their own instead of on NATS. Those of Dynamo's listen on
	// every address of the machine.
	ZMQEvents bool
}

// Stack is one deployment. Its ports and folders are its own, so that several may run side by side.
type Stack struct {
	Options
	NATS *NATS // nil when nothing needs it
	Etcd *Etcd // nil with file discovery

	tools *Tools

	mu        sync.Mutex     // guards below
	processes []*Process     // in the order of their start
	logs      map[string]int // how many files each name has
}

// New starts the servers of a stack. Workers and frontends are started by the caller, in any order. After an error
// nothing is left running.
func New(tools *Tools, options Options) (*Stack, error) {
	s := &Stack{Options: options, tools: tools, logs: map[string]int{}}
	if s.LeaseTTL == 0 {
		s.LeaseTTL = 5 * time.Second
	}
	if err := os.MkdirAll(s.fileKV(), 0o755); err != nil {
		return nil, fmt.Errorf("stack: %w", err)
	}
	if err := s.startServers(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// startServers starts NATS and etcd as far as they are needed. NATS carries the workers' events, too, unless they use
// ZMQ for them.
func (s *Stack) startServers() error {
	if s.Plane == PlaneNATS || !s.ZMQEvents {
		port, err := FreePort()
		if err != nil {
			return err
		}
		s.NATS = &NATS{port: port}
		if err := s.NATS.Start(); err != nil {
			return err
		}
	}
	if s.Backend == BackendEtcd {
		e := &Etcd{stack: s}
		var err error
		if e.port, err = FreePort(); err != nil {
			return err
		}
		s.Etcd = e
		return e.Start()
	}
	return nil
}

// Close ends everything the stack started, latest first: frontends and workers say goodbye to servers that still run.
// It may be called after any of them has ended.
func (s *Stack) Close() {
	s.mu.Lock()
	running := slices.Clone(s.processes)
	s.mu.Unlock()
	for _, p := range slices.Backward(running) {
		p.Stop(10 * time.Second)
	}
	if s.Etcd != nil {
		s.Etcd.Stop()
	}
	if s.NATS != nil {
		s.NATS.Stop()
	}
}

// Ended returns the last output of the processes that have ended, for error messages; empty when all are running.
func (s *Stack) Ended() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	for _, p := range s.processes {
		select {
		case <-p.Done():
			fmt.Fprintf(&b, "%s has ended:\n%s\n", p.Name, p.Tail(20))
		default:
		}
	}
	return b.String()
}

// fileKV is the folder of the file backend. It is made for every stack and used by those that have the backend.
func (s *Stack) fileKV() string { return filepath.Join(s.Dir, "kv") }

// logFile returns a fresh log file name: a program that is started again doesn't write over what it said before.
func (s *Stack) logFile(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logs[name]++
	return filepath.Join(s.Dir, fmt.Sprintf("%s-%d.log", name, s.logs[name]))
}

// Env is the environment of a process of the stack: the same variables for the reference and for this project.
func (s *Stack) Env(extra ...string) []string {
	// Models come from folders, bytecode would be written into the environment, and every listener stays on loopback.
	env := []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + s.Dir, "TMPDIR=" + s.Dir, "LANG=C.UTF-8",
		"HF_HUB_OFFLINE=1", "PYTHONDONTWRITEBYTECODE=1", "DYN_LOG=warn",
		"DYN_TCP_RPC_HOST=127.0.0.1", "DYN_TCP_RESPONSE_STREAM_HOST=127.0.0.1", "DYN_EVENT_PLANE_HOST=127.0.0.1",
		"DYN_DISCOVERY_BACKEND=" + s.Backend, "DYN_REQUEST_PLANE=" + s.Plane,
	}
	if s.Backend == BackendFile {
		env = append(env, "DYN_FILE_KV="+s.fileKV())
	} else {
		// The lease's time is given in whole seconds.
		env = append(env, "ETCD_ENDPOINTS="+s.Etcd.URL(), "ETCD_LEASE_TTL="+strconv.Itoa(int(s.LeaseTTL.Seconds())))
	}
	return append(append(env, s.EventEnv()...), extra...)
}

// EventEnv is the part of Env that says how events travel. Frontends that needn't hear any, on the TCP plane, are started
// without it.
func (s *Stack) EventEnv() (env []string) {
	if s.NATS != nil {
		env = append(env, "NATS_SERVER="+s.NATS.URL())
	}
	if s.ZMQEvents {
		return append(env, "DYN_EVENT_PLANE=zmq")
	}
	return append(env, "DYN_EVENT_PLANE=nats")
}

// Run starts a program of the stack, which Close ends. It doesn't wait for it to be ready.
func (s *Stack) Run(name string, env []string, args ...string) (*Process, error) {
	p, err := Start(Spec{Name: name, Args: args, Env: env, Log: s.logFile(name)})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.processes = append(s.processes, p)
	s.mu.Unlock()
	return p, nil
}

// Python is the interpreter of the peers' environment.
func (s *Stack) Python() string { return filepath.Join(s.tools.Venv, "bin", "python") }

// Model is the folder of the small model that comes with the repository.
func (t *Tools) Model() string {
	return filepath.Join(t.Root, "configs", "models", "smollm2-135m-instruct")
}

// Mocker starts Dynamo's mocker for a model folder: a worker that speaks the real protocol and makes up its tokens. It
// returns before the mocker has registered; WaitModel waits for that.
func (s *Stack) Mocker(model, name string, args ...string) (*Process, error) {
	return s.Run("mocker", s.Env(), append([]string{
		s.Python(), "-m", "dynamo.mocker", "--model-path", model, "--model-name", name}, args...)...)
}

// RealWorker starts the worker with the real model, under the name smollm2. It computes on the CPU, and loads for
// seconds before it registers.
func (s *Stack) RealWorker(args ...string) (*Process, error) {
	return s.Run("worker", s.Env(), append([]string{
		s.Python(), filepath.Join(s.tools.Root, "tests", "peers", "smollm2_worker.py"), "--model-path", s.tools.Model()}, args...)...)
}

// Frontend is a running frontend. Its methods are safe for concurrent use.
type Frontend struct {
	*Process
	Kind string // Dynamo or Portico
	URL  string // base, without a slash at the end
}

// StartFrontend starts a frontend of the kind, with further variables, which stand above the stack's, and waits until
// it answers, startTimeout at most. It may serve no model yet.
func (s *Stack) StartFrontend(kind string, extraEnv ...string) (*Frontend, error) {
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	env := s.Env()
	var args []string
	switch kind {
	case Dynamo:
		args = []string{s.Python(), "-m", "dynamo.frontend"}
	case Portico:
		args = []string{filepath.Join(s.tools.Root, "bin", "frontend")}
		if s.Plane == PlaneTCP {
			// Nothing on the TCP plane needs NATS: the peers use it for their events only.
			env = slices.DeleteFunc(env, func(v string) bool {
				return strings.HasPrefix(v, "NATS_SERVER=") || strings.HasPrefix(v, "DYN_EVENT_PLANE=")
			})
		}
	default:
		return nil, fmt.Errorf("no frontend %q: want %s or %s", kind, Dynamo, Portico)
	}
	env = append(env, extraEnv...)
	// Both understand these flags; everything else comes from the environment.
	args = append(args, "--http-host", "127.0.0.1", "--http-port", strconv.Itoa(port))
	// The port may have been taken since: then the frontend ends at once, and WaitFor with it.
	p, err := s.Run(kind, env, args...)
	if err != nil {
		return nil, err
	}
	f := &Frontend{Process: p, Kind: kind, URL: "http://" + loopback(port)}
	err = p.WaitFor(startTimeout, func() error {
		_, err := f.Models()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("frontend: %w", err)
	}
	return f, nil
}

// Models lists the models the frontend serves, in its order. A frontend that doesn't answer in two seconds is an error.
func (f *Frontend) Models() ([]string, error) {
	c := http.Client{Timeout: 2 * time.Second}
	res, err := c.Get(f.URL + "/v1/models")
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, fmt.Errorf("models: status %d: %w", res.StatusCode, err)
	}
	var names []string
	for _, m := range list.Data {
		names = append(names, m.ID)
	}
	return names, nil
}

// WaitModel waits until the frontend serves a model; with want false, until it no longer does. It fails as soon as the
// frontend has ended.
func (f *Frontend) WaitModel(name string, want bool, within time.Duration) error {
	return f.WaitFor(within, func() error {
		names, err := f.Models()
		if err != nil {
			return err
		}
		// What is served instead is what a reader of the error wants to know.
		if slices.Contains(names, name) != want {
			return errors.New("models: " + strings.Join(names, ", "))
		}
		return nil
	})
}
