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

// NATS is a NATS server in this process. It keeps its port over Stop and Start.
type NATS struct {
	port   int
	server *server.Server
}

// URL is the server's address.
func (n *NATS) URL() string { return "nats://" + loopback(n.port) }

// Start starts the server, again if it was stopped.
func (n *NATS) Start() error {
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: n.port, NoSigs: true, NoLog: true})
	if err != nil {
		return fmt.Errorf("nats server: %w", err)
	}
	s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		s.Shutdown()
		return errors.New("nats server: not ready after 10 s")
	}
	n.server = s
	return nil
}

// Stop ends the server: its clients lose their connections.
func (n *NATS) Stop() {
	if n.server != nil {
		n.server.Shutdown()
		n.server.WaitForShutdown()
		n.server = nil
	}
}

// Etcd is an etcd server. It keeps its port and data over Stop and Start.
type Etcd struct {
	stack   *Stack
	port    int
	process *Process
}

// URL is the address for clients.
func (e *Etcd) URL() string { return "http://" + loopback(e.port) }

// Start starts the server, again if it was stopped.
func (e *Etcd) Start() error {
	p, err := Start(Spec{
		Name: "etcd", Log: e.stack.logFile("etcd"),
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

// Stop ends the server.
func (e *Etcd) Stop() {
	if e.process != nil {
		e.process.Stop(10 * time.Second)
	}
}
