package affinity_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

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
	table.Bind("a", nil, 1)
	want(t, "bound", table, "a", 1)
	table.Bind("a", nil, 2)
	want(t, "the first one decides", table, "a", 1)
	table.Bind("a", ptr[uint64](7), 2)
	want(t, "somebody else has bound it anew", table, "a", 1)
	table.Bind("a", ptr[uint64](1), 2)
	want(t, "bound anew", table, "a", 2)
	table.Bind("b", ptr[uint64](9), 3)
	want(t, "forgotten meanwhile", table, "b", 3)
	want(t, "each by itself", table, "a", 2)
	long := strings.Repeat("x", 1<<16)
	table.Bind(long, nil, 4)
	want(t, "ids of any length", table, long, 4)
}

func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := affinity.New(affinity.Options{TTL: time.Minute})
		table.Bind("used", nil, 1)
		table.Bind("bound", nil, 1)
		table.Bind("idle", nil, 1)
		for range 3 {
			time.Sleep(59 * time.Second)
			want(t, "used", table, "used", 1)
			table.Bind("bound", nil, 1)
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
		table.Bind("kept", nil, 9)
		table.Bind(fmt.Sprint(i), nil, 1)
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
					table.Bind(id, &got, to)
					model[id] = to
				} else if !ok {
					table.Bind(id, nil, to)
					model[id] = to
				}
			}
		})
	}
	wg.Wait()
}
