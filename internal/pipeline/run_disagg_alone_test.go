package pipeline_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/simworker"
)

// TestAlone: a prompt that the decode worker had better read itself goes to no prefill worker, unless the client names
// one.
func TestAlone(t *testing.T) {
	f := newPools(t, false, true)
	asked := 0
	f.judge = func(decode *router.Call, reader func() *router.Call) bool {
		prefill := reader()
		asked++
		if decode.Endpoint.Component != "decode" || prefill.Endpoint.Component != "prefill" ||
			len(decode.TokenIDs) == 0 || len(prefill.TokenIDs) != len(decode.TokenIDs) {
			t.Errorf("asked of %v and %v", decode.Endpoint, prefill.Endpoint)
		}
		return true
	}
	pre, dec := f.add("prefill", &simworker.Prefiller{}, nil), f.add("decode", f.decoder(), nil)
	f.waitPrefill()
	got := f.ask(t, chatPath, twelve+`}`)
	id := dec.Instance().InstanceID
	if !strings.HasPrefix(got, "200\n") ||
		!strings.Contains(got, fmt.Sprintf(`"worker_id":{"prefill_worker_id":%d,"decode_worker_id":%d}`, id, id)) {
		t.Error(got)
	}
	named := strings.Replace(twelve, `"nvext":{`, fmt.Sprintf(`"nvext":{"prefill_worker_id":%d,`, pre.Instance().InstanceID), 1)
	if got := f.ask(t, chatPath, named+`}`); !strings.HasPrefix(got, "200\n") {
		t.Error(got)
	}
	if n, m := len(pre.asked()), len(dec.asked()); n != 1 || m != 2 || asked != 1 {
		t.Errorf("%d prefills, %d decodes, %d questions", n, m, asked)
	}
	if q := dec.asked()[0]; q.PrefillResult != nil || q.BootstrapInfo != nil || q.RouterOverride != nil {
		t.Errorf("the decode worker was told of a prefill: %+v", q)
	}
	if d := cmp.Diff(map[string]int{"bypassed": 1, "handed_over": 1}, f.outcomes()); d != "" {
		t.Errorf("outcomes (-want +got):\n%s", d)
	}
}
