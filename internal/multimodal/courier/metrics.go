package courier

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics tell which way images go.
type metrics struct {
	requests *prometheus.CounterVec // by way
	seconds  prometheus.Histogram

	cached, processed prometheus.Counter // images that were kept, and those that had to be made
}

func newMetrics(reg prometheus.Registerer, kept *items) *metrics {
	images := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "portico_media_items_total", Help: "Images handed over as tensors: cached, or processed for it.",
	}, []string{"result"})
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "portico_media_requests_total", Help: "Requests with images for a model whose images are processed here, by way.",
		}, []string{"way"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "portico_media_load_seconds", Help: "Time from URLs to memory that a worker can read.",
			Buckets: []float64{.002, .01, .05, .2, 1, 5, 30},
		}),
		cached: images.WithLabelValues("cached"), processed: images.WithLabelValues("processed"),
	}
	if reg != nil {
		reg.MustRegister(m.requests, m.seconds, images, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "portico_media_item_cache_bytes", Help: "Bytes of processed images that are kept.",
		}, func() float64 { return float64(kept.size()) }))
	}
	return m
}

// done counts one request.
func (m *metrics) done(way string, begin time.Time) {
	m.requests.WithLabelValues(way).Inc()
	m.seconds.Observe(time.Since(begin).Seconds())
}
