package kvcost_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/internal/router/kvcost"
	"github.com/portico-llm/portico/internal/testkit"
)

type rankVector struct {
	W      uint64
	DP     uint32
	Cost   *float64
	Device uint32
	Host   uint32
	Disk   uint32
	Taints []string
	Load   *struct {
		PrefillTokens    int64 `json:"prefill_tokens"`
		DecodeBlocks     int64 `json:"decode_blocks"`
		AdditionalBlocks int64 `json:"additional_blocks"`
		Requests         int64
	}
}

type vector struct {
	ID          int
	Allowed     *[]uint64
	BlockSize   int  `json:"block_size"`
	Conditional bool `json:"conditional_disagg"`
	Config      struct {
		RequestWeight float64 `json:"decode_active_request_weight"`
		Disk          float64 `json:"disk_cache_hit_weight"`
		Host          float64 `json:"host_cache_hit_weight"`
		Credit        float64 `json:"overlap_score_credit"`
		Decay         float64 `json:"overlap_score_credit_decay"`
		Scale         float64 `json:"prefill_load_scale"`
		Temperature   float64 `json:"router_temperature"`
		Shared        float64 `json:"shared_cache_multiplier"`
	}
	Error     *string
	ISL       int
	Minimal   [][2]uint64
	Pinned    *[2]uint64
	Preferred map[string]float64 `json:"preferred_taints"`
	Required  []string           `json:"required_taints"`
	Ranks     []rankVector
	Role      string
	Shared    [][2]int `json:"shared_ranges"`
	Tiers     bool     `json:"tier_maps_present"`
	Track     bool     `json:"track_prefill_tokens"`
	Result    *struct {
		Cached   int     `json:"cached_tokens"`
		Overlap  float64 `json:"effective_overlap_blocks"`
		Decoding int     `json:"potential_decode_blocks"`
		Blocks   int     `json:"required_blocks"`
	}
}

var roles = map[string]kvcost.Role{"aggregated": kvcost.Aggregated, "prefill": kvcost.Prefill, "decode": kvcost.Decode}

// query is what there is to choose by, the candidates that may be chosen, and where they are among the ranks.
func (v *vector) query() (*kvcost.Query, *kvcost.Config, []kvcost.Candidate, []int) {
	c := v.Config
	config := &kvcost.Config{OverlapCredit: c.Credit, CreditDecay: c.Decay, HostWeight: c.Host, DiskWeight: c.Disk,
		SharedMultiplier: c.Shared, PrefillScale: c.Scale, RequestWeight: c.RequestWeight, Temperature: c.Temperature}
	q := &kvcost.Query{Tokens: v.ISL, BlockSize: v.BlockSize, Role: roles[v.Role],
		TrackPrefill: v.Track, Combined: !v.Tiers, Shared: v.Shared}
	if v.Conditional { // a decode worker that reads prompts itself
		q.Role = kvcost.Aggregated
	}
	for name, weight := range v.Preferred {
		q.Preferred = append(q.Preferred, kvcost.Taint{Name: name, Weight: weight})
	}
	var candidates []kvcost.Candidate
	var at []int
	for i, r := range v.Ranks {
		if !v.admits(&r) {
			continue
		}
		candidate := kvcost.Candidate{Worker: r.W, Rank: r.DP, Device: r.Device, Host: r.Host, Disk: r.Disk, Taints: r.Taints}
		if r.Load != nil {
			candidate.Load = &kvcost.Load{PrefillTokens: r.Load.PrefillTokens, DecodeBlocks: r.Load.DecodeBlocks,
				AdditionalBlocks: r.Load.AdditionalBlocks, Requests: r.Load.Requests}
		}
		candidates, at = append(candidates, candidate), append(at, i)
	}
	return q, config, candidates, at
}

// admits reports whether a rank may be chosen, which routers know before they choose.
func (v *vector) admits(r *rankVector) bool {
	return (v.Allowed == nil || slices.Contains(*v.Allowed, r.W)) &&
		(v.Pinned == nil || *v.Pinned == [2]uint64{r.W, uint64(r.DP)}) &&
		!slices.ContainsFunc(v.Required, func(taint string) bool { return !slices.Contains(r.Taints, taint) })
}

