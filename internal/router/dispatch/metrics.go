package dispatch

import "github.com/prometheus/client_golang/prometheus"

// metrics are the request plane's. The first four have the names operators already chart.
type metrics struct {
	inFlight  prometheus.Gauge     // from Dispatch to the stream's Close
	queue     prometheus.Histogram // seconds, as are the next two; observed with every try
	send      prometheus.Histogram // to the plane's answer
	roundtrip prometheus.Histogram // answers with an item only

	retries     prometheus.Counter
	quarantines prometheus.Counter
	struck      prometheus.Counter
}

// newMetrics registers the metrics with reg, if there is one. Names and buckets of the first four are Dynamo's, so that
// dashboards and alerts go on working.
func newMetrics(reg prometheus.Registerer) *metrics {
	// Seconds. Sending takes well below a millisecond on a quiet day, so that is where these begin.
	short := []float64{0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1}
	m := &metrics{
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "dynamo_request_plane_inflight_requests", Help: "Requests now being dispatched or answered",
		}),
		queue: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "dynamo_request_plane_queue_seconds", Buckets: short,
			Help: "Time from taking a request to sending it (seconds)",
		}),
		send: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "dynamo_request_plane_send_seconds", Buckets: short,
			Help: "Time from sending a request to the worker's acceptance (seconds)",
		}),
		roundtrip: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "dynamo_request_plane_roundtrip_ttft_seconds",
			Buckets: []float64{0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5},
			Help:    "Time from sending a request to the first item of its answer (seconds)",
		}),
		retries: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "portico_dispatch_retries_total", Help: "Requests tried on another worker before their answer began",
		}),
		quarantines: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "portico_dispatch_quarantines_total", Help: "Times that a lost worker was left aside",
		}),
		struck: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "portico_dispatch_given_up_total",
			Help: "Requests given up because several workers in a row were lost, or stayed silent, with them",
		}),
	}
	if reg != nil {
		reg.MustRegister(m.inFlight, m.queue, m.send, m.roundtrip, m.retries, m.quarantines, m.struck)
	}
	return m
}
