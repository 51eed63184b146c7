package busy

import "github.com/prometheus/client_golang/prometheus"

// overloadedDesc is read from the monitor when it is asked: a model that is gone leaves no series behind.
var overloadedDesc = prometheus.NewDesc("portico_overloaded_workers",
	"Workers of a model that are left out because they report more load than its thresholds allow", []string{"model"}, nil)

// collector is the monitor's metrics.
type collector struct{ m *Monitor }

var _ prometheus.Collector = collector{}

// Describe implements prometheus.Collector.
func (collector) Describe(out chan<- *prometheus.Desc) { out <- overloadedDesc }

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) {
	now, count := c.m.now(), map[string]int{}
	for _, f := range *c.m.fleets.Load() {
		n := 0
		for _, l := range f.workers {
			if l.overloaded(now, c.m.opts.Stale, 0) {
				n++
			}
		}
		count[f.model] += n
	}
	for model, n := range count {
		out <- prometheus.MustNewConstMetric(overloadedDesc, prometheus.GaugeValue, float64(n), model)
	}
}
