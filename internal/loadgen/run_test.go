package loadgen_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/portico-llm/portico/internal/loadgen"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// model is a server that answers like a model with one token per word.
type model struct {
	gap     time.Duration
	fail    func(n int64) string // kind of failure of the nth streamed request; empty: none
	n       atomic.Int64
	mu      sync.Mutex
	conns   map[string]bool
	arrived []time.Time
}

func (m *model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Stream    bool
		MaxTokens int `json:"max_tokens"`
		Messages  []struct{ Content string }
	}
	b, _ := io.ReadAll(r.Body)
	if err := json.Unmarshal(b, &req); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	prompt := len(strings.Fields(req.Messages[0].Content)) + 5
	usage := fmt.Sprintf(`"usage":{"prompt_tokens":%d,"completion_tokens":%d}`, prompt, req.MaxTokens)
	if !req.Stream {
		fmt.Fprintf(w, `{"choices":[],%s}`, usage)
		return
	}
	m.mu.Lock()
	m.conns[r.RemoteAddr] = true
	m.arrived = append(m.arrived, time.Now())
	m.mu.Unlock()
	kind := ""
	if m.fail != nil {
		kind = m.fail(m.n.Add(1))
	}
	switch kind {
	case "status":
		http.Error(w, `{"error":"busy"}`, http.StatusServiceUnavailable)
		return
	case "hang":
		<-r.Context().Done()
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	for range req.MaxTokens {
		fmt.Fprint(w, `data: {"choices":[{"index":0,"delta":{"content":"w"},"finish_reason":null}]}`+"\n\n")
		out.Flush()
		select {
		case <-time.After(m.gap):
		case <-r.Context().Done():
			return
		}
		if kind == "cut" {
			panic(http.ErrAbortHandler)
		}
	}
	fmt.Fprint(w, `data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}`+"\n\n")
	fmt.Fprintf(w, `data: {"choices":[],%s}`+"\n\n", usage)
	if kind != "truncate" {
		fmt.Fprint(w, "data: [DONE]\n\n")
	}
}

// serve starts a server for the model.
func serve(t *testing.T, m *model) string {
	t.Helper()
	m.conns = map[string]bool{}
	s := httptest.NewUnstartedServer(m)
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.Start()
	t.Cleanup(s.Close)
	return s.URL
}

func TestClosedLoop(t *testing.T) {
	for _, keep := range []bool{false, true} {
		t.Run(fmt.Sprintf("keep alive %v", keep), func(t *testing.T) {
			m := &model{gap: time.Millisecond}
			r, err := loadgen.Run(t.Context(), loadgen.Options{
				URL: serve(t, m), Model: "m", Requests: 40, Connections: 4, MaxTokens: 10, PromptTokens: 60, Warmup: 8,
				KeepAlive: keep, ServerPID: os.Getpid(),
			})
			if err != nil {
				t.Fatal(err)
			}
			if r.Requests != 40 || r.Succeeded != 40 || len(r.Errors) > 0 {
				t.Errorf("%d requests, %d succeeded, %v %v", r.Requests, r.Succeeded, r.Errors, r.Examples)
			}
			if r.PromptTokens != 60 || r.Words != 55 || r.OutputTokens != 10 {
				t.Errorf("%v prompt tokens of %d words, %v out", r.PromptTokens, r.Words, r.OutputTokens)
			}
			if r.TTFT.Count != 40 || r.ITL.Count != 360 || r.ITL.P50 < 1 || r.E2E.P50 < 10 || r.E2E.Max < r.E2E.P99 {
				t.Errorf("TTFT %+v, ITL %+v, E2E %+v", r.TTFT, r.ITL, r.E2E)
			}
			if r.Server == nil || r.Server.RSSPeakMiB <= 0 || r.Server.PeakThreads < 1 {
				t.Errorf("server %+v", r.Server)
			}
			if n := len(m.conns); keep && n > 8 || !keep && n != 48 {
				t.Errorf("%d connections", n)
			}
		})
	}
}

