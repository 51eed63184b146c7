package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/portico-llm/portico/api"
	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/config"
	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/multimodal"
	"github.com/portico-llm/portico/internal/multimodal/decode"
	"github.com/portico-llm/portico/internal/native"
	"github.com/portico-llm/portico/internal/observe"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/prepost/chattmpl"
	"github.com/portico-llm/portico/internal/prepost/executor"
	"github.com/portico-llm/portico/internal/prepost/modelcard"
	"github.com/portico-llm/portico/internal/prepost/msgparse"
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
	"github.com/portico-llm/portico/internal/server"
	"github.com/portico-llm/portico/internal/server/admin"
	"github.com/portico-llm/portico/internal/server/responses"
	"github.com/portico-llm/portico/internal/server/sse"
)

// app is the object graph: the only place where constructors of different areas meet.
type app struct {
	cfg *config.Config // only read
	log *slog.Logger   // parts get it with a target

	registry *prometheus.Registry // all metrics
	tracing  *observe.Tracing     // exports nothing unless configured
	images   *decode.Pool         // works on images; nil: they travel by URL
	gate     *native.Gate         // bounds native calls of all models together
	pools    *executor.Registry   // one pool for each tokenizer
	known    *tokenizer.Caches    // what tokenizers remember; nil: nothing
	records  *mem.Source          // with discovery backend mem; else nil
	store    *discovery.Store     // what discovery knows
	catalog  *catalog.Catalog     // what can be served
	server   *server.Server       // nil until everything else is there

	overload // who is let in, and which workers get it
	// alone finds decode workers that had better read a prompt themselves.
	alone func(decode *router.Call, prefill func() *router.Call) bool

	parts   *lifecycle.Group // what must not fail while the server runs; ends when one does
	closers []closer         // called in reverse
}

// closer releases one part, within the bounds of ctx. It is called once.
type closer func(ctx context.Context) error

// build makes everything and starts what runs beside the HTTP server. On failure what was made is released.
func build(ctx context.Context, cfg *config.Config, log *slog.Logger) (a *app, err error) {
	// The signal that ends ctx must not end the parts: they are stopped in order, by close.
	background := context.WithoutCancel(ctx)
	// Half an app can be closed: closers holds what has been made so far, and nothing else.
	a = &app{cfg: cfg, log: log, registry: observe.NewRegistry(), parts: lifecycle.New(background)}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.close(background))
			a = nil
		}
	}()
	if err = msgparse.Check(cfg.Models.ToolParser, cfg.Models.ReasoningParser); err != nil {
		return a, err
	}
	// First made, last released: every part may still end a span.
	if err = a.startTracing(background); err != nil {
		return a, err
	}
	// Calls into native code take a thread each, so all models share one bound.
	a.gate = native.NewGate(atLeastOne(cfg.Text.NativeCalls))
	// Tokenizers of models that come and go take their pool from here and give it back.
	if cfg.Text.Cache {
		a.known = tokenizer.NewCaches(tokenizer.CacheOptions{Bytes: cfg.Text.CacheBytes, Registerer: a.registry})
	}
	a.pools = executor.NewRegistry(executor.Options{
		Workers: cfg.Text.Workers, Queue: cfg.Text.Queue, Gate: a.gate, Registerer: a.registry, Log: log})
	a.onClose(func(context.Context) error { return a.pools.Close() })

	// With --embedded, what stands in for a cluster is there before anything looks for it.
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
	// Discovery runs before the catalog watches it. The catalog closes the models when it ends.
	a.run("discovery", a.store.Run)
	a.run("memory", func(ctx context.Context) error {
		return observe.ReturnMemory(ctx, observe.MemoryOptions{Also: native.TrimHeap})
	})
	// Models are loaded with what it opens. It is closed after the way to the workers: they may be reading to the last.
	images, err := a.startImages()
	if err != nil {
		return a, err
	}
	// Loading begins as soon as a worker is seen, and ends beside requests for other models.
	a.catalog = catalog.New(a.catalogOptions())
	a.run("catalog", a.catalog.Run)

	// The way to the workers is there before the first worker can show up and be sent anything.
	dispatcher, err := a.dispatcher(embedded)
	if err != nil {
		return a, err
	}
	if err := a.letIn(); err != nil {
		return a, err
	}
	if embedded != nil {
		// Last of all: the moment its card is published, the catalog may load it and requests may come.
		if err = embedded.startWorker(a); err != nil {
			return a, err
		}
	}
	// It is only made here; run lets it serve.
	a.server, err = a.newServer(dispatcher, images)
	return a, err
}

