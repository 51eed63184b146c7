package dispatch_test

import (
	"slices"
	"testing"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/affinity"
	"github.com/portico-llm/portico/internal/router/dispatch"
)

// bindings are routes whose sessions are bound in one mode.
func bindings(mode affinity.Mode, chooser router.Chooser) func(worker.EndpointID, *router.Snapshot) dispatch.Route {
	table := affinity.New(affinity.Options{Mode: mode})
	return func(worker.EndpointID, *router.Snapshot) dispatch.Route {
		return dispatch.Route{Sessions: table, Chooser: chooser}
	}
}

// TestSession: requests of one session go where the first one went, through the loss of the worker and its return.
func TestSession(t *testing.T) {
	overloaded := map[uint64]bool{}
	busy := func(worker.EndpointID) func(uint64, int64) bool {
		return func(id uint64, _ int64) bool { return overloaded[id] }
	}
	for _, mode := range []affinity.Mode{affinity.Hard, affinity.Soft} {
		clear(overloaded)
		f := newFleet(t, dispatch.Options{Route: bindings(mode, nil), Busy: busy})
		one, two, three := f.worker(1, "", answer(5)), f.worker(2, "", answer(5)), f.worker(3, "", answer(5))
		f.publish(one, two, three)
		ask := func(session string, change func(*router.Call)) error {
			call := newCall()
			call.Session = session
			if change != nil {
				change(call)
			}
			_, err := f.ask(call)
			return err
		}
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		for range 3 {
			must(ask("a", nil)) // bound to 1
		}
		must(ask("b", nil)) // the next one's turn
		must(ask("a", nil))
		must(ask("", nil)) // no session: in turn
		pin := uint64(3)
		must(ask("a", func(c *router.Call) { c.Pin = &pin })) // the client's word counts, and binds nothing
		must(ask("a", nil))
		want := []uint64{1, 1, 1, 2, 1, 3, 3, 1}
		// A worker that failed this request before, and one that is gone, have lost the session.
		must(ask("a", func(c *router.Call) { c.Exclude = []uint64{1} }))
		must(ask("a", nil))
		// The turn of one of the remaining two, and bound to it from now on.
		moved := f.asked()[len(want)]
		if want = append(want, moved, moved); moved == 1 {
			t.Errorf("an excluded worker was asked")
		}
		if got := f.asked(); !slices.Equal(got, want) {
			t.Fatalf("asked %v, want %v", got, want)
		}
		all := []*worker.Instance{one, two, three}
		f.publish(slices.DeleteFunc(slices.Clone(all), func(in *worker.Instance) bool { return in.InstanceID == moved })...)
		must(ask("a", nil))
		now := f.asked()[len(want)]
		f.publish(all...)
		must(ask("a", nil))
		if got := f.asked()[len(want):]; got[1] != now || now == moved {
			t.Errorf("asked %v", got)
		}
		// An overloaded worker keeps a hard session waiting and loses a soft one.
		overloaded[now] = true
		err := ask("a", nil)
		if mode == affinity.Hard {
			wantFault(t, err, fault.Overloaded, fault.FromRequest)
			overloaded[now] = false
			must(ask("a", nil))
			if got := f.asked(); got[len(got)-1] != now {
				t.Errorf("asked %v", got)
			}
			continue
		}
		must(err)
		if got := f.asked(); got[len(got)-1] == now {
			t.Errorf("asked %v", got)
		}
	}
}

