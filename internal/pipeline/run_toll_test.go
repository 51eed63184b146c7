package pipeline_test

import (
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/router/dispatch"
	"github.com/portico-llm/portico/internal/simworker"
)

// TestPoison: a request that takes down every worker it comes to costs two, or one more when there was an answer before;
// the client is told not to come again.
func TestPoison(t *testing.T) {
	for name, tc := range map[string]struct {
		after int // tokens
		want  int // workers
		alike string
	}{
		"at once":         {0, 2, `"code":"request_given_up"`},
		"after an answer": {2, 3, `"code":"request_given_up"`},
	} {
		t.Run(name, func(t *testing.T) {
			engine := &reciter{}
			cuts := []int{tc.after, tc.after, tc.after, tc.after, tc.after, tc.after, tc.after, tc.after}
			engine.reset(bytesOf("abcdef⏹"), cuts...)
			f := newFarm(t, 8, 6, engine, dispatch.Options{MaxAttempts: 8})
			res := f.start(t.Context(), t, chatPath, conversation+`}`)
			defer res.Body.Close()
			b, err := io.ReadAll(res.Body)
			if err != nil || !strings.Contains(string(b), tc.alike) || res.StatusCode != 500 ||
				res.Header.Get("X-Should-Retry") != "false" || res.Header.Get("Retry-After") != "" {
				t.Errorf("%d %v %s %v", res.StatusCode, res.Header, b, err)
			}
			engine.mu.Lock()
			defer engine.mu.Unlock()
			if engine.deaths != tc.want {
				t.Errorf("%d workers were lost, want %d", engine.deaths, tc.want)
			}
		})
	}
}

// TestPoisonPrefill: the workers that read prompts are spared alike.
func TestPoisonPrefill(t *testing.T) {
	both(t, func(t *testing.T, rooms bool) {
		f := newPools(t, rooms, true)
		kind := simworker.DieAfter
		if rooms { // what is handed over in a room may be there before the worker dies
			kind = simworker.HandshakeOnly
		}
		var asked atomic.Int32
		die := func(*simworker.Request) simworker.Fault {
			asked.Add(1)
			return simworker.Fault{Kind: kind}
		}
		var readers []*part
		for range 5 {
			readers = append(readers, f.add("prefill", &simworker.Prefiller{}, die))
		}
		dec := f.add("decode", f.decoder(), nil)
		f.until("all prefill workers", func(set *catalog.Set) bool {
			pool := set.Prefill()
			return pool != nil && !slices.ContainsFunc(readers, func(w *part) bool { return !pool.Serves(w.Instance().InstanceID) })
		})
		got := f.ask(t, chatPath, twelve+`}`)
		if !strings.HasPrefix(got, "500\n") || !strings.Contains(got, `"code":"request_given_up"`) {
			t.Error(got)
		}
		// Where both workers meet in a room, the decode worker's loss may be the second one that is noticed.
		if n := asked.Load(); n > 2 || n < 2 && !rooms || n == 0 {
			t.Errorf("%d prefill workers were asked", n)
		}
		for _, q := range dec.asked() {
			if q.PrefillResult == nil && q.BootstrapInfo == nil {
				t.Error("the decode worker was to read the prompt")
			}
		}
	})
}
