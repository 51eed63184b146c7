package server

import (
	"math"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/portico-llm/portico/api/worker"
)

// workerLast is what was last seen of one rank of a worker. Values are the bits of floats; 0 is not seen yet.
type workerLast struct {
	ttft, itl, input atomic.Uint64
}

// note keeps a value.
func note(to *atomic.Uint64, v float64) { to.Store(math.Float64bits(v)) }

// The types of workers, as labels have them. A worker that does both parts is of the second.
const (
	prefillType = "prefill"
	decodeType  = "decode"
)

// workerKey is what series are told apart by. Ranks are the router's choice, so that there are few.
type workerKey struct {
	id   uint64
	rank int64  // negative: the router chose none
	kind string // prefillType or decodeType
}

// keyOf returns the key of a worker of a kind and its rank, which may be nil.
func keyOf(in *worker.Instance, rank *uint32, kind string) workerKey {
	k := workerKey{in.InstanceID, -1, kind}
	if rank != nil {
		k.rank = int64(*rank)
	}
	return k
}

// rankLabel is the rank's label.
func (k workerKey) rankLabel() string {
	if k.rank < 0 {
		return "none"
	}
	return strconv.FormatInt(k.rank, 10)
}

// workerGauges tell what was last seen of each worker, as planners and dashboards of Dynamo want it: of the one that reads
// the prompt how long that was and took, and of the one that decodes the time between tokens. Workers that are gone have
// no series.
type workerGauges struct {
	live func() []*worker.Instance
	last sync.Map // workerKey → *workerLast
}

var _ prometheus.Collector = (*workerGauges)(nil)

// of returns the values of a worker's rank.
func (g *workerGauges) of(k workerKey) *workerLast {
	if w, ok := g.last.Load(k); ok {
		return w.(*workerLast)
	}
	w, _ := g.last.LoadOrStore(k, &workerLast{})
	return w.(*workerLast)
}

// workerDesc declares a gauge of workers.
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
		key, w := k.(workerKey), v.(*workerLast)
		if !live[key.id] {
			g.last.Delete(k)
			continue
		}
		for _, m := range []struct {
			desc *prometheus.Desc
			bits uint64
		}{{lastTTFTDesc, w.ttft.Load()}, {lastITLDesc, w.itl.Load()}, {lastInputDesc, w.input.Load()}} {
			if m.bits != 0 {
				out <- prometheus.MustNewConstMetric(m.desc, prometheus.GaugeValue, math.Float64frombits(m.bits),
					strconv.FormatUint(key.id, 10), key.rankLabel(), key.kind)
			}
		}
	}
}