func TestOpenLoop(t *testing.T) {
	for _, arrival := range []loadgen.Arrival{loadgen.Constant, loadgen.Poisson} {
		t.Run(string(arrival), func(t *testing.T) {
			m := &model{}
			r, err := loadgen.Run(t.Context(), loadgen.Options{
				URL: serve(t, m), Model: "m", Requests: 50, Rate: 200, Arrival: arrival, Connections: 50, MaxTokens: 3,
				PromptTokens: 20, TokensPer: 1, Overhead: 5, Seed: 3,
			})
			if err != nil {
				t.Fatal(err)
			}
			if r.Requests != 50 || r.Succeeded != 50 {
				t.Errorf("%d requests, %d succeeded, %v", r.Requests, r.Succeeded, r.Errors)
			}
			took := m.arrived[len(m.arrived)-1].Sub(m.arrived[0])
			if took < 100*time.Millisecond || took > 2*time.Second {
				t.Errorf("50 arrivals at 200 a second took %s", took)
			}
		})
	}
}

// TestOpenLoopCountsWaiting has one place for requests that come faster than they are served: waiting is latency.
func TestOpenLoopCountsWaiting(t *testing.T) {
	r, err := loadgen.Run(t.Context(), loadgen.Options{
		URL: serve(t, &model{gap: 5 * time.Millisecond}), Model: "m", Requests: 10, Rate: 1000, Arrival: loadgen.Constant,
		Connections: 1, MaxTokens: 4, PromptTokens: 20, TokensPer: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.E2E.Max < 150 {
		t.Errorf("the last request took %.0f ms from its arrival, want 200 or so", r.E2E.Max)
	}
}

// TestFailuresAreCounted fails every other request in one way, by the server's name for it, and expects five of ten
// under the report's name.
func TestFailuresAreCounted(t *testing.T) {
	for fail, want := range map[string]string{"status": "status_503", "cut": "truncated", "truncate": "truncated", "hang": "timeout"} {
		t.Run(fail, func(t *testing.T) {
			m := &model{fail: func(n int64) string {
				if n%2 == 0 {
					return fail
				}
				return ""
			}}
			r, err := loadgen.Run(t.Context(), loadgen.Options{
				URL: serve(t, m), Model: "m", Requests: 10, Connections: 1, MaxTokens: 3, TokensPer: 1, PromptTokens: 9,
				Timeout: 100 * time.Millisecond,
			})
			if err != nil {
				t.Fatal(err)
			}
			if r.Succeeded != 5 || r.Errors[want] != 5 || len(r.Examples) == 0 {
				t.Errorf("%d succeeded, errors %v, examples %q", r.Succeeded, r.Errors, r.Examples)
			}
		})
	}
}

func TestRunEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	began := time.Now()
	r, err := loadgen.Run(ctx, loadgen.Options{
		URL: serve(t, &model{gap: time.Hour}), Model: "m", Requests: 10, Connections: 2, TokensPer: 1,
	})
	if err != nil || r.Requests != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("took %s", took)
	}
}

// TestRefusals has what no run can start with: wrong options, and peers that aren't there.
func TestRefusals(t *testing.T) {
	for name, o := range map[string]loadgen.Options{
		"no model":   {URL: "http://127.0.0.1:1"},
		"https":      {URL: "https://127.0.0.1:1", Model: "m"},
		"arrival":    {URL: "http://127.0.0.1:1", Model: "m", Arrival: "never"},
		"negative":   {URL: "http://127.0.0.1:1", Model: "m", Rate: -1},
		"no server":  {URL: "http://127.0.0.1:1", Model: "m"},
		"no process": {URL: "http://127.0.0.1:1", Model: "m", TokensPer: 1, ServerPID: 1 << 30},
	} {
		if _, err := loadgen.Run(t.Context(), o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestReportText(t *testing.T) {
	r := &loadgen.Report{Requests: 3, Succeeded: 2, Errors: map[string]int{"timeout": 1}, Server: &loadgen.ServerReport{CPUSeconds: 1}}
	var b bytes.Buffer
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"3 in", "timeout", "TTFT", "ITL", "E2E", "CPU 1.00 s"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in:\n%s", want, b.String())
		}
	}
}
