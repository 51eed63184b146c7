package executor

import (
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/portico-llm/portico/internal/prepost"
)

type idle struct{}

func (i idle) NewEncoder() (Encoder, error)                 { return i, nil }
func (idle) Encode(string, bool) ([]prepost.TokenID, error) { return nil, nil }
func (idle) Close() error                                   { return nil }

// A tokenizer that is closed and bound again has a new executor under the same key: what is left of the old one must
// not take it away.
func TestCleanupDeletesOnlyItsOwnEntry(t *testing.T) {
	r := NewRegistry(Options{})
	defer r.Close()
	tokenizer := new([16]byte)
	old, _, err := Bind(r, tokenizer, idle{})
	if err != nil {
		t.Fatal(err)
	}
	old.Close()
	now, _, err := Bind(r, tokenizer, idle{})
	if err != nil {
		t.Fatal(err)
	}
	collect(old)
	old.Close()
	if got := Find(r, tokenizer); got != now {
		t.Errorf("the entry is %p, want %p", got, now)
	}
	if _, err := now.Encode(t.Context(), "x", false); err != nil {
		t.Error(err)
	}
	runtime.KeepAlive(tokenizer)
}

// slowClose takes as long to free as the test lets it.
type slowClose struct {
	idle
	wait chan struct{}
}

func (s slowClose) Close() error { <-s.wait; return nil }

// A cleanup that waited would hold up every other cleanup of the process.
func TestCleanupNeverBlocks(t *testing.T) {
	r := NewRegistry(Options{})
	tokenizer := new([16]byte)
	s := slowClose{wait: make(chan struct{})}
	e, _, err := Bind(r, tokenizer, s)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { collect(e); close(done) })
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		t.Error("collect waits for the memory to be freed")
	}
	close(s.wait)
	wg.Wait()
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	runtime.KeepAlive(tokenizer)
}

func TestHandleFreesOnceAfterTheLast(t *testing.T) {
	frees := 0
	h := NewHandle(func() error { frees++; return errors.New("said by free") })
	if !h.Acquire() {
		t.Fatal("Acquire of a live handle")
	}
	if err := h.Release(); err != nil || frees != 0 {
		t.Fatalf("Release = %v with a reference left, %d frees", err, frees)
	}
	if err := h.Release(); err == nil || frees != 1 {
		t.Fatalf("the last Release = %v, %d frees", err, frees)
	}
	if h.Acquire() {
		t.Error("Acquire after the free")
	}
}

func TestHandleManyHolders(t *testing.T) {
	var frees int
	h := NewHandle(func() error { frees++; return nil })
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				if h.Acquire() {
					_ = h.Release()
				}
			}
		})
	}
	_ = h.Release()
	wg.Wait()
	if frees != 1 {
		t.Errorf("%d frees", frees)
	}
}

func TestInvariants(t *testing.T) {
	panics := func(f func()) (did bool) {
		defer func() { did = recover() != nil }()
		f()
		return false
	}
	h := NewHandle(func() error { return nil })
	_ = h.Release()
	if got := panics(func() { _ = h.Release() }); got != invariants {
		t.Errorf("double release: panic %v", got)
	}
	if got := panics(h.use); got != invariants {
		t.Errorf("use after free: panic %v", got)
	}
	var p jobPool
	j := p.get("x", false)
	p.put(j)
	if got := panics(func() { p.put(j) }); got != invariants {
		t.Errorf("job recycled twice: panic %v", got)
	}
}
