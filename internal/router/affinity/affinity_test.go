package affinity_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/router/affinity"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func ptr[T any](v T) *T { return &v }

// want looks for a session; 0 is none.
func want(t *testing.T, what string, table *affinity.Table, id string, instance uint64) {
	t.Helper()
	if got, ok := table.Find(id); got != instance || ok != (instance != 0) {
		t.Errorf("%s: %s is bound to %d, %v; want %d", what, id, got, ok, instance)
	}
}

func TestBind(t *testing.T) {
	table := affinity.New(affinity.Options{})
	want(t, "at first", table, "a", 0)
	table.Bind("a", nil, 1, nil)
	want(t, "bound", table, "a", 1)
	table.Bind("a", nil, 2, nil)
	want(t, "the first one decides", table, "a", 1)
	table.Bind("a", ptr[uint64](7), 2, nil)
	want(t, "somebody else has bound it anew", table, "a", 1)
	table.Bind("a", ptr[uint64](1), 2, nil)
	want(t, "bound anew", table, "a", 2)
	table.Bind("b", ptr[uint64](9), 3, nil)
	want(t, "forgotten meanwhile", table, "b", 3)
	want(t, "each by itself", table, "a", 2)
	long := strings.Repeat("x", 1<<16)
	table.Bind(long, nil, 4, nil)
	want(t, "ids of any length", table, long, 4)
}

// TestEnd: a session that has ended isn't bound, and begins anew.
func TestEnd(t *testing.T) {
	table := affinity.New(affinity.Options{})
	table.Bind("a", nil, 1, nil)
	table.End("a")
	table.End("never seen")
	want(t, "ended", table, "a", 0)
	want(t, "ended", table, "never seen", 0)
	if n := table.Len(); n != 0 {
		t.Errorf("%d sessions", n)
	}
	table.Bind("a", nil, 2, nil)
	want(t, "begun anew", table, "a", 2)
}

// told collects announcements.
type told struct {
	mu   sync.Mutex
	list []worker.SessionBinding
}

func (l *told) add(b *worker.SessionBinding) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, *b)
}

// take returns what was announced since the last call.
func (l *told) take() []worker.SessionBinding {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() { l.list = nil }()
	return l.list
}

// TestReplicasAgree: whatever tables are told, and in which order, the latest change holds at all of them.
func TestReplicasAgree(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 7))
		var news [3]told
		var tables [3]*affinity.Table
		for i := range tables {
			tables[i] = affinity.New(affinity.Options{Announce: news[i].add})
		}
		var all []worker.SessionBinding
		for range 200 {
			at, id := random.IntN(3), fmt.Sprint(random.IntN(10))
			switch old, ok := tables[at].Find(id); {
			case random.IntN(5) == 0:
				tables[at].End(id)
			case !ok:
				tables[at].Bind(id, nil, 1+random.Uint64N(5), nil)
			case random.IntN(2) == 0:
				tables[at].Bind(id, &old, 1+random.Uint64N(5), new(uint32(3)))
			}
			fresh := news[at].take()
			all = append(all, fresh...)
			if random.IntN(3) == 0 { // some are heard at once
				for i := range fresh {
					tables[random.IntN(3)].Apply(&fresh[i])
				}
			}
		}
		for _, table := range tables { // and all of them sooner or later, in any order and some of them again
			for _, i := range append(random.Perm(len(all)), random.Perm(len(all))...) {
				table.Apply(&all[i])
			}
		}
		for i := range 10 {
			id := fmt.Sprint(i)
			first, ok := tables[0].Find(id)
			for _, other := range tables[1:] {
				if got, bound := other.Find(id); got != first || bound != ok {
					t.Fatalf("seed %d: session %s is bound to %d, %v here and %d, %v there", seed, id, first, ok, got, bound)
				}
			}
		}
	}
}

