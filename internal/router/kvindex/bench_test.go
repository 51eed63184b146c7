package kvindex_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/portico-llm/portico/internal/router/kvindex"
)

// BenchmarkMatch looks up prompts of 2048 blocks, of which as many as the name says are held. The larger scenario is in
// tests/bench/kvindex.
func BenchmarkMatch(b *testing.B) {
	for _, holders := range []int{1, 64} {
		x := newIndex(b, kvindex.Options{})
		r := rand.New(rand.NewPCG(1, 1))
		var paths [][]uint64
		for range 8 {
			p := random(r, 2048)
			paths = append(paths, p)
			for w := range holders {
				if err := x.Stored(kvindex.Device, kvindex.Worker{ID: uint64(w)}, nil, chain(p)); err != nil {
					b.Fatal(err)
				}
			}
		}
		out := make([]uint32, x.View().Slots())
		for _, depth := range []int{0, 100, 1024, 2048} {
			var queries [][]uint64
			for _, p := range paths {
				queries = append(queries, append(append([]uint64(nil), p[:depth]...), random(r, 2048-depth)...))
			}
			b.Run(fmt.Sprintf("holders=%d/depth=%d", holders, depth), func(b *testing.B) {
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					if got := x.Match(queries[i%len(queries)], out); got != depth {
						b.Fatalf("%d blocks, want %d", got, depth)
					}
					i++
				}
			})
		}
	}
}
