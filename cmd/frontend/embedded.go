package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/portico-llm/portico/internal/prepost/modelcard"
	"github.com/portico-llm/portico/internal/router/discovery/mem"
	"github.com/portico-llm/portico/internal/simworker"
)

// embedded is what --embedded puts in place of a cluster: a NATS server without a port, discovery in memory, and a
// simulated worker that speaks the real worker protocol over both. A stand-in shares every line of the request path
// with the real thing but the network below NATS.
type embedded struct {
	records          *mem.Source // discovery
	frontend, worker *nats.Conn  // both ends, over the server in between
}

// natsReady bounds the start of the NATS server, which takes milliseconds.
const natsReady = 10 * time.Second

// startEmbedded starts the NATS server and connects both sides to it. They are closed before it is.
func (a *app) startEmbedded() (*embedded, error) {
	// No port and no signals: the process has its own, and several may run side by side.
	s, err := server.NewServer(&server.Options{ServerName: "embedded", DontListen: true, NoSigs: true, NoLog: true})
	if err != nil {
		return nil, fmt.Errorf("embedded NATS server: %w", err)
	}
	s.Start()
	a.onClose(func(context.Context) error {
		s.Shutdown()
		s.WaitForShutdown()
		return nil
	})
	// Started on goroutines of its own, which Shutdown ends and WaitForShutdown waits for.
	if !s.ReadyForConnections(natsReady) {
		return nil, errors.New("embedded NATS server: not ready in time")
	}
	e := &embedded{records: mem.New()}
	// Two connections, as between two processes: subjects and replies take the real way.
	for name, c := range map[string]**nats.Conn{"frontend": &e.frontend, "worker": &e.worker} {
		conn, err := nats.Connect("", nats.InProcessServer(s), nats.Name(name), nats.MaxReconnects(-1))
		if err != nil {
			return nil, fmt.Errorf("embedded NATS server: %w", err)
		}
		a.onClose(func(context.Context) error { conn.Close(); return nil })
		*c = conn
	}
	return e, nil
}

// startWorker runs the simulated worker. Its answers are prepared text in the model's own tokens.
func (e *embedded) startWorker(a *app) error {
	path := a.cfg.Models.Path
	// The card that a worker would publish: from here on nothing knows that it is a simulation.
	card, err := modelcard.FromFolder(path, a.cfg.Models.Name)
	if err != nil {
		return fmt.Errorf("model-path: %w", err)
	}
	// The worker registers like any other: catalog and dispatcher find it by way of discovery.
	registrar := mem.NewRegistrar(e.records)
	// A random id, as unique as a lease's.
	id, err := registrar.InstanceID(a.parts.Context())
	if err != nil {
		return fmt.Errorf("embedded worker: %w", err)
	}
	w, err := simworker.New(simworker.Options{
		InstanceID: id, Card: card, NATS: e.worker, Registrar: registrar, Engine: engineFor(path), Log: a.target("simworker")})
	if err != nil {
		return err
	}
	// Stopped before the planes: it takes its records away and ends its streams in good order.
	a.run("embedded worker", w.Run)
	return nil
}

// engineFor answers with words where the model's vocabulary can spell them, and echoes the prompt where it can't.
func engineFor(path string) simworker.Engine {
	// About the pace of a small model on one accelerator: fast enough to try, slow enough to see a stream.
	g := &simworker.Generator{Source: simworker.Echo{}, Timing: simworker.Timing{TTFT: 20 * time.Millisecond, ITL: 8 * time.Millisecond}}
	raw, err := os.ReadFile(filepath.Join(path, "tokenizer.json"))
	if err != nil {
		return g
	}
	// Any failure falls back to the echo, which works with every tokenizer.
	vocabulary, err := simworker.ParseVocabulary(raw)
	if err != nil {
		return g
	}
	// Words show a stream better than an echo does.
	if text, err := simworker.NewText(vocabulary.Encode); err == nil {
		g.Source = text
	}
	return g
}
