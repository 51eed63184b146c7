// Package server is the HTTP surface: routes, thin handlers, and the one table that gives a failure its status.
//
// A handler decodes, validates, prepares, runs and writes; each of these is somebody else's work (api/openai, validate,
// pipeline, reply). What belongs here is what all requests share: ids and routing headers, limits on bodies, metrics,
// the difference between a failure before the first byte (a status) and after it (an error event and the end mark), and
// draining.
//
//   - server.go, routes.go: options, construction, routes;
//   - serve.go: listening, draining, shutting down;
//   - exchange.go: one request from its first line to its last byte; headers.go, body.go: what it reads;
//   - chat.go, responses.go, messages.go, answer.go: the inference endpoints;
//   - task.go: embeddings and the other tasks;
//   - models.go: the list of models;
//   - errors.go: kind of fault → status, type, code;
//   - metrics.go, trace.go: what is observed.
//
// Server is safe for concurrent use.
package server

import (
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/server/admin"
	"github.com/portico-llm/portico/internal/server/responses"
	"github.com/portico-llm/portico/internal/server/sse"
	"github.com/portico-llm/portico/internal/server/validate"
)

// Catalog is what the server asks about models. Safe for concurrent use.
type Catalog interface {
	// Lookup finds a model; failures are *fault.Error of kind NotFound, or Unavailable when it is known but not ready.
	Lookup(model string) (*catalog.Set, error)
	// LookupFor does so among those that offer a surface, a flag of their model type such as Chat or Embedding.
	LookupFor(model, surface string) (*catalog.Set, error)
	// Models lists what there is, ready or not, in the order of ids. The slice is shared: nobody writes to it.
	Models() []catalog.ModelInfo
	// Ready reports whether at least one model can be served.
	Ready() bool
}

// Options are what a Server is built from. Pipeline and Catalog are required.
type Options struct {
	Pipeline  *pipeline.Pipeline
	Catalog   Catalog
	Instances func() []*worker.Instance // live instances, for /health; nil: none are listed

	Thresholds admin.Thresholds // of overload, which /busy_threshold reads and sets; nil: it is not served

	Paths        Paths  // where the endpoints stand
	NoAnthropic  bool   // without the Messages endpoints
	KeepPreamble bool   // Claude Code's billing line stays in system prompts
	OpenAPI      []byte // description of the surface, YAML or JSON; empty: /openapi.json is not served

	FlatErrors     bool // Dynamo's {"message","type","code"} in place of OpenAI's {"error":{…}}
	OverloadStatus int  // status of an overloaded service; 0: 529

	Decode   openai.DecodeOptions // how strictly bodies are read
	Validate validate.Options     // limits of fields

	BodyLimit     int64         // bytes; 0: 45 MiB
	BodyLimitName string        // how the limit is called in the message of a refusal; empty: DYN_HTTP_BODY_LIMIT_MB
	BodyTimeout   time.Duration // for a client to send its body; 0: 1 min
	HeaderTimeout time.Duration // for a client to send its headers; 0: 10 s
	IdleTimeout   time.Duration // of a connection between requests; 0: 2 min
	MetaPrefix    string        // headers that become request metadata; empty: x-dynamo-meta-
	ForceUsage    bool          // streams end with a usage chunk, asked for or not

	ReasoningField string // of messages, where thoughts go; empty: reasoning_content

	Responses responses.StoreOptions // how many responses are kept; Registerer and MaxTalk are the server's own

	Stream sse.Options // Open is the server's own

	// MetaLimit bounds the headers that become metadata, in bytes; 0: 8 KiB.
	MetaLimit int

	Tracer     trace.Tracer          // nil: no spans
	Registerer prometheus.Registerer // nil: metrics are kept but not registered
	Gatherer   prometheus.Gatherer   // nil: /metrics is not served
	Log        *slog.Logger          // nil: slog.Default()

	Now func() time.Time // nil: time.Now; for tests of creation times
}

// withDefaults fills in what was left open.
func (o Options) withDefaults() Options {
	o.Paths = o.Paths.withDefaults()
	if o.Instances == nil {
		o.Instances = func() []*worker.Instance { return nil }
	}
	if o.OverloadStatus == 0 {
		o.OverloadStatus = 529
	}
	if o.BodyLimit <= 0 {
		o.BodyLimit = 45 << 20
	}
	if o.BodyLimitName == "" {
		o.BodyLimitName = "DYN_HTTP_BODY_LIMIT_MB"
	}
	if o.MetaPrefix == "" {
		o.MetaPrefix = "x-dynamo-meta-"
	}
	if o.MetaLimit <= 0 {
		o.MetaLimit = 8 << 10
	}
	for _, d := range []struct {
		value *time.Duration
		def   time.Duration
	}{
		{&o.BodyTimeout, time.Minute}, {&o.HeaderTimeout, 10 * time.Second}, {&o.IdleTimeout, 2 * time.Minute},
		{&o.Stream.WriteTimeout, 30 * time.Second},
	} {
		if *d.value <= 0 {
			*d.value = d.def
		}
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// Server answers HTTP requests.
type Server struct {
	opts    Options     // with defaults
	errors  *errorTable // the form of failures
	metrics *metrics

	anthropicErrors *errorTable // of the endpoints that speak Anthropic's API

	kept    *responses.Store // responses that conversations can go on from
	handler http.Handler     // all routes
	open    atomic.Int64     // streams being written
	chosen  sync.Map         // ids that clients chose, of running requests
	life    life             // serving, draining, ended
}

// New returns a Server. It starts nothing.
func New(opts Options) (*Server, error) {
	s := &Server{opts: opts.withDefaults()}
	// All writers share the count: the hold-back grows with the number of streams.
	s.opts.Stream.Open = &s.open
	own := formOpenAI
	if s.opts.FlatErrors {
		own = formFlat
	}
	s.errors = newErrorTable(own, s.opts.OverloadStatus)
	s.anthropicErrors = newErrorTable(formAnthropic, s.opts.OverloadStatus)
	s.metrics = newMetrics(s.opts.Registerer, s.opts.Instances)
	s.opts.Responses.Registerer = s.opts.Registerer
	s.opts.Responses.MaxTalk = s.opts.BodyLimit // a client that sent all of it could send no more
	s.kept = responses.NewStore(s.opts.Responses)
	s.life.init()
	var err error
	s.handler, err = s.routes()
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Handler returns the server's routes.
func (s *Server) Handler() http.Handler { return s.handler }
