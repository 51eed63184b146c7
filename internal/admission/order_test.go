package admission

import (
	"slices"
	"testing"
	"time"
)

// TestRank lets five requests queue in the given order and names the order in which they go.
func TestRank(t *testing.T) {
	type r struct {
		came     time.Duration
		tokens   int
		priority int32
		strict   uint32
	}
	for _, tc := range []struct {
		name  string
		order Order
		in    []r
		want  []int
	}{
		{"as they come", FCFS, []r{{came: 1}, {came: 2, tokens: 1}, {came: 3}}, []int{0, 1, 2}},
		{"equals as they come", FCFS, []r{{}, {}, {}}, []int{0, 1, 2}},
		{
			"a priority is a head start in seconds", FCFS,
			[]r{{came: time.Second}, {came: 2 * time.Second}, {came: 4 * time.Second, priority: 2}, {came: 5 * time.Second, priority: 9}},
			[]int{3, 0, 1, 2},
		},
		{"or a handicap", FCFS, []r{{came: 1, priority: -2}, {came: time.Second}, {came: 3 * time.Second}}, []int{1, 0, 2}},
		{"strict above all", FCFS, []r{{came: 1, priority: 100}, {came: 2, strict: 1}, {came: 3, strict: 7}}, []int{2, 1, 0}},
		{"the shortest first", WSPT, []r{{tokens: 300}, {tokens: 100}, {tokens: 200}}, []int{1, 2, 0}},
		{"weighed by priority", WSPT, []r{{tokens: 300, priority: 4}, {tokens: 100}, {tokens: 10, priority: -19}}, []int{0, 1, 2}},
		{"unknown lengths", WSPT, []r{{tokens: 2}, {tokens: 0}, {tokens: -1}}, []int{1, 2, 0}},
		{"strict above all, too", WSPT, []r{{tokens: 1}, {tokens: 1000, strict: 1}}, []int{1, 0}},
	} {
		line := make([]int, len(tc.in))
		ranks := make([]rank, len(tc.in))
		for i, q := range tc.in {
			line[i] = i
			ranks[i] = rankOf(tc.order, &Request{Tokens: q.tokens, Priority: q.priority, Strict: q.strict}, q.came)
		}
		slices.SortStableFunc(line, func(a, b int) int {
			switch {
			case ranks[a].before(ranks[b]):
				return -1
			case ranks[b].before(ranks[a]):
				return 1
			}
			return 0
		})
		if !slices.Equal(line, tc.want) {
			t.Errorf("%s: %v, want %v (%v)", tc.name, line, tc.want, ranks)
		}
	}
}

func TestParseOrder(t *testing.T) {
	for name, want := range map[string]Order{"": FCFS, "fcfs": FCFS, "wspt": WSPT} {
		if got, err := ParseOrder(name); err != nil || got != want {
			t.Errorf("%q: %v, %v", name, got, err)
		}
	}
	if _, err := ParseOrder("lifo"); err == nil {
		t.Error("lifo is known")
	}
}

func TestPatience(t *testing.T) {
	for _, tc := range []struct {
		waiting int64
		limit   int
		hold    time.Duration
		want    time.Duration
	}{
		{100, 0, time.Hour, time.Second}, // places aren't counted
		{0, 4, time.Minute, time.Second}, // never less
		{40, 4, time.Second, 10 * time.Second},
		{40, 4, 0, time.Second},              // unknown
		{1 << 40, 1, time.Hour, time.Minute}, // never more
	} {
		if got := patience(tc.waiting, tc.limit, tc.hold); got != tc.want {
			t.Errorf("%d with %d at a time for %v: %v, want %v", tc.waiting, tc.limit, tc.hold, got, tc.want)
		}
	}
}
