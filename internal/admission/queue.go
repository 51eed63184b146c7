package admission

import (
	"container/heap"
	"sync"
	"sync/atomic"
	"time"
)

// model is what the gate knows of one model.
type model struct {
	limit int // of places; 0: none. Never changed

	running atomic.Int64 // places taken
	pending atomic.Int64 // tokens of requests that have a place and haven't reached a worker
	waiting atomic.Int64 // length of the queue, for looks without the lock
	hold    atomic.Int64 // how long places are held, on average: a time.Duration; 0: unknown
	refused [reasons]atomic.Int64

	mu   sync.Mutex
	line waiters // guarded by mu
	next uint64  // guarded by mu: number of the next waiter
}

// Why requests aren't let in.
const (
	refusedBusy = iota // workers overloaded
	refusedFull        // queue full
	refusedLate        // waited too long
	refusedGone        // the client left
	reasons            // how many there are
)

// waiter is one request in the queue.
type waiter struct {
	rank    rank
	number  uint64 // of equals the one that came first goes first
	tokens  int
	workers func(pending int64) State // nil: always ready
	ready   chan struct{}             // closed when it is let in
	at      int                       // in the heap; negative: no longer there
}

// take takes a place if there is one. It needs no lock.
func (m *model) take(tokens int) bool {
	for {
		n := m.running.Load()
		if m.limit > 0 && n >= int64(m.limit) {
			return false
		}
		if m.running.CompareAndSwap(n, n+1) {
			m.pending.Add(int64(tokens))
			return true
		}
	}
}

// state asks the workers of a request.
func (m *model) state(workers func(pending int64) State) State {
	if workers == nil {
		return Ready
	}
	return workers(m.pending.Load())
}

// join puts w into the queue, unless that is full, and lets in who can be let in: a place may have become free since
// w's look.
func (m *model) join(g *Gate, w *waiter) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.line) >= g.opts.Queue {
		return false
	}
	w.number = m.next
	m.next++
	heap.Push(&m.line, w)
	m.count(g, 1)
	m.admitLocked(g)
	return true
}

// leave takes w out of the queue, and reports false when it has been let in already. Those behind it may have waited for
// it alone.
func (m *model) leave(g *Gate, w *waiter) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w.at < 0 {
		return false
	}
	heap.Remove(&m.line, w.at)
	m.count(g, -1)
	m.admitLocked(g)
	return true
}

// admitLocked lets in those at the head of the queue for whom there are places and workers. Nobody overtakes the head:
// all of a model's requests have the same workers, more or less.
func (m *model) admitLocked(g *Gate) {
	for len(m.line) > 0 {
		w := m.line[0]
		if m.state(w.workers) != Ready || !m.take(w.tokens) {
			return
		}
		heap.Pop(&m.line)
		m.count(g, -1)
		close(w.ready)
	}
}

// count changes both counts of those that wait.
func (m *model) count(g *Gate, n int64) {
	m.waiting.Add(n)
	g.waiting.Add(n)
}

// held notes how long a place was held. The average follows slowly, and loses an observation now and then: it is for an
// estimate only.
func (m *model) held(d time.Duration) {
	old := m.hold.Load()
	if old == 0 {
		m.hold.Store(int64(max(d, 1)))
		return
	}
	m.hold.Store(old + (int64(d)-old)/16)
}

// patience is how long a client should stay away: until the queue of now will have been served.
func (m *model) patience() time.Duration {
	return patience(m.waiting.Load(), m.limit, time.Duration(m.hold.Load()))
}

// Bounds of what clients are asked to wait.
const (
	minPatience = time.Second
	maxPatience = time.Minute
)

// patience estimates when as many requests as wait now will have had their turn, with limit at a time for hold each.
func patience(waiting int64, limit int, hold time.Duration) time.Duration {
	if limit <= 0 {
		return minPatience
	}
	seconds := float64(waiting) * hold.Seconds() / float64(limit)
	// Bounded while it is a float: a duration might overflow.
	seconds = min(max(seconds, minPatience.Seconds()), maxPatience.Seconds())
	return time.Duration(seconds * float64(time.Second))
}

// waiters is a heap: the one to be let in next is at its head.
type waiters []*waiter

var _ heap.Interface = (*waiters)(nil)

// Len implements heap.Interface.
func (l waiters) Len() int { return len(l) }

// Less implements heap.Interface.
func (l waiters) Less(i, j int) bool {
	a, b := l[i], l[j]
	if a.rank != b.rank {
		return a.rank.before(b.rank)
	}
	return a.number < b.number
}

// Swap implements heap.Interface.
func (l waiters) Swap(i, j int) {
	l[i], l[j] = l[j], l[i]
	l[i].at, l[j].at = i, j
}

// Push implements heap.Interface.
func (l *waiters) Push(x any) {
	w := x.(*waiter)
	w.at = len(*l)
	*l = append(*l, w)
}

// Pop implements heap.Interface.
func (l *waiters) Pop() any {
	old := *l
	w := old[len(old)-1]
	old[len(old)-1] = nil // not kept alive by the array
	*l = old[:len(old)-1]
	w.at = -1
	return w
}
