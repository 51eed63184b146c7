package kvindex_test

import (
	"encoding/json"
	"errors"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/internal/router/kvindex"
	"github.com/portico-llm/portico/internal/testkit"
)

// u64 is a number that the vectors write as a decimal string.
type u64 uint64

func (u *u64) UnmarshalJSON(b []byte) error {
	v, err := strconv.ParseUint(string(b[1:len(b)-1]), 10, 64)
	*u = u64(v)
	return err
}

func plain(v []u64) []uint64 {
	out := make([]uint64, len(v))
	for i, x := range v {
		out[i] = uint64(x)
	}
	return out
}

type history struct {
	ID     int
	Class  string
	Events []struct {
		Op            string
		W             u64
		DP            uint32
		Parent        *u64
		Block, Tokens []u64
		OK            bool
	}
	Queries []struct {
		Q                      []u64
		Scores, Cascade, Plain *[][3]json.RawMessage
	}
}

// scores turns [[worker, rank, blocks], …] into a map.
func scores(t *testing.T, v [][3]json.RawMessage) map[kvindex.Worker]uint32 {
	t.Helper()
	out := make(map[kvindex.Worker]uint32)
	for _, s := range v {
		var id u64
		var rank, n uint32
		if err := errors.Join(json.Unmarshal(s[0], &id), json.Unmarshal(s[1], &rank), json.Unmarshal(s[2], &n)); err != nil {
			t.Fatal(err)
		}
		out[kvindex.Worker{ID: uint64(id), Rank: rank}] = n
	}
	return out
}

// overlaps asks the index about one prompt.
func overlaps(x *kvindex.Index, q []uint64) map[kvindex.Worker]uint32 {
	v := x.View()
	out := make([]uint32, v.Slots())
	depth := x.Match(q, out)
	got := make(map[kvindex.Worker]uint32)
	for slot, n := range out {
		if w, ok := v.Worker(slot); ok && n > 0 {
			got[w] = n
		}
		if int(n) > depth {
			got[kvindex.Worker{ID: 1 << 63}] = n // deeper than the deepest: never right
		}
	}
	return got
}

// TestHistories: the index equals the plain set model; where a history removes blocks from the middle, it equals the
// variant in which what lies behind a removed block goes too.
func TestHistories(t *testing.T) {
	histories, queries := 0, make(map[string]int)
	for h := range testkit.Records[history](t, "../../../tests/golden/kv/index_histories.jsonl.gz") {
		histories++
		x := replay(t, h)
		for i, q := range h.Queries {
			queries[h.Class]++
			want := q.Scores
			switch {
			case h.Class == "worker-hashes" && q.Plain != nil:
				want = q.Plain
			case h.Class == "arbitrary" && q.Cascade != nil:
				want = q.Cascade
			}
			if d := cmp.Diff(scores(t, *want), overlaps(x, plain(q.Q))); d != "" {
				t.Errorf("history %d (%s), query %d: %s", h.ID, h.Class, i, d)
			}
		}
	}
	if histories != 364 {
		t.Errorf("%d histories", histories)
	}
	if d := cmp.Diff(map[string]int{"engine": 2000, "engine-long": 240, "arbitrary": 1000, "worker-hashes": 400}, queries); d != "" {
		t.Error(d)
	}
}

// replay applies a history. The verdicts on stores must be the recorded ones where the recording can be right.
func replay(t *testing.T, h *history) *kvindex.Index {
	t.Helper()
	x := newIndex(t, kvindex.Options{})
	for i, e := range h.Events {
		w := kvindex.Worker{ID: uint64(e.W), Rank: e.DP}
		switch e.Op {
		case "stored":
			blocks := make([]kvindex.Block, len(e.Block))
			for i := range blocks {
				blocks[i] = kvindex.Block{Hash: uint64(e.Block[i]), Local: uint64(e.Tokens[i])}
			}
			err := x.Stored(kvindex.Device, w, (*uint64)(e.Parent), blocks)
			if (h.Class == "engine" || h.Class == "engine-long") && (err == nil) != e.OK {
				t.Errorf("history %d, event %d: %v, recorded as %t", h.ID, i, err, e.OK)
			}
		case "removed":
			x.Removed(kvindex.Device, w, plain(e.Block))
		case "cleared":
			x.Cleared(w)
		case "remove_rank":
			x.RemoveRank(w)
		case "remove_worker":
			x.RemoveWorker(uint64(e.W))
		default:
			t.Fatalf("history %d: unknown event %q", h.ID, e.Op)
		}
	}
	return x
}

func newIndex(t testing.TB, o kvindex.Options) *kvindex.Index {
	t.Helper()
	x, err := kvindex.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	return x
}
