package dispatch_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/dispatch"
)

// lastFirst is a chooser that takes the candidate with the highest id, at rank 3, and keeps the books.
type lastFirst struct {
	mu    sync.Mutex
	log   []string
	memos []any
	fail  error
}

func (c *lastFirst) Choose(_ context.Context, q *router.Query, candidates []router.Candidate) (router.Choice, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fail != nil {
		return router.Choice{}, c.fail
	}
	c.memos = append(c.memos, q.Memo)
	q.Memo = "hashes"
	i, rank := len(candidates)-1, uint32(3)
	name := candidates[i].Instance.Hex()
	c.log = append(c.log, "chose "+name)
	return router.Choice{Index: i, Rank: &rank, Ticket: &ticket{c: c, name: name}}, nil
}

type ticket struct {
	c    *lastFirst
	name string
}

func (t *ticket) note(what string) {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	t.c.log = append(t.c.log, what+" "+t.name)
}

func (t *ticket) Item(it *worker.Item) {
	if it.HasData {
		t.note("item")
	}
}
func (t *ticket) Done() { t.note("done") }

// TestChooser follows a request past a worker that can't be reached, and one that insists on an instance: each try has
// its ticket, each ticket ends once, and the worker learns its rank.
func TestChooser(t *testing.T) {
	c := &lastFirst{}
	opts := dispatch.Options{Route: func(worker.EndpointID, *router.Snapshot) dispatch.Route { return dispatch.Route{Chooser: c} }}
	f := newFleet(t, opts)
	ranks := make(chan *uint32, 4)
	good := func(w *session) {
		q, err := worker.DecodeRequest(w.control.Codec, w.body)
		if err != nil {
			t.Error(err)
		}
		ranks <- q.Routing.DPRank
		answer(5, 6)(w)
	}
	unplaned := instance(4)
	unplaned.Transport.NATS = "x" // no such plane here
	f.publish(f.worker(1, "", good), f.worker(2, "", good), f.dead(3), unplaned)
	call := newCall()
	if ids, err := f.ask(call); err != nil || !slices.Equal(ids, []uint32{5, 6}) {
		t.Fatalf("%v, %v", ids, err)
	}
	pin := uint64(1)
	call.Pin = &pin
	if _, err := f.ask(call); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if rank := <-ranks; rank == nil || *rank != 3 {
			t.Errorf("rank %v", rank)
		}
	}
	want := []string{"chose 4", "done 4", "chose 3", "done 3", "chose 2", "item 2", "item 2", "done 2",
		"chose 1", "item 1", "item 1", "done 1"}
	if diff := cmp.Diff(want, c.log); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]any{nil, "hashes", "hashes", nil}, c.memos); diff != "" {
		t.Errorf("memos (-want +got):\n%s", diff)
	}
	c.fail = fault.New(fault.Overloaded, "no")
	if _, err := f.ask(newCall()); !errors.Is(err, c.fail) {
		t.Errorf("error %v", err)
	}
}
