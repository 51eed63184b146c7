package busy

import (
	"fmt"
	"math"

	"github.com/portico-llm/portico/api/worker"
)

// defaultBatch is the number of tokens of a batch where a worker doesn't say, as far as queueing goes.
const defaultBatch = 8192

// Capacity is how much a worker holds; 0: it doesn't say.
type Capacity struct {
	Blocks uint64 // of its KV cache, for each rank
	Batch  uint64 // tokens of one batch
}

// CapacityOf reads a card.
func CapacityOf(c *worker.Card) Capacity {
	var out Capacity
	if n := c.RuntimeConfig.TotalKVBlocks; n != nil {
		out.Blocks = *n
	}
	if n := c.RuntimeConfig.MaxNumBatchedTokens; n != nil {
		out.Batch = *n
	}
	return out
}

// batch is the number of tokens of a batch, guessed where need be.
func (c Capacity) batch() float64 {
	if c.Batch == 0 {
		return defaultBatch
	}
	return float64(c.Batch)
}

// Load is what a worker reports of one rank; nil: it doesn't say.
type Load struct {
	Decode  *uint64 // blocks of active sequences
	Prefill *uint64 // tokens that wait for or are in prefill
	Used    *uint64 // blocks in use, whatever for
}

// with returns l with what r says in its place.
func (l Load) with(r Load) Load {
	if r.Decode != nil {
		l.Decode = r.Decode
	}
	if r.Prefill != nil {
		l.Prefill = r.Prefill
	}
	if r.Used != nil {
		l.Used = r.Used
	}
	return l
}

// Limits are thresholds in the units of reports; nil: no limit.
type Limits struct {
	Blocks  *float64 // of the KV cache
	Prefill *float64 // tokens
}

// LimitsOf turns thresholds into a worker's limits. A share of something that the worker doesn't tell is no limit; of
// two limits the lower counts.
func LimitsOf(t worker.LoadThresholds, c Capacity) Limits {
	var out Limits
	if t.DecodeBlocks != nil && c.Blocks > 0 {
		n := *t.DecodeBlocks * float64(c.Blocks)
		out.Blocks = &n
	}
	if t.PrefillTokens != nil {
		n := float64(*t.PrefillTokens)
		out.Prefill = &n
	}
	if t.PrefillFraction != nil && c.Batch > 0 {
		n := *t.PrefillFraction * float64(c.Batch)
		if out.Prefill == nil || n < *out.Prefill {
			out.Prefill = &n
		}
	}
	// Whatever is beyond this is no limit, and would not fit an integer.
	if out.Prefill != nil && *out.Prefill > math.MaxInt32 {
		out.Prefill = nil
	}
	return out
}

// Latch says whether a rank is overloaded by its blocks, given whether it was. It becomes so by its active blocks (by
// those in use, where it tells nothing else), and remains so until both are back: a worker whose sequences have just
// ended is still full of what they left behind.
func (l Limits) Latch(latched bool, r Load) bool {
	if l.Blocks == nil {
		return false
	}
	beyond := func(n *uint64) bool { return n != nil && float64(*n) > *l.Blocks }
	if latched || r.Decode == nil {
		return beyond(r.Decode) || beyond(r.Used)
	}
	return beyond(r.Decode)
}

// Prefilling says whether a rank has more to prefill than it should.
func (l Limits) Prefilling(r Load) bool {
	return l.Prefill != nil && r.Prefill != nil && float64(*r.Prefill) > *l.Prefill
}

// Check refuses thresholds that make no sense. The messages are those that operators know.
func Check(t worker.LoadThresholds) error {
	if d := t.DecodeBlocks; d != nil && !(*d >= 0 && *d <= 1) { // written so that NaN is refused
		return fmt.Errorf("active_decode_blocks_threshold must be between 0.0 and 1.0, got %v", *d)
	}
	if f := t.PrefillFraction; f != nil && (!(*f >= 0) || math.IsInf(*f, 0)) {
		return fmt.Errorf("active_prefill_tokens_threshold_frac must be a finite value greater than or equal to 0.0, got %v", *f)
	}
	return nil
}
