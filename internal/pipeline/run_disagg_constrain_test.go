package pipeline_test

import (
	"strings"
	"testing"

	"github.com/portico-llm/portico/internal/simworker"
)

// TestTaintsOfBothLegs: taints that a request requires or prefers count for the prefill worker as for the decode worker,
// each by its own.
func TestTaintsOfBothLegs(t *testing.T) {
	f := newPools(t, false, false)
	pair := func(taints ...string) (pre, dec *part) {
		f.taints = taints
		return f.add("prefill", &simworker.Prefiller{}, nil), f.add("decode", f.decoder(), nil)
	}
	pre, dec := pair("fast", "eu")
	otherPre, otherDec := pair("slow")
	f.taints = []string{"lonely"}
	f.add("decode", f.decoder(), nil)
	f.wait(true)
	ask := func(constraints string) string {
		return f.ask(t, chatPath, conversation+`,"max_tokens":3,"nvext":{"routing_constraints":`+constraints+`}}`)
	}
	for range 4 { // round robin would come by both
		if got := ask(`{"required_taints":["fast","eu"]}`); !strings.HasPrefix(got, "200\n") {
			t.Fatal(got)
		}
	}
	if n, m := len(pre.asked()), len(dec.asked()); n != 4 || m != 4 {
		t.Errorf("the pair with the taints was asked %d and %d times", n, m)
	}
	if n, m := len(otherPre.asked()), len(otherDec.asked()); n != 0 || m != 0 {
		t.Errorf("the pair without them was asked %d and %d times", n, m)
	}
	// A decode worker has it, and no prefill worker: nothing is begun.
	got := ask(`{"required_taints":["lonely"]}`)
	if !strings.HasPrefix(got, "503\n") || !strings.Contains(got, "No prefill worker of the model has the taints") {
		t.Error(got)
	}
}

// TestTaintsWithoutPrefill: decode workers that can do without are asked alone, when no prefill worker has the taints.
func TestTaintsWithoutPrefill(t *testing.T) {
	f := newPools(t, false, true)
	f.taints = []string{"fast"}
	f.add("decode", f.decoder(), nil)
	f.taints = nil
	pre := f.add("prefill", &simworker.Prefiller{}, nil)
	f.wait(true)
	got := f.ask(t, chatPath, conversation+`,"max_tokens":3,"nvext":{"routing_constraints":{"required_taints":["fast"]}}}`)
	if !strings.HasPrefix(got, "200\n") || len(pre.asked()) != 0 {
		t.Errorf("%s; the prefill worker was asked %d times", got, len(pre.asked()))
	}
	if f.outcomes()["fallback"] != 1 {
		t.Errorf("outcomes %v", f.outcomes())
	}
}
