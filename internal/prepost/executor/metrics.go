package executor

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Why an executor was evicted, as metric label.
const (
	evictedClosed    = "closed"    // its tokenizer was closed
	evictedCollected = "collected" // its tokenizer was dropped without Close and found by the garbage collector
	evictedShutdown  = "shutdown"  // the registry was closed
)

type metrics struct {
	evicted *prometheus.CounterVec
	refused prometheus.Counter
	wait    prometheus.Histogram
	depth   atomic.Int64
}

func newMetrics(reg prometheus.Registerer, r *Registry) *metrics {
	m := &metrics{
		evicted: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "portico_executor_evicted_total",
			Help: "Tokenizer executors that were shut down, by reason",
		}, []string{"reason"}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "portico_executor_refused_total",
			Help: "Encodes refused because the tokenizer's queue was full",
		}),
		wait: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "portico_executor_queue_wait_seconds",
			Help:    "Time from the queueing of an encode to its begin",
			Buckets: prometheus.ExponentialBuckets(1e-6, 4, 12), // 1 µs to 4 s
		}),
	}
	for _, reason := range []string{evictedClosed, evictedCollected, evictedShutdown} {
		m.evicted.WithLabelValues(reason)
	}
	if reg == nil {
		return m
	}
	reg.MustRegister(m.evicted, m.refused, m.wait,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "portico_executors",
			Help: "Tokenizer executors that are live",
		}, func() float64 { return float64(r.Live()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "portico_executor_queue_depth",
			Help: "Encodes waiting for a worker, over all tokenizers",
		}, func() float64 { return float64(m.depth.Load()) }))
	return m
}
