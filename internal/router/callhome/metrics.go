package callhome

import "github.com/prometheus/client_golang/prometheus"

// Why a connection was refused. These are the values of a label: charts and alerts know them.
const (
	reasonUnknown   = "unknown_subject" // no such request, or none any more
	reasonAbandoned = "abandoned"       // the request failed just before its worker called
	reasonMalformed = "malformed"       // not a handshake of a response stream
	reasonSilent    = "silent"          // no handshake in time
	reasonCrowded   = "crowded"         // too many connections without a handshake
	reasonStopped   = "stopped"         // the listener is shutting down
)

// metrics are the listener's counters. Streams that end badly are counted by their users.
type metrics struct {
	accepted prometheus.Counter
	refused  *prometheus.CounterVec
	backoffs prometheus.Counter // failures of accept
}

// newMetrics registers the counters with reg, if there is one. Two listeners can't share a registerer.
func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		accepted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "portico_callhome_streams_total", Help: "Response streams that workers opened",
		}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "portico_callhome_refused_total", Help: "Connections to the response listener that were refused",
		}, []string{"reason"}),
		backoffs: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "dynamo_transport_tcp_accept_backoff_total",
			Help: "Response streams that could not be accepted at once, for want of descriptors or memory",
		}),
	}
	if reg != nil {
		reg.MustRegister(m.accepted, m.refused, m.backoffs)
	}
	return m
}
