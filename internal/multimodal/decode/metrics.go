package decode

import "github.com/prometheus/client_golang/prometheus"

// Why an image wasn't processed, as metric label.
const (
	failBroken   = "broken"    // the file can't be decoded
	failTooLarge = "too_large" // too many pixels
	failMemory   = "memory"    // the system has none left
	failQueue    = "queue"     // too many images wait
	failDefect   = "defect"    // the library failed
)

type metrics struct {
	seconds  prometheus.Histogram
	wait     prometheus.Histogram
	failures *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer, p *Pool) metrics {
	m := metrics{
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "portico_image_process_seconds",
			Help:    "Time to decode and process one image",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 15), // 0.5 ms to 8 s
		}),
		wait: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "portico_image_queue_wait_seconds",
			Help:    "Time an image waits for a decoder",
			Buckets: prometheus.ExponentialBuckets(1e-6, 4, 12), // 1 µs to 4 s
		}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "portico_image_failures_total",
			Help: "Images that were not processed, by reason",
		}, []string{"reason"}),
	}
	for _, reason := range []string{failBroken, failTooLarge, failMemory, failQueue, failDefect} {
		m.failures.WithLabelValues(reason)
	}
	if reg != nil {
		reg.MustRegister(m.seconds, m.wait, m.failures, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "portico_images_in_process",
			Help: "Images being decoded or waiting for a decoder",
		}, func() float64 { return float64(p.waiting.Load()) }))
	}
	return m
}
