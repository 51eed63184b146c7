package loadgen

import (
	"math/bits"
	"time"
)

// subBits is the precision of a histogram: 2^subBits buckets for every power of two, so errors stay under 1 %.
const subBits = 7

// hist counts durations in logarithmic buckets. It has a fixed size, so that millions of token gaps cost no memory.
// The zero value is ready. For one goroutine; histograms of several are added up afterwards.
type hist struct {
	counts [(64 - subBits + 1) << subBits]uint32 // by bucket
	n      uint64                                // of values
	sum    uint64                                // nanoseconds, as is max; both exact
	max    uint64
}

// bucket returns the bucket of a value: small values have one each, larger ones share by their leading bits, of which
// subBits+1 count. Buckets are in the order of their values, without gaps.
func bucket(v uint64) int {
	shift := bits.Len64(v) - subBits - 1
	if shift <= 0 {
		return int(v)
	}
	// The leading bit of v>>shift is always set and adds one to the power of two in front.
	return shift<<subBits + int(v>>shift)
}

// upper returns the largest value of bucket b.
func upper(b int) uint64 {
	shift := b>>subBits - 1
	if shift <= 0 {
		return uint64(b)
	}
	return uint64(b-shift<<subBits+1)<<shift - 1
}

// add counts a duration; a negative one counts as zero.
func (h *hist) add(d time.Duration) {
	v := uint64(max(d, 0))
	h.counts[bucket(v)]++
	h.n++
	h.sum += v
	h.max = max(h.max, v)
}

// merge adds what o has counted.
func (h *hist) merge(o *hist) {
	for i, c := range o.counts {
		h.counts[i] += c
	}
	h.n += o.n
	h.sum += o.sum
	h.max = max(h.max, o.max)
}

// quantile returns the value that a share q of all values doesn't exceed, rounded up to its bucket's end, but never
// above the largest value seen. Zero without values.
func (h *hist) quantile(q float64) time.Duration {
	want := uint64(q*float64(h.n) + 0.5)
	want = min(max(want, 1), h.n)
	var seen uint64
	for b, c := range h.counts {
		if seen += uint64(c); seen >= want && c > 0 {
			return time.Duration(min(upper(b), h.max))
		}
	}
	return 0
}

// summary returns the figures of a report; all zero without values.
func (h *hist) summary() Latency {
	if h.n == 0 {
		return Latency{}
	}
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	return Latency{
		Count: h.n,
		Mean:  float64(h.sum) / float64(h.n) / float64(time.Millisecond),
		P50:   ms(h.quantile(0.50)), P90: ms(h.quantile(0.90)), P95: ms(h.quantile(0.95)),
		P99: ms(h.quantile(0.99)), Max: ms(time.Duration(h.max)),
	}
}
