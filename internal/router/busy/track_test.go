package busy_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/router/busy"
)

// TestTrack: what a router has in its books keeps workers out as reports do, at once and for as long as it is there.
func TestTrack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := busy.New(busy.Options{
			Thresholds: worker.LoadThresholds{DecodeBlocks: ptr(0.5), PrefillTokens: ptr[uint64](300)}, Stale: time.Minute})
		m.Follow(snapshot(wk{id: 1}, wk{id: 2, ranks: 2}, wk{id: 3}))
		sent := func(id uint64, rank uint32, blocks, prefill uint64) {
			m.Track(at, id, rank, busy.Load{Decode: &blocks, Prefill: &prefill})
		}
		sent(1, 0, 50, 300)
		wantOver(t, "at the limits", m)
		sent(1, 0, 51, 0)
		sent(2, 0, 51, 0)
		wantOver(t, "blocks; one rank of two isn't enough", m, 1)
		sent(2, 1, 0, 301)
		wantOver(t, "the other's prefill", m, 1, 2)
		time.Sleep(time.Hour)
		wantOver(t, "books don't get old", m, 1, 2)
		sent(1, 0, 50, 0)
		wantOver(t, "at once back", m, 2)

		// A worker says that it has more to do than was sent from here, and that its blocks are still in use.
		m.Report(at, 1, 0, busy.Load{Decode: ptr[uint64](10), Used: ptr[uint64](90)})
		wantOver(t, "blocks in use alone are no reason", m, 2)
		sent(1, 0, 60, 0)
		sent(1, 0, 0, 0)
		wantOver(t, "but keep it out", m, 1, 2)
		m.Report(at, 1, 0, busy.Load{Used: ptr[uint64](50)})
		wantOver(t, "until they are free", m, 2)
		m.Report(at, 3, 0, busy.Load{Decode: ptr[uint64](80)})
		sent(3, 0, 1, 0)
		wantOver(t, "a report counts beside the books", m, 2, 3)
		time.Sleep(time.Hour)
		wantOver(t, "and gets old", m, 2)
	})
}

// TestTrackedPrefill: books of prefill stand in place of what the dispatcher counts, which knows nothing of caches.
func TestTrackedPrefill(t *testing.T) {
	m := busy.New(busy.Options{Thresholds: worker.LoadThresholds{PrefillTokens: ptr[uint64](300)}, Queue: ptr(0.5)})
	m.Follow(snapshot(wk{id: 1}, wk{id: 2}))
	m.Track(at, 1, 0, busy.Load{Decode: ptr[uint64](9), Prefill: ptr[uint64](40)})
	m.Track(at, 2, 0, busy.Load{Decode: ptr[uint64](9)}) // of which these books say nothing
	if d := cmp.Diff([]uint64{2}, over(m, 1000)); d != "" {
		t.Errorf("overloaded (-want +got):\n%s", d)
	}
	sights := []busy.Sight{{InstanceID: 1, Prefill: 1000}}
	if got := m.State(at, sights, 0); got != busy.Ready {
		t.Errorf("state %v", got)
	}
	m.Track(at, 1, 0, busy.Load{Prefill: ptr[uint64](200)})
	if got := m.State(at, sights, 301); got != busy.Saturated {
		t.Errorf("state with what is pending %v", got)
	}
	if _, _, err := m.SetThresholds("m", worker.LoadThresholds{PrefillTokens: ptr[uint64](100)}); err != nil {
		t.Fatal(err)
	}
	wantOver(t, "what was tracked before counts", m, 1)
}
