package stack

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// NATS is a NATS server in this process. It keeps its port over Stop and Start, so that clients find it again. For one
// goroutine at a time.
type NATS struct {
	port   int
	server *server.Server // nil: stopped
}

// URL is the server's address.
func (n *NATS) URL() string { return "nats://" + loopback(n.port) }

// Start starts the server, again if it was stopped.
func (n *NATS) Start() error {
	// Signals are the test's own, and its output, too.
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: n.port, NoSigs: true, NoLog: true})
	if err != nil {
		return fmt.Errorf("nats server: %w", err)
	}
	s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		s.Shutdown()
		return errors.New("nats server: not ready after 10 s")
	}
	// Only a server that is ready counts as started.
	n.server = s
	return nil
}

// Stop ends the server and returns when it has ended: its clients lose their connections.
func (n *NATS) Stop() {
	if n.server != nil {
		n.server.Shutdown()
		n.server.WaitForShutdown()
		n.server = nil
	}
}

// Etcd is an etcd server, a process of its own. It keeps its port and data over Stop and Start: leases and records
// outlive an outage. For one goroutine at a time.
type Etcd struct {
	stack   *Stack
	port    int
	process *Process // of the latest Start; nil before
}

// URL is the address for clients.
func (e *Etcd) URL() string { return "http://" + loopback(e.port) }

// Start starts the server, again if it was stopped.
func (e *Etcd) Start() error {
	p, err := Start(Spec{
		Name: "etcd", Log: e.stack.logFile("etcd"),
		// From scratch, like those of the stack's other processes.
		Env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + e.stack.Dir},
		Args: []string{
			e.stack.tools.Etcd, "-data-dir", filepath.Join(e.stack.Dir, "etcd"), "-log-level", "error", "-listen", loopback(e.port),
		},
	})
	if err != nil {
		return err
	}
	e.process = p
	return p.WaitFor(30*time.Second, func() error {
		c := http.Client{Timeout: time.Second}
		res, err := c.Get(e.URL() + "/health")
		if err != nil {
			return err
		}
		res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("health: status %d", res.StatusCode)
		}
		return nil
	})
}

// Stop ends the server and waits for it; a second call does nothing.
func (e *Etcd) Stop() {
	if e.process != nil {
		e.process.Stop(10 * time.Second)
	}
}
