// Command simworker is a simulated inference worker: it registers a model and answers requests over the worker
// protocol, without a model. See package simworker for its engines and faults.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/prepost/modelcard"
	"github.com/portico-llm/portico/internal/router/discovery/etcd"
	"github.com/portico-llm/portico/internal/router/discovery/file"
	"github.com/portico-llm/portico/internal/simworker"
)

// main ends the workers in good order on an interrupt: records are removed and requests get their grace period.
func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.LookupEnv, os.Stderr)
	stop()
	os.Exit(code)
}

// run returns the exit code: 0 after an orderly end, 1 after a failure, 2 for wrong usage. It blocks until ctx ends or
// the first worker fails.
func run(ctx context.Context, args []string, env func(string) (string, bool), stderr io.Writer) int {
	s, err := parse(args, env, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(stderr, "simworker:", err)
		return 2
	}
	// Nothing goes to standard output: tests and scripts read the log.
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: s.logLevel}))
	if err := serve(ctx, s, log); err != nil {
		fmt.Fprintln(stderr, "simworker:", err)
		return 1
	}
	return 0
}

// registrar is what the discovery backends offer a worker. Close gives up the records that are left, and waits for what
// keeps them alive.
type registrar interface {
	simworker.Registrar
	// InstanceID returns the id to register under, and may have to ask the backend for it.
	InstanceID(ctx context.Context) (uint64, error)
	Close() error
}

// serve runs the workers until ctx ends. A worker that fails ends all of them, and its error is returned: a process
// with some of its workers missing would pass for a whole one.
func serve(ctx context.Context, s *settings, log *slog.Logger) (err error) {
	engine, err := s.engine()
	if err != nil {
		return err
	}
	// Late reads go on until the last worker has ended.
	late := lifecycle.New(context.WithoutCancel(ctx))
	engine, closeImages, err := s.withImages(late, engine, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, late.Stop(), closeImages()) }()
	// Workers share nothing but the engine: ids, records and planes are their own.
	g := lifecycle.New(ctx)
	for i := range s.workers {
		r, err := s.registrar(log)
		if err != nil {
			return errors.Join(err, g.Stop())
		}
		// The registrar outlives its worker, which removes its records on the way out.
		started := g.Go("worker", func(ctx context.Context) (err error) {
			defer func() { err = errors.Join(err, r.Close()) }()
			return s.runWorker(ctx, i, r, engine, log)
		})
		// A group that has been stopped runs nothing more; then nobody has taken this registrar over.
		if !started {
			return errors.Join(g.Stop(), r.Close())
		}
	}
	return g.Wait()
}

// runWorker runs one worker under the id its registrar gives it: with etcd that is its lease's, so that records and
// worker live and die together. It returns nil when ctx ends and the worker has ended in good order.
func (s *settings) runWorker(ctx context.Context, index int, r registrar, engine simworker.Engine, log *slog.Logger) error {
	id, err := r.InstanceID(ctx)
	if err != nil {
		return fmt.Errorf("instance id: %w", err)
	}
	// A card of its own for each worker, as each is a process elsewhere.
	card, err := modelcard.FromFolder(s.modelPath, s.modelName)
	if err != nil {
		return err
	}
	if s.decoded {
		card.MediaDecoder = json.RawMessage(`{"image":{}}`)
	}
	// What hands prompts over goes on until the last request has ended.
	g := lifecycle.New(context.WithoutCancel(ctx))
	defer g.Stop()
	if engine, err = s.share(g, index, card, engine); err != nil {
		return err
	}
	// Everything else has the package's defaults.
	o := simworker.Options{
		Endpoint: s.endpoint, InstanceID: id, Card: card, Codec: s.codec, Registrar: r, Engine: engine,
		Host: s.host, Port: s.port, AdvertiseHost: s.advertise, MaxActive: s.maxActive, MaxQueued: s.maxQueued, Log: log,
	}
	if s.faults != "" {
		// Requests are numbered at each worker, so every worker follows the plan by itself.
		if o.Fault, err = simworker.ParseFaults(s.faults); err != nil {
			return err
		}
	}
	// Without an address of NATS the worker listens for TCP.
	if s.plane == "nats" {
		o.NATSURL = s.nats
	}
	w, err := simworker.New(o)
	if err != nil {
		return err
	}
	err = w.Run(ctx)
	// The counts are worth having whatever ended it.
	log.Info("worker ended", "stats", w.Stats())
	return err
}

// share makes worker number index do its part of requests: it changes the card and returns the engine. Where decode
// workers come to fetch prompts is served by the group.
func (s *settings) share(g *lifecycle.Group, index int, card *worker.Card, engine simworker.Engine) (simworker.Engine, error) {
	switch s.role {
	case "prefill":
		card.WorkerType, card.ModelType, card.Needs = "prefill", "", [][]string{{"decode"}}
		e := &simworker.Prefiller{Timing: s.timing, Seed: s.seed}
		if len(s.bootstrap) == 0 {
			return e, nil
		}
		rooms, err := simworker.ListenRooms(net.JoinHostPort(s.host, strconv.Itoa(s.bootstrap[index])))
		if err != nil {
			return nil, err
		}
		host, port := rooms.Address()
		card.RuntimeConfig.DisaggregatedEndpoint = fmt.Appendf(nil, `{"bootstrap_host":%q,"bootstrap_port":%d}`, host, port)
		e.Rooms = rooms
		g.Go("rooms", rooms.Run)
		return e, nil
	case "decode":
		card.WorkerType, card.Needs = "decode", [][]string{{"prefill"}}
		return &simworker.Decoder{Engine: engine}, nil
	}
	return engine, nil
}

// registrar returns a registrar of its own for each worker, since each has its own id and lifetime. It doesn't connect;
// the caller closes it.
func (s *settings) registrar(log *slog.Logger) (registrar, error) {
	// parse lets nothing through but these two.
	if s.backend == "etcd" {
		o := s.etcd
		o.Log = log
		return etcd.NewRegistrar(o)
	}
	return file.NewRegistrar(s.fileKV), nil
}

// engine builds the engine that all workers of this process share: engines are safe for concurrent use. Unless it plays
// a script or the prompt it needs the model's vocabulary, to write words in its tokens.
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
	// The other engines write tokens of the model, whose text clients can read.
	b, err := os.ReadFile(filepath.Join(s.modelPath, "tokenizer.json"))
	if err != nil {
		return nil, fmt.Errorf("vocabulary: %w", err)
	}
	v, err := simworker.ParseVocabulary(b)
	if err != nil {
		return nil, err
	}
	switch s.kind {
	case "walk":
		g.Source = simworker.Walk{IDs: v.Plain()}
		return g, nil
	case "random":
		g.Source = simworker.Random{IDs: v.Plain()}
		return g, nil
	}
	// Without a text of its own the engine has some prepared.
	var passages []string
	if s.text != "" {
		passages = []string{s.text}
	}
	g.Source, err = simworker.NewText(v.Encode, passages...)
	return g, err
}
