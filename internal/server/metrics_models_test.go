package server

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/portico-llm/portico/api/worker"
)

// TestRetain: the series of a model that has gone stay for a while, and for as long as it has requests.
func TestRetain(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m := newMetrics(reg, func() []*worker.Instance { return nil })
	series := func(model string) (n int) {
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, metric := range f.GetMetric() {
				for _, l := range metric.GetLabel() {
					if l.GetName() == "model" && l.GetValue() == model {
						n++
					}
				}
			}
		}
		return n
	}
	for _, name := range []string{"stays", "gone", "busy", unknownModel} {
		m.model(name)
	}
	m.requests.WithLabelValues("gone", "completions", "unary", "error", "overload").Inc()
	m.model("busy").running.Add(1)
	known, now := map[string]bool{"stays": true, unknownModel: true}, time.Now()
	m.retain(known, now)
	m.retain(known, now.Add(farewell-1))
	if series("gone") == 0 {
		t.Error("gone at once")
	}
	m.retain(known, now.Add(farewell))
	if n := series("gone"); n != 0 {
		t.Errorf("%d series are left", n)
	}
	if series("stays") == 0 || series("busy") == 0 || series(unknownModel) == 0 {
		t.Error("too much is gone")
	}
	// Its time begins with its last request's end, as seen by a scrape.
	m.model("busy").running.Add(-1)
	m.retain(known, now.Add(farewell))
	m.retain(known, now.Add(2*farewell))
	if n := series("busy"); n != 0 {
		t.Errorf("%d series are left", n)
	}
	// A model that comes back begins anew, and one that was away for a moment has lost nothing.
	m.model("gone").started[0][0].Inc()
	m.retain(known, now)
	m.retain(map[string]bool{"gone": true}, now)
	m.retain(known, now.Add(farewell))
	if series("gone") == 0 {
		t.Error("the time of its first absence counted")
	}
}

// TestWorkerGauges: what was last seen of workers that are there, by their type and rank.
func TestWorkerGauges(t *testing.T) {
	live := []*worker.Instance{{InstanceID: 7}, {InstanceID: 8}}
	reg := prometheus.NewPedanticRegistry()
	m := newMetrics(reg, func() []*worker.Instance { return live })
	for id := uint64(7); id < 10; id++ {
		w := m.workers.of(keyOf(&worker.Instance{InstanceID: id}, nil, decodeType))
		note(&w.ttft, 0.5)
		note(&w.input, float64(id))
	}
	note(&m.workers.of(keyOf(live[0], nil, decodeType)).itl, 0.25)
	note(&m.workers.of(keyOf(live[1], new(uint32(3)), prefillType)).input, 80)
	want := func(text string) {
		t.Helper()
		err := testutil.GatherAndCompare(reg, strings.NewReader(text), "dynamo_frontend_worker_last_input_sequence_tokens",
			"dynamo_frontend_worker_last_inter_token_latency_seconds")
		if err != nil {
			t.Error(err)
		}
	}
	input := `
# HELP dynamo_frontend_worker_last_input_sequence_tokens Last observed input sequence tokens per worker
# TYPE dynamo_frontend_worker_last_input_sequence_tokens gauge
`
	itl := `# HELP dynamo_frontend_worker_last_inter_token_latency_seconds Last observed inter-token latency per worker (seconds)
# TYPE dynamo_frontend_worker_last_inter_token_latency_seconds gauge
`
	seven := `dynamo_frontend_worker_last_input_sequence_tokens{dp_rank="none",worker_id="7",worker_type="decode"} 7
`
	eight := `dynamo_frontend_worker_last_input_sequence_tokens{dp_rank="3",worker_id="8",worker_type="prefill"} 80
dynamo_frontend_worker_last_input_sequence_tokens{dp_rank="none",worker_id="8",worker_type="decode"} 8
`
	want(input + seven + eight + itl +
		`dynamo_frontend_worker_last_inter_token_latency_seconds{dp_rank="none",worker_id="7",worker_type="decode"} 0.25
`)
	live = live[1:]
	want(input + eight)
	live = nil
	want("")
}
