package slots_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/internal/multimodal/slots"
)

// registrar counts what is registered.
type registrar struct {
	mu    sync.Mutex
	there map[uintptr]int
	total int
	fail  error // of the next registrations
}

func (r *registrar) Register(mem []byte) (func() error, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail != nil {
		return nil, r.fail
	}
	at := uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
	if r.there == nil {
		r.there = map[uintptr]int{}
	}
	r.there[at] = len(mem)
	r.total++
	return func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.there[at] == 0 {
			return errors.New("not registered")
		}
		delete(r.there, at)
		return nil
	}, nil
}

func newPool(t testing.TB, opts slots.Options) (*slots.Pool, *registrar) {
	r := &registrar{}
	opts.Registrar = r
	p := slots.New(opts)
	t.Cleanup(func() {
		p.Close()
		if st := p.Stats(); st.Taken == 0 && len(r.there) != 0 {
			t.Errorf("still registered: %v", r.there)
		}
	})
	return p, r
}

// take takes slots that must be there.
func take(t testing.TB, p *slots.Pool, sizes ...int) []*slots.Slot {
	t.Helper()
	out, err := p.Take(t.Context(), sizes)
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range out {
		if len(s.Bytes()) != sizes[i] || cap(s.Bytes()) != sizes[i] {
			t.Fatalf("got %d bytes, want %d", len(s.Bytes()), sizes[i])
		}
		s.Bytes()[0], s.Bytes()[sizes[i]-1] = byte(i+1), byte(i+1)
	}
	return out
}

// TestReuse: what is returned is used again, without being registered again, by whatever fits its class.
func TestReuse(t *testing.T) {
	p, r := newPool(t, slots.Options{})
	all := take(t, p, 100_000, 1, 2<<20)
	at := unsafe.SliceData(all[0].Bytes())
	for _, s := range all {
		s.Return()
	}
	again := take(t, p, 131072)
	if unsafe.SliceData(again[0].Bytes()) != at || r.total != 3 {
		t.Errorf("a free slot isn't used: %d registrations", r.total)
	}
	want := slots.Stats{Bytes: 128<<10 + 64<<10 + 2<<20, Free: 2, Taken: 1}
	if diff := cmp.Diff(want, p.Stats()); diff != "" {
		t.Error(diff)
	}
	again[0].Return()
	p.Trim(time.Minute)
	if st := p.Stats(); st.Free != 3 {
		t.Errorf("slots that were just used are trimmed: %+v", st)
	}
	p.Trim(0)
	if diff := cmp.Diff(slots.Stats{}, p.Stats()); diff != "" {
		t.Error(diff)
	}
}

// TestRetired: the memory reads as zeros at the same address, can't be had again, and takes no room.
func TestRetired(t *testing.T) {
	p, _ := newPool(t, slots.Options{Bytes: 1 << 20})
	seen := map[*byte]bool{}
	for range 50 {
		s := take(t, p, 1<<20)[0]
		mem := s.Bytes()
		if seen[&mem[0]] {
			t.Fatal("a retired address is used again")
		}
		seen[&mem[0]] = true
		if err := s.Retire(); err != nil {
			t.Fatal(err)
		}
		if mem[0] != 0 || mem[len(mem)-1] != 0 {
			t.Fatal("retired memory still has its bytes")
		}
	}
	for at := range seen {
		if *at != 0 {
			t.Error("retired memory has been written to")
		}
	}
	if st := p.Stats(); st.Bytes != 0 {
		t.Errorf("got %+v", st)
	}
}

// TestRetiredMappings: giving up slot after slot doesn't use up the mappings that a process may have.
func TestRetiredMappings(t *testing.T) {
	p, _ := newPool(t, slots.Options{})
	before := mappings(t)
	for range 2000 {
		if err := take(t, p, 1)[0].Retire(); err != nil {
			t.Fatal(err)
		}
	}
	if n := mappings(t) - before; n > 200 {
		t.Errorf("%d more mappings after 2000 slots were given up", n)
	}
}

func mappings(t *testing.T) int {
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(text), "\n")
}