// target returns a logger whose level can be set on its own.
func (a *app) target(name string) *slog.Logger { return a.log.With(observe.Target, name) }

// onClose adds a part to what close releases, ahead of all that was added before.
func (a *app) onClose(c closer) { a.closers = append(a.closers, c) }

// run starts a part. It is stopped, and waited for, when its turn comes in close; a failure before that stops the
// server. The name stands in the log when it fails.
func (a *app) run(name string, f func(ctx context.Context) error) {
	// Each part has a group of its own, which no other part's end ends: they are stopped one by one, in close, and a
	// failed part leaves the others to the streams that are still running. parts only watches.
	g := lifecycle.New(context.WithoutCancel(a.parts.Context()))
	a.onClose(func(context.Context) error { return g.Stop() })
	g.Go(name, f)
	// A part that ends by itself, without a failure, ends quietly; its cause is then the group's end.
	a.parts.Go(name, func(ctx context.Context) error {
		select {
		case <-g.Context().Done():
			if err := context.Cause(g.Context()); !errors.Is(err, context.Canceled) {
				return err
			}
			return nil // stopped in its turn
		case <-ctx.Done():
			return nil
		}
	})
}

// failed is closed when a part has failed. It never closes while all is well.
func (a *app) failed() <-chan struct{} { return a.parts.Context().Done() }

// cause is the failure of a part, or nil. Parts that were stopped have been cancelled, which is no failure.
func (a *app) cause() error {
	if err := context.Cause(a.parts.Context()); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// closeTimeout bounds the release of everything together.
const closeTimeout = 10 * time.Second

// close releases the parts, the last made first. It is called once.
func (a *app) close(ctx context.Context) error {
	// Closers that don't look at ctx have bounds of their own.
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	var errs []error
	// One that fails doesn't keep the others from being released; all share the time.
	for _, release := range slices.Backward(a.closers) {
		errs = append(errs, release(ctx))
	}
	_ = a.parts.Stop() // its failure was reported by cause
	return errors.Join(errs...)
}

// startTracing prepares spans. A collector that is away doesn't keep the server from starting.
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

// source is where workers are found. Nothing is connected here: a backend that is away is the source's own business,
// once it runs.
func (a *app) source(e *embedded) (router.Source, error) {
	d, log := a.cfg.Discovery, a.target("discovery")
	switch {
	case e != nil:
		return e.records, nil
	case d.Backend == "mem":
		// Nothing can register from outside: of use only to those who want an empty server.
		a.records = mem.New()
		return a.records, nil
	case d.Backend == "file":
		return file.New(file.Options{Root: d.FileKV, Log: log}), nil
	}
	return etcd.New(a.etcdOptions())
}

// etcdOptions are how the etcd servers are reached.
func (a *app) etcdOptions() etcd.Options {
	d, log := a.cfg.Discovery, a.target("discovery")
	// Operators turn pings off with 0, options with a negative number.
	keepalive := d.Etcd.KeepAliveInterval
	if keepalive == 0 {
		keepalive = -1 // the option's zero is its default
	}
	return etcd.Options{
		Endpoints: d.Etcd.Endpoints, Username: d.Etcd.Username, Password: d.Etcd.Password,
		CAFile: d.Etcd.TLS.CAPath, CertFile: d.Etcd.TLS.CertPath, KeyFile: d.Etcd.TLS.KeyPath,
		LeaseTTL: d.Etcd.LeaseTTL, StartTimeout: d.Etcd.ConnectTimeout, Keepalive: keepalive, Log: log,
	}
}

// catalogOptions joins the catalog to discovery and to the way models are loaded.
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
// not with the first request. It runs beside the requests, on a loader of the catalog's, for several models at a time.
func (a *app) loadText(ctx context.Context, rec *worker.ModelRecord) (*catalog.Text, error) {
	log := a.target("models")
	files, err := modelcard.Open(ctx, &rec.Card, modelcard.Options{
		ModelPath: a.cfg.Models.Path, HubCache: a.cfg.Models.HubCache, Log: log})
	if err != nil {
		return nil, err
	}
	// The operator's choice goes before the card's.
	backend := a.cfg.Text.TokenizerBackend
	if backend == tokenizer.Auto && rec.Card.RuntimeConfig.TokenizerBackend == "default" {
		backend = tokenizer.Tokenizers // the card asks for the reference
	}
	// The name shows in metrics and in the log; models that share it share those, too.
	options := tokenizer.Options{
		Backend: backend, Name: rec.Card.DisplayName, Registry: a.pools, Caches: a.known, Log: log}
	// tiktoken reads its settings from files beside the vocabulary, so it needs the path.
	if files.TokenizerKind == worker.KindTiktoken {
		options.Tiktoken = files.TokenizerPath
	} else {
		options.JSON = files.Tokenizer
	}
	// This is what takes long: ctx bounds it, as the catalog's loaders want it.
	tok, err := tokenizer.Load(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	// From here on the tokenizer is open: every way out closes it or hands it on.
	text := &catalog.Text{Tokenizer: tok, EOS: files.EOS, Close: tok.Close}
	text.Images, text.Pixels = a.imageProcessor(ctx, rec, files, tok), a.imageDecoder(rec)
	text.ToolParser, text.ReasoningParser = a.parsers(&rec.Card, files, log)
	// A base model: completions only.
	if files.TemplateDefault == "" && files.TemplateToolUse == "" {
		return text, nil
	}
	// Probes are rendered now, so that a broken template keeps the model from being served at all.
	renderer, err := chattmpl.New(chattmpl.Options{
		Default: files.TemplateDefault, ToolUse: files.TemplateToolUse, SpecialTokens: files.SpecialTokens,
		Gate: a.gate, Timeout: a.cfg.Text.TemplateTimeout, Log: log})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("chat template: %w", err), tok.Close())
	}
	// Completions don't need it; chat does.
	text.Renderer = renderer
	// Whoever makes the text hands both over to the catalog.
	text.Close = func() error { return errors.Join(renderer.Close(), tok.Close()) }
	return text, nil
}

