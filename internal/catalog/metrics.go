package catalog

import "github.com/prometheus/client_golang/prometheus"

// collector reads the current table when it is asked: a model that is gone leaves no stale series behind.
type collector struct{ catalog *Catalog }

var _ prometheus.Collector = (*collector)(nil)

// byModel are gauges with one series for each model; ok false leaves the series out.
var byModel = []struct {
	desc  *prometheus.Desc
	value func(f *fact) (v float64, ok bool)
}{
	{modelDesc("context_length", "Maximum context length in tokens for a worker serving the model"),
		func(f *fact) (float64, bool) { return float64(f.card.EffectiveContextLength()), true }},
	{modelDesc("kv_cache_block_size", "KV cache block size in tokens for a worker serving the model"),
		func(f *fact) (float64, bool) { return float64(f.card.KVCacheBlockSize), true }},
	{modelDesc("migration_limit", "Maximum number of request migrations allowed for the model"),
		func(f *fact) (float64, bool) { return float64(f.card.MigrationLimit), true }},
	{modelDesc("total_kv_blocks", "Total KV cache blocks available for a worker serving the model"),
		func(f *fact) (float64, bool) { return optional(f.card.RuntimeConfig.TotalKVBlocks) }},
	{modelDesc("max_num_seqs", "Maximum number of sequences for a worker serving the model"),
		func(f *fact) (float64, bool) { return optional(f.card.RuntimeConfig.MaxNumSeqs) }},
	{modelDesc("max_num_batched_tokens", "Maximum number of batched tokens for a worker serving the model"),
		func(f *fact) (float64, bool) { return optional(f.card.RuntimeConfig.MaxNumBatchedTokens) }},
	{modelDesc("ready",
		"Whether the frontend can route at least one inference request for the model (1 = ready, 0 = not ready)"),
		func(f *fact) (float64, bool) { return float64(flag(f.ready)), true }},
	{modelDesc("waiting_workers",
		"Workers whose card differs from the one being served: they wait until the present ones have gone"),
		func(f *fact) (float64, bool) { return float64(f.waiting), true }},
}

var (
	retiredDesc = prometheus.NewDesc("dynamo_frontend_models_retired",
		"Retired models whose tokenizer is still open because a request holds it", nil, nil)
	failuresDesc = prometheus.NewDesc("dynamo_frontend_model_load_failures_total",
		"Failed attempts to load a model's template and tokenizer", nil, nil)
)

// modelDesc declares a gauge labelled by model, under Dynamo's prefix.
func modelDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("dynamo_frontend_model_"+name, help, []string{"model"}, nil)
}

// optional is a number that workers need not publish.
func optional(n *uint64) (float64, bool) {
	if n == nil {
		return 0, false
	}
	return float64(*n), true
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for i := range byModel {
		out <- byModel[i].desc
	}
	out <- retiredDesc
	out <- failuresDesc
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	// One table for the whole scrape, so that its numbers belong together.
	t := c.catalog.table.Load()
	for i := range byModel {
		for j := range t.facts {
			if v, ok := byModel[i].value(&t.facts[j]); ok {
				out <- prometheus.MustNewConstMetric(byModel[i].desc, prometheus.GaugeValue, v, t.facts[j].name)
			}
		}
	}
	out <- prometheus.MustNewConstMetric(retiredDesc, prometheus.GaugeValue, float64(c.catalog.retired.Load()))
	out <- prometheus.MustNewConstMetric(failuresDesc, prometheus.CounterValue, float64(c.catalog.failures.Load()))
}
