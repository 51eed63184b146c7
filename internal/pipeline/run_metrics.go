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
