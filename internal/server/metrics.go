package server

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/fault"
)

// endpoint is an inference endpoint.
type endpoint uint8

// The endpoints that run a model. They index arrays of handles.
const (
	endpointChat endpoint = iota
	endpointCompletions
	endpointResponses
	endpointInputTokens
	endpointEmbeddings
	endpointRerank
	endpointScore
	endpointClassify
	endpointPooling
	endpointImages
	endpointVideos
	endpointAudios
	endpointMessages
	endpointCountTokens
	endpointTokenize
	endpointDetokenize
	endpoints // how many there are
)

// endpointFacts are each endpoint's label, and the flag that the model type of its models has.
var endpointFacts = [endpoints]struct{ label, surface string }{
	endpointChat:        {"chat_completions", "Chat"},
	endpointCompletions: {"completions", "Completions"},
	endpointResponses:   {"responses", "Chat"},
	endpointInputTokens: {"input_tokens", "Chat"},
	endpointEmbeddings:  {"embeddings", "Embedding"},
	endpointRerank:      {"rerank", "Rerank"},
	endpointScore:       {"score", "Rerank"},
	endpointClassify:    {"classify", "Classify"},
	endpointPooling:     {"pooling", "Pooling"},
	endpointImages:      {"images", "Images"},
	endpointVideos:      {"videos", "Videos"},
	endpointAudios:      {"audios", "Audios"},
	endpointMessages:    {"anthropic_messages", "Chat"},
	endpointCountTokens: {"count_tokens", "Chat"},
	endpointTokenize:    {"tokenize", ""}, // of any model
	endpointDetokenize:  {"detokenize", ""},
}

// String returns the endpoint's label.
func (e endpoint) String() string { return endpointFacts[e].label }

// surface is what a model has to offer to be asked at the endpoint.
func (e endpoint) surface() string { return endpointFacts[e].surface }

// unknownModel stands for every name that no model has: clients choose names, and labels must be bounded.
const unknownModel = "unknown_model"

// metrics are the server's own, under Dynamo's names. Handles of a model are resolved once and found without a lock.
type metrics struct {
	requests     *prometheus.CounterVec   // ended, by outcome
	started      *prometheus.CounterVec   // begun; requests that are refused early included
	failures     *prometheus.CounterVec   // by class and kind
	unknown      *prometheus.CounterVec   // request fields
	untold       *prometheus.CounterVec   // tools and items of responses requests that no model is told of
	inflight     *prometheus.GaugeVec     // the same as active, under the older name
	active       *prometheus.GaugeVec     // whose model is known and whose answer isn't over
	queued       *prometheus.GaugeVec     // those that wait for their first token
	duration     *prometheus.HistogramVec // seconds, of failures too
	ttft         *prometheus.HistogramVec // seconds to the first token
	itl          *prometheus.HistogramVec // seconds between tokens
	output       *prometheus.HistogramVec // tokens of an answer
	cached       *prometheus.HistogramVec // tokens of a prompt, found in a worker's cache
	tokens       *prometheus.CounterVec   // generated, counted while they arrive
	disconnected prometheus.Gauge         // clients that left, ever: a gauge under Dynamo's name
	panics       prometheus.Counter       // of handlers

	byModel []vec         // all that have a series for each model
	workers *workerGauges // by worker

	models atomic.Pointer[map[string]*modelMetrics] // by name; the map is never changed
	mu     sync.Mutex                               // serialises changes of models
}

// vec is a metric with labels.
type vec interface {
	DeletePartialMatch(labels prometheus.Labels) int
}

// modelMetrics are the resolved handles of one model.
//
// The order of their updates in a request: started, active, inflight and queued when its model is known; ttft and the
// end of queued at the first output; itl and tokens at every one; output, cached and duration at its end.
type modelMetrics struct {
	name                     string                           // the label
	started, succeeded       [endpoints][2]prometheus.Counter // by whether it is a stream
	inflight, active, queued prometheus.Gauge
	duration, ttft, itl      prometheus.Observer
	output, cached           prometheus.Observer
	tokens                   prometheus.Counter

	running atomic.Int64 // requests that use the handles
	gone    time.Time    // when the model was first missed; guarded by metrics.mu
}

// The histograms' buckets are those operators of Dynamo have their charts for.
var (
	durationBuckets = []float64{0, 2, 4, 8, 16, 32, 64, 130, 260, 510}
	ttftBuckets     = []float64{0, 0.0022, 0.0047, 0.01, 0.022, 0.047, 0.1, 0.22, 0.47, 1, 2.2, 4.7, 10, 22, 48, 100, 220, 480}
	itlBuckets      = []float64{0, 0.0018, 0.0033, 0.0059, 0.011, 0.02, 0.035, 0.064, 0.12, 0.21, 0.38, 0.69, 1.2, 2.3, 4.1,
		7.4, 13, 24, 44, 80}
	outputBuckets = []float64{0, 100, 210, 430, 880, 1800, 3700, 7600, 16000, 32000}
	cachedBuckets = []float64{0, 100, 210, 430, 870, 1800, 3600, 7400, 15000, 31000, 63000, 130000}
)

// namespace begins every metric's name: dashboards made for Dynamo go on working.
const namespace = "dynamo_frontend"

