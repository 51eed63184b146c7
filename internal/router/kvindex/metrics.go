package kvindex

import "github.com/prometheus/client_golang/prometheus"

// collector reads an index's counters when it is asked.
type collector struct{ x *Index }

var _ prometheus.Collector = (*collector)(nil)

// metrics are the index's series. Several indexes register with registerers that add a label.
var metrics = []struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(x *Index) int64
}{
	{desc("entries", "Blocks that the workers hold on their devices, each counted once for each worker"), prometheus.GaugeValue,
		func(x *Index) int64 { return x.Entries() }},
	{desc("bytes", "Memory that the KV index uses"), prometheus.GaugeValue,
		func(x *Index) int64 { return x.Bytes() }},
	{desc("workers", "Worker ranks that the KV index knows"), prometheus.GaugeValue,
		func(x *Index) int64 { return int64(len(x.View().by)) }},
	{desc("evicted_blocks_total", "Blocks dropped to stay below the memory limit"), prometheus.CounterValue,
		func(x *Index) int64 { return x.count.evicted.Load() }},
	{desc("expired_blocks_total", "Blocks whose time was over in approximate mode"), prometheus.CounterValue,
		func(x *Index) int64 { return x.count.expired.Load() }},
	{desc("rejected_stores_total", "Stored events that changed nothing"), prometheus.CounterValue,
		func(x *Index) int64 { return x.count.rejected.Load() }},
	{desc("unknown_parents_total", "Stored events whose parent block isn't known: a sign of lost events"), prometheus.CounterValue,
		func(x *Index) int64 { return x.count.orphans.Load() }},
	{desc("unknown_removals_total", "Blocks removed that aren't known"), prometheus.CounterValue,
		func(x *Index) int64 { return x.count.unknown.Load() }},
}

func desc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("dynamo_frontend_kv_index_"+name, help, nil, nil)
}

// Describe sends the descriptions of all series.
func (c *collector) Describe(to chan<- *prometheus.Desc) {
	for _, m := range metrics {
		to <- m.desc
	}
}

// Collect sends the series as of now.
func (c *collector) Collect(to chan<- prometheus.Metric) {
	for _, m := range metrics {
		to <- prometheus.MustNewConstMetric(m.desc, m.kind, float64(m.value(c.x)))
	}
}