func TestSelectionVectors(t *testing.T) {
	states, costs, columns := 0, 0, 0
	random := rand.New(rand.NewPCG(1, 2))
	for v := range testkit.Records[vector](t, "../../../tests/golden/kv/selection.jsonl.gz") {
		states++
		costs += checkCosts(t, v)
		columns += checkColumns(t, v)
		checkChoice(t, v, random)
	}
	if states != 500 || costs != 3148 {
		t.Errorf("%d states and %d costs, want 500 and 3148", states, costs)
	}
	if columns < 500 {
		t.Errorf("only %d costs were looked at in columns", columns)
	}
}

// checkColumns wants the costs of a state to the bit where columns are enough for them.
func checkColumns(t *testing.T, v *vector) (n int) {
	t.Helper()
	if v.Pinned != nil {
		return 0
	}
	q, config, candidates, at := v.query()
	config.Temperature = 0
	for i, c := range candidates {
		want := v.Ranks[at[i]].Cost
		if want == nil || c.Load == nil || c.Host|c.Disk != 0 {
			continue
		}
		cols := kvcost.Columns{Loads: []kvcost.Load{*c.Load}, Device: []uint32{c.Device}}
		got, ok := kvcost.ChooseColumns(q, config, &cols, nil, &kvcost.Scratch{})
		if !ok {
			continue
		}
		if n++; math.Float64bits(got.Cost) != math.Float64bits(*want) {
			t.Errorf("state %d: cost %v in columns, want %v", v.ID, got.Cost, *want)
		}
	}
	return n
}

// TestColumns chooses in columns as among candidates, whatever the loads, the role and the temperature.
func TestColumns(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 9))
	var one, other kvcost.Scratch
	for i := range 3000 {
		n := 1 + random.IntN(40)
		cols := kvcost.Columns{Loads: make([]kvcost.Load, n), Device: make([]uint32, n)}
		candidates := make([]kvcost.Candidate, n)
		for i := range n {
			cols.Loads[i] = kvcost.Load{PrefillTokens: random.Int64N(3) * 777, DecodeBlocks: random.Int64N(4),
				AdditionalBlocks: random.Int64N(3), Requests: random.Int64N(3)}
			cols.Device[i] = random.Uint32N(3) * 5
			candidates[i] = kvcost.Candidate{Worker: uint64(i), Load: &cols.Loads[i], Device: cols.Device[i]}
		}
		for i := n - 1; i >= 0 && len(candidates) > 1; i-- { // somebody stays
			if random.IntN(3) == 0 {
				cols.Without = append(cols.Without, int32(i))
				candidates = slices.Delete(candidates, i, i+1)
			}
		}
		slices.Reverse(cols.Without)
		config := kvcost.Default()
		config.OverlapCredit, config.PrefillScale = float64(random.IntN(3))/1.7, float64(random.IntN(3))/1.3
		config.RequestWeight, config.Temperature = float64(random.IntN(2))*0.3, float64(random.IntN(2))*0.5
		q := &kvcost.Query{Tokens: random.IntN(200), BlockSize: 1 + random.IntN(20), TrackPrefill: true,
			Role: []kvcost.Role{kvcost.Aggregated, kvcost.Prefill, kvcost.Decode}[random.IntN(3)]}
		seed := random.Uint64()
		want, some := kvcost.Choose(q, &config, candidates, rand.New(rand.NewPCG(seed, 1)), &one)
		got, ok := kvcost.ChooseColumns(q, &config, &cols, rand.New(rand.NewPCG(seed, 1)), &other)
		want.Index = int(candidates[want.Index].Worker)
		if !some || !ok || got != want {
			t.Fatalf("round %d: %+v %v, want %+v %v", i, got, ok, want, some)
		}
	}
}

