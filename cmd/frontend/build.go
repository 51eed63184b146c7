package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/portico-llm/portico/api"
	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/config"
	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/native"
	"github.com/portico-llm/portico/internal/observe"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/prepost/chattmpl"
	"github.com/portico-llm/portico/internal/prepost/executor"
	"github.com/portico-llm/portico/internal/prepost/modelcard"
	"github.com/portico-llm/portico/internal/prepost/tokenizer"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/callhome"
	"github.com/portico-llm/portico/internal/router/discovery"
	"github.com/portico-llm/portico/internal/router/discovery/etcd"
	"github.com/portico-llm/portico/internal/router/discovery/file"
	"github.com/portico-llm/portico/internal/router/discovery/mem"
	"github.com/portico-llm/portico/internal/router/dispatch"
	"github.com/portico-llm/portico/internal/router/plane/nats"
	"github.com/portico-llm/portico/internal/router/plane/tcp"
	"github.com/portico-llm/portico/internal/router/policy"
	"github.com/portico-llm/portico/internal/server"
	"github.com/portico-llm/portico/internal/server/sse"
)

// app is the object graph: the only place where constructors of different areas meet.
type app struct {
	cfg *config.Config
	log *slog.Logger

	registry *prometheus.Registry
	tracing  *observe.Tracing
	gate     *native.Gate
	pools    *executor.Registry
	store    *discovery.Store
	catalog  *catalog.Catalog
	server   *server.Server

	parts   *lifecycle.Group // what must not fail while the server runs; ends when one does
	closers []closer         // called in reverse
}

// closer releases one part, within the bounds of ctx.
type closer func(ctx context.Context) error

// build makes everything and starts what runs beside the HTTP server. On failure what was made is released.
func build(ctx context.Context, cfg *config.Config, log *slog.Logger) (a *app, err error) {
	background := context.WithoutCancel(ctx)
	a = &app{cfg: cfg, log: log, registry: observe.NewRegistry(), parts: lifecycle.New(background)}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.close(background))
			a = nil
		}
	}()
	if err = a.startTracing(background); err != nil {
		return a, err
	}
	a.gate = native.NewGate(atLeastOne(cfg.Text.NativeCalls))
	a.pools = executor.NewRegistry(executor.Options{
		Workers: cfg.Text.Workers, Queue: cfg.Text.Queue, Gate: a.gate, Registerer: a.registry, Log: log})
	a.onClose(func(context.Context) error { return a.pools.Close() })

	var embedded *embedded
	if cfg.Embedded {
		if embedded, err = a.startEmbedded(); err != nil {
			return a, err
		}
	}
	source, err := a.source(embedded)
	if err != nil {
		return a, err
	}
	a.store = discovery.NewStore(source, discovery.Options{Log: a.target("discovery"), Registerer: a.registry})
	a.run("discovery", a.store.Run)
	a.catalog = catalog.New(a.catalogOptions())
	a.run("catalog", a.catalog.Run)

	dispatcher, err := a.dispatcher(background, embedded)
	if err != nil {
		return a, err
	}
	if embedded != nil {
		if err = embedded.startWorker(a); err != nil {
			return a, err
		}
	}
	a.server, err = a.newServer(dispatcher)
	return a, err
}

// target returns a logger whose level can be set on its own.
func (a *app) target(name string) *slog.Logger { return a.log.With(observe.Target, name) }

func (a *app) onClose(c closer) { a.closers = append(a.closers, c) }

// run starts a part. It is stopped, and waited for, when its turn comes in close; a failure before that stops the
// server.
func (a *app) run(name string, f func(ctx context.Context) error) {
	g := lifecycle.New(a.parts.Context())
	a.onClose(func(context.Context) error { return g.Stop() })
	g.Go(name, f)
	a.parts.Go(name, func(ctx context.Context) error {
		select {
		case <-g.Context().Done():
			return context.Cause(g.Context())
		case <-ctx.Done():
			return nil
		}
	})
}

// failed is closed when a part has failed.
func (a *app) failed() <-chan struct{} { return a.parts.Context().Done() }

// cause is the failure of a part, or nil.
func (a *app) cause() error {
	if err := context.Cause(a.parts.Context()); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// closeTimeout bounds the release of everything together.
const closeTimeout = 10 * time.Second

func (a *app) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	var errs []error
	for i := len(a.closers) - 1; i >= 0; i-- {
		errs = append(errs, a.closers[i](ctx))
	}
	_ = a.parts.Stop() // its failure was reported by cause
	return errors.Join(errs...)
}

