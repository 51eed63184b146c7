package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/dispatch"
	"github.com/portico-llm/portico/internal/simworker"
	"github.com/portico-llm/portico/internal/testkit"
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

// mortal is a prefill engine that dies over a prompt as soon as somebody has come to wait for it, and hands nothing over.
type mortal struct {
	*simworker.Prefiller
	met <-chan struct{}
}

// Generate implements simworker.Engine.
func (e mortal) Generate(ctx context.Context, _ *simworker.Request, _ simworker.Output) error {
	select {
	case <-e.met:
	case <-ctx.Done():
	}
	return simworker.ErrDie
}

// TestPoisonPrefill: the workers that read prompts are spared alike. Where they meet decode workers, a meeting is lost
// once.
func TestPoisonPrefill(t *testing.T) {
	for name, tc := range map[string]struct {
		rooms bool
		kind  simworker.FaultKind // of the prefill workers
		met   int                 // decode workers that were asked
	}{
		"handed over":       {false, simworker.DieAfter, 0},
		"before they begin": {true, simworker.HandshakeOnly, 0},
		"met":               {true, simworker.NoFault, 2},
	} {
		t.Run(name, func(t *testing.T) {
			f := newPools(t, tc.rooms, true)
			met := make(chan struct{}, 5)
			var asked, fetched atomic.Int32
			die := func(*simworker.Request) simworker.Fault {
				asked.Add(1)
				return simworker.Fault{Kind: tc.kind}
			}
			var readers []*part
			for range 5 {
				engine := &simworker.Prefiller{}
				w := f.add("prefill", engine, die)
				w.set(mortal{engine, met})
				readers = append(readers, w)
			}
			if tc.kind == simworker.DieAfter {
				close(met)
			}
			dec := f.add("decode", f.decoder(), func(*simworker.Request) simworker.Fault {
				fetched.Add(1)
				met <- struct{}{}
				return simworker.Fault{}
			})
			f.until("all prefill workers", func(set *catalog.Set) bool {
				pool := set.Prefill()
				return pool != nil && !slices.ContainsFunc(readers, func(w *part) bool { return !pool.Serves(w.Instance().InstanceID) })
			})
			got := f.ask(t, chatPath, twelve+`}`)
			if !strings.HasPrefix(got, "500\n") || !strings.Contains(got, `"code":"request_given_up"`) {
				t.Error(got)
			}
			if n, m := int(asked.Load()), int(fetched.Load()); n != 2 || m != tc.met {
				t.Errorf("%d prefill workers and %d decode workers were asked, want 2 and %d", n, m, tc.met)
			}
			for _, q := range dec.asked() {
				if q.PrefillResult == nil && q.BootstrapInfo == nil {
					t.Error("the decode worker was to read the prompt")
				}
			}
		})
	}
}

// TestMeetingLostOnce: a prefill worker that takes its decode worker down with it costs a request one loss, whichever of
// the two is noticed first; a decode worker that goes alone is one, too.
func TestMeetingLostOnce(t *testing.T) {
	f := newPools(t, true, true)
	pre := f.add("prefill", &simworker.Prefiller{}, nil)
	f.add("decode", f.decoder(), nil)
	f.waitPrefill()
	set, err := f.catalog.Lookup("m")
	if err != nil {
		t.Fatal(err)
	}
	lost := fault.Lost(errors.New("connection reset"), "The worker was lost")
	for name, tc := range map[string]struct {
		prefill string
		want    []string // who was asked, and what the request had cost by then
	}{
		"together": {`[{"_sleep":0.1},{"_lost":true}]`, []string{"prefill 0", "decode 0", "prefill 1", "decode 1", "prefill 2"}},
		"alone":    {`[{"_wait":true}]`, []string{"prefill 0", "decode 0"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var asked []string
				d := &testkit.Dispatcher{Instance: pre.Instance()}
				d.Script = func(call *router.Call, _ []byte) (testkit.Script, error) {
					asked = append(asked, fmt.Sprintf("%s %d", call.Endpoint.Component, call.Toll.Struck))
					switch {
					case call.Toll.Struck == 2: // as the dispatcher does
						return nil, fault.New(fault.Internal, "given up").Because(router.ErrStruck)
					case call.Endpoint.Component == "prefill":
						return testkit.Items(tc.prefill), nil
					}
					call.Toll.Struck++
					call.Failed(pre.Instance().InstanceID, lost)
					return nil, lost
				}
				req := prepared(1, "prompt")
				req.Set = set
				err := pipeline.New(pipeline.Options{Dispatcher: d, Migration: pipeline.Migration{Limit: 3},
					Log: slog.New(slog.DiscardHandler)}).Run(t.Context(), req, &record{})
				if tc.want[len(tc.want)-1] == "prefill 2" != errors.Is(err, router.ErrStruck) {
					t.Error(err)
				}
				if d := cmp.Diff(tc.want, asked); d != "" {
					t.Errorf("asked (-want +got):\n%s", d)
				}
			})
		})
	}
}