// newMetrics declares everything and registers it; nil registers nothing.
func newMetrics(reg prometheus.Registerer, live func() []*worker.Instance) *metrics {
	r := recorder{reg}
	m := &metrics{
		requests: r.counter("requests_total", "Total number of LLM requests processed",
			"model", "endpoint", "request_type", "status", "error_type"),
		started: r.counter("requests_started_total", "Total number of LLM requests accepted by the frontend handler",
			"model", "endpoint", "request_type"),
		failures: r.counter("failures_total", "Total number of terminal semantic request failures", "class", "reason"),
		unknown: r.counter("unknown_request_fields_total",
			"Total number of request fields that were ignored because the server does not know them", "endpoint"),
		untold: r.counter("responses_ignored_total",
			"Total number of tools and input items of responses requests that mean nothing to a model here", "kind"),
		inflight: r.gauge("inflight_requests", "Number of inflight requests", "model"),
		active: r.gauge("active_requests",
			"Number of requests currently being handled by the frontend, from HTTP handler entry to response completion", "model"),
		queued:   r.gauge("queued_requests", "Number of requests in HTTP processing queue", "model"),
		duration: r.histogram("request_duration_seconds", "Duration of LLM requests", durationBuckets),
		ttft:     r.histogram("time_to_first_token_seconds", "Time to first token in seconds", ttftBuckets),
		itl:      r.histogram("inter_token_latency_seconds", "Inter-token latency in seconds", itlBuckets),
		output:   r.histogram("output_sequence_tokens", "Output sequence length in tokens", outputBuckets),
		cached:   r.histogram("cached_tokens", "Number of cached tokens (prefix cache hits) per request", cachedBuckets),
		tokens: r.counter("output_tokens_total", "Total number of output tokens generated (updates in real-time)",
			"model"),
		disconnected: r.gauge("disconnected_clients", "Number of disconnected clients").WithLabelValues(),
		panics: r.counter("http_panics_total",
			"Total number of requests that ended with a panic of their handler").WithLabelValues(),
	}
	m.byModel = []vec{
		m.requests, m.started, m.inflight, m.active, m.queued, m.duration, m.ttft, m.itl, m.output, m.cached, m.tokens,
	}
	m.workers = &workerGauges{live: live}
	r.add(m.workers)
	empty := map[string]*modelMetrics{}
	m.models.Store(&empty)
	return m
}

// recorder declares metrics and registers them, if there is a registry.
type recorder struct{ reg prometheus.Registerer }

// add registers c. Registering a name twice is a mistake of construction and panics there.
func (r recorder) add(c prometheus.Collector) {
	if r.reg != nil {
		r.reg.MustRegister(c)
	}
}

// counter, gauge and histogram declare one metric each.
func (r recorder) counter(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
	r.add(c)
	return c
}

func (r recorder) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}, labels)
	r.add(g)
	return g
}

func (r recorder) histogram(name, help string, buckets []float64) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: namespace, Name: name, Help: help, Buckets: buckets,
	}, []string{"model"})
	r.add(h)
	return h
}

// model returns the handles of a model. Names that don't come from the catalog must be given as unknownModel.
func (m *metrics) model(name string) *modelMetrics {
	if h := (*m.models.Load())[name]; h != nil {
		return h
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	old := *m.models.Load()
	if h := old[name]; h != nil {
		return h
	}
	// Readers hold the old map, which is never changed; models come and go rarely.
	h := m.resolve(name)
	next := maps.Clone(old)
	next[name] = h
	m.models.Store(&next)
	return h
}

// resolve looks up every label once, so that a request only adds and observes.
func (m *metrics) resolve(name string) *modelMetrics {
	h := &modelMetrics{
		name:     name,
		inflight: m.inflight.WithLabelValues(name),
		active:   m.active.WithLabelValues(name),
		queued:   m.queued.WithLabelValues(name),
		duration: m.duration.WithLabelValues(name),
		ttft:     m.ttft.WithLabelValues(name),
		itl:      m.itl.WithLabelValues(name),
		output:   m.output.WithLabelValues(name),
		cached:   m.cached.WithLabelValues(name),
		tokens:   m.tokens.WithLabelValues(name),
	}
	for e := range endpoints {
		for i, kind := range requestTypes {
			h.started[e][i] = m.started.WithLabelValues(name, e.String(), kind)
			h.succeeded[e][i] = m.requests.WithLabelValues(name, e.String(), kind, "success", "")
		}
	}
	return h
}

// requestTypes are the labels of the two modes.
var requestTypes = [2]string{"unary", "stream"}

// requestType is the index of a mode in requestTypes and in the handles.
func requestType(stream bool) int {
	if stream {
		return 1
	}
	return 0
}

// done counts the end of a request, which was answered with a if it failed.
func (m *metrics) done(x *exchange, a answerTo) {
	kind := requestType(x.stream)
	if x.failure == nil {
		x.model.succeeded[x.endpoint][kind].Inc()
		return
	}
	// Failures are rare enough to look their labels up.
	m.requests.WithLabelValues(x.model.name, x.endpoint.String(), requestTypes[kind], "error", a.label).Inc()
	m.failures.WithLabelValues(a.class, a.cause).Inc()
	// A worker that cancels by itself leaves a client that is still there.
	if x.failure.Kind == fault.Cancelled && x.failure.Origin == fault.FromRequest {
		m.disconnected.Inc()
	}
}
