package tokenizer_test

import (
	"log/slog"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/portico-llm/portico/internal/native"
	"github.com/portico-llm/portico/internal/prepost/executor"
	"github.com/portico-llm/portico/internal/prepost/tokenizer"
)

// footprint is what load and unload cycles must not grow.
type footprint struct {
	goroutines, threads int
	heap                uint64 // native
}

func measure(t *testing.T) footprint {
	t.Helper()
	f := footprint{goroutines: runtime.NumGoroutine(), heap: native.HeapInUse()}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Skipf("the number of threads isn't known here: %v", err)
	}
	f.threads = len(tasks)
	return f
}

// cycle loads a tokenizer, uses it and closes it, or drops it for the collector to find.
func cycle(t *testing.T, r *executor.Registry, json []byte, backend string, drop bool) {
	t.Helper()
	tok, err := tokenizer.Load(t.Context(), tokenizer.Options{JSON: json, Backend: backend, Registry: r,
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if got := decode(t, tok, encode(t, tok, "Hello, wörld! 123", false)); got != "Hello, wörld! 123" {
		t.Fatalf("got %q", got)
	}
	if !drop {
		if err := tok.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestLoadUnloadCyclesLeaveNothing(t *testing.T) {
	cycles := 500
	if testing.Short() || raceEnabled {
		cycles = 100
	}
	r := newRegistry(t)
	json := smallJSON(t)
	run := func(n int) {
		for i := range n {
			backend := tokenizer.Auto
			if i%4 == 3 {
				backend = tokenizer.Tokenizers
			}
			cycle(t, r, json, backend, i%5 == 4)
		}
		for begin := time.Now(); r.Live() > 0 && time.Since(begin) < 10*time.Second; time.Sleep(time.Millisecond) {
			runtime.GC()
		}
		if n := r.Live(); n > 0 {
			t.Fatalf("%d executors are left", n)
		}
	}
	run(10) // lazily made state of runtime and libraries
	before := measure(t)
	run(cycles)
	after := measure(t)
	left := func() bool { return after.goroutines > before.goroutines || after.heap > before.heap+1<<20 }
	for begin := time.Now(); time.Since(begin) < 5*time.Second && left(); after = measure(t) {
		time.Sleep(5 * time.Millisecond) // the last worker may be on its way out, with its tokenizer still in hand
	}
	if after.goroutines > before.goroutines {
		t.Errorf("goroutines: %d before, %d after", before.goroutines, after.goroutines)
	}
	// Go keeps idle threads; a thread leaked per cycle would be hundreds.
	if after.threads > before.threads+4 {
		t.Errorf("threads: %d before, %d after", before.threads, after.threads)
	}
	if after.heap > before.heap+1<<20 {
		t.Errorf("native heap: %d before, %d after", before.heap, after.heap)
	}
}

// The whole of an idle process with a large tokenizer has to fit the memory that operators are told.
func TestMemoryAfterLoad(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector multiplies memory")
	}
	tok := load(t, fixtureJSON(t, "qwen3"), tokenizer.Auto)
	encode(t, tok, strings.Repeat("Some text to warm up the encoder. ", 100), false)
	const limit = 120 << 20 // leaves 40 MiB for the rest of the server
	if rss := residentBytes(t); rss > limit {
		t.Errorf("%d MiB resident with qwen3 loaded, want at most %d", rss>>20, limit>>20)
	} else {
		t.Logf("%d MiB resident, of which %d native heap", rss>>20, native.HeapInUse()>>20)
	}
	runtime.KeepAlive(tok)
}

func residentBytes(t *testing.T) int {
	t.Helper()
	status := string(readFile(t, "/proc/self/status"))
	for line := range strings.Lines(status) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			var kb int
			for _, digit := range strings.TrimSuffix(strings.TrimSpace(rest), " kB") {
				kb = kb*10 + int(digit-'0')
			}
			return kb << 10
		}
	}
	t.Skip("the resident size isn't known here")
	return 0
}