func (a *app) startTracing(ctx context.Context) error {
	t := a.cfg.Trace
	tracing, err := observe.StartTracing(ctx, observe.TraceOptions{
		Endpoint: t.Endpoint, Protocol: t.Protocol, Headers: t.Headers, Timeout: t.Timeout, Compression: t.Compression,
		Service: t.Service, Attributes: t.Attributes, Sampler: t.Sampler, SamplerArg: t.SamplerArg, Log: a.target("trace"),
	})
	if err != nil {
		return fmt.Errorf("traces: %w", err)
	}
	a.tracing = tracing
	a.onClose(tracing.Close)
	return nil
}

// source is where workers are found.
func (a *app) source(e *embedded) (router.Source, error) {
	d, log := a.cfg.Discovery, a.target("discovery")
	switch {
	case e != nil:
		return e.records, nil
	case d.Backend == "mem":
		// Nothing can register from outside: of use only to those who want an empty server.
		return mem.New(), nil
	case d.Backend == "file":
		return file.New(file.Options{Root: d.FileKV, Log: log}), nil
	}
	keepalive := d.Etcd.KeepAliveInterval
	if keepalive == 0 {
		keepalive = -1 // the option's zero is its default
	}
	return etcd.New(etcd.Options{
		Endpoints: d.Etcd.Endpoints, Username: d.Etcd.Username, Password: d.Etcd.Password,
		CAFile: d.Etcd.TLS.CAPath, CertFile: d.Etcd.TLS.CertPath, KeyFile: d.Etcd.TLS.KeyPath,
		LeaseTTL: d.Etcd.LeaseTTL, StartTimeout: d.Etcd.ConnectTimeout, Keepalive: keepalive, Log: log,
	})
}

func (a *app) catalogOptions() catalog.Options {
	m := a.cfg.Models
	return catalog.Options{
		Store: a.store, Load: a.loadText, Sum: modelcard.Sum,
		Namespace: m.Namespace, NamespacePrefix: m.NamespacePrefix, PrefixStrict: m.PrefixStrict,
		ContextWindow: m.ContextWindow, MaxOutput: m.MaxOutputTokens,
		Log: a.target("catalog"), Registerer: a.registry,
	}
}

// loadText builds a model's way from text to tokens and back. A template or tokenizer that doesn't work shows here, and
// not with the first request.
func (a *app) loadText(ctx context.Context, rec *worker.ModelRecord) (*catalog.Text, error) {
	log := a.target("models")
	files, err := modelcard.Open(ctx, &rec.Card, modelcard.Options{
		ModelPath: a.cfg.Models.Path, HubCache: a.cfg.Models.HubCache, Log: log})
	if err != nil {
		return nil, err
	}
	backend := a.cfg.Text.TokenizerBackend
	if backend == tokenizer.Auto && rec.Card.RuntimeConfig.TokenizerBackend == "default" {
		backend = tokenizer.Tokenizers // the card asks for the reference
	}
	options := tokenizer.Options{Backend: backend, Name: rec.Card.DisplayName, Registry: a.pools, Log: log}
	if files.TokenizerKind == worker.KindTiktoken {
		options.Tiktoken = files.TokenizerPath
	} else {
		options.JSON = files.Tokenizer
	}
	tok, err := tokenizer.Load(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	text := &catalog.Text{Tokenizer: tok, EOS: files.EOS, Close: tok.Close}
	if files.TemplateDefault == "" && files.TemplateToolUse == "" {
		return text, nil
	}
	renderer, err := chattmpl.New(chattmpl.Options{
		Default: files.TemplateDefault, ToolUse: files.TemplateToolUse, SpecialTokens: files.SpecialTokens,
		Gate: a.gate, Timeout: a.cfg.Text.TemplateTimeout, Log: log})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("chat template: %w", err), tok.Close())
	}
	text.Renderer = renderer
	text.Close = func() error { return errors.Join(renderer.Close(), tok.Close()) }
	return text, nil
}

// dispatcher joins the ways to the workers and back.
func (a *app) dispatcher(ctx context.Context, e *embedded) (router.Dispatcher, error) {
	choose, err := policy.New(a.cfg.Router.Mode)
	if err != nil {
		return nil, fmt.Errorf("router-mode: %w", err)
	}
	host := a.cfg.CallHome.Host
	if host == "" && e != nil {
		host = "127.0.0.1" // the only worker is in this process
	}
	log := a.target("router")
	home, err := callhome.Listen(callhome.Options{
		Host: host, Port: a.cfg.CallHome.Port, AdvertiseHost: a.cfg.CallHome.AdvertiseHost,
		Registerer: a.registry, Log: log})
	if err != nil {
		return nil, err
	}
	a.run("call-home", home.Run)

	tcpPlane := tcp.New(tcp.Options{
		PoolSize: a.cfg.TCP.PoolSize, ConnectTimeout: a.cfg.TCP.ConnectTimeout, AckTimeout: a.cfg.TCP.RequestTimeout,
		MaxMessage: a.cfg.TCP.MaxMessageSize, Log: log})
	a.onClose(func(context.Context) error { return tcpPlane.Close() })
	natsPlane, err := a.natsPlane(ctx, e, log)
	if err != nil {
		return nil, err
	}
	a.onClose(func(context.Context) error { return natsPlane.Close() })

	quarantine := a.cfg.Plane.Quarantine
	if quarantine == 0 {
		quarantine = -1 // the option's zero is its default
	}
	d := dispatch.New(dispatch.Options{
		Snapshots: a.store.Snapshot, Policy: choose, NATS: natsPlane, TCP: tcpPlane, CallHome: home,
		HandshakeTimeout: a.cfg.Plane.HandshakeTimeout, StreamTimeout: a.cfg.HTTP.StreamTimeout,
		QuarantineFor: quarantine, MaxAttempts: a.cfg.Plane.MaxAttempts, Registerer: a.registry, Log: log,
	})
	cancel := a.store.Watch(func(*router.Snapshot) { d.Refresh() })
	a.onClose(func(context.Context) error { cancel(); return nil })
	return d, nil
}

