package main

import (
	"context"
	"log/slog"
	"os"
	"testing"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/config"
	"github.com/portico-llm/portico/internal/observe"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/callhome"
	"github.com/portico-llm/portico/internal/router/plane/nats"
	"github.com/portico-llm/portico/internal/testkit"
)

// TestBooksOfKVRouting: what the router in mode kv has at work at a worker counts against the thresholds, without any
// report of the worker's.
func TestBooksOfKVRouting(t *testing.T) {
	testkit.NoLeaks(t)
	cfg, _, err := config.Load([]string{"--router-mode", "kv", "--active-decode-blocks-threshold", "0.5"}, nil, os.ReadFile)
	if err != nil {
		t.Fatal(err)
	}
	a := &app{cfg: cfg, log: slog.New(slog.DiscardHandler), registry: observe.NewRegistry()}
	home, err := callhome.Listen(callhome.Options{Host: "127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	listening, stop := context.WithCancel(t.Context())
	stop() // nobody calls: this only closes it
	if err := home.Run(listening); err != nil {
		t.Fatal(err)
	}
	plane, err := nats.New(nats.Options{})
	if err != nil {
		t.Fatal(err)
	}
	a.loads = busyMonitor(a)
	kv := a.kvRouter(home, plane, nil, nil)
	id := worker.EndpointID{Namespace: "n", Component: "c", Name: "generate"}
	in := &worker.Instance{Namespace: "n", Component: "c", Endpoint: "generate", InstanceID: 7}
	snap := &router.Snapshot{
		Version: 1, Instances: map[worker.EndpointID][]*worker.Instance{id: {in}},
		Models: []*worker.ModelRecord{{Namespace: "n", Component: "c", Endpoint: "generate", InstanceID: 7, Card: worker.Card{
			DisplayName: "m", ModelInput: "Tokens", KVCacheBlockSize: 4,
			RuntimeConfig: worker.RuntimeConfig{TotalKVBlocks: new(uint64(8))},
		}}},
	}
	a.loads.Follow(snap)
	chooser := kv.Route(id, snap)
	if chooser == nil {
		t.Fatal("not in mode kv")
	}
	busy := func() bool { return a.loads.Checker(id)(7, 0) }
	if busy() {
		t.Error("busy before there is a request")
	}
	// Five blocks of eight.
	q := &router.Query{RequestID: "r", TokenIDs: make([]uint32, 20), Random: func(int) int { return 0 }}
	choice, err := chooser.Choose(t.Context(), q, []router.Candidate{{Instance: in}})
	if err != nil {
		t.Fatal(err)
	}
	if !busy() {
		t.Error("not busy with five blocks of eight")
	}
	choice.Ticket.Done()
	if busy() {
		t.Error("still busy")
	}
}
