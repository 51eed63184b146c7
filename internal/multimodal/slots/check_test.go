//go:build invariants

package slots_test

import (
	"testing"

	"github.com/portico-llm/portico/internal/multimodal/slots"
)

// panics reports whether f does.
func panics(f func()) (did bool) {
	defer func() { did = recover() != nil }()
	f()
	return false
}

// TestChecks: a write to a free slot and a second release show.
func TestChecks(t *testing.T) {
	p := slots.New(slots.Options{Registrar: &registrar{}})
	s := take(t, p, 1000)[0]
	mem := s.Bytes()
	s.Return()
	if mem[0] != 0xDB || mem[999] != 0xDB {
		t.Error("a free slot still has its bytes")
	}
	if !panics(s.Return) {
		t.Error("a second release passes")
	}
	mem[500]++
	if !panics(func() { _, _ = p.Take(t.Context(), []int{10}) }) {
		t.Error("a write to a free slot passes")
	}
}
