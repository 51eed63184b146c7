package main

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/router"
)

// TestRoutes: a card's router_config goes before the frontend's mode at its endpoint, and nowhere else.
func TestRoutes(t *testing.T) {
	var log bytes.Buffer
	r := &routes{ratio: 2, log: slog.New(slog.NewTextHandler(&log, nil))}
	model := func(component, suffix, config string) *worker.ModelRecord {
		return &worker.ModelRecord{
			Namespace: "n", Component: component, Endpoint: "e", Suffix: suffix,
			Card: worker.Card{DisplayName: "m", RouterConfig: json.RawMessage(config)},
		}
	}
	snap := &router.Snapshot{Models: []*worker.ModelRecord{
		model("plain", "", ""),
		model("device", "", `{}`),
		model("device", "adapter", `{"router_mode":"direct"}`),
		model("device", "", `{"router_mode":"device_aware_weighted"}`),
		model("least", "", `{"router_mode":"least-loaded"}`),
		model("odd", "", `{"router_mode":"by_moonlight"}`),
	}}
	// Accelerators with five requests each, and a processor with two: 2 is the ratio that tips it.
	candidates := []router.Candidate{
		{Instance: &worker.Instance{InstanceID: 1}, InFlight: 5},
		{Instance: &worker.Instance{InstanceID: 2}, InFlight: 5},
		{Instance: &worker.Instance{InstanceID: 3, DeviceType: worker.DeviceCPU}, InFlight: 2},
		{Instance: &worker.Instance{InstanceID: 4}, InFlight: 4},
	}
	for component, want := range map[string]int{"plain": -1, "absent": -1, "odd": -1, "device": 2, "least": 2} {
		id := worker.EndpointID{Namespace: "n", Component: component, Name: "e"}
		got := -1
		if route := r.of(id, snap); route.Policy != nil {
			var err error
			if got, err = route.Policy.Pick(&router.Query{}, candidates); err != nil {
				t.Fatal(err)
			}
		}
		if got != want {
			t.Errorf("%s: picked %d, want %d", component, got, want)
		}
		_ = r.of(id, snap) // the log is told once
	}
	if n := strings.Count(log.String(), "can't be used"); n != 1 || !strings.Contains(log.String(), "by-moonlight") {
		t.Errorf("log: %s", &log)
	}
}
