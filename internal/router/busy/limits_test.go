package busy_test

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/router/busy"
)

func ptr[T any](v T) *T { return &v }

func TestLimitsOf(t *testing.T) {
	for _, tc := range []struct {
		name string
		t    worker.LoadThresholds
		c    busy.Capacity
		want busy.Limits
	}{
		{"none", worker.LoadThresholds{}, busy.Capacity{Blocks: 100, Batch: 100}, busy.Limits{}},
		{"a share of the blocks", worker.LoadThresholds{DecodeBlocks: ptr(0.5)}, busy.Capacity{Blocks: 100}, busy.Limits{Blocks: ptr(50.0)}},
		{"of nobody knows how many", worker.LoadThresholds{DecodeBlocks: ptr(0.5)}, busy.Capacity{}, busy.Limits{}},
		{"tokens", worker.LoadThresholds{PrefillTokens: ptr[uint64](7)}, busy.Capacity{}, busy.Limits{Prefill: ptr(7.0)}},
		{"no tokens at all", worker.LoadThresholds{PrefillTokens: ptr[uint64](0)}, busy.Capacity{}, busy.Limits{Prefill: ptr(0.0)}},
		{"batches", worker.LoadThresholds{PrefillFraction: ptr(2.0)}, busy.Capacity{Batch: 50}, busy.Limits{Prefill: ptr(100.0)}},
		{"of an unknown size", worker.LoadThresholds{PrefillFraction: ptr(2.0)}, busy.Capacity{}, busy.Limits{}},
		{
			"the lower one", worker.LoadThresholds{PrefillTokens: ptr[uint64](99), PrefillFraction: ptr(2.0)},
			busy.Capacity{Batch: 50}, busy.Limits{Prefill: ptr(99.0)},
		},
		{
			"the lower one again", worker.LoadThresholds{PrefillTokens: ptr[uint64](101), PrefillFraction: ptr(2.0)},
			busy.Capacity{Batch: 50}, busy.Limits{Prefill: ptr(100.0)},
		},
		{"beyond all bounds", worker.LoadThresholds{PrefillTokens: ptr[uint64](math.MaxUint64)}, busy.Capacity{}, busy.Limits{}},
	} {
		if d := cmp.Diff(tc.want, busy.LimitsOf(tc.t, tc.c)); d != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, d)
		}
	}
}

// TestLatch walks through reports of one rank, whose limit is 50 blocks.
func TestLatch(t *testing.T) {
	type step struct {
		decode, used *uint64
		want         bool
	}
	n := ptr[uint64]
	for _, tc := range []struct {
		name  string
		steps []step
	}{
		{"active blocks", []step{{n(50), nil, false}, {n(51), nil, true}, {n(50), nil, false}}},
		{"used ones alone", []step{{nil, n(50), false}, {nil, n(51), true}, {nil, n(50), false}}},
		{"used ones don't begin it beside active ones", []step{{n(10), n(99), false}}},
		{"both have to come back", []step{{n(60), n(60), true}, {n(10), n(60), true}, {n(10), n(50), false}, {n(10), n(60), false}}},
		{"nothing is said", []step{{nil, nil, false}}},
	} {
		l, latched := busy.Limits{Blocks: ptr(50.0)}, false
		for i, s := range tc.steps {
			if latched = l.Latch(latched, busy.Load{Decode: s.decode, Used: s.used}); latched != s.want {
				t.Errorf("%s, step %d: %v", tc.name, i, latched)
			}
		}
	}
	if (busy.Limits{}).Latch(true, busy.Load{Decode: n(99)}) {
		t.Error("latched without a limit")
	}
}

func TestPrefilling(t *testing.T) {
	n := ptr[uint64]
	for _, tc := range []struct {
		limit *float64
		load  *uint64
		want  bool
	}{{nil, n(9), false}, {ptr(5.0), nil, false}, {ptr(5.0), n(5), false}, {ptr(5.0), n(6), true}, {ptr(0.0), n(0), false}} {
		if got := (busy.Limits{Prefill: tc.limit}).Prefilling(busy.Load{Prefill: tc.load}); got != tc.want {
			t.Errorf("%v of %v: %v", tc.load, tc.limit, got)
		}
	}
}

func TestCheck(t *testing.T) {
	for _, tc := range []struct {
		t    worker.LoadThresholds
		want string
	}{
		{worker.LoadThresholds{}, ""},
		{worker.LoadThresholds{DecodeBlocks: ptr(0.0), PrefillTokens: ptr[uint64](0), PrefillFraction: ptr(0.0)}, ""},
		{worker.LoadThresholds{DecodeBlocks: ptr(1.0), PrefillFraction: ptr(1e9)}, ""},
		{worker.LoadThresholds{DecodeBlocks: ptr(1.5)}, "active_decode_blocks_threshold must be between 0.0 and 1.0, got 1.5"},
		{worker.LoadThresholds{DecodeBlocks: ptr(math.NaN())}, "active_decode_blocks_threshold must be between 0.0 and 1.0, got NaN"},
		{
			worker.LoadThresholds{PrefillFraction: ptr(-2.0)},
			"active_prefill_tokens_threshold_frac must be a finite value greater than or equal to 0.0, got -2",
		},
		{
			worker.LoadThresholds{PrefillFraction: ptr(math.Inf(1))},
			"active_prefill_tokens_threshold_frac must be a finite value greater than or equal to 0.0, got +Inf",
		},
	} {
		got := ""
		if err := busy.Check(tc.t); err != nil {
			got = err.Error()
		}
		if got != tc.want {
			t.Errorf("%+v: %q, want %q", tc.t, got, tc.want)
		}
	}
}
