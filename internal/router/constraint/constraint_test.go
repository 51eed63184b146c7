package constraint_test

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/constraint"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		raw   string
		want  constraint.Constraints
		param string // of the failure
	}{
		{raw: ``}, {raw: `null`}, {raw: `{}`}, {raw: `{"new":1}`}, {raw: `{"required_taints":null,"preferred_taints":null}`},
		{
			raw:  `{"required_taints":["a","b"],"preferred_taints":{"c":0.5,"d":-1}}`,
			want: constraint.Constraints{Required: []string{"a", "b"}, Preferred: map[string]float64{"c": 0.5, "d": -1}},
		},
		{raw: `[]`, param: "nvext.routing_constraints"},
		{raw: `{"required_taints":1}`, param: "nvext.routing_constraints.required_taints"},
		{raw: `{"required_taints":["a",""]}`, param: "nvext.routing_constraints.required_taints[1]"},
		{raw: `{"preferred_taints":["b"]}`, param: "nvext.routing_constraints.preferred_taints"},
		{raw: `{"preferred_taints":{"a":"b"}}`, param: "nvext.routing_constraints.preferred_taints"},
	} {
		got, err := constraint.Parse(json.RawMessage(tc.raw))
		if d := cmp.Diff(tc.want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", tc.raw, d)
		}
		param := ""
		if f := fault.From(err); f != nil {
			param = f.Param
			if f.Kind != fault.BadRequest {
				t.Errorf("%s: %v", tc.raw, f.Kind)
			}
		}
		if param != tc.param {
			t.Errorf("%s: %v, want a failure of %q", tc.raw, err, tc.param)
		}
		if got.IsZero() != (len(tc.want.Required)+len(tc.want.Preferred) == 0) {
			t.Errorf("%s: IsZero %v", tc.raw, got.IsZero())
		}
	}
}

func TestAdmits(t *testing.T) {
	for _, tc := range []struct {
		required, taints []string
		want             bool
	}{
		{nil, nil, true}, {nil, []string{"a"}, true}, {[]string{"a"}, nil, false},
		{[]string{"a"}, []string{"b", "a"}, true}, {[]string{"a", "c"}, []string{"b", "a"}, false},
	} {
		if got := (constraint.Constraints{Required: tc.required}).Admits(tc.taints); got != tc.want {
			t.Errorf("%v of %v: %v", tc.required, tc.taints, got)
		}
	}
}

func TestFactor(t *testing.T) {
	c := constraint.Constraints{Preferred: map[string]float64{"a": 1, "b": -2, "c": 1e9}}
	for _, tc := range []struct {
		taints []string
		want   float64
	}{
		{nil, 1}, {[]string{"x"}, 1}, {[]string{"a"}, math.Exp(-math.Tanh(1))}, {[]string{"a", "b"}, math.Exp(math.Tanh(1))},
		{[]string{"c", "x"}, 1 / math.E},
	} {
		if got := c.Factor(tc.taints); math.Abs(got-tc.want) > 1e-12 {
			t.Errorf("%v: %v, want %v", tc.taints, got, tc.want)
		}
	}
}

func TestIndex(t *testing.T) {
	here, there := worker.EndpointID{Namespace: "n", Component: "c", Name: "e"}, worker.EndpointID{Namespace: "n", Component: "d", Name: "e"}
	rec := func(at worker.EndpointID, id uint64, suffix string, taints ...string) *worker.ModelRecord {
		return &worker.ModelRecord{
			Namespace: at.Namespace, Component: at.Component, Endpoint: at.Name, InstanceID: id, Suffix: suffix,
			Card: worker.Card{RuntimeConfig: worker.RuntimeConfig{Taints: taints}},
		}
	}
	var x constraint.Index
	all := func(uint64) bool { return true }
	need := constraint.Constraints{Required: []string{"a"}}
	if x.Of(here, 1) != nil || x.AnyAdmitted(need, here, all) {
		t.Error("taints of nobody")
	}
	x.Follow(&router.Snapshot{Models: []*worker.ModelRecord{
		rec(here, 1, "", "a"), rec(here, 1, "adapter", "z"), rec(here, 2, "", "b"), rec(there, 3, "", "a", "b"),
	}})
	if d := cmp.Diff([]string{"a"}, x.Of(here, 1)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if !x.AnyAdmitted(need, here, all) || x.AnyAdmitted(need, here, func(id uint64) bool { return id != 1 }) ||
		x.AnyAdmitted(constraint.Constraints{Required: []string{"a", "b"}}, here, all) {
		t.Error("wrong about who is admitted")
	}
	x.Follow(&router.Snapshot{Models: []*worker.ModelRecord{rec(here, 1, "", "c")}})
	if x.AnyAdmitted(need, here, all) || cmp.Diff([]string{"c"}, x.Of(here, 1)) != "" || x.Of(here, 2) != nil {
		t.Error("old taints are still there")
	}
}