// parsers returns the names of a model's parsers: the operator's before the card's, and those that the chat template
// gives away when nobody names any.
func (a *app) parsers(card *worker.Card, files *modelcard.Files, log *slog.Logger) (tools, reasoning string) {
	tools, reasoning = a.cfg.Models.ToolParser, a.cfg.Models.ReasoningParser
	if tools == "" {
		tools = card.RuntimeConfig.ToolCallParser
	}
	if reasoning == "" {
		reasoning = card.RuntimeConfig.ReasoningParser
	}
	// The operator's names were checked at the start. A worker of another version isn't left out for its own.
	if err := msgparse.CheckTools(tools); err != nil {
		log.Warn("tool calls of the model aren't parsed", "model", card.DisplayName, "error", err)
		tools = ""
	}
	// A card that names one of the two has been written by somebody who knows the model.
	if tools == "" && reasoning == "" {
		tools, reasoning = msgparse.Detect(files.TemplateToolUse, files.TemplateDefault)
		if tools != "" || reasoning != "" {
			log.Info("parsers recognised by the chat template", "model", card.DisplayName,
				"tool_call_parser", tools, "reasoning_parser", reasoning)
		}
	}
	if notes := tagNotes(&card.RuntimeConfig, tools, reasoning); len(notes) > 0 {
		log.Warn("settings of structural tags aren't followed", "model", card.DisplayName, "settings", notes)
	}
	return tools, reasoning
}

