package pipeline

import "github.com/prometheus/client_golang/prometheus"

// prefillMetrics count what became of prompts that prefill workers were to read.
type prefillMetrics struct {
	total *prometheus.CounterVec // by model and outcome
	took  prometheus.Observer
}

// The outcomes.
const (
	prefillAwaited     = "handed_over" // by way of this frontend
	prefillMet         = "bootstrap"   // both workers were sent to a meeting place
	prefillLostOutcome = "lost"        // the prefill worker was lost before it was done
	prefillFallback    = "fallback"    // none was to be had, so the decode worker reads the prompt
	prefillBypassed    = "bypassed"    // the decode worker reads it, as that is better
	prefillFailed      = "failure"     // none was to be had, and the decode worker can't
	prefillCancelled   = "cancelled"   // the client left meanwhile
)

// newPrefillMetrics makes the metrics and registers them; nil registers none.
func newPrefillMetrics(reg prometheus.Registerer) *prefillMetrics {
	took := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "portico_prefill_duration_seconds",
		Help:    "Time from sending a prompt to a prefill worker until that was done with it (seconds)",
		Buckets: []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30},
	})
	m := &prefillMetrics{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "portico_prefill_total", Help: "Prompts for prefill workers, by what became of them",
		}, []string{"model", "outcome"}),
		took: took,
	}
	if reg != nil {
		reg.MustRegister(m.total, took)
	}
	return m
}

// count counts one outcome. A request may have several: each attempt has one.
func (m *prefillMetrics) count(model, outcome string) { m.total.WithLabelValues(model, outcome).Inc() }
