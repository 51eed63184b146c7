package pipeline_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/dispatch"
	"github.com/portico-llm/portico/internal/simworker"
)

// TestTaintsOfBothLegs: taints that a request requires or prefers count for the prefill worker as for the decode worker,
// each by its own.
func TestTaintsOfBothLegs(t *testing.T) {
	f := newPools(t, false, false)
	pair := func(taints ...string) (pre, dec *part) {
		f.taints = taints
		return f.add("prefill", &simworker.Prefiller{}, nil), f.add("decode", f.decoder(), nil)
	}
	pre, dec := pair("fast", "eu")
	otherPre, otherDec := pair("slow")
	f.taints = []string{"lonely"}
	lonely := f.add("decode", f.decoder(), nil)
	f.until("all workers to be known", func(set *catalog.Set) bool {
		pool := set.Prefill()
		for _, w := range []*part{dec, otherDec, lonely} {
			if !set.Serves(w.Instance().InstanceID) || len(f.tainted.Of(set.Endpoint, w.Instance().InstanceID)) == 0 {
				return false
			}
		}
		for _, w := range []*part{pre, otherPre} {
			if pool == nil || !pool.Serves(w.Instance().InstanceID) || len(f.tainted.Of(pool.Endpoint, w.Instance().InstanceID)) == 0 {
				return false
			}
		}
		return true
	})
	ask := func(constraints string) string {
		return f.ask(t, chatPath, conversation+`,"max_tokens":3,"nvext":{"routing_constraints":`+constraints+`}}`)
	}
	for range 4 { // round robin would come by both
		if got := ask(`{"required_taints":["fast","eu"]}`); !strings.HasPrefix(got, "200\n") {
			t.Fatal(got)
		}
	}
	if n, m := len(pre.asked()), len(dec.asked()); n != 4 || m != 4 {
		t.Errorf("the pair with the taints was asked %d and %d times", n, m)
	}
	if n, m := len(otherPre.asked()), len(otherDec.asked()); n != 0 || m != 0 {
		t.Errorf("the pair without them was asked %d and %d times", n, m)
	}
	// A decode worker has it, and no prefill worker: nothing is begun.
	got := ask(`{"required_taints":["lonely"]}`)
	if !strings.HasPrefix(got, "503\n") || !strings.Contains(got, "No prefill worker of the model has the taints") {
		t.Error(got)
	}
}

// TestTaintsWithoutPrefill: decode workers that can do without are asked alone, when no prefill worker has the taints.
func TestTaintsWithoutPrefill(t *testing.T) {
	f := newPools(t, false, true)
	f.taints = []string{"fast"}
	dec := f.add("decode", f.decoder(), nil)
	f.taints = nil
	pre := f.add("prefill", &simworker.Prefiller{}, nil)
	f.until("the prefill worker and the taint", func(set *catalog.Set) bool {
		return set.Prefill() != nil && len(f.tainted.Of(set.Endpoint, dec.Instance().InstanceID)) > 0
	})
	got := f.ask(t, chatPath, conversation+`,"max_tokens":3,"nvext":{"routing_constraints":{"required_taints":["fast"]}}}`)
	if !strings.HasPrefix(got, "200\n") || len(pre.asked()) != 0 {
		t.Errorf("%s; the prefill worker was asked %d times", got, len(pre.asked()))
	}
	if f.outcomes()["fallback"] != 1 {
		t.Errorf("outcomes %v", f.outcomes())
	}
}

// ranked chooses the first candidate and a rank there.
type ranked struct{ rank uint32 }

func (r ranked) Choose(context.Context, *router.Query, []router.Candidate) (router.Choice, error) {
	return router.Choice{Rank: &r.rank}, nil
}

// TestWorkerSeries: what was last seen is told of each worker by its type and the rank that the router chose.
func TestWorkerSeries(t *testing.T) {
	both(t, func(t *testing.T, rooms bool) {
		f := newPoolsFor(t, rooms, false, dispatch.Options{Route: func(id worker.EndpointID, _ *router.Snapshot) dispatch.Route {
			if id.Component == "prefill" {
				return dispatch.Route{Chooser: ranked{3}}
			}
			return dispatch.Route{Chooser: ranked{5}}
		}})
		pre, dec := f.add("prefill", &simworker.Prefiller{}, nil), f.add("decode", f.decoder(), nil)
		f.wait(true)
		answer := f.ask(t, chatPath, twelve+`}`)
		ids := fmt.Sprintf(`"worker_id":{"prefill_worker_id":%d,"prefill_dp_rank":3,"decode_worker_id":%d,"decode_dp_rank":5}`,
			pre.Instance().InstanceID, dec.Instance().InstanceID)
		if !strings.HasPrefix(answer, "200\n") || !strings.Contains(answer, ids) {
			t.Fatalf("%s, want %s", answer, ids)
		}
		families, err := f.metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]bool{}
		for _, family := range families {
			name, ok := strings.CutPrefix(family.GetName(), "dynamo_frontend_worker_last_")
			for _, m := range family.GetMetric() {
				var labels []string
				for _, l := range m.GetLabel() { // in the order of their names
					labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
				}
				if ok {
					got[name+"{"+strings.Join(labels, ",")+"}"] = true
				}
			}
		}
		reader := fmt.Sprintf(`{dp_rank="3",worker_id="%d",worker_type="prefill"}`, pre.Instance().InstanceID)
		writer := fmt.Sprintf(`{dp_rank="5",worker_id="%d",worker_type="decode"}`, dec.Instance().InstanceID)
		want := map[string]bool{
			"input_sequence_tokens" + reader: true, "time_to_first_token_seconds" + reader: true,
			"inter_token_latency_seconds" + writer: true,
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("series (-want +got):\n%s", d)
		}
	})
}
