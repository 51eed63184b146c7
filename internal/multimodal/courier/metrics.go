package courier

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics tell which way images go.
type metrics struct {
	requests *prometheus.CounterVec // by way
	seconds  prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "portico_media_requests_total", Help: "Requests with images for a model whose images are processed here, by way.",
		}, []string{"way"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "portico_media_load_seconds", Help: "Time from URLs to memory that a worker can read.",
			Buckets: []float64{.002, .01, .05, .2, 1, 5, 30},
		}),
	}
	if reg != nil {
		reg.MustRegister(m.requests, m.seconds)
	}
	return m
}

// done counts one request.
func (m *metrics) done(way string, begin time.Time) {
	m.requests.WithLabelValues(way).Inc()
	m.seconds.Observe(time.Since(begin).Seconds())
}
