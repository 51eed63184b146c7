package kvroute_test

import (
	"encoding/json"
	"testing"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/router/kvroute"
)

// TestPreferredTaints: of two idle workers the one that a request prefers is taken, whichever it is.
func TestPreferredTaints(t *testing.T) {
	w := newWorld(t, kvroute.Options{})
	for id, taint := range map[uint64]string{1: "a", 2: "b"} {
		w.cards[id] = &worker.Card{
			DisplayName: "m", ModelInput: "Tokens", KVCacheBlockSize: blockSize,
			RuntimeConfig: worker.RuntimeConfig{Taints: []string{taint}},
		}
	}
	w.publish(newEngine(1, 101), newEngine(2, 102))
	for i := range 20 {
		for constraints, want := range map[string]uint64{
			`{"preferred_taints":{"a":1}}`: 1, `{"preferred_taints":{"b":1}}`: 2, `{"preferred_taints":{"b":-1}}`: 1,
		} {
			q := query("x", tokens(40, uint32(i)))
			q.Request.Routing.Constraints = json.RawMessage(constraints)
			got, ticket := w.choose(q)
			if ticket.Done(); got != want {
				t.Fatalf("%s: worker %d", constraints, got)
			}
		}
	}
}
