package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/config"
	"github.com/portico-llm/portico/internal/native"
	"github.com/portico-llm/portico/internal/prepost/modelcard"
	"github.com/portico-llm/portico/internal/router"
)

// use is what models that came and went must give back.
type use struct {
	goroutines, threads int
	heap                uint64 // native bytes
}

func measureUse(t *testing.T) use {
	t.Helper()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Skipf("the number of threads isn't known here: %v", err)
	}
	return use{runtime.NumGoroutine(), len(tasks), native.HeapInUse()}
}

// records returns the two discovery records of a worker that serves the card under a name of its own.
func records(t *testing.T, card worker.Card, n int) []router.Record {
	t.Helper()
	card.DisplayName = fmt.Sprintf("model-%d", n)
	in := worker.Instance{Namespace: "dynamo", Component: fmt.Sprintf("c%d", n), Endpoint: "generate", InstanceID: uint64(n + 1),
		Transport: worker.Transport{TCP: fmt.Sprintf("127.0.0.1:1/%x/dynamo/c%d/generate", n+1, n)}, CodecName: "msgpack"}
	instance, err := in.Record()
	if err != nil {
		t.Fatal(err)
	}
	rec := worker.ModelRecord{Namespace: in.Namespace, Component: in.Component, Endpoint: in.Endpoint, InstanceID: in.InstanceID, Card: card}
	model, err := rec.Record()
	if err != nil {
		t.Fatal(err)
	}
	return []router.Record{{Key: router.BucketInstances + "/" + in.Path(), Value: instance}, {Key: router.BucketModels + "/" + in.Path(), Value: model}}
}

// TestModelsComeAndGo adds and removes models one after another through the real object graph: template, tokenizer and
// executor of each are built and released. At the end nothing is left of them.
func TestModelsComeAndGo(t *testing.T) {
	models := 500
	if raceEnabled {
		models = 60 // each costs a load of the tokenizer and of its reference
	}
	if testing.Short() {
		models = 20
	}
	cfg, _, err := config.Load([]string{"--discovery-backend", "mem", "--http-host", "127.0.0.1", "--http-port", "0",
		"--tcp-response-stream-host", "127.0.0.1"}, nil, os.ReadFile)
	if err != nil {
		t.Fatal(err)
	}
	a, err := build(t.Context(), cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := a.close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	card, err := modelcard.FromFolder(model, "")
	if err != nil {
		t.Fatal(err)
	}
	comeAndGo := func(n int) {
		rs := records(t, *card, n)
		for _, r := range rs {
			a.records.Put(r.Key, r.Value)
		}
		name := fmt.Sprintf("model-%d", n)
		until(t, name+" to be served", func() bool { _, err := a.catalog.Lookup(name); return err == nil })
		set, err := a.catalog.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := set.Tokenizer.Encode(t.Context(), "Hello", false); err != nil {
			t.Fatal(err)
		}
		for _, r := range rs {
			a.records.Remove(r.Key)
		}
		until(t, name+" to be gone", func() bool { _, err := a.catalog.Lookup(name); return err != nil })
	}
	settled := func() use {
		until(t, "executors to be gone", func() bool { runtime.GC(); return a.pools.Live() == 0 })
		native.TrimHeap()
		return measureUse(t)
	}
	for n := range 8 { // what libraries and runtime make once
		comeAndGo(n)
	}
	before := settled()
	for n := range models {
		comeAndGo(n)
	}
	after := settled()
	left := func() bool { return after.goroutines > before.goroutines || after.heap > before.heap+1<<20 }
	for begin := time.Now(); left() && time.Since(begin) < 10*time.Second; after = settled() {
		time.Sleep(10 * time.Millisecond) // the last worker may be on its way out, with its tokenizer still in hand
	}
	t.Logf("%d models: %+v before, %+v after", models, before, after)
	// Go keeps idle threads; a thread for every model would be hundreds.
	if after.goroutines > before.goroutines || after.threads > before.threads+4 || after.heap > before.heap+1<<20 {
		t.Errorf("%d models came and went: %+v before, %+v after", models, before, after)
	}
}

// until waits, within a bound, for a condition.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for begin := time.Now(); !ok(); time.Sleep(time.Millisecond) {
		if time.Since(begin) > time.Minute {
			t.Fatalf("waited a minute for %s", what)
		}
	}
}
