package catalog_test

import (
	"testing"
	"testing/synctest"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/catalog"
)

// typed makes cards of a worker type; a prefill worker's tells where decode workers meet it.
func typed(kind string, needs ...[]string) func(*worker.Card) {
	return func(c *worker.Card) {
		c.WorkerType, c.Needs = kind, needs
		if kind == "prefill" {
			c.ModelType = ""
			c.RuntimeConfig.DisaggregatedEndpoint = []byte(`{"bootstrap_host":"h","bootstrap_port":1}`)
		}
	}
}

// TestPrefillPool follows a decode set while prefill workers come and go: whoever holds the set sees the change.
func TestPrefillPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, catalog.Options{})
		s.up("a/d", 1, card("m", typed("decode")))
		set := s.mustLookup("m")
		if set.Prefill() != nil || set.NeedsPrefill() {
			t.Fatalf("alone: pool %v, needs it: %v", set.Prefill(), set.NeedsPrefill())
		}
		s.up("a/p", 7, card("m", typed("prefill", []string{"decode"})))
		s.up("a/p", 8, card("m", typed("prefill", []string{"decode"})))
		s.up("b/p", 9, card("m", typed("prefill"))) // of another deployment
		s.up("a/q", 9, card("n", typed("prefill"))) // of another model
		pool := set.Prefill()
		if pool == nil || pool.Endpoint != at("a/p") {
			t.Fatalf("pool %+v", pool)
		}
		for id, want := range map[uint64]bool{1: false, 7: true, 8: true, 9: false} {
			c := pool.Config(id)
			if pool.Serves(id) != want || (c != nil) != want {
				t.Errorf("worker %d: serves %v, config %v", id, pool.Serves(id), c)
			}
			if c == nil {
				continue
			}
			if host, port, ok := c.BootstrapAddress(); !ok || host != "h" || port != 1 {
				t.Errorf("worker %d is met at %q, %d, %v", id, host, port, ok)
			}
		}
		s.down("a/p", 7)
		// An old pool knows what its workers were, and that they have gone.
		if pool.Serves(7) || !pool.Serves(8) || pool.Config(7) == nil || set.Prefill().Config(7) != nil {
			t.Errorf("after one has gone: %+v, now %+v", pool, set.Prefill())
		}
		s.down("a/p", 8)
		if set.Prefill() != nil || pool.Serves(8) {
			t.Error("the pool outlives its workers")
		}
		s.want("m", ok) // it can do without
	})
}

// TestWhoHasPrefill asks different kinds of set for their prefill workers.
func TestWhoHasPrefill(t *testing.T) {
	for name, tc := range map[string]struct {
		serving, helper func(*worker.Card)
		ready           string
		pool, depends   bool
	}{
		"decode that needs it": {typed("decode", []string{"prefill"}), typed("prefill"), ok, true, true},
		"decode with another way": {
			typed("decode", []string{"encode"}, []string{"prefill"}), typed("prefill"), ok, true, false,
		},
		"decode with two needs": {typed("decode", []string{"prefill", "encode"}, []string{"prefill"}), typed("prefill"), ok, true, true},
		"aggregated":            {typed("aggregated"), typed("prefill"), ok, false, false},
		"older versions":        {typed(""), func(c *worker.Card) { c.WorkerType, c.ModelType = "", "Prefill" }, ok, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := start(t, catalog.Options{})
				s.up("a/d", 1, card("m", tc.serving))
				s.up("a/p", 2, card("m", tc.helper))
				s.want("m", tc.ready)
				set := s.mustLookup("m")
				if (set.Prefill() != nil) != tc.pool || set.NeedsPrefill() != tc.depends {
					t.Errorf("pool %v, needs it: %v", set.Prefill(), set.NeedsPrefill())
				}
				s.down("a/p", 2)
				if want := map[bool]string{true: notReady, false: ok}[tc.depends]; name != "decode with another way" {
					s.want("m", want)
				} else {
					s.want("m", notReady) // there is no encode worker either
				}
			})
		})
	}
	if (&catalog.Set{Card: &worker.Card{}}).Prefill() != nil {
		t.Error("a set made by hand has a pool")
	}
}
