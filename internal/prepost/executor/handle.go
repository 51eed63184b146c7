package executor

import (
	"sync/atomic"
)

// Handle counts who uses a native object and frees it when the last lets go. Freeing under a running call would be a
// memory fault that no Go code can catch. Safe for concurrent use.
type Handle struct {
	refs atomic.Int64
	free func() error
}

// NewHandle returns a handle with one reference, the caller's. free runs once, on the goroutine of the last Release.
func NewHandle(free func() error) *Handle {
	h := &Handle{free: free}
	h.refs.Store(1)
	return h
}

// Acquire takes a reference. It reports false, and takes none, when the object is being freed or has been.
func (h *Handle) Acquire() bool {
	for {
		n := h.refs.Load()
		if n <= 0 {
			return false
		}
		if h.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Release gives a reference back. The last one frees the object; the error is free's.
func (h *Handle) Release() error {
	switch n := h.refs.Add(-1); {
	case n == 0:
		return h.free()
	case n < 0:
		violated("executor: handle released more often than acquired")
	}
	return nil
}

// use checks, in builds with invariants, that the caller's reference is still counted.
func (h *Handle) use() {
	if invariants && h.refs.Load() <= 0 {
		violated("executor: handle used after it was freed")
	}
}
