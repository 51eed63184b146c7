package transfer

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics tell how transfers end.
type metrics struct {
	batches  *prometheus.CounterVec // by way and result
	refused  prometheus.Counter
	failures prometheus.Counter
	seconds  prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		batches: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "portico_media_transfers_total", Help: "Transfers that have ended, by way and result.",
		}, []string{"way", "result"}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "portico_media_transfers_refused_total", Help: "Transfers there was no room for: the images went by URL.",
		}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "portico_media_release_failures_total", Help: "Pieces of transfer memory whose release failed.",
		}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "portico_media_release_seconds", Help: "Time to release the memory of one transfer.",
			Buckets: []float64{.000001, .000005, .00002, .0001, .0005, .002, .01, .05},
		}),
	}
	if reg != nil {
		reg.MustRegister(m.batches, m.refused, m.failures, m.seconds)
	}
	return m
}

// closed counts one batch.
func (m *metrics) closed(b *Batch, unread, failed int, took time.Duration) {
	result := "read"
	switch {
	case b.tells.Load() == 0:
		result = "untold"
	case unread > 0:
		result = "unread"
	case b.segments != nil:
		result = "unlinked" // nobody says whether they were read
	}
	m.batches.WithLabelValues(b.Way(), result).Inc()
	m.failures.Add(float64(failed))
	m.seconds.Observe(took.Seconds())
}
