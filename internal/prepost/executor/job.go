package executor

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/portico-llm/portico/internal/prepost"
)

// Where a job is. Who moves it away from pending decides who recycles it: the caller a finished job, the worker an
// abandoned one.
const (
	pending uint32 = iota
	finished
	abandoned
	free // in the pool
)

// job is one encode on its way through an executor.
type job struct {
	text       string
	addSpecial bool
	queued     time.Time

	state atomic.Uint32
	done  chan struct{} // capacity 1: the worker never waits for a caller that left

	// Written by the worker before done.
	ids []prepost.TokenID
	err error
}

// jobPool recycles jobs: a request costs no allocation but that of its ids.
type jobPool struct{ pool sync.Pool }

func (p *jobPool) get(text string, addSpecial bool) *job {
	j, _ := p.pool.Get().(*job)
	if j == nil {
		j = &job{done: make(chan struct{}, 1)}
		j.state.Store(free)
	}
	if invariants && j.state.Load() != free {
		violated("executor: job taken from the pool while in use")
	}
	j.text, j.addSpecial = text, addSpecial
	j.queued = time.Now()
	j.state.Store(pending)
	return j
}

func (p *jobPool) put(j *job) {
	if j.state.Swap(free) == free {
		violated("executor: job recycled twice")
		return
	}
	j.text, j.ids, j.err = "", nil, nil // neither prompt nor ids may outlive the request here
	p.pool.Put(j)
}
