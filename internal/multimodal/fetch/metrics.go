package fetch

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics tell how media come in. Labels are schemes and results, never hosts.
type metrics struct {
	fetches *prometheus.CounterVec   // by scheme and result
	seconds *prometheus.HistogramVec // by scheme
	bytes   prometheus.Counter
	hits    prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		fetches: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "portico_media_fetches_total", Help: "Media fetched, by scheme and result.",
		}, []string{"scheme", "result"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "portico_media_fetch_seconds", Help: "Time to fetch a piece of media.",
			Buckets: []float64{.001, .005, .02, .1, .5, 2, 10, 30},
		}, []string{"scheme"}),
		bytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "portico_media_fetched_bytes_total", Help: "Bytes of media fetched.",
		}),
		hits: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "portico_media_cache_hits_total", Help: "Downloads answered from the cache.",
		}),
	}
	if reg != nil {
		reg.MustRegister(m.fetches, m.seconds, m.bytes, m.hits)
	}
	return m
}

// done counts one fetch.
func (m *metrics) done(scheme string, begin time.Time, data []byte, err error) {
	result := "ok"
	if err != nil {
		result = "refused"
	} else {
		m.bytes.Add(float64(len(data)))
	}
	m.fetches.WithLabelValues(scheme, result).Inc()
	m.seconds.WithLabelValues(scheme).Observe(time.Since(begin).Seconds())
}