// TestReminders: uses are told now and then, and keep a session alive elsewhere.
func TestReminders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var here, there told
		one := affinity.New(affinity.Options{TTL: 40 * time.Second, Announce: here.add})
		two := affinity.New(affinity.Options{TTL: 40 * time.Second, Announce: there.add})
		one.Bind("a", nil, 1, nil)
		one.Bind(strings.Repeat("x", 10_000), nil, 2, nil) // nobody is told of a name of that length
		first := here.take()
		if len(first) != 1 || first[0].Session != "a" || first[0].WorkerID != 1 {
			t.Fatalf("told %+v", first)
		}
		two.Apply(&first[0])
		want(t, "heard", two, "a", 1)
		if n := len(there.take()); n != 0 {
			t.Errorf("%d words of what was just heard", n)
		}
		count := 0
		for range 100 { // one by one seconds, at two only
			time.Sleep(time.Second)
			want(t, "in use", two, "a", 1)
			for _, b := range there.take() {
				if !cmp.Equal(b, first[0]) {
					t.Errorf("told %+v", b)
				}
				one.Apply(&b)
				count++
			}
		}
		if count < 10 || count > 21 {
			t.Errorf("told %d times", count)
		}
		want(t, "in use elsewhere", one, "a", 1)
		time.Sleep(41 * time.Second)
		want(t, "idle", one, "a", 0)
	})
}

// TestApplyNonsense: no number that another frontend claims keeps this one from changing its bindings.
func TestApplyNonsense(t *testing.T) {
	table := affinity.New(affinity.Options{})
	table.Apply(&worker.SessionBinding{Session: "a", WorkerID: 1, Sequence: math.MaxUint64, Writer: 5})
	want(t, "an impossible number", table, "a", 0)
	table.Apply(&worker.SessionBinding{Session: "a", WorkerID: 1, Sequence: 1<<63 - 1, Writer: math.MaxUint64})
	want(t, "the largest", table, "a", 1)
	table.Bind("a", ptr[uint64](1), 2, nil)
	want(t, "changed all the same", table, "a", 2)
	table.Apply(&worker.SessionBinding{WorkerID: 1, Sequence: 1 << 62})
	if n := table.Len(); n != 1 {
		t.Errorf("%d sessions", n)
	}
}

func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := affinity.New(affinity.Options{TTL: time.Minute})
		table.Bind("used", nil, 1, nil)
		table.Bind("bound", nil, 1, nil)
		table.Bind("idle", nil, 1, nil)
		for range 3 {
			time.Sleep(59 * time.Second)
			want(t, "used", table, "used", 1)
			table.Bind("bound", nil, 1, nil)
		}
		want(t, "idle", table, "idle", 0)
		time.Sleep(time.Minute)
		want(t, "all idle", table, "used", 0)
		want(t, "all idle", table, "bound", 0)
	})
}

// TestMax: of too many, those idle for longest are forgotten.
func TestMax(t *testing.T) {
	const most = 160
	table := affinity.New(affinity.Options{Max: most})
	for i := range 20 * most {
		table.Bind("kept", nil, 9, nil)
		table.Bind(fmt.Sprint(i), nil, 1, nil)
	}
	if n := table.Len(); n > most {
		t.Errorf("%d sessions", n)
	}
	want(t, "in use", table, "kept", 9)
	want(t, "long ago", table, "0", 0)
}

func TestParseMode(t *testing.T) {
	for name, hard := range map[string]bool{"": true, "hard": true, "soft": false} {
		mode, err := affinity.ParseMode(name)
		if err != nil || affinity.New(affinity.Options{Mode: mode}).Hard() != hard {
			t.Errorf("%q: %v, %v", name, mode, err)
		}
	}
	if _, err := affinity.ParseMode("firm"); err == nil {
		t.Error("firm is known")
	}
}

// TestAgainstModel compares random histories with a plain map; many run at a time for the race detector.
func TestAgainstModel(t *testing.T) {
	table := affinity.New(affinity.Options{})
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(g)))
			model := map[string]uint64{}
			for range 5000 {
				id := fmt.Sprint(g, "-", random.IntN(50))
				got, ok := table.Find(id)
				if was, bound := model[id]; got != was || ok != bound {
					t.Errorf("%s: %d, %v; want %d, %v", id, got, ok, was, bound)
					return
				}
				to := 1 + random.Uint64N(5)
				if ok && random.IntN(2) == 0 {
					table.Bind(id, &got, to, nil)
					model[id] = to
				} else if !ok {
					table.Bind(id, nil, to, nil)
					model[id] = to
				}
			}
		})
	}
	wg.Wait()
}
