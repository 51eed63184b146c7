package tcp

import "github.com/prometheus/client_golang/prometheus"

// metrics are the plane's, under the names operators of Dynamo chart.
type metrics struct {
	sent, received prometheus.Counter // bytes
	errors         prometheus.Counter // requests that a connection or a time-out took along
}

// newMetrics registers the metrics with reg, if there is one.
func newMetrics(reg prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "dynamo_transport_tcp_" + name, Help: help})
		if reg != nil {
			reg.MustRegister(c)
		}
		return c
	}
	return &metrics{
		sent:     counter("bytes_sent_total", "Bytes of requests sent to workers over TCP"),
		received: counter("bytes_received_total", "Bytes of workers' answers to requests over TCP"),
		errors:   counter("errors_total", "Requests over TCP that failed because of their connection or a time-out"),
	}
}
