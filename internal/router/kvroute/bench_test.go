package kvroute_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/kvroute"
)

// busy is a pool of n workers with some requests each, of which the first holds the prompts' common beginning.
func busy(tb testing.TB, n int) (*world, []router.Candidate, [][]uint32) {
	w := newWorld(tb, kvroute.Options{})
	var list []*engine
	for id := range uint64(n) {
		list = append(list, newEngine(id+1, id+100_001))
	}
	w.publish(list...)
	candidates := w.candidates()
	chooser := w.chooser()
	var prompts [][]uint32
	for i := range 64 {
		p := tokens(512*blockSize, 1) // as many blocks as 8,192 tokens have where blocks are of 16
		for j := 100 * blockSize; j < len(p); j++ {
			p[j] += uint32(i) << 16
		}
		prompts = append(prompts, p)
	}
	for i, e := range list { // everybody holds the beginning, some hold more
		w.cache.Missed(e.channel())
		w.send(e, e.store(locals(tb, prompts[i%64])[:100+i%7*50])...)
	}
	w.quiet()
	for i := range 4 * n {
		if _, err := chooser.Choose(context.Background(), query(fmt.Sprint(i), prompts[i%64]), candidates); err != nil {
			tb.Fatal(err)
		}
	}
	return w, candidates, prompts
}

// BenchmarkChoose chooses among 1,000 workers for prompts of 512 blocks, and notes what comes of it: hashing, looking up,
// weighing, counting in, counting out. So it does with one of the workers left out, as when it is down or full.
func BenchmarkChoose(b *testing.B) {
	for _, c := range []struct {
		name       string
		n, without int
	}{{"8", 8, 0}, {"1000", 1000, 0}, {"1000-without-one", 1000, 1}} {
		b.Run(c.name, func(b *testing.B) {
			w, candidates, prompts := busy(b, c.n)
			candidates = slices.Delete(candidates, c.n/2, c.n/2+c.without)
			chooser := w.chooser()
			var took, cost []time.Duration // by the clock, and on the CPU: a machine's other work doesn't show there
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				q := query("q", prompts[i%64])
				began, cpu := time.Now(), threadTime()
				c, err := chooser.Choose(context.Background(), q, candidates)
				if err != nil {
					b.Fatal(err)
				}
				took, cost = append(took, time.Since(began)), append(cost, threadTime()-cpu)
				c.Ticket.Done()
			}
			for name, list := range map[string][]time.Duration{"": took, "cpu-": cost} {
				slices.Sort(list)
				b.ReportMetric(float64(list[len(list)/2].Nanoseconds())/1e3, name+"p50-µs")
				b.ReportMetric(float64(list[len(list)*99/100].Nanoseconds())/1e3, name+"p99-µs")
			}
		})
	}
}