// natsPlane connects when the first request needs it, or at once when NATS is the default plane.
func (a *app) natsPlane(ctx context.Context, e *embedded, log *slog.Logger) (*nats.Plane, error) {
	n := a.cfg.NATS
	tlsConfig, err := n.TLS.Config()
	if err != nil {
		return nil, fmt.Errorf("NATS: %w", err)
	}
	o := nats.Options{
		URL: n.URL, Username: n.Username, Password: n.Password, Token: n.Token, NKeySeed: n.NKey,
		CredentialsFile: n.CredentialsFile, TLS: tlsConfig, RequestTimeout: n.RequestTimeout, Log: log}
	if e != nil {
		o.URL, o.Conn = "", e.frontend
	}
	p, err := nats.New(o)
	if err != nil {
		return nil, fmt.Errorf("NATS: %w", err)
	}
	if e == nil && a.cfg.Plane.Default == "nats" {
		a.run("nats connection", func(ctx context.Context) error {
			connect, cancel := context.WithTimeout(ctx, n.ConnectTimeout)
			defer cancel()
			if err := p.Connect(connect); err != nil && ctx.Err() == nil {
				return fmt.Errorf("connect to NATS at %s: %w", n.URL, err)
			}
			<-ctx.Done()
			return nil
		})
	}
	return p, nil
}

func (a *app) newServer(dispatcher router.Dispatcher) (*server.Server, error) {
	var tracer trace.Tracer // nil when nothing is exported: spans that nobody sees still cost
	if a.tracing.Exporting() {
		tracer = a.tracing.Tracer("portico")
	}
	h := a.cfg.HTTP
	stream := sse.Options{
		Heartbeat: h.KeepAlive, WriteTimeout: h.WriteTimeout, HoldBack: h.HoldBack, HoldBackUnit: holdBackUnit}
	if stream.WriteTimeout == 0 {
		stream.WriteTimeout = noLimit
	}
	document, err := api.OpenAPI()
	if err != nil {
		return nil, err
	}
	return server.New(server.Options{
		Pipeline: pipeline.New(pipeline.Options{
			Dispatcher: dispatcher, Tracer: tracer, Registerer: a.registry, Log: a.target("pipeline")}),
		Catalog:   a.catalog,
		Instances: func() []*worker.Instance { return instances(a.store.Snapshot()) },
		Paths: server.Paths{
			Chat: h.Paths.Chat, Completions: h.Paths.Completions, Models: h.Paths.Models,
			Health: h.Paths.Health, Live: h.Paths.Live, Metrics: h.Paths.Metrics},
		OpenAPI:        document,
		FlatErrors:     h.ErrorFormat == "dynamo",
		OverloadStatus: h.OverloadCode,
		Decode:         openai.DecodeOptions{Strict: h.Strict, IgnoreNvExt: h.IgnoreNvExt},
		BodyLimit:      h.BodyLimit,
		ForceUsage:     h.ForceIncludeUsage,
		Stream:         stream,
		Tracer:         tracer, Registerer: a.registry,
		Gatherer: observe.WithPrefix(a.registry, "dynamo_frontend", a.cfg.Metrics.Prefix),
		Log:      a.target("http"),
	})
}

// noLimit stands for none: every wait has an end.
const noLimit = 24 * time.Hour

// holdBackUnit is what each open stream adds to the hold-back: with few streams nothing waits, with a hundred a burst
// is gathered for its full time.
const holdBackUnit = 50 * time.Microsecond

func instances(s *router.Snapshot) (out []*worker.Instance) {
	for _, at := range s.Instances {
		out = append(out, at...)
	}
	return out
}

func withTLS(l net.Listener, c *tls.Config) net.Listener {
	if c == nil {
		return l
	}
	return tls.NewListener(l, c)
}

func atLeastOne(n int) int {
	if n > 0 {
		return n
	}
	return runtime.GOMAXPROCS(0)
}
