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
// simulated worker that speaks the real worker protocol over both.
type embedded struct {
	records          *mem.Source
	frontend, worker *nats.Conn
}

// natsReady bounds the start of the NATS server, which takes milliseconds.
const natsReady = 10 * time.Second

func (a *app) startEmbedded() (*embedded, error) {
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
	if !s.ReadyForConnections(natsReady) {
		return nil, errors.New("embedded NATS server: not ready in time")
	}
	e := &embedded{records: mem.New()}
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
	card, err := modelcard.FromFolder(path, a.cfg.Models.Name)
	if err != nil {
		return fmt.Errorf("model-path: %w", err)
	}
	registrar := mem.NewRegistrar(e.records)
	id, err := registrar.InstanceID(a.parts.Context())
	if err != nil {
		return fmt.Errorf("embedded worker: %w", err)
	}
	w, err := simworker.New(simworker.Options{
		InstanceID: id, Card: card, NATS: e.worker, Registrar: registrar, Engine: engineFor(path), Log: a.target("simworker")})
	if err != nil {
		return err
	}
	a.run("embedded worker", w.Run)
	return nil
}

// engineFor answers with words where the model's vocabulary can spell them, and echoes the prompt where it can't.
func engineFor(path string) simworker.Engine {
	g := &simworker.Generator{Source: simworker.Echo{}, Timing: simworker.Timing{TTFT: 20 * time.Millisecond, ITL: 8 * time.Millisecond}}
	raw, err := os.ReadFile(filepath.Join(path, "tokenizer.json"))
	if err != nil {
		return g
	}
	vocabulary, err := simworker.ParseVocabulary(raw)
	if err != nil {
		return g
	}
	if text, err := simworker.NewText(vocabulary.Encode); err == nil {
		g.Source = text
	}
	return g
}