// TestColumnsDecline where there is more to a choice than they say.
func TestColumnsDecline(t *testing.T) {
	cols := kvcost.Columns{Loads: make([]kvcost.Load, 2), Device: make([]uint32, 2)}
	for name, change := range map[string]func(q *kvcost.Query, c *kvcost.Config){
		"preferred": func(q *kvcost.Query, _ *kvcost.Config) { q.Preferred = []kvcost.Taint{{Name: "a", Weight: 1}} },
		"combined":  func(q *kvcost.Query, _ *kvcost.Config) { q.Combined = true },
		"untracked": func(q *kvcost.Query, _ *kvcost.Config) { q.TrackPrefill = false },
		"decay":     func(_ *kvcost.Query, c *kvcost.Config) { c.CreditDecay = 0.5 },
		"shared":    func(_ *kvcost.Query, c *kvcost.Config) { c.SharedMultiplier = 0.5 },
	} {
		q, config := &kvcost.Query{Tokens: 32, BlockSize: 16, TrackPrefill: true}, kvcost.Default()
		change(q, &config)
		if _, ok := kvcost.ChooseColumns(q, &config, &cols, nil, &kvcost.Scratch{}); ok {
			t.Errorf("%s: chosen all the same", name)
		}
	}
	config := kvcost.Default()
	if _, ok := kvcost.ChooseColumns(&kvcost.Query{TrackPrefill: true}, &config, &kvcost.Columns{}, nil, &kvcost.Scratch{}); ok {
		t.Error("chosen among nobody")
	}
	cols.Without = []int32{0, 1}
	if _, ok := kvcost.ChooseColumns(&kvcost.Query{BlockSize: 16, TrackPrefill: true}, &config, &cols, nil, &kvcost.Scratch{}); ok {
		t.Error("chosen of those that may not be")
	}
}

