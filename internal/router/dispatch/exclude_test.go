package dispatch_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/dispatch"
)

// TestExclude keeps a call from instances that have failed it before.
func TestExclude(t *testing.T) {
	f := newFleet(t, dispatch.Options{})
	f.publish(f.worker(1, "", answer(1)), f.worker(2, "", answer(2)), f.worker(3, "", answer(3)))
	for range 4 {
		call := newCall()
		call.Exclude = []uint64{3, 1}
		if ids, err := f.ask(call); err != nil || !slices.Equal(ids, []uint32{2}) {
			t.Errorf("%v, %v", ids, err)
		}
	}
	call := newCall()
	call.Exclude = []uint64{1, 2, 3}
	if _, err := f.ask(call); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("all excluded: %v", err)
	}
	pin := uint64(2)
	call = newCall()
	call.Pin, call.Exclude = &pin, []uint64{2}
	if _, err := f.ask(call); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("pinned and excluded: %v", err)
	}
	if diff := cmp.Diff([]uint64{2, 2, 2, 2}, f.asked()); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
}

// TestFailed tells the caller of every instance that was tried in vain.
func TestFailed(t *testing.T) {
	f := newFleet(t, dispatch.Options{})
	f.publish(f.dead(1), f.worker(2, "Server overloaded: worker at capacity", nil), f.worker(3, "", answer(3)))
	failed := map[uint64]fault.Kind{}
	for range 3 {
		call := newCall()
		call.Failed = func(id uint64, err error) { failed[id] = fault.KindOf(err) }
		if ids, err := f.ask(call); err != nil || !slices.Equal(ids, []uint32{3}) {
			t.Errorf("%v, %v", ids, err)
		}
	}
	if diff := cmp.Diff(map[uint64]fault.Kind{1: fault.Unavailable, 2: fault.Overloaded}, failed); diff != "" {
		t.Errorf("failed (-want +got):\n%s", diff)
	}
}

// TestEndedBetweenTries: a request that ends with one worker's failure, or has ended before, is nobody's choice any more.
func TestEndedBetweenTries(t *testing.T) {
	chooser := &lastFirst{}
	f := newFleet(t, dispatch.Options{
		Route: func(worker.EndpointID, *router.Snapshot) dispatch.Route { return dispatch.Route{Chooser: chooser} }})
	f.publish(f.worker(1, "", answer(1)), f.dead(2))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	call := newCall()
	call.Failed = func(uint64, error) { cancel() }
	for range 2 {
		if _, err := f.d.Dispatch(ctx, call); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
	}
	if d := cmp.Diff([]string{"chose 2", "done 2"}, chooser.log); d != "" {
		t.Errorf("tickets (-want +got):\n%s", d)
	}
}
