package fieldreports_test

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/admission"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/kvcost"
	"github.com/portico-llm/portico/internal/router/policy"
	"github.com/portico-llm/portico/internal/server"
	"github.com/portico-llm/portico/internal/testkit"
)

// crowd are requests of each kind, up to their last member.
var crowd = []struct{ path, body string }{
	{"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"hi"}]`},
	{"/v1/completions", `{"model":"m","prompt":"hi"`},
	{"/v1/responses", `{"model":"m","input":"hi"`},
	{"/v1/messages", `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}]`},
}

// TestCrowd: of a crowd as many are answered as there are places and seats in the queue. All others are refused at once
// with the status that was chosen and a time to come again, and nobody sees a failure.
func TestCrowd(t *testing.T) {
	testkit.NoLeaks(t)
	const places, seats, all = 20, 40, 600
	release := make(chan struct{})
	d := &testkit.Dispatcher{Script: func(*router.Call, []byte) (testkit.Script, error) {
		<-release
		return testkit.Items(`[{"token_ids":[65]},{"token_ids":[66],"finish_reason":"stop"}]`), nil
	}}
	gate := admission.New(admission.Options{Limit: places, Queue: seats, MaxWait: time.Minute})
	log := slog.New(slog.DiscardHandler)
	srv, err := server.New(server.Options{
		Pipeline: pipeline.New(pipeline.Options{Dispatcher: d, Gate: gate, Log: log}),
		Catalog:  testkit.Models{"m": testkit.ByteModel("m")}, Log: log, OverloadStatus: http.StatusTooManyRequests,
	})
	if err != nil {
		t.Fatal(err)
	}
	h := testkit.LintHandler(t, srv.Handler())
	var mu sync.Mutex
	statuses := map[int]int{} // guarded by mu
	var clients sync.WaitGroup
	for i := range all {
		clients.Go(func() {
			c := crowd[i%len(crowd)]
			members := []string{"}", `,"stream":true}`}[i/len(crowd)%2]
			if i%6 == 5 {
				members = `,"temperature":17` + members // a mistake is told as one, whoever else is there
			}
			req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, c.path, strings.NewReader(c.body+members))
			req.Header.Set("Content-Type", "application/json")
			res := httptest.NewRecorder()
			h.ServeHTTP(res, req)
			if res.Code == http.StatusTooManyRequests && res.Header().Get("Retry-After") == "" {
				t.Errorf("%s: refused without a time to come again: %s", c.path, res.Body)
			}
			mu.Lock()
			statuses[res.Code]++
			mu.Unlock()
		})
	}
	want := map[int]int{http.StatusBadRequest: all / 6, http.StatusTooManyRequests: all - all/6 - places - seats}
	told := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return fmt.Sprint(statuses) == fmt.Sprint(want)
	}
	for end := time.Now().Add(30 * time.Second); !told() && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
	}
	close(release)
	clients.Wait()
	want[http.StatusOK] = places + seats
	if !told() {
		t.Errorf("the crowd got %v, want %v", statuses, want)
	}
}

// TestNobodyIdles: several frontends that know nothing of each other spread a burst of requests evenly over workers that
// are all alike, in every mode.
func TestNobodyIdles(t *testing.T) {
	const frontends, workers, requests = 4, 5, 512
	r := rand.New(rand.NewPCG(7, 8))
	chooser := map[string]func(frontend int, loads []int64, ordinal uint64) (int, error){}
	for _, mode := range []string{policy.RoundRobin, policy.Random, policy.LeastLoad, policy.PowerOfTwo} {
		p, err := policy.New(mode)
		if err != nil {
			t.Fatal(err)
		}
		chooser[mode] = func(_ int, loads []int64, ordinal uint64) (int, error) {
			fleet := make([]router.Candidate, len(loads))
			for i, load := range loads {
				fleet[i] = router.Candidate{Instance: &worker.Instance{InstanceID: uint64(i)}, InFlight: load}
			}
			return p.Pick(&router.Query{Ordinal: ordinal, Random: r.IntN}, fleet)
		}
	}
	config := kvcost.Default()
	chooser["kv"] = func(_ int, loads []int64, _ uint64) (int, error) {
		fleet := make([]kvcost.Candidate, len(loads))
		for i, load := range loads {
			fleet[i] = kvcost.Candidate{Worker: uint64(i), Load: &kvcost.Load{DecodeBlocks: 10 * load}}
		}
		var s kvcost.Scratch
		c, ok := kvcost.Choose(&kvcost.Query{Tokens: 160, BlockSize: 16, TrackPrefill: true}, &config, fleet, r, &s)
		if !ok {
			return 0, errors.New("nobody to choose")
		}
		return c.Index, nil
	}
	for mode, choose := range chooser {
		t.Run(mode, func(t *testing.T) {
			var known [frontends][]int64 // what each has under way
			var ordinals [frontends]uint64
			all := make([]int64, workers)
			for i := range known {
				known[i] = make([]int64, workers)
			}
			for range requests {
				f := r.IntN(frontends)
				i, err := choose(f, known[f], ordinals[f])
				if err != nil {
					t.Fatal(err)
				}
				ordinals[f]++
				known[f][i]++
				all[i]++
			}
			if most, mean := slices.Max(all), float64(requests)/workers; float64(most) > 1.3*mean || slices.Min(all) == 0 {
				t.Errorf("%v: %g times the mean", all, float64(most)/mean)
			}
		})
	}
}
