package slots

import "github.com/prometheus/client_golang/prometheus"

// metrics tell how full a pool is.
type metrics struct {
	made, retired, waits prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, p *Pool) *metrics {
	m := &metrics{
		made: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "portico_media_slots_made_total", Help: "Transfer slots mapped and registered.",
		}),
		retired: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "portico_media_slots_retired_total", Help: "Transfer slots given up for good.",
		}),
		waits: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "portico_media_slot_waits_total", Help: "Requests that waited for transfer slots.",
		}),
	}
	if reg == nil {
		return m
	}
	reg.MustRegister(m.made, m.retired, m.waits,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "portico_media_slot_bytes", Help: "Bytes of transfer slots, free and in use.",
		}, func() float64 { return float64(p.Stats().Bytes) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "portico_media_slots_in_use", Help: "Transfer slots that requests have.",
		}, func() float64 { return float64(p.Stats().Taken) }))
	return m
}
