package executor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/prepost"
)

// ErrClosed is returned by calls on an executor or registry that has been closed.
var ErrClosed error = fault.New(fault.Unavailable, "The model's tokenizer has been unloaded")

// Source makes encoders of one tokenizer and owns the native memory behind them. Neither it nor its encoders may refer
// to the tokenizer that is bound to the executor: that would keep the tokenizer alive for good.
type Source interface {
	// NewEncoder returns an encoder for one worker.
	NewEncoder() (Encoder, error)
	// Close frees the native memory. It is called once, after every encoder has been closed.
	Close() error
}

// ThreadBound is a Source that may want each worker to keep to one thread. The native allocator keeps memory for each
// thread that has allocated: wandering over threads, a few workers would leave some of it on dozens. It costs a change of
// threads for each text, so it is for encoders that allocate much and take long.
type ThreadBound interface{ ThreadBound() bool }

// Encoder turns text into ids, one at a time.
type Encoder interface {
	Encode(text string, addSpecial bool) ([]prepost.TokenID, error)
	Close() error
}

// Executor encodes for one tokenizer. Safe for concurrent use.
type Executor struct {
	registry *Registry
	source   Source
	handle   *Handle
	key      any             // in the registry: a weak pointer, or a pinned tokenizer
	cleanup  runtime.Cleanup // of the tokenizer; none when pinned
	jobs     chan *job       // capacity Options.Queue: jobs that wait for a worker

	unfinished atomic.Int64 // jobs queued or running

	mu      sync.Mutex
	closed  bool
	workers int
}

// Handle returns the count of the native memory's users, for calls that don't go through the executor.
func (e *Executor) Handle() *Handle { return e.handle }

// Encode returns the ids of text. When ctx ends first it returns ctx's error and leaves the result to be dropped. A full
// queue is a fault of kind Overloaded.
func (e *Executor) Encode(ctx context.Context, text string, addSpecial bool) ([]prepost.TokenID, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	jobs := &e.registry.jobs
	j := jobs.get(text, addSpecial)
	if err := e.submit(j); err != nil {
		jobs.put(j)
		return nil, err
	}
	select {
	case <-j.done:
	case <-ctx.Done():
		if j.state.CompareAndSwap(pending, abandoned) {
			return nil, ctx.Err() // the worker recycles the job
		}
		<-j.done // the worker was first: it is there
	}
	ids, err := j.ids, j.err
	jobs.put(j)
	return ids, err
}

// submit queues a job with a reference to the native memory.
func (e *Executor) submit(j *job) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || !e.handle.Acquire() {
		return ErrClosed
	}
	// Before the send: the worker counts both down, and may be quick.
	unfinished := e.unfinished.Add(1)
	e.registry.metrics.depth.Add(1)
	select {
	case e.jobs <- j:
	default:
		e.unfinished.Add(-1)
		e.registry.metrics.depth.Add(-1)
		e.release()
		e.registry.metrics.refused.Inc()
		return fault.New(fault.Overloaded, "Too many prompts are waiting to be tokenized; try again later")
	}
	// A job more than there are workers needs another one, up to the bound.
	if unfinished > int64(e.workers) && e.workers < e.registry.opts.Workers && e.handle.Acquire() {
		e.workers++
		e.registry.group.Go("tokenizer worker", e.work)
	}
	return nil
}

// work is a worker: it runs jobs until the executor is closed and the queue is empty.
func (e *Executor) work(ctx context.Context) error {
	if s, ok := e.source.(ThreadBound); ok && s.ThreadBound() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
	}
	w := worker{Executor: e}
	defer e.release()
	defer w.close()
	for j := range e.jobs {
		w.run(ctx, j)
	}
	return nil
}

// worker is an executor's encoder, on one goroutine.
type worker struct {
	*Executor
	encoder Encoder // nil until the first job
}

func (w *worker) run(ctx context.Context, j *job) {
	m := w.registry.metrics
	m.depth.Add(-1)
	var (
		ids []prepost.TokenID
		err = w.enter(ctx, j)
	)
	m.wait.Observe(time.Since(j.queued).Seconds())
	if err == nil {
		if j.state.Load() == pending { // else nobody waits for it any more
			ids, err = w.encode(j)
		}
		w.registry.opts.Gate.Leave()
	}
	w.unfinished.Add(-1)
	w.release()
	j.ids, j.err = ids, err
	if j.state.CompareAndSwap(pending, finished) {
		j.done <- struct{}{}
		return
	}
	w.registry.jobs.put(j)
}

// enter waits for the process's turn, unless the job has been abandoned in the queue.
func (w *worker) enter(ctx context.Context, j *job) error {
	if j.state.Load() != pending {
		return context.Canceled
	}
	return w.registry.opts.Gate.Enter(ctx)
}

// encode never panics: a panic would leave the job's caller waiting.
func (w *worker) encode(j *job) (ids []prepost.TokenID, err error) {
	defer func() {
		if p := recover(); p != nil {
			ids, err = nil, fmt.Errorf("encode: panic: %v", p)
		}
	}()
	w.handle.use()
	if w.encoder == nil {
		if w.encoder, err = w.source.NewEncoder(); err != nil {
			return nil, fmt.Errorf("encode: %w", err)
		}
	}
	return w.encoder.Encode(j.text, j.addSpecial)
}

func (w *worker) close() {
	if w.encoder == nil {
		return
	}
	if err := w.encoder.Close(); err != nil {
		w.registry.opts.Log.Error("closing an encoder failed", slog.Any("error", err))
	}
}

// shutdown stops the intake and reports whether this call did. It doesn't wait: workers finish what is queued and
// return.
func (e *Executor) shutdown() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	e.closed = true
	close(e.jobs)
	return true
}

// release gives a reference back; the last one frees the native memory.
func (e *Executor) release() {
	if err := e.handle.Release(); err != nil {
		e.registry.opts.Log.Error("freeing a tokenizer failed", slog.Any("error", err))
	}
}

// Close evicts the executor at once. Queued and running jobs finish; later calls return ErrClosed. Close is idempotent
// and returns without waiting for the jobs.
func (e *Executor) Close() error {
	if e.registry.remove(e) && e.shutdown() {
		e.cleanup.Stop()
		e.registry.metrics.evicted.WithLabelValues(evictedClosed).Inc()
		e.release()
	}
	return nil
}

var errNoSource = errors.New("executor: no source of encoders")