// TestSessionFinal: a session's last request goes where the others went, and the next one of that name is another session's.
func TestSessionFinal(t *testing.T) {
	f := newFleet(t, dispatch.Options{Route: bindings(affinity.Hard, nil)})
	f.publish(f.worker(1, "", answer(5)), f.worker(2, "", answer(5)), f.worker(3, "", answer(5)))
	for _, final := range []bool{false, false, true, false, false} {
		call := newCall()
		call.Session, call.SessionFinal = "a", final
		if _, err := f.ask(call); err != nil {
			t.Fatal(err)
		}
	}
	once := newCall() // a session of one request is never bound
	once.Session, once.SessionFinal = "b", true
	for range 2 {
		if _, err := f.ask(once); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := f.asked(), []uint64{1, 1, 1, 2, 2, 3, 1}; !slices.Equal(got, want) {
		t.Errorf("asked %v, want %v", got, want)
	}
}

// TestSessionChooser: a chooser is told of the requests whose worker is known.
func TestSessionChooser(t *testing.T) {
	c := &lastFirst{}
	f := newFleet(t, dispatch.Options{Route: bindings(affinity.Hard, c)})
	f.publish(f.worker(1, "", answer(5)), f.worker(2, "", answer(5)))
	for range 2 {
		call := newCall()
		call.Session = "a"
		if _, err := f.ask(call); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"chose 2", "item 2", "done 2", "chose 2", "item 2", "done 2"}
	if !slices.Equal(c.log, want) {
		t.Errorf("log %v", c.log)
	}
}

// TestBusy: overloaded instances are no candidates, and refuse those who insist on them. Prefill is counted until the
// answer begins.
func TestBusy(t *testing.T) {
	overloaded := map[uint64]bool{1: true}
	var seen []int64
	busy := func(id worker.EndpointID) func(uint64, int64) bool {
		if id != endpointID {
			t.Errorf("asked for %v", id)
		}
		return func(id uint64, prefill int64) bool {
			seen = append(seen, prefill)
			return overloaded[id]
		}
	}
	f := newFleet(t, dispatch.Options{Busy: busy})
	var during []dispatch.Sight
	slow := func(w *session) {
		during = f.d.Sights(nil, endpointID, nil)
		answer(5)(w)
	}
	f.publish(f.worker(1, "", answer(5)), f.worker(2, "", slow))
	for range 2 {
		if _, err := f.ask(newCall()); err != nil {
			t.Fatal(err)
		}
	}
	if got := f.asked(); !slices.Equal(got, []uint64{2, 2}) {
		t.Errorf("asked %v", got)
	}
	if slices.ContainsFunc(seen, func(n int64) bool { return n != 0 }) {
		t.Errorf("prefill %v where nothing was under way", seen)
	}
	if len(during) != 2 || during[1].Prefill != 3 || during[1].InFlight != 1 || during[0].Prefill != 0 {
		t.Errorf("during a request: %+v", during)
	}
	if after := f.d.Sights(nil, endpointID, nil); after[1].Prefill != 0 || after[1].InFlight != 0 {
		t.Errorf("after it: %+v", after)
	}
	pin := uint64(1)
	call := newCall()
	call.Pin = &pin
	_, err := f.ask(call)
	wantFault(t, err, fault.Overloaded, fault.FromRequest)
	overloaded[2] = true
	_, err = f.ask(newCall())
	wantFault(t, err, fault.Overloaded, fault.FromRequest)
	if f := fault.From(err); f.RetryAfter <= 0 {
		t.Error("nothing to say when to come again")
	}
	if only := f.d.Sights(nil, endpointID, func(id uint64) bool { return id == 2 }); len(only) != 1 || only[0].Instance.InstanceID != 2 {
		t.Errorf("sights of one: %+v", only)
	}
	if none := f.d.Sights(nil, worker.EndpointID{}, nil); len(none) != 0 {
		t.Errorf("sights of nowhere: %+v", none)
	}
}

// TestFull: what an instance says of itself shows in the sights, for as long as it is left aside.
func TestFull(t *testing.T) {
	f := newFleet(t, dispatch.Options{})
	f.publish(f.worker(1, "Server overloaded: 9", nil), f.worker(2, "", answer(5)))
	if f.d.AnyFull() {
		t.Error("full at first")
	}
	for range 2 { // one of them begins with the first
		if _, err := f.ask(newCall()); err != nil {
			t.Fatal(err)
		}
	}
	sights := f.d.Sights(nil, endpointID, nil)
	if !f.d.AnyFull() || len(sights) != 2 || !sights[0].Full || sights[1].Full {
		t.Errorf("%v, %+v", f.d.AnyFull(), sights)
	}
}

// TestFactor: what a call prefers reaches the policy.
func TestFactor(t *testing.T) {
	f := newFleet(t, dispatch.Options{})
	f.publish(f.worker(1, "", answer(5)), f.worker(2, "", answer(5)), f.worker(3, "", answer(5)))
	for range 3 {
		call := newCall()
		call.Factor = func(id uint64) float64 {
			if id == 2 {
				return 0.5
			}
			return 1
		}
		if _, err := f.ask(call); err != nil {
			t.Fatal(err)
		}
	}
	if got := f.asked(); !slices.Equal(got, []uint64{2, 2, 2}) {
		t.Errorf("asked %v", got)
	}
}
