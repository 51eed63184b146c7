package kvroute_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/kvroute"
)

// look is what the dispatcher would say of a request.
func (w *world) look(q *router.Query) kvroute.Look {
	return func(f func(router.Chooser, *router.Query, []router.Candidate)) error {
		f(w.chooser(), q, w.candidates())
		return nil
	}
}

// TestAlone: a decode worker that has most of a prompt reads the rest itself, unless it is full, and asking changes
// nothing.
func TestAlone(t *testing.T) {
	half := 0.5
	cfg := kvroute.Default()
	cfg.Conditional.On, cfg.Conditional.Tokens, cfg.Conditional.DecodeBusy = true, 20, &half
	w := newWorld(t, kvroute.Options{Config: cfg})
	one, two := newEngine(1, 101), newEngine(2, 102)
	for id := uint64(1); id <= 2; id++ {
		w.cards[id] = &worker.Card{DisplayName: "m", ModelInput: "Tokens", WorkerType: "decode", KVCacheBlockSize: blockSize,
			RuntimeConfig: worker.RuntimeConfig{TotalKVBlocks: new(uint64(40))}}
	}
	w.publish(one, two)
	w.cache.Missed(one.channel())
	w.cache.Missed(two.channel())
	w.quiet()
	known := tokens(42, 1) // ten blocks and a rest
	w.send(two, two.store(locals(t, known)[:8])...)
	nobody := func(func(router.Chooser, *router.Query, []router.Candidate)) error { return errors.New("nobody") }
	alone := func(what string, ids []uint32, want bool) {
		t.Helper()
		if got := w.r.Alone(endpoint, w.look(query("a", ids)), nobody); got != want {
			t.Errorf("%s: %v", what, got)
		}
	}
	alone("most is cached", known, true)
	alone("nothing is cached", tokens(18, 2), false)
	alone("much is left", append(tokens(42, 1), tokens(60, 3)...), false)
	if d := cmp.Diff([]kvroute.RankLoad{{Worker: 1}, {Worker: 2}}, w.r.Loads(endpoint)); d != "" {
		t.Errorf("loads (-want +got):\n%s", d)
	}
	if got := w.r.Alone(endpoint, nobody, w.look(query("a", known))); got {
		t.Error("nobody can take it")
	}
	if got := w.r.Alone(worker.EndpointID{}, w.look(query("a", known)), nobody); got {
		t.Error("an endpoint that isn't in mode kv")
	}
	// More than twenty blocks of forty are too many, and eleven of each of three other prompts are at work at either.
	for i := range 6 {
		_, ticket := w.choose(query("b", tokens(44, uint32(10+i))))
		defer ticket.Done()
	}
	alone("full", known, false)
}

// TestAloneOfCard: the model's card has the last word, as far as it can be meant.
func TestAloneOfCard(t *testing.T) {
	for config, want := range map[string]bool{
		`{"conditional_disagg_enabled":true,"conditional_disagg_eff_isl_ratio_threshold":1.1}`: true,
		`{"conditional_disagg_enabled":true}`:                                                  false, // nothing is cached
		`{}`:                                                                                   false,
		`{"conditional_disagg_enabled":true,"conditional_disagg_policy":"prefill_load"}`:                                               false, // without a threshold
		`{"conditional_disagg_enabled":true,"conditional_disagg_policy":"x","conditional_disagg_eff":1}`:                               false,
		`{"conditional_disagg_enabled":true,"conditional_disagg_policy":"prefill_load","conditional_disagg_prefill_busy_threshold":0}`: true,
	} {
		w := newWorld(t, kvroute.Options{})
		w.cards[1] = &worker.Card{DisplayName: "m", ModelInput: "Tokens", WorkerType: "decode", KVCacheBlockSize: blockSize,
			RouterConfig: []byte(`{"router_mode":"kv","kv_router_config":` + config + `}`)}
		w.publish(newEngine(1, 101))
		// The one worker stands for the prefill worker, too: it has a prompt to read.
		_, ticket := w.choose(query("b", tokens(8, 7)))
		if got := w.r.Alone(endpoint, w.look(query("a", tokens(20, 1))), w.look(query("a", tokens(20, 1)))); got != want {
			t.Errorf("%s: %v", config, got)
		}
		ticket.Done()
	}
}
