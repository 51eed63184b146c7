package pipeline

import (
	"context"
	"strconv"
	"sync"

	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/router"
)

// runBatch sends every prompt of a batch at once. Nothing reaches the sink before all workers have begun: a batch
// that can't be served as a whole fails with a status. The first failure ends the others.
func (p *Pipeline) runBatch(ctx context.Context, req *Prepared, sink Sink) error {
	shared := &sharedSink{sink: sink} // legs run at the same time, the sink takes one at a time
	legs := make([]*leg, len(req.Requests))
	for i := range legs {
		legs[i] = newLeg(req, i, shared)
	}
	// Streams live as long as the context given to Dispatch, so both phases run under this one.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	streams := make([]router.Stream, len(legs))
	defer func() {
		// Those of prompts that weren't dispatched are nil.
		for _, s := range streams {
			if s != nil {
				_ = s.Close()
			}
		}
	}()
	// Every leg writes its own element: no lock needed, and Wait orders the writes before what follows.
	if err := each(ctx, cancel, legs, func(i int) (err error) {
		streams[i], err = p.start(ctx, req, legs[i])
		return err
	}); err != nil {
		return err
	}
	if err := sink.Start(req); err != nil {
		return err
	}
	req.release()
	return each(ctx, cancel, legs, func(i int) error {
		// A worker is told of a stop here by its stream's end, and isn't to go on until the longest prompt has ended.
		defer streams[i].Close()
		if err := p.consume(ctx, req, legs[i], streams[i]); err != nil {
			return err
		}
		return shared.Flush() // the others may take long yet
	})
}

// each runs f for every leg in a goroutine of its own, ends all of them on the first failure, and waits.
func each(ctx context.Context, cancel func(), legs []*leg, f func(i int) error) error {
	// The number of goroutines is bounded: n times prompts has been validated.
	group := lifecycle.New(ctx)
	var once sync.Once
	var first error
	for i := range legs {
		group.Go("prompt "+strconv.Itoa(i), func(context.Context) error {
			well := false
			defer func() { // a panic ends the others too
				if !well {
					cancel() // the legs run under the caller's context, not the group's
				}
			}()
			err := f(i)
			if err != nil { // later failures are only the echo of the first: everything has been cancelled
				once.Do(func() { first = err })
			}
			well = err == nil
			return err
		})
	}
	err := group.Wait()
	_ = group.Stop() // ends the group's own context; nothing runs any more
	if first != nil {
		return first
	}
	if err != nil { // a panic
		return fault.From(err)
	}
	return nil
}

// sharedSink lets the legs of a batch take turns. A leg that has nothing more flushes what all have gathered. A slow
// client slows all of them alike.
type sharedSink struct {
	mu   sync.Mutex
	sink Sink // guarded by mu
}

// Start is never called: runBatch starts the sink itself, before any leg reads.
func (s *sharedSink) Start(req *Prepared) error { return s.sink.Start(req) }

// Delta passes d on.
func (s *sharedSink) Delta(d *Delta) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sink.Delta(d)
}

// Flush passes the flush on.
func (s *sharedSink) Flush() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sink.Flush()
}
