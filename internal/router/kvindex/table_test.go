package kvindex

import (
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestTable compares a table with a map, of keys that often belong to the same line, key 0 among them.
func TestTable(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for _, most := range []uint64{4, 60, 3000} {
		var got table
		want := make(map[uint64]uint64)
		for range 20000 {
			key, value := r.Uint64N(most), 1+r.Uint64N(3)
			if r.IntN(3) == 0 {
				if old := got.del(key); old != want[key] {
					t.Fatalf("del(%d) = %d, want %d", key, old, want[key])
				}
				delete(want, key)
			} else {
				if old := got.set(key, value); old != want[key] {
					t.Fatalf("set(%d) = %d, want %d", key, old, want[key])
				}
				want[key] = value
			}
			if r.IntN(2000) == 0 {
				got.keep(func(_, value uint64) bool { return value != 1 })
				maps.DeleteFunc(want, func(_, value uint64) bool { return value == 1 })
			}
			checkTable(t, &got, want)
		}
	}
}

// checkTable looks for some keys, and sometimes goes through the whole table.
func checkTable(t *testing.T, got *table, want map[uint64]uint64) {
	t.Helper()
	if got.n != len(want) {
		t.Fatalf("%d keys, want %d", got.n, len(want))
	}
	if got.n%64 != 0 {
		return
	}
	all, room := make(map[uint64]uint64), 0
	for p := range got.parts {
		room += len(got.parts[p]) * lineSize
		for b := range got.parts[p] {
			l := &got.parts[p][b]
			for i, e := range l {
				if e.value == 0 {
					continue
				}
				all[e.key] = e.value
				if i > 0 && l[i-1].value == 0 {
					t.Fatalf("a gap in line %d of part %d: %v", b, p, *l)
				}
				if got.get(e.key) != e.value {
					t.Fatalf("key %d isn't found where it lies", e.key)
				}
			}
		}
	}
	if diff := cmp.Diff(want, all); diff != "" {
		t.Fatal(diff)
	}
	if got.room != room {
		t.Fatalf("room for %d, counted %d", room, got.room)
	}
}

// TestTableRing fills one line of a part beyond its end and takes the keys out in every order.
func TestTableRing(t *testing.T) {
	var keys []uint64
	for k := uint64(0); len(keys) < 13; k++ { // all of the last line of part 0, so that they go on at its beginning
		if p, f := home(k); p == 0 && slotOf(f, 4) == 3 {
			keys = append(keys, k)
		}
	}
	r := rand.New(rand.NewPCG(1, 1))
	for range 2000 {
		var x table
		x.parts[0] = make([]line, 4) // 13 keys are as many as it takes
		for _, k := range keys {
			x.set(k, k+1)
		}
		if len(x.parts[0]) != 4 {
			t.Fatal("the part has grown")
		}
		for i, at := range r.Perm(len(keys)) {
			if old := x.del(keys[at]); old != keys[at]+1 {
				t.Fatalf("del(%d) = %d", keys[at], old)
			}
			left := 0
			for _, k := range keys {
				if x.get(k) != 0 {
					left++
				}
			}
			if left != len(keys)-i-1 {
				t.Fatalf("%d keys are left of %d", left, len(keys)-i-1)
			}
		}
	}
}
