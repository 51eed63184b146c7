package fieldreports_test

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/native"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/prepost/executor"
	"github.com/portico-llm/portico/internal/prepost/modelcard"
	"github.com/portico-llm/portico/internal/prepost/tokenizer"
	"github.com/portico-llm/portico/internal/server"
	"github.com/portico-llm/portico/internal/testkit"
)

// realModel is the model that comes with the repository, with its own tokenizer and one worker thread for it.
func realModel(t *testing.T) *catalog.Set {
	t.Helper()
	const dir = "../../configs/models/smollm2-135m-instruct"
	log := slog.New(slog.DiscardHandler)
	card, err := modelcard.FromFolder(dir, "m")
	if err != nil {
		t.Fatal(err)
	}
	files, err := modelcard.Open(t.Context(), card, modelcard.Options{ModelPath: dir, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	registry := executor.NewRegistry(executor.Options{Workers: 1, Log: log})
	tok, err := tokenizer.Load(t.Context(), tokenizer.Options{JSON: files.Tokenizer, Registry: registry, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = tok.Close()
		_ = registry.Close()
	})
	return &catalog.Set{
		Endpoint: worker.EndpointID{Namespace: "test", Component: "backend", Name: "generate"}, Card: card, Tokenizer: tok,
	}
}

// TestBigPromptsLeaveOthersAlone: while long prompts are tokenised, the sign of life comes at once and short requests
// wait no longer than for the piece of work ahead of them.
func TestBigPromptsLeaveOthersAlone(t *testing.T) {
	if testing.Short() || raceEnabled {
		t.Skip("megabytes of prompts: short runs leave them out, and the race detector makes them slow")
	}
	address, client := serve(t, realModel(t)), testkit.Client(t)
	big := `{"model":"m","prompt":"` + strings.Repeat("All work and no play makes Jack a dull boy. ", 50_000) + `"}`
	ctx, stop := context.WithCancel(t.Context())
	var crowd sync.WaitGroup
	for range 4 {
		crowd.Go(func() {
			for ctx.Err() == nil {
				post(ctx, client, address, big)
			}
		})
	}
	var alive []time.Duration
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		began := time.Now()
		res, err := client.Get("http://" + address + "/live")
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		alive = append(alive, time.Since(began))
	}
	stop()
	crowd.Wait()
	slices.Sort(alive)
	// The cores are shared with whatever else runs; what the test is after took half a minute where it was reported.
	if p90 := alive[len(alive)*9/10]; p90 > time.Second {
		t.Errorf("the sign of life took %v at the 90th percentile of %d", p90, len(alive))
	}
	if n := runtime.NumGoroutine(); n > 200 {
		t.Errorf("%d goroutines are left", n)
	}
	if heap := native.HeapInUse(); heap > 1<<30 {
		t.Errorf("%d MB of native memory are in use", heap>>20)
	}
}

// post sends a request and reads nothing of its answer.
func post(ctx context.Context, client *http.Client, address, body string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/v1/completions", strings.NewReader(body))
	if err != nil {
		return
	}
	req.Header.Set("Content-Type", "application/json")
	if res, err := client.Do(req); err == nil {
		_ = res.Body.Close()
	}
}

// serve starts a server of one model on a socket.
func serve(t *testing.T, set *catalog.Set) string {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	d := testkit.Play(testkit.Items(`[{"token_ids":[28],"finish_reason":"stop"}]`))
	srv, err := server.New(server.Options{
		Pipeline: pipeline.New(pipeline.Options{Dispatcher: d, Log: log}), Catalog: testkit.Models{"m": set}, Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(context.Background(), ln) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = srv.Shutdown(ctx)
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return ln.Addr().String()
}
