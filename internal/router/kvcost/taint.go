package kvcost

import (
	"math"
	"slices"
)

// weight adds up the weights of the preferred taints that a candidate has.
func weight(preferred []Taint, taints []string) float64 {
	sum := 0.0
	for _, p := range preferred {
		if slices.Contains(taints, p.Name) {
			sum += p.Weight
		}
	}
	return sum
}

// factors remembers the factors of the last few sums: candidates have few different ones, and a factor takes longer to
// work out than a cost.
type factors struct {
	sums, values [8]float64
	n            int
}

// of returns exp(-tanh(sum)), by which a cost is multiplied.
func (f *factors) of(sum float64) float64 {
	for i := range min(f.n, len(f.sums)) {
		if f.sums[i] == sum {
			return f.values[i]
		}
	}
	i := f.n % len(f.sums)
	f.sums[i], f.values[i] = sum, exp(-tanh(sum))
	f.n++
	return f.values[i]
}

// tanh is the C library's, which the standard library's differs from in the last bit.
func tanh(x float64) float64 {
	a := math.Abs(x)
	var z float64
	switch {
	case a >= 22:
		z = 1
	case a >= 1:
		z = 1 - 2/(math.Expm1(2*a)+2)
	case a < 0x1p-55:
		return x
	default:
		t := math.Expm1(-2 * a)
		z = -t / (t + 2)
	}
	return math.Copysign(z, x)
}

// exp is e^x, correctly rounded, for x in [-1, 1]. The C library's is that there, the standard library's often misses
// the last bit, and by architecture. It sums the Taylor series from its small end in double-double arithmetic.
func exp(x float64) float64 {
	const terms = 26 // 1/26! is far below the last bit of the lower half
	hi, lo := 1.0, 0.0
	for n := float64(terms); n >= 1; n-- { // s = 1 + s·x/n
		p := hi * x
		q := p / n
		rest := math.FMA(hi, x, -p) + float64(lo*x) + math.FMA(-q, n, p)
		s := 1 + q
		lo = (q - (s - 1)) + rest/n
		hi = s + lo
		lo -= hi - s
	}
	return hi
}
