package kvroute

import "github.com/prometheus/client_golang/prometheus"

// metrics are labelled by endpoint: namespace/component/name. Those of the subsystem component_router have the names
// that operators of Dynamo chart.
type metrics struct {
	selected, best, reported *prometheus.CounterVec // tokens
	predicted                *prometheus.CounterVec // tokens, of requests whose worker reported
	hitRate                  *prometheus.HistogramVec
	choose                   *prometheus.HistogramVec // seconds
	mismatch                 *prometheus.GaugeVec     // workers
	recoveries               *prometheus.CounterVec   // by outcome
	gaps                     *prometheus.CounterVec
	applied                  *prometheus.CounterVec // by kind
	active                   *prometheus.GaugeVec   // requests
}

// newMetrics registers the metrics with reg, if there is one.
func newMetrics(reg prometheus.Registerer) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, append([]string{"endpoint"}, labels...))
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"endpoint"})
	}
	histogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, []string{"endpoint"})
	}
	m := &metrics{
		selected: counter("dynamo_component_router_kv_selected_cached_prefix_tokens_total",
			"Prompt tokens that the router thought cached at the workers it chose"),
		best: counter("dynamo_component_router_kv_best_eligible_cached_prefix_tokens_total",
			"Prompt tokens that the router thought cached at the workers that had most of them"),
		reported: counter("dynamo_component_router_kv_worker_reused_tokens_total",
			"Prompt tokens that workers reported as taken from their caches"),
		predicted: counter("portico_kv_predicted_cached_tokens_total",
			"Prompt tokens that the router thought cached, of the requests whose workers reported what was; "+
				"against kv_worker_reused_tokens_total it shows how far the index is off"),
		hitRate: histogram("dynamo_component_router_kv_hit_rate", "Share of a prompt that the router thought cached",
			prometheus.LinearBuckets(0, 0.05, 21)),
		choose: histogram("portico_kv_choose_seconds", "Time to choose a worker, hashing the prompt included (seconds)",
			prometheus.ExponentialBuckets(1e-6, 2, 16)),
		mismatch: gauge("portico_kv_block_size_mismatch_workers",
			"Workers whose cards say another KV block size than their endpoint's: their caches aren't used, unless that size is configured"),
		recoveries: counter("portico_kv_recoveries_total", "Times that a worker was asked for its KV state", "outcome"),
		gaps:       counter("portico_kv_event_gaps_total", "Gaps in the numbers of a worker's KV events"),
		applied:    counter("portico_kv_events_total", "KV events of workers", "kind"),
		active:     gauge("portico_kv_active_requests", "Requests counted as load of workers, those of other routers included"),
	}
	if reg != nil {
		reg.MustRegister(m.selected, m.best, m.reported, m.predicted, m.hitRate, m.choose, m.mismatch, m.recoveries, m.gaps,
			m.applied, m.active)
	}
	return m
}

// poolMetrics are those of one endpoint, resolved once.
type poolMetrics struct {
	selected, best, reported, predicted prometheus.Counter
	hitRate, choose                     prometheus.Observer
	gaps, stored, removed, cleared      prometheus.Counter
	active                              prometheus.Gauge
	recoveries                          *prometheus.CounterVec // by outcome
}

// of resolves the metrics of an endpoint.
func (m *metrics) of(endpoint string) poolMetrics {
	return poolMetrics{
		selected: m.selected.WithLabelValues(endpoint), best: m.best.WithLabelValues(endpoint),
		reported: m.reported.WithLabelValues(endpoint), predicted: m.predicted.WithLabelValues(endpoint),
		hitRate: m.hitRate.WithLabelValues(endpoint), choose: m.choose.WithLabelValues(endpoint),
		gaps:   m.gaps.WithLabelValues(endpoint),
		stored: m.applied.WithLabelValues(endpoint, "stored"), removed: m.applied.WithLabelValues(endpoint, "removed"),
		cleared: m.applied.WithLabelValues(endpoint, "cleared"), active: m.active.WithLabelValues(endpoint),
		recoveries: m.recoveries.MustCurryWith(prometheus.Labels{"endpoint": endpoint}),
	}
}
