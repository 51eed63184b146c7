// Command simworker is a simulated inference worker: it registers a model and answers requests over the worker
// protocol, without a model. See package simworker for its engines and faults.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/prepost/modelcard"
	"github.com/portico-llm/portico/internal/router/discovery/etcd"
	"github.com/portico-llm/portico/internal/router/discovery/file"
	"github.com/portico-llm/portico/internal/simworker"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.LookupEnv, os.Stderr)
	stop()
	os.Exit(code)
}

// run returns the exit code: 0 after an orderly end, 1 after a failure, 2 for wrong usage.
func run(ctx context.Context, args []string, env func(string) (string, bool), stderr io.Writer) int {
	s, err := parse(args, env, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(stderr, "simworker:", err)
		return 2
	}
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: s.logLevel}))
	if err := serve(ctx, s, log); err != nil {
		fmt.Fprintln(stderr, "simworker:", err)
		return 1
	}
	return 0
}

// registrar is what the discovery backends offer a worker.
type registrar interface {
	simworker.Registrar
	InstanceID(ctx context.Context) (uint64, error)
	Close() error
}

// serve runs the workers until ctx ends.
func serve(ctx context.Context, s *settings, log *slog.Logger) (err error) {
	engine, err := s.engine()
	if err != nil {
		return err
	}
	g := lifecycle.New(ctx)
	for range s.workers {
		r, err := s.registrar(log)
		if err != nil {
			return errors.Join(err, g.Stop())
		}
		started := g.Go("worker", func(ctx context.Context) (err error) {
			defer func() { err = errors.Join(err, r.Close()) }()
			return s.runWorker(ctx, r, engine, log)
		})
		if !started {
			return errors.Join(g.Stop(), r.Close())
		}
	}
	return g.Wait()
}

// runWorker runs one worker under the id its registrar gives it: with etcd that is its lease's.
func (s *settings) runWorker(ctx context.Context, r registrar, engine simworker.Engine, log *slog.Logger) error {
	id, err := r.InstanceID(ctx)
	if err != nil {
		return fmt.Errorf("instance id: %w", err)
	}
	card, err := modelcard.FromFolder(s.modelPath, s.modelName)
	if err != nil {
		return err
	}
	o := simworker.Options{
		Endpoint: s.endpoint, InstanceID: id, Card: card, Codec: s.codec, Registrar: r, Engine: engine,
		Host: s.host, Port: s.port, AdvertiseHost: s.advertise, MaxActive: s.maxActive, MaxQueued: s.maxQueued, Log: log,
	}
	if s.faults != "" {
		if o.Fault, err = simworker.ParseFaults(s.faults); err != nil {
			return err
		}
	}
	if s.plane == "nats" {
		o.NATSURL = s.nats
	}
	w, err := simworker.New(o)
	if err != nil {
		return err
	}
	err = w.Run(ctx)
	log.Info("worker ended", "stats", w.Stats())
	return err
}

// registrar returns a registrar of its own for each worker, since each has its own id and lifetime.
func (s *settings) registrar(log *slog.Logger) (registrar, error) {
	if s.backend == "etcd" {
		o := s.etcd
		o.Log = log
		return etcd.NewRegistrar(o)
	}
	return file.NewRegistrar(s.fileKV), nil
}

// engine builds the engine that all workers of this process share.
func (s *settings) engine() (simworker.Engine, error) {
	if s.script != "" {
		b, err := os.ReadFile(s.script)
		if err != nil {
			return nil, fmt.Errorf("script: %w", err)
		}
		return simworker.ParseScript(b)
	}
	g := &simworker.Generator{Timing: s.timing, Seed: s.seed, MaxTokens: s.maxTokens}
	if s.kind == "echo" {
		g.Source = simworker.Echo{}
		return g, nil
	}
	b, err := os.ReadFile(filepath.Join(s.modelPath, "tokenizer.json"))
	if err != nil {
		return nil, fmt.Errorf("vocabulary: %w", err)
	}
	v, err := simworker.ParseVocabulary(b)
	if err != nil {
		return nil, err
	}
	if s.kind == "random" {
		g.Source = simworker.Random{IDs: v.Plain()}
		return g, nil
	}
	var passages []string
	if s.text != "" {
		passages = []string{s.text}
	}
	g.Source, err = simworker.NewText(v.Encode, passages...)
	return g, err
}