// dispatcher joins the ways to the workers and back. The listener, the planes and the table of workers are closed after
// the server, in the reverse of this order.
func (a *app) dispatcher(e *embedded) (router.Dispatcher, error) {
	routes := &routes{ratio: a.cfg.Router.CUDAToCPU, log: a.target("router")}
	choose, err := routes.policy(a.cfg.Router.Mode)
	if err != nil {
		return nil, fmt.Errorf("router-mode: %w", err)
	}
	a.watchLoads()
	host := a.cfg.CallHome.Host
	if host == "" && e != nil {
		host = "127.0.0.1" // the only worker is in this process
	}
	// Planes, listener and dispatcher are one part of the program to whoever sets log levels.
	log := a.target("router")
	home, err := callhome.Listen(callhome.Options{
		Host: host, Port: a.cfg.CallHome.Port, AdvertiseHost: a.cfg.CallHome.AdvertiseHost,
		Registerer: a.registry, Log: log})
	if err != nil {
		return nil, err
	}
	// The port is bound already: requests carry its address, and workers may dial from now on.
	a.run("call-home", home.Run)

	// Both planes are always there: each worker's record says which one it listens on.
	tcpPlane := tcp.New(tcp.Options{
		PoolSize: a.cfg.TCP.PoolSize, ConnectTimeout: a.cfg.TCP.ConnectTimeout, AckTimeout: a.cfg.TCP.RequestTimeout,
		MaxMessage: a.cfg.TCP.MaxMessageSize, Registerer: a.registry, Log: log})
	a.onClose(func(context.Context) error { return tcpPlane.Close() })
	natsPlane, err := a.natsPlane(e, log)
	if err != nil {
		return nil, err
	}
	a.onClose(func(context.Context) error { return natsPlane.Close() })

	quarantine := a.cfg.Plane.Quarantine
	if quarantine == 0 {
		quarantine = -1 // the option's zero is its default
	}
	start, struck := a.cfg.Plane.StartTimeout, a.cfg.Plane.MaxStruck
	if start == 0 {
		start = -1 // likewise
	}
	if struck == 0 {
		struck = -1
	}
	var d *dispatch.Dispatcher
	// Whoever talks to other frontends is found by them under one registrar.
	registrar, err := a.registrar()
	if err != nil {
		return nil, err
	}
	sessions, err := a.shareSessions(home, natsPlane, registrar)
	if err != nil {
		return nil, err
	}
	routes.kv = a.kvRouter(home, natsPlane, registrar, func(ctx context.Context, call *router.Call) (router.Stream, error) {
		return d.Dispatch(ctx, call)
	})
	// A dispatcher starts nothing: it works on its callers' goroutines.
	d = dispatch.New(dispatch.Options{
		Snapshots: a.store.Snapshot, Policy: choose, Route: sessions.with(routes.of), Busy: a.loads.Checker,
		NATS: natsPlane, TCP: tcpPlane, CallHome: home,
		HandshakeTimeout: a.cfg.Plane.HandshakeTimeout, StreamTimeout: a.cfg.HTTP.StreamTimeout,
		QuarantineFor: quarantine, MaxAttempts: a.cfg.Plane.MaxAttempts, StartTimeout: start, MaxStruck: struck, Registerer: a.registry, Log: log,
	})
	// Requests that wait for a worker that has gone fail at once.
	a.follow(func(*router.Snapshot) { d.Refresh() })
	a.workers = a.workersOf(d)
	a.alone = aloneBy(routes.kv, d)
	a.hearEvents(routes.kv, sessions.replicas, natsPlane)
	return d, nil
}

// natsPlane connects when the first request needs it, or at once when NATS is the default plane. A server without NATS
// at all is the rule where workers speak TCP, so an absent one is no failure by itself.
func (a *app) natsPlane(e *embedded, log *slog.Logger) (*nats.Plane, error) {
	n := a.cfg.NATS
	// Files are read now: a wrong path is a failure of the start.
	tlsConfig, err := n.TLS.Config()
	if err != nil {
		return nil, fmt.Errorf("NATS: %w", err)
	}
	o := nats.Options{
		URL: n.URL, Username: n.Username, Password: n.Password, Token: n.Token, NKeySeed: n.NKey,
		CredentialsFile: n.CredentialsFile, TLS: tlsConfig, RequestTimeout: n.RequestTimeout, Log: log}
	if e != nil {
		// The connection was made in the process and belongs to it.
		o.URL, o.Conn = "", e.frontend
	}
	// Nothing is connected yet.
	p, err := nats.New(o)
	if err != nil {
		return nil, fmt.Errorf("NATS: %w", err)
	}
	if e == nil && a.cfg.Plane.Default == "nats" {
		a.run("nats connection", func(ctx context.Context) error {
			// In the background, as one of the parts: the port is open meanwhile, and reports itself as not ready.
			// Whoever started this process learns of a wrong address by its end, as of Dynamo's.
			connect, cancel := context.WithTimeout(ctx, n.ConnectTimeout)
			defer cancel()
			if err := p.Await(connect); err != nil && ctx.Err() == nil {
				return fmt.Errorf("nats-server: no server could be reached within %v: %w", n.ConnectTimeout, err)
			}
			<-ctx.Done()
			return nil
		})
	}
	return p, nil
}

