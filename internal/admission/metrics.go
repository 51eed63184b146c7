package admission

import "github.com/prometheus/client_golang/prometheus"

// newWait declares the histogram of times in the queue; requests that needn't wait aren't in it.
func newWait() prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "portico_admission_wait_seconds", Help: "Time that requests waited for their turn, before tokenizing (seconds)",
		Buckets: []float64{0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60},
	})
}

// reasonNames are the labels of reasons.
var reasonNames = [reasons]string{"workers_busy", "queue_full", "waited_too_long", "client_left"}

// What the collector tells of each model.
var (
	runningDesc = prometheus.NewDesc("portico_admission_running_requests",
		"Requests that were let in and aren't over; counted where there is a limit or a queue", []string{"model"}, nil)
	limitDesc = prometheus.NewDesc("portico_admission_limit_requests",
		"Requests that may be let in at a time; models without a limit have no series", []string{"model"}, nil)
	waitingDesc = prometheus.NewDesc("portico_admission_waiting_requests",
		"Requests that wait for their turn, before tokenizing", []string{"model"}, nil)
	refusedDesc = prometheus.NewDesc("portico_admission_refused_total",
		"Requests that were not let in, by reason", []string{"model", "reason"}, nil)
)

// collector reads the gate when it is asked, so that a model that is forgotten leaves no series behind.
type collector struct{ gate *Gate }

var _ prometheus.Collector = collector{}

// Describe implements prometheus.Collector.
func (collector) Describe(out chan<- *prometheus.Desc) {
	out <- runningDesc
	out <- limitDesc
	out <- waitingDesc
	out <- refusedDesc
}

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v int64, name string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), name)
	}
	for k, v := range c.gate.models.Range {
		name, m := k.(string), v.(*model)
		gauge(runningDesc, m.running.Load(), name)
		if m.limit > 0 {
			gauge(limitDesc, int64(m.limit), name)
		}
		gauge(waitingDesc, m.waiting.Load(), name)
		for i := range m.refused {
			out <- prometheus.MustNewConstMetric(refusedDesc, prometheus.CounterValue, float64(m.refused[i].Load()), name,
				reasonNames[i])
		}
	}
}
