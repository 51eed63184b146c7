package shm

import (
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// staging is the memory that segments are written to before they become files. It is used again: a page's first use costs
// more than writing to it, and pages of files in shared memory are new each time. It is outside Go's heap, so that what is
// given back is gone at once. Safe for concurrent use.
type staging struct {
	mu     sync.Mutex
	idle   [][]byte // the longest unused first
	bytes  int      // of idle
	closed bool     // nothing is kept any more
}

const (
	idleBytes = 64 << 20 // bound of the memory that waits to be used again
	hugePage  = 2 << 20
)

// take returns at least n bytes, whatever they hold; nil for none.
func (s *staging) take(n int) ([]byte, error) {
	if n == 0 {
		return nil, nil
	}
	if mem := s.reuse(n); mem != nil {
		return mem, nil
	}
	unit := 64 << 10
	if n > hugePage/2 {
		unit = hugePage
	}
	mem, err := unix.Mmap(-1, 0, (n+unit-1)/unit*unit, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", n, err)
	}
	if unit == hugePage {
		_ = unix.Madvise(mem, unix.MADV_HUGEPAGE) // advice: without it the first use takes more faults
	}
	return mem, nil
}

// reuse returns the smallest idle memory that n bytes fit in, or nil.
func (s *staging) reuse(n int) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	best := -1
	for i, mem := range s.idle {
		if len(mem) >= n && (best < 0 || len(mem) < len(s.idle[best])) {
			best = i
		}
	}
	if best < 0 {
		return nil
	}
	mem := s.idle[best]
	s.idle = slices.Delete(s.idle, best, best+1)
	s.bytes -= len(mem)
	return mem
}

// give takes memory back.
func (s *staging) give(mem []byte) {
	if mem == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle = append(s.idle, mem)
	s.bytes += len(mem)
	bound := idleBytes
	if s.closed {
		bound = 0
	}
	s.shrink(bound)
}

// drop gives all idle memory back to the system; closed: and what comes later, too.
func (s *staging) drop(closed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = s.closed || closed
	s.shrink(0)
}

// shrink unmaps idle memory until no more than bound is left. The caller holds the lock.
func (s *staging) shrink(bound int) {
	n := 0
	for ; s.bytes > bound; n++ {
		s.bytes -= len(s.idle[n])
		_ = unix.Munmap(s.idle[n]) // fails for a wrong address alone
	}
	s.idle = slices.Delete(s.idle, 0, n)
}