// newServer makes the HTTP surface over everything else.
func (a *app) newServer(dispatcher router.Dispatcher, images multimodal.Courier) (*server.Server, error) {
	var tracer trace.Tracer // nil when nothing is exported: spans that nobody sees still cost
	if a.tracing.Exporting() {
		tracer = a.tracing.Tracer("portico")
	}
	h := a.cfg.HTTP
	stream := sse.Options{
		Heartbeat: h.KeepAlive, WriteTimeout: h.WriteTimeout, HoldBack: h.HoldBack, HoldBackUnit: holdBackUnit}
	// 0 is none to an operator, and the default to the options.
	if stream.WriteTimeout == 0 {
		stream.WriteTimeout = noLimit
	}
	// The same document that clients are generated from.
	document, err := api.OpenAPI()
	if err != nil {
		return nil, err
	}
	var limits admin.Thresholds
	if !h.NoAdmin {
		limits = thresholds{a.loads}
	}
	return server.New(server.Options{
		Thresholds: limits,
		Pipeline: pipeline.New(pipeline.Options{
			Dispatcher: dispatcher, Tracer: tracer, Registerer: a.registry, Log: a.target("pipeline"), Answers: msgparse.Plan,
			Courier:   images,
			Routing:   a.cfg.Router.Mode == "kv",
			Gate:      a.entrance,
			Workers:   a.workers,
			Alone:     a.alone,
			Taints:    &a.taints,
			MaxPrompt: a.cfg.Text.MaxPrompt,
			Migration: pipeline.Migration{Limit: a.cfg.Plane.MigrationLimit, MaxSeqLen: a.cfg.Plane.MigrationMaxSeqLen,
				Repetition: a.cfg.Plane.MigrationRepetition}}),
		Catalog: a.catalog,
		// From discovery itself: the health report shows workers before their model is loaded.
		Instances: func() []*worker.Instance { return instances(a.store.Snapshot()) },
		Paths: server.Paths{
			Chat: h.Paths.Chat, Completions: h.Paths.Completions, Responses: h.Paths.Responses, Models: h.Paths.Models,
			Embeddings: h.Paths.Embeddings, Rerank: h.Paths.Rerank, Classify: h.Paths.Classify, Pooling: h.Paths.Pooling,
			Messages: h.Paths.Messages,
			Health:   h.Paths.Health, Live: h.Paths.Live, Metrics: h.Paths.Metrics},
		OpenAPI:        document,
		NoAnthropic:    !h.Anthropic,
		KeepPreamble:   !h.StripPreamble,
		FlatErrors:     h.ErrorFormat == "dynamo",
		ReasoningField: h.ReasoningField,
		Responses: responses.StoreOptions{
			MaxCount: h.Responses.Count, MaxBytes: h.Responses.Bytes, TTL: h.Responses.TTL},
		OverloadStatus: h.OverloadCode,
		Decode:         openai.DecodeOptions{Strict: h.Strict, IgnoreNvExt: h.IgnoreNvExt},
		BodyLimit:      h.BodyLimit,
		ForceUsage:     h.ForceIncludeUsage,
		Stream:         stream,
		Tracer:         tracer, Registerer: a.registry,
		// Renamed on the way out: inside, every metric has its usual name.
		Gatherer: observe.WithPrefix(a.registry, "dynamo_frontend", a.cfg.Metrics.Prefix),
		Log:      a.target("http"),
	})
}

// noLimit stands for none: every wait has an end.
const noLimit = 24 * time.Hour

// holdBackUnit is what each open stream adds to the hold-back: with few streams nothing waits, with a hundred a burst
// is gathered for its full time. The full time is the setting's.
const holdBackUnit = 50 * time.Microsecond

// instances lists all endpoints' instances for the health report, in any order.
func instances(s *router.Snapshot) (out []*worker.Instance) {
	for _, at := range s.Instances {
		out = append(out, at...)
	}
	return out
}

// withTLS puts TLS around a listener, unless none is configured.
func withTLS(l net.Listener, c *tls.Config) net.Listener {
	if c == nil {
		return l
	}
	return tls.NewListener(l, c)
}

// atLeastOne is n, or one for each core when n is 0.
func atLeastOne(n int) int {
	if n > 0 {
		return n
	}
	return runtime.GOMAXPROCS(0)
}
