package observe

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// MemoryOptions say when memory is given back. The zero value works.
type MemoryOptions struct {
	Every time.Duration // between looks; 0: 20 s
	Worth int64         // bytes that make it worth the while; 0: 32 MiB
	Also  func()        // gives back memory that isn't Go's; nil: there is none
}

// ReturnMemory gives memory back to the system while the process is idle, until ctx ends. The runtime collects an idle
// heap only every two minutes and releases it over several more; until then a burst of large requests would stay
// resident, and look like a leak.
//
// A process that allocates enough to be collected between two looks is left alone: it needs its memory, and its time.
func ReturnMemory(ctx context.Context, opts MemoryOptions) error {
	if opts.Every <= 0 {
		opts.Every = 20 * time.Second
	}
	if opts.Worth <= 0 {
		opts.Worth = 32 << 20
	}
	tick := time.NewTicker(opts.Every)
	defer tick.Stop()
	last := readHeap()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now := readHeap()
		if now.cycles == last.cycles && now.idle() >= opts.Worth {
			debug.FreeOSMemory()
			if opts.Also != nil {
				opts.Also()
			}
			now = readHeap() // that was a cycle of our own
		}
		last = now
	}
}

// heap is what decides whether memory is given back, in bytes but for the cycles.
type heap struct {
	cycles        uint64 // collections so far
	objects, live uint64 // with and without garbage
	resident      uint64 // free pages that the system has not got back
}

// idle is how much a collection would free and the system get back.
func (h heap) idle() int64 {
	return int64(h.objects) - int64(h.live) + int64(h.resident) //nolint:gosec // sizes of memory fit
}

// readHeap reads the runtime's own numbers, which stops nothing.
func readHeap() heap {
	samples := []metrics.Sample{
		{Name: "/gc/cycles/total:gc-cycles"}, {Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/free:bytes"},
	}
	metrics.Read(samples)
	value := func(i int) uint64 {
		if samples[i].Value.Kind() != metrics.KindUint64 { // a runtime that has renamed it
			return 0
		}
		return samples[i].Value.Uint64()
	}
	return heap{cycles: value(0), objects: value(1), live: value(2), resident: value(3)}
}