// TestRoom: free slots of other classes make way; taken ones are waited for, and the wait has an end.
func TestRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := newPool(t, slots.Options{Bytes: 4 << 20, Wait: time.Second})
		if _, err := p.Take(t.Context(), []int{3 << 20, 1}); !errors.Is(err, slots.ErrTooLarge) {
			t.Errorf("got %v", err)
		}
		for _, s := range take(t, p, 1<<20, 1<<20, 2<<20) {
			s.Return()
		}
		big := take(t, p, 4<<20)
		if len(r.there) != 1 {
			t.Errorf("%d slots are registered, want the one that has taken the others' room", len(r.there))
		}
		begin := time.Now()
		if _, err := p.Take(t.Context(), []int{1}); !errors.Is(err, slots.ErrFull) || time.Since(begin) != time.Second {
			t.Errorf("got %v after %v", err, time.Since(begin))
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(100*time.Millisecond, cancel)
		begin = time.Now()
		if _, err := p.Take(ctx, []int{1}); !errors.Is(err, context.Canceled) || time.Since(begin) != 100*time.Millisecond {
			t.Errorf("got %v after %v", err, time.Since(begin))
		}
		time.AfterFunc(500*time.Millisecond, big[0].Return)
		begin = time.Now()
		small := take(t, p, 1)
		if time.Since(begin) != 500*time.Millisecond {
			t.Errorf("waited %v", time.Since(begin))
		}
		time.AfterFunc(100*time.Millisecond, func() { _ = small[0].Retire() })
		take(t, p, 4<<20)[0].Return()
	})
}

// TestTurns: a request that needs much isn't passed for ever by those that need little.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := newPool(t, slots.Options{Bytes: 128 << 10, Wait: time.Minute})
		held := take(t, p, 1, 1)
		var order []string
		var wg sync.WaitGroup
		queue := func(name string, sizes ...int) {
			wg.Go(func() {
				got := take(t, p, sizes...)
				order = append(order, name) // one at a time: each waits for the one before
				for _, s := range got {
					s.Return()
				}
			})
			synctest.Wait()
		}
		queue("large", 1, 1)
		queue("small", 1)
		held[0].Return()
		synctest.Wait()
		if len(order) != 0 {
			t.Errorf("got %v while the first of the line waits", order)
		}
		held[1].Return()
		wg.Wait()
		if diff := cmp.Diff([]string{"large", "small"}, order); diff != "" {
			t.Error(diff)
		}
	})
}

// TestFailures: a registration that fails leaves nothing taken.
func TestFailures(t *testing.T) {
	p, r := newPool(t, slots.Options{})
	take(t, p, 1)[0].Return()
	r.fail = errors.New("no")
	if _, err := p.Take(t.Context(), []int{1, 1 << 20}); !errors.Is(err, r.fail) {
		t.Errorf("got %v", err)
	}
	if diff := cmp.Diff(slots.Stats{Bytes: 64 << 10, Free: 1}, p.Stats()); diff != "" {
		t.Error(diff)
	}
}

// TestClose: waits end, free slots go, and what is given up later goes then.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := newPool(t, slots.Options{Bytes: 128 << 10, Wait: time.Minute})
		held := take(t, p, 1, 1)
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if _, err := p.Take(t.Context(), []int{1}); !errors.Is(err, slots.ErrClosed) {
					t.Errorf("got %v", err)
				}
			})
		}
		synctest.Wait()
		p.Close()
		wg.Wait()
		held[0].Return()
		if err := held[1].Retire(); err != nil {
			t.Error(err)
		}
		if st := p.Stats(); st != (slots.Stats{}) || len(r.there) != 0 {
			t.Errorf("got %+v with %v registered", st, r.there)
		}
		if _, err := p.Take(t.Context(), []int{1}); !errors.Is(err, slots.ErrClosed) {
			t.Errorf("got %v", err)
		}
	})
}

// TestMany: requests of all sizes, each in memory that nobody else has, within the bound.
func TestMany(t *testing.T) {
	const bound = 2 << 20
	p, _ := newPool(t, slots.Options{Bytes: bound, Wait: 10 * time.Second})
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(worker)))
			for range 100 {
				sizes := make([]int, 1+random.IntN(3))
				for i := range sizes {
					sizes[i] = 1 + random.IntN(256<<10)
				}
				got, err := p.Take(t.Context(), sizes)
				if err != nil {
					t.Error(err)
					return
				}
				mark := "worker " + strconv.Itoa(worker)
				for _, s := range got {
					copy(s.Bytes(), mark)
				}
				if st := p.Stats(); st.Bytes > bound {
					t.Errorf("%d bytes", st.Bytes)
				}
				for _, s := range got {
					if n := min(len(mark), len(s.Bytes())); string(s.Bytes()[:n]) != mark[:n] {
						t.Errorf("%s finds %q", mark, s.Bytes()[:n])
					}
					if random.IntN(4) == 0 {
						_ = s.Retire()
					} else {
						s.Return()
					}
				}
			}
		})
	}
	wg.Wait()
	if st := p.Stats(); st.Taken != 0 {
		t.Errorf("got %+v", st)
	}
}
