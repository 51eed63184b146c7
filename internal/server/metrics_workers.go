package server

import (
	"math"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/portico-llm/portico/api/worker"
)

// workerLast is what was last seen of one worker. Values are the bits of floats; 0 is not seen yet.
type workerLast struct {
	ttft, itl, input atomic.Uint64
}

// note keeps a value.
func note(to *atomic.Uint64, v float64) { to.Store(math.Float64bits(v)) }

// workerGauges tell what was last seen of each worker, as planners and dashboards of Dynamo want it. Workers that are gone
// have no series.
type workerGauges struct {
	live func() []*worker.Instance
	last sync.Map // instance id → *workerLast
}

var _ prometheus.Collector = (*workerGauges)(nil)

// of returns the values of a worker.
func (g *workerGauges) of(id uint64) *workerLast {
	if w, ok := g.last.Load(id); ok {
		return w.(*workerLast)
	}
	w, _ := g.last.LoadOrStore(id, &workerLast{})
	return w.(*workerLast)
}

// workerDesc declares a gauge of workers. Ranks are the worker's own business unless the router chose one.
func workerDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(namespace+"_worker_last_"+name, help, []string{"worker_id", "dp_rank", "worker_type"}, nil)
}

var (
	lastTTFTDesc  = workerDesc("time_to_first_token_seconds", "Last observed time to first token per worker (seconds)")
	lastITLDesc   = workerDesc("inter_token_latency_seconds", "Last observed inter-token latency per worker (seconds)")
	lastInputDesc = workerDesc("input_sequence_tokens", "Last observed input sequence tokens per worker")
)

// Describe implements prometheus.Collector.
func (g *workerGauges) Describe(out chan<- *prometheus.Desc) {
	out <- lastTTFTDesc
	out <- lastITLDesc
	out <- lastInputDesc
}

// Collect implements prometheus.Collector.
func (g *workerGauges) Collect(out chan<- prometheus.Metric) {
	live := map[uint64]bool{}
	for _, in := range g.live() {
		live[in.InstanceID] = true
	}
	for k, v := range g.last.Range {
		id, w := k.(uint64), v.(*workerLast)
		if !live[id] {
			g.last.Delete(k)
			continue
		}
		for _, m := range []struct {
			desc *prometheus.Desc
			bits uint64
		}{{lastTTFTDesc, w.ttft.Load()}, {lastITLDesc, w.itl.Load()}, {lastInputDesc, w.input.Load()}} {
			if m.bits != 0 {
				out <- prometheus.MustNewConstMetric(m.desc, prometheus.GaugeValue, math.Float64frombits(m.bits),
					strconv.FormatUint(id, 10), "none", "decode")
			}
		}
	}
}
