package callhome

import "github.com/prometheus/client_golang/prometheus"

// Why a connection was refused.
const (
	reasonUnknown   = "unknown_subject"
	reasonAbandoned = "abandoned"
	reasonMalformed = "malformed"
	reasonSilent    = "silent"
	reasonCrowded   = "crowded"
	reasonStopped   = "stopped"
)

type metrics struct {
	accepted prometheus.Counter
	refused  *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		accepted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "portico_callhome_streams_total", Help: "Response streams that workers opened",
		}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "portico_callhome_refused_total", Help: "Connections to the response listener that were refused",
		}, []string{"reason"}),
	}
	if reg != nil {
		reg.MustRegister(m.accepted, m.refused)
	}
	return m
}
