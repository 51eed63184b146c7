package policy_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/policy"
)

// fleet returns candidates with instance ids 100, 101, … and the given loads.
func fleet(loads ...int64) []router.Candidate {
	out := make([]router.Candidate, len(loads))
	for i, load := range loads {
		out[i] = router.Candidate{Instance: &worker.Instance{InstanceID: 100 + uint64(i)}, InFlight: load}
	}
	return out
}

// script returns a source of chance that yields the given numbers and fails on any bound it was not told of.
func script(t *testing.T, draws ...[2]int) func(int) int {
	t.Helper()
	return func(n int) int {
		if len(draws) == 0 {
			t.Fatalf("unexpected draw below %d", n)
		}
		d := draws[0]
		draws = draws[1:]
		if d[0] != n {
			t.Fatalf("drawn below %d, want below %d", n, d[0])
		}
		return d[1]
	}
}

func mustNew(t *testing.T, mode string) router.Policy {
	t.Helper()
	p, err := policy.New(mode)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestRoundRobin: loads say nothing, and the turn goes on over the whole range of ordinals.
func TestRoundRobin(t *testing.T) {
	for _, mode := range []string{"", policy.RoundRobin} {
		p := mustNew(t, mode)
		var got []int
		for ordinal := range uint64(7) {
			i, err := p.Pick(&router.Query{Ordinal: ordinal}, fleet(9, 0, 5))
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, i)
		}
		if d := cmp.Diff([]int{0, 1, 2, 0, 1, 2, 0}, got); d != "" {
			t.Errorf("mode %q (-want +got):\n%s", mode, d)
		}
	}
	if i, err := mustNew(t, policy.RoundRobin).Pick(&router.Query{Ordinal: 1<<64 - 1}, fleet(0, 0)); err != nil || i != 1 {
		t.Errorf("last ordinal: %d, %v", i, err)
	}
}

func TestRandom(t *testing.T) {
	p := mustNew(t, policy.Random)
	for _, want := range []int{0, 2, 1} {
		got, err := p.Pick(&router.Query{Random: script(t, [2]int{3, want})}, fleet(1, 2, 3))
		if err != nil || got != want {
			t.Errorf("got %d, %v; want %d", got, err, want)
		}
	}
}

// TestLeastLoaded: want is the index of the candidate, which the ordinal decides among equals.
func TestLeastLoaded(t *testing.T) {
	p := mustNew(t, policy.LeastLoad)
	for _, tc := range []struct {
		loads   []int64
		ordinal uint64
		want    int
	}{
		{[]int64{3}, 5, 0},
		{[]int64{3, 1, 2}, 0, 1},
		{[]int64{3, 1, 2}, 2, 1},
		{[]int64{0, 0, 0}, 0, 0}, // equals take turns
		{[]int64{0, 0, 0}, 1, 1},
		{[]int64{0, 0, 0}, 5, 2},
		{[]int64{1, 0, 0}, 0, 1},
		{[]int64{0, 7, 0}, 1, 2},
	} {
		got, err := p.Pick(&router.Query{Ordinal: tc.ordinal}, fleet(tc.loads...))
		if err != nil || got != tc.want {
			t.Errorf("%v at %d: got %d, %v; want %d", tc.loads, tc.ordinal, got, err, tc.want)
		}
	}
}

func TestPowerOfTwo(t *testing.T) {
	p := mustNew(t, policy.PowerOfTwo)
	for _, tc := range []struct {
		loads []int64
		draws [][2]int
		want  int
	}{
		{[]int64{4}, nil, 0},
		{[]int64{4, 2}, [][2]int{{2, 0}, {1, 0}}, 1},
		{[]int64{2, 4}, [][2]int{{2, 1}, {1, 0}}, 0},
		{[]int64{2, 2, 0}, [][2]int{{3, 0}, {2, 0}}, 0}, // equals: the first drawn; the idle third was not drawn
		{[]int64{2, 2, 0}, [][2]int{{3, 1}, {2, 1}}, 2}, // the second draw skips the first
		{[]int64{9, 8, 7}, [][2]int{{3, 2}, {2, 1}}, 2},
	} {
		got, err := p.Pick(&router.Query{Random: script(t, tc.draws...)}, fleet(tc.loads...))
		if err != nil || got != tc.want {
			t.Errorf("%v: got %d, %v; want %d", tc.loads, got, err, tc.want)
		}
	}
}

