package nixl

import "github.com/prometheus/client_golang/prometheus"

// metrics tell of notifications.
type metrics struct{ read, unknown prometheus.Counter }

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		read: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "portico_nixl_reads_total", Help: "Transfers that a worker has said it read.",
		}),
		unknown: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "portico_nixl_unknown_notifications_total", Help: "Notifications that nothing waited for: late ones, mostly.",
		}),
	}
	if reg != nil {
		reg.MustRegister(m.read, m.unknown)
	}
	return m
}
