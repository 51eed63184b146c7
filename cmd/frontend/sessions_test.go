package main

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/config"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/affinity"
	"github.com/portico-llm/portico/internal/router/dispatch"
)

// TestSessions: an endpoint keeps its sessions through changes in discovery, for as long as it has workers, and a card's
// time to live goes before the flag's.
func TestSessions(t *testing.T) {
	here := worker.EndpointID{Namespace: "n", Component: "c", Name: "e"}
	snap := func(card string, workers int) *router.Snapshot {
		s := &router.Snapshot{Instances: map[worker.EndpointID][]*worker.Instance{}}
		for i := range workers {
			s.Instances[here] = append(s.Instances[here], &worker.Instance{InstanceID: uint64(i)})
			s.Models = append(s.Models, &worker.ModelRecord{
				Namespace: "n", Component: "c", Endpoint: "e", Card: worker.Card{RouterConfig: json.RawMessage(card)}})
		}
		return s
	}
	minute := 60.0
	for _, tc := range []struct {
		name  string
		flag  *float64
		card  string
		binds bool
	}{
		{"off", nil, ``, false},
		{"by the flag", &minute, ``, true},
		{"by the card", nil, `{"session_affinity_ttl_secs":60}`, true},
		{"not by the card", &minute, `{"session_affinity_ttl_secs":0}`, false},
		{"a card of something else", &minute, `{"router_mode":"random"}`, true},
	} {
		s, err := newSessions(&config.Loads{AffinityTTL: tc.flag, AffinityMode: "soft"}, affinity.NewReplicas(affinity.ReplicasOptions{}))
		if err != nil {
			t.Fatal(err)
		}
		of := s.with(func(worker.EndpointID, *router.Snapshot) dispatch.Route { return dispatch.Route{} })
		first := of(here, snap(tc.card, 1)).Sessions
		if (first != nil) != tc.binds {
			t.Errorf("%s: %v", tc.name, first)
			continue
		}
		if !tc.binds {
			continue
		}
		first.Bind("a", nil, 7, nil)
		if id, ok := of(here, snap(tc.card, 2)).Sessions.Find("a"); !ok || id != 7 || first.Hard() {
			t.Errorf("%s: %d, %v after a change", tc.name, id, ok)
		}
		of(worker.EndpointID{}, snap(tc.card, 0))
		if _, ok := of(here, snap(tc.card, 1)).Sessions.Find("a"); ok {
			t.Errorf("%s: sessions of workers that have gone", tc.name)
		}
	}
	if _, err := newSessions(&config.Loads{AffinityMode: "firm"}, nil); err == nil {
		t.Error("a mode that isn't there")
	}
	for seconds, want := range map[float64]time.Duration{
		0: 0, -1: 0, math.NaN(): 0, 1.5: 1500 * time.Millisecond, math.Inf(1): 30 * 24 * time.Hour,
	} {
		if got := ttl(seconds); got != want {
			t.Errorf("%v seconds: %v, want %v", seconds, got, want)
		}
	}
}
