package dispatch_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/dispatch"
)

// dials is a worker that calls, says who it is, and breaks off before it begins.
func dials(w *session) {
	w.dial()
	w.close()
}

// TestStruck: a request that workers are lost with, or never answer, isn't tried on as many as there are.
func TestStruck(t *testing.T) {
	const short = 100 * time.Millisecond // nothing else is to be waited for
	silent := func(*session) {}
	for name, tc := range map[string]struct {
		scripts []script
		wait    time.Duration // for each; 0: long
		limit   int
		before  int // strikes of an earlier call
		asked   []uint64
		kind    fault.Kind // of the failure; unless it answers
		answers bool
	}{
		"lost":          {scripts: []script{dials, dials, answer(3)}, asked: []uint64{1, 2}, kind: fault.Internal},
		"one is no row": {scripts: []script{dials, answer(2)}, asked: []uint64{1, 2}, answers: true},
		"silent":        {scripts: []script{silent, silent, answer(3)}, wait: short, asked: []uint64{1, 2}, kind: fault.Timeout},
		"either":        {scripts: []script{dials, silent, answer(3)}, wait: short, asked: []uint64{1, 2}, kind: fault.Timeout},
		"any number":    {scripts: []script{dials, dials, dials, answer(4)}, limit: -1, asked: []uint64{1, 2, 3, 4}, answers: true},
		"before":        {scripts: []script{dials, answer(2)}, before: 1, asked: []uint64{1}, kind: fault.Internal},
		"long before":   {scripts: []script{answer(1)}, before: 2, kind: fault.Internal},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.wait == 0 {
				tc.wait = time.Minute
			}
			f := newFleet(t, dispatch.Options{
				HandshakeTimeout: tc.wait, MaxAttempts: 10, MaxStruck: tc.limit, Policy: first{}})
			var list []*worker.Instance
			for i, s := range tc.scripts {
				list = append(list, f.worker(uint64(i+1), "", s))
			}
			f.publish(list...)
			call := newCall()
			call.Toll = &router.Toll{Struck: tc.before}
			ids, err := f.ask(call)
			if !slices.Equal(f.asked(), tc.asked) {
				t.Errorf("asked %v, want %v", f.asked(), tc.asked)
			}
			if tc.answers {
				if err != nil || len(ids) != 1 {
					t.Errorf("%v, %v", ids, err)
				}
				return
			}
			f0 := wantFault(t, err, tc.kind, fault.FromRequest)
			if !errors.Is(err, router.ErrStruck) || !f0.NoRetry || f0.Code != "request_given_up" {
				t.Errorf("%+v", f0)
			}
			if call.Toll.Struck != max(2, tc.before) {
				t.Errorf("toll %+v", *call.Toll)
			}
		})
	}
}

// TestRefusalsDontStrike: workers that say that they can't begin are alive.
func TestRefusalsDontStrike(t *testing.T) {
	f := newFleet(t, dispatch.Options{MaxAttempts: 10, Policy: first{}})
	no := refuse("Internal", "backend.unknown")
	f.publish(f.worker(1, "", no), f.worker(2, "", no), f.worker(3, "Server unavailable: unknown endpoint", nil),
		f.dead(4), f.worker(5, "", answer(5)))
	call := newCall()
	call.Toll = new(router.Toll)
	if ids, err := f.ask(call); err != nil || !slices.Equal(ids, []uint32{5}) || call.Toll.Struck != 0 {
		t.Errorf("%v, %v, toll %+v", ids, err, *call.Toll)
	}
}

// TestStartTimeout: there is one time for all tries, and for those of earlier calls.
func TestStartTimeout(t *testing.T) {
	for name, tc := range map[string]struct {
		waited time.Duration // by earlier calls
		asked  int           // at most
	}{
		"one call": {asked: 2}, "nothing is left": {waited: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, dispatch.Options{
				HandshakeTimeout: 200 * time.Millisecond, StartTimeout: 300 * time.Millisecond, MaxAttempts: 100, MaxStruck: -1, Policy: first{}})
			var list []*worker.Instance
			for id := range uint64(100) {
				list = append(list, f.worker(id+1, "", func(*session) {}))
			}
			f.publish(list...)
			call := newCall()
			call.Toll = &router.Toll{Waited: tc.waited}
			began := time.Now()
			_, err := f.ask(call)
			wantFault(t, err, fault.Timeout, fault.FromRequest)
			// All would take twenty seconds.
			if took := time.Since(began); took > 10*time.Second || len(f.asked()) > tc.asked {
				t.Errorf("%d were asked within %v", len(f.asked()), took)
			}
			if took := call.Toll.Waited - tc.waited; took < 0 || tc.asked > 0 && took < 300*time.Millisecond {
				t.Errorf("waited %v", took)
			}
		})
	}
}