// checkCosts wants every cost of a state to the bit, and none for candidates that may not be chosen.
func checkCosts(t *testing.T, v *vector) (n int) {
	t.Helper()
	if v.Pinned != nil {
		return 0
	}
	q, config, candidates, at := v.query()
	got := make(map[int]uint64)
	for i, cost := range kvcost.Costs(q, config, candidates, &kvcost.Scratch{}) {
		got[at[i]] = math.Float64bits(cost)
	}
	want := make(map[int]uint64)
	for i, r := range v.Ranks {
		if r.Cost != nil {
			want[i] = math.Float64bits(*r.Cost)
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("state %d: costs as bits: %s", v.ID, d)
	}
	return len(want)
}

func checkChoice(t *testing.T, v *vector, random *rand.Rand) {
	t.Helper()
	q, config, candidates, at := v.query()
	var s kvcost.Scratch
	seen := make(map[[2]uint64]bool)
	for range 40 * max(1, len(v.Minimal)) {
		c, ok := kvcost.Choose(q, config, candidates, random, &s)
		if ok != (v.Error == nil) {
			t.Errorf("state %d: chosen %v, want %v", v.ID, ok, v.Result)
		}
		if !ok {
			return
		}
		r := v.Ranks[at[c.Index]]
		seen[[2]uint64{r.W, uint64(r.DP)}] = true
		if v.Result != nil {
			want := fmt.Sprint(v.Result.Cached, v.Result.Overlap, v.Result.Decoding, v.Result.Blocks)
			if got := fmt.Sprint(c.Cached, c.Overlap, c.Decoding, c.Blocks); got != want {
				t.Errorf("state %d: result %s, want %s", v.ID, got, want)
				return
			}
		}
	}
	want := make(map[[2]uint64]bool)
	for _, m := range v.Minimal {
		want[m] = true
	}
	if d := cmp.Diff(want, seen); d != "" {
		t.Errorf("state %d: chosen: %s", v.ID, d)
	}
}

// TestTemperature compares how often each of four candidates is drawn with the softmax of their costs.
func TestTemperature(t *testing.T) {
	var candidates []kvcost.Candidate
	for i := range 4 {
		candidates = append(candidates, kvcost.Candidate{Worker: uint64(i), Load: &kvcost.Load{DecodeBlocks: int64(10 * i)}})
	}
	q := &kvcost.Query{Tokens: 160, BlockSize: 16, TrackPrefill: true}
	for _, temperature := range []float64{0.2, 1, 50} {
		config := kvcost.Default()
		config = config.With(&kvcost.Override{Temperature: &temperature})
		var want [4]float64
		sum := 0.0
		for i := range want {
			want[i] = math.Exp(-float64(i) / 3 / temperature)
			sum += want[i]
		}
		const rounds = 40000
		var got [4]float64
		random := rand.New(rand.NewPCG(3, 4))
		var s kvcost.Scratch
		for range rounds {
			c, ok := kvcost.Choose(q, &config, candidates, random, &s)
			if !ok {
				t.Fatal("nobody")
			}
			got[c.Index]++
		}
		for i := range want {
			if p := want[i] / sum; math.Abs(got[i]/rounds-p) > 0.02 {
				t.Errorf("temperature %v, candidate %d: share %.3f, want %.3f", temperature, i, got[i]/rounds, p)
			}
		}
	}
}

func TestTiesAreEven(t *testing.T) {
	for _, temperature := range []float64{0, 1, math.Inf(1)} {
		config := kvcost.Default()
		config.Temperature = temperature
		candidates := make([]kvcost.Candidate, 5)
		random := rand.New(rand.NewPCG(5, 6))
		var got [5]int
		var s kvcost.Scratch
		for range 10000 {
			c, ok := kvcost.Choose(&kvcost.Query{Tokens: 32, BlockSize: 16, TrackPrefill: true}, &config, candidates, random, &s)
			if !ok {
				t.Fatal("nobody")
			}
			got[c.Index]++
		}
		for i, n := range got {
			if n < 1800 || n > 2200 {
				t.Errorf("temperature %v: candidate %d was chosen %d of 10000 times", temperature, i, n)
			}
		}
	}
}

func TestOverrides(t *testing.T) {
	candidates := []kvcost.Candidate{
		{Worker: 1, Device: 10, Load: &kvcost.Load{DecodeBlocks: 5}},
		{Worker: 2, Load: &kvcost.Load{}},
	}
	q := &kvcost.Query{Tokens: 160, BlockSize: 16, TrackPrefill: true}
	zero := 0.0
	for _, c := range []struct {
		name string
		o    *kvcost.Override
		want int
	}{
		{"none", nil, 0},
		{"no credit", &kvcost.Override{OverlapCredit: &zero}, 1},
		{"prefill is free", &kvcost.Override{PrefillScale: &zero}, 1},
	} {
		config := kvcost.Default().With(c.o)
		got, ok := kvcost.Choose(q, &config, candidates, rand.New(rand.NewPCG(1, 1)), &kvcost.Scratch{})
		if !ok || got.Index != c.want {
			t.Errorf("%s: candidate %d, want %d", c.name, got.Index, c.want)
		}
	}
}

// thousand are as many candidates, with everything that costs time.
func thousand() (*kvcost.Query, *kvcost.Config, []kvcost.Candidate) {
	config := kvcost.Default()
	config.CreditDecay, config.Temperature, config.SharedMultiplier = 0.5, 0.5, 0.5
	random := rand.New(rand.NewPCG(7, 8))
	candidates := make([]kvcost.Candidate, 1000)
	for i := range candidates {
		candidates[i] = kvcost.Candidate{Worker: uint64(i), Device: random.Uint32N(100), Host: random.Uint32N(9),
			Load:   &kvcost.Load{PrefillTokens: random.Int64N(9999), DecodeBlocks: random.Int64N(999), Requests: random.Int64N(99)},
			Taints: []string{"zone-a", "gpu-x"}[:random.IntN(3)]}
	}
	q := &kvcost.Query{Tokens: 4096, BlockSize: 16, TrackPrefill: true, Shared: [][2]int{{3, 50}, {70, 200}},
		Preferred: []kvcost.Taint{{Name: "zone-a", Weight: 0.5}, {Name: "gpu-x", Weight: -0.25}}}
	return q, &config, candidates
}

func TestThousandCandidatesAllocateNothing(t *testing.T) {
	q, config, candidates := thousand()
	random := rand.New(rand.NewPCG(1, 2))
	var s kvcost.Scratch
	choose := func() {
		if _, ok := kvcost.Choose(q, config, candidates, random, &s); !ok {
			t.Fatal("nobody")
		}
	}
	if n := testing.AllocsPerRun(20, choose); n != 0 {
		t.Errorf("%v allocations", n)
	}
	best := time.Hour
	for range 200 {
		from := time.Now()
		choose()
		best = min(best, time.Since(from))
	}
	t.Logf("fastest choice among %d: %v", len(candidates), best)
}

func BenchmarkChoose1000(b *testing.B) {
	q, config, candidates := thousand()
	random := rand.New(rand.NewPCG(1, 2))
	var s kvcost.Scratch
	b.Run("everything", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, ok := kvcost.Choose(q, config, candidates, random, &s); !ok {
				b.Fatal("nobody")
			}
		}
	})
	usual, defaults := *q, kvcost.Default()
	usual.Preferred, usual.Shared = nil, nil
	b.Run("defaults", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, ok := kvcost.Choose(&usual, &defaults, candidates, random, &s); !ok {
				b.Fatal("nobody")
			}
		}
	})
}
