package server_test

import (
	"net/http"
	"testing"

	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/constraint"
	"github.com/portico-llm/portico/internal/server"
	"github.com/portico-llm/portico/internal/testkit"

	"github.com/portico-llm/portico/api/worker"
)

// TestSessionHeaders: sessions are known by the headers of several clients; Dynamo's own goes before the others.
func TestSessionHeaders(t *testing.T) {
	d := testkit.Play(hello)
	s := start(t, d, nil)
	for _, tc := range []struct {
		headers []string
		want    string
	}{
		{nil, ""},
		{[]string{"x-dynamo-session-id", "a"}, "a"},
		{[]string{"x-claude-code-session-id", "b"}, "b"},
		{[]string{"thread-id", "c"}, "c"},
		{[]string{"x-session-id", " d "}, "d"},
		{[]string{"x-session-id", "d", "thread-id", "c", "x-dynamo-session-id", "a"}, "a"},
		{[]string{"x-claude-code-session-id", "b", "x-claude-code-agent-id", "sub"}, "sub"},
		{[]string{"x-claude-code-agent-id", "sub"}, ""},
	} {
		if res, got := s.do(t, http.MethodPost, "/v1/chat/completions", chatBody, tc.headers...); res.StatusCode != 200 {
			t.Fatal(got)
		}
		calls := d.Calls()
		if got := calls[len(calls)-1].Call.Session; got != tc.want {
			t.Errorf("%v: session %q, want %q", tc.headers, got, tc.want)
		}
	}
}

// TestSessionFinal: the header of a session's last request.
func TestSessionFinal(t *testing.T) {
	d := testkit.Play(hello)
	s := start(t, d, nil)
	for value, want := range map[string]bool{"true": true, " TRUE ": true, "1": true, "false": false, "": false, "last": false} {
		if res, got := s.do(t, http.MethodPost, "/v1/chat/completions", chatBody,
			"x-dynamo-session-id", "a", "x-dynamo-session-final", value); res.StatusCode != 200 {
			t.Fatal(got)
		}
		calls := d.Calls()
		if call := calls[len(calls)-1].Call; call.SessionFinal != want || call.Session != "a" {
			t.Errorf("%q: final %v", value, call.SessionFinal)
		}
	}
}

// TestConstraints: what a request wants of its worker reaches the router; what no worker has, or nobody can read, is
// refused before anything is tokenised.
func TestConstraints(t *testing.T) {
	d := testkit.Play(hello)
	set := testkit.ByteModel("m")
	var taints constraint.Index
	record := func(id uint64, of ...string) *worker.ModelRecord {
		return &worker.ModelRecord{
			Namespace: set.Endpoint.Namespace, Component: set.Endpoint.Component, Endpoint: set.Endpoint.Name, InstanceID: id,
			Card: worker.Card{RuntimeConfig: worker.RuntimeConfig{Taints: of}},
		}
	}
	taints.Follow(&router.Snapshot{Models: []*worker.ModelRecord{record(1, "a"), record(2, "a", "b")}})
	s := start(t, d, func(o *server.Options) {
		o.Pipeline = pipeline.New(pipeline.Options{Dispatcher: d, Taints: &taints})
		o.Catalog = testkit.Models{"m": set}
	})
	ask := func(constraints string) (int, string) {
		res, got := s.do(t, http.MethodPost, "/v1/chat/completions",
			`{"model":"m","messages":[{"role":"user","content":"hi"}],"nvext":{"routing_constraints":`+constraints+`}}`)
		return res.StatusCode, got
	}
	for _, tc := range []struct {
		constraints string
		status      int
		serves      [3]bool // the instances 1 to 3
		prefers     bool    // 2 to 1
	}{
		{`{}`, 200, [3]bool{true, true, true}, false},
		{`{"required_taints":["a"]}`, 200, [3]bool{true, true, false}, false},
		{`{"required_taints":["b","a"],"preferred_taints":{"b":1}}`, 200, [3]bool{false, true, false}, true},
		{`{"preferred_taints":{"b":1}}`, 200, [3]bool{true, true, true}, true},
		{`{"required_taints":["c"]}`, 503, [3]bool{}, false},
		{`{"required_taints":"a"}`, 400, [3]bool{}, false},
	} {
		before := len(d.Calls())
		status, got := ask(tc.constraints)
		if status != tc.status {
			t.Errorf("%s: %d %s", tc.constraints, status, got)
		}
		if status != 200 {
			if len(d.Calls()) != before {
				t.Errorf("%s: a worker was asked", tc.constraints)
			}
			continue
		}
		call := d.Calls()[before].Call
		for i, want := range tc.serves {
			if got := call.Serves(uint64(i + 1)); got != want {
				t.Errorf("%s: serves %d: %v", tc.constraints, i+1, got)
			}
		}
		if (call.Factor != nil) != tc.prefers || tc.prefers && !(call.Factor(2) < call.Factor(1)) {
			t.Errorf("%s: what is preferred didn't reach the router", tc.constraints)
		}
	}
}