// TestDeviceAware: the loads of accelerators come first, then those of processors.
func TestDeviceAware(t *testing.T) {
	for _, tc := range []struct {
		name       string
		ratio      float64
		cuda, cpus []int64
		ordinal    uint64
		want       int
	}{
		{"accelerators alone", 8, []int64{2, 1}, nil, 0, 1},
		{"processors alone", 8, nil, []int64{2, 1}, 0, 1},
		{"all idle", 8, []int64{0, 0}, []int64{0}, 2, 0}, // the turn that is the processor's passes on
		{"one request", 8, []int64{1}, []int64{0}, 0, 1},
		{"processors have their share", 8, []int64{8}, []int64{1}, 0, 0},
		{"accelerators have more than theirs", 8, []int64{9}, []int64{1}, 0, 1},
		{"loads are those of one instance", 8, []int64{9, 9}, []int64{1, 1, 1}, 0, 2},
		{"and so here", 8, []int64{9, 0}, []int64{1, 1, 1}, 0, 1},
		{"another ratio", 2, []int64{5}, []int64{2}, 0, 1},
		{"no ratio is the default", 0, []int64{9}, []int64{1}, 0, 1},
		{"the least loaded processor", 8, []int64{99}, []int64{3, 1, 2}, 0, 2},
	} {
		candidates := fleet(append(append([]int64{}, tc.cuda...), tc.cpus...)...)
		for i := range tc.cpus {
			candidates[len(tc.cuda)+i].Instance.DeviceType = worker.DeviceCPU
		}
		got, err := policy.NewDeviceAware(tc.ratio).Pick(&router.Query{Ordinal: tc.ordinal}, candidates)
		if err != nil || got != tc.want {
			t.Errorf("%s: got %d, %v; want %d", tc.name, got, err, tc.want)
		}
	}
}

// TestPreferred: what a request prefers weighs a load, and is all that counts where loads don't.
func TestPreferred(t *testing.T) {
	for _, tc := range []struct {
		mode    string
		loads   []int64
		factors []float64
		ordinal uint64
		want    int
	}{
		{policy.RoundRobin, []int64{0, 0, 0}, []float64{1, 0.5, 0.5}, 0, 1},
		{policy.RoundRobin, []int64{0, 0, 0}, []float64{1, 0.5, 0.5}, 1, 2},
		{policy.RoundRobin, []int64{0, 0, 0}, []float64{0, 1, 1}, 2, 2}, // 0 is 1
		{policy.RoundRobin, []int64{0, 0, 0}, []float64{1, 2, 2}, 7, 0},
		{policy.Random, []int64{0, 0, 0}, []float64{1, 0.5, 0.5}, 1, 2},
		{policy.LeastLoad, []int64{0, 0}, []float64{1, 0.5}, 0, 1},
		{policy.LeastLoad, []int64{1, 2}, []float64{1, 0.5}, 0, 1},
		{policy.LeastLoad, []int64{0, 2}, []float64{1, 0.5}, 0, 0}, // the preferred one is too loaded
		{policy.PowerOfTwo, []int64{0, 0}, []float64{1, 0.5}, 0, 1},
		{policy.DeviceAware, []int64{0, 0}, []float64{1, 0.5}, 0, 1},
	} {
		candidates := fleet(tc.loads...)
		for i, f := range tc.factors {
			candidates[i].Factor = f
		}
		draw := func(n int) int { return int(tc.ordinal) % n }
		got, err := mustNew(t, tc.mode).Pick(&router.Query{Ordinal: tc.ordinal, Random: draw}, candidates)
		if err != nil || got != tc.want {
			t.Errorf("%s of %v with %v at %d: got %d, %v; want %d", tc.mode, tc.loads, tc.factors, tc.ordinal, got, err, tc.want)
		}
	}
}

func TestDirect(t *testing.T) {
	p := mustNew(t, policy.Direct)
	pin := func(id uint64) *uint64 { return &id }
	for _, tc := range []struct {
		name string
		pin  *uint64
		want int
		kind fault.Kind
	}{
		{"named", pin(101), 1, 0},
		{"gone", pin(999), 0, fault.Unavailable},
		{"unnamed", nil, 0, fault.BadRequest},
	} {
		got, err := p.Pick(&router.Query{Pin: tc.pin}, fleet(0, 0))
		if tc.kind == 0 && (err != nil || got != tc.want) {
			t.Errorf("%s: got %d, %v", tc.name, got, err)
		}
		if tc.kind != 0 && (err == nil || fault.KindOf(err) != tc.kind) {
			t.Errorf("%s: got %v, want kind %v", tc.name, err, tc.kind)
		}
	}
}

// Every policy refuses an empty field instead of dividing by zero, and always returns an index inside it.
func TestAllModes(t *testing.T) {
	for _, mode := range policy.Modes() {
		p := mustNew(t, mode)
		if _, err := p.Pick(&router.Query{}, nil); fault.KindOf(err) != fault.Unavailable {
			t.Errorf("%s without candidates: %v", mode, err)
		}
		for n := 1; n < 6; n++ {
			for ordinal := range uint64(20) {
				id := 100 + ordinal%uint64(n)
				draw := func(bound int) int { return int(ordinal) % bound }
				got, err := p.Pick(&router.Query{Ordinal: ordinal, Pin: &id, Random: draw}, fleet(make([]int64, n)...))
				if err != nil || got < 0 || got >= n {
					t.Errorf("%s of %d: %d, %v", mode, n, got, err)
				}
			}
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for mode, want := range map[string]string{
		"kv":         "unknown router mode",
		"roundrobin": "unknown router mode",
	} {
		_, err := policy.New(mode)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), fmt.Sprintf("%q", mode)) {
			t.Errorf("%s: %v", mode, err)
		}
		for _, m := range policy.Modes() {
			if !strings.Contains(err.Error(), m) {
				t.Errorf("%s: %v doesn't name %s", mode, err, m)
			}
		}
	}
}
