package pipeline

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// stageMetrics are the pipeline's own, under the names operators already chart.
type stageMetrics struct {
	prepare   prometheus.Observer // render, tokenise, map
	route     prometheus.Observer // pick, deliver, and wait for the worker to begin
	roundtrip prometheus.Observer // from the worker's beginning to its first output
	preparing prometheus.Gauge    // requests now in the first of these stages

	aggregated, prefill, decode *phase // requests now in the others, by what their worker does of them
}

// phase is the part of a request that one worker does.
type phase struct {
	routing  prometheus.Gauge // requests that wait for a worker to begin
	awaiting prometheus.Gauge // for its first output; of prefill, for its end
}

// newStageMetrics makes the metrics and registers them; nil registers none.
func newStageMetrics(reg prometheus.Registerer) *stageMetrics {
	duration := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "dynamo_frontend", Name: "stage_duration_seconds",
		Help:    "Pipeline stage duration (seconds)",
		Buckets: []float64{0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 2.5, 5},
	}, []string{"stage"})
	requests := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "dynamo_frontend", Name: "stage_requests",
		Help: "Number of requests currently in the given pipeline stage",
	}, []string{"stage", "phase"})
	if reg != nil {
		reg.MustRegister(duration, requests)
	}
	of := func(name string) *phase {
		return &phase{requests.WithLabelValues("route", name), requests.WithLabelValues("dispatch", name)}
	}
	return &stageMetrics{
		// Resolved once: looking up labels costs more than observing.
		prepare:    duration.WithLabelValues("preprocess"),
		route:      duration.WithLabelValues("route"),
		roundtrip:  duration.WithLabelValues("transport_roundtrip"),
		preparing:  requests.WithLabelValues("preprocess", ""),
		aggregated: of("aggregated"), // one worker does both, as far as a frontend can tell
		prefill:    of("prefill"),
		decode:     of("decode"),
	}
}

// detokMetrics are what decoding answers takes.
type detokMetrics struct {
	tokens  prometheus.Counter
	micros  prometheus.Counter  // of all outputs, by those that are timed
	latency prometheus.Observer // milliseconds of one output
}

// newDetokMetrics makes the metrics and registers them; nil registers none.
func newDetokMetrics(reg prometheus.Registerer, latency prometheus.Observer) *detokMetrics {
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: "dynamo_frontend", Name: name, Help: help})
		if reg != nil {
			reg.MustRegister(c)
		}
		return c
	}
	return &detokMetrics{
		tokens:  counter("detokenize_token_count", "Total tokens detokenized"),
		micros:  counter("detokenize_total_us", "Cumulative detokenization time (microseconds), from a sample of the outputs"),
		latency: latency,
	}
}

// sampled is how many outputs of an answer there are to each that is timed. Looking at the clock takes as long as
// decoding a token.
const sampled = 16

// enter counts a request into the first stage, and tells when that was.
func (m *stageMetrics) enter() time.Time {
	m.preparing.Inc()
	return time.Now()
}

// leave counts it out again, however it went.
func (m *stageMetrics) leave(begin time.Time) {
	m.preparing.Dec()
	m.prepare.Observe(time.Since(begin).Seconds())
}
