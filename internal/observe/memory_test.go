package observe_test

import (
	"context"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"testing"
	"time"

	"github.com/portico-llm/portico/internal/observe"
)

// held is how much of the heap the system hasn't got back.
func held() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapSys - m.HeapReleased
}

// TestReturnMemory checks that garbage doesn't stay resident in an idle process, and that there is an end to the looks.
func TestReturnMemory(t *testing.T) {
	// A collection that ends in the middle would take what is garbage a moment later for live, until the next one.
	runtime.GC()
	percent := debug.SetGCPercent(-1)
	garbage := make([][]byte, 128)
	for i := range garbage {
		garbage[i] = make([]byte, 1<<20)
		for j := 0; j < len(garbage[i]); j += 4096 {
			garbage[i][j] = 1
		}
	}
	before := held()
	runtime.KeepAlive(garbage)
	garbage = nil
	debug.SetGCPercent(percent)

	ctx, cancel := context.WithCancel(t.Context())
	var also atomic.Int32
	done := make(chan error, 1)
	go func() {
		done <- observe.ReturnMemory(ctx, observe.MemoryOptions{
			Every: 20 * time.Millisecond, Worth: 16 << 20, Also: func() { also.Add(1) },
		})
	}()
	for end := time.Now().Add(10 * time.Second); held()+(100<<20) > before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d MiB are held, of %d", held()>>20, before>>20)
		}
	}
	// Once it is returned there is nothing more to do.
	time.Sleep(100 * time.Millisecond)
	if n := also.Load(); n < 1 || n > 3 {
		t.Errorf("given back %d times", n)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
