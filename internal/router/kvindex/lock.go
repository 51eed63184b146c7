package kvindex

import (
	"runtime"
	"sync/atomic"
)

// spinlock is a read-write lock for sections of about a microsecond. Whoever waits spins and then yields, but never
// parks: waking a parked goroutine takes longer than all the work that is done under the lock. Writers go before readers
// that come later, so that these can't starve them.
type spinlock struct{ state atomic.Int32 } // number of readers, and writing

const (
	writing = 1 << 30
	spins   = 200 // before the first yield: some tenths of a microsecond
	yields  = 10  // to other goroutines, before the first to other threads
)

// wait lets the i-th round of waiting pass. On a busy machine the holder of the lock may have lost its CPU to the very
// thread that waits; only giving the CPU up helps then.
func wait(i int) {
	if i < spins {
		return
	}
	runtime.Gosched()
	if i >= spins+yields {
		yieldThread()
	}
}

// rlock announces the reader and takes that back when a writer was there first.
func (l *spinlock) rlock() {
	if l.state.Add(1) < writing {
		return
	}
	for {
		l.state.Add(-1)
		for i := 0; l.state.Load() >= writing; i++ {
			wait(i)
		}
		if l.state.Add(1) < writing {
			return
		}
	}
}

func (l *spinlock) runlock() { l.state.Add(-1) }

// lock first keeps new readers out, then waits for those inside: lookups, which are short.
func (l *spinlock) lock() {
	for i := 0; ; i++ {
		if s := l.state.Load(); s < writing && l.state.CompareAndSwap(s, s|writing) {
			break
		}
		wait(i)
	}
	for i := 0; l.state.Load() != writing; i++ {
		wait(i)
	}
}

func (l *spinlock) unlock() { l.state.Add(-writing) }
