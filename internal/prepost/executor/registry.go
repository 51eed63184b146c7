package executor

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"runtime"
	"sync"
	"weak"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/native"
)

// Options of a Registry. The zero value works.
type Options struct {
	Workers   int // per tokenizer; 0: GOMAXPROCS
	Queue     int // jobs that wait per tokenizer; 0: 1024
	MaxPinned int // pinned tokenizers; 0: 64

	Gate       *native.Gate          // bounds the encodes running over all tokenizers; nil: no bound
	Registerer prometheus.Registerer // nil: no metrics
	Log        *slog.Logger          // nil: slog.Default()
}

func (o Options) withDefaults() Options {
	if o.Workers <= 0 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	if o.Queue <= 0 {
		o.Queue = 1024
	}
	if o.MaxPinned <= 0 {
		o.MaxPinned = 64
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}

// Registry holds the executors of a process by the identity of their tokenizers. Safe for concurrent use.
type Registry struct {
	opts    Options
	metrics *metrics
	jobs    jobPool
	group   *lifecycle.Group // every worker, and whatever frees native memory

	mu     sync.Mutex
	closed bool
	weak   map[any]*Executor // by weak.Pointer
	pinned map[any]*Executor // by the tokenizer itself
}

// NewRegistry returns an empty registry. It starts nothing: workers start with the first job.
func NewRegistry(o Options) *Registry {
	o = o.withDefaults()
	r := &Registry{
		opts: o,
		// The registry's lifetime is Close, not a context: workers have to finish what is queued.
		group:  lifecycle.New(context.Background()),
		weak:   map[any]*Executor{},
		pinned: map[any]*Executor{},
	}
	r.metrics = newMetrics(o.Registerer, r)
	return r
}

// Bind returns the executor of tokenizer, which from then on owns source; a tokenizer that has one already keeps it, and
// source stays the caller's. The registry holds tokenizer weakly: nothing that source reaches may lead back to it. On an
// error source stays the caller's, too.
func Bind[T any](r *Registry, tokenizer *T, source Source) (e *Executor, bound bool, err error) {
	if tokenizer == nil || source == nil {
		return nil, false, errNoSource
	}
	key := weak.Make(tokenizer)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, false, ErrClosed
	}
	if e := r.weak[key]; e != nil {
		return e, false, nil
	}
	e = r.newExecutor(key, source)
	e.cleanup = runtime.AddCleanup(tokenizer, collect, e)
	r.weak[key] = e
	return e, true, nil
}

// Find returns the executor that tokenizer is bound to, or nil.
func Find[T any](r *Registry, tokenizer *T) *Executor {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.weak[weak.Make(tokenizer)]
}

// Pin binds a tokenizer that can't be held weakly, because it is no pointer to a known type. The registry keeps it, with
// its executor, until Unpin or Close. There are at most Options.MaxPinned.
func (r *Registry) Pin(tokenizer any, source Source) (*Executor, error) {
	if tokenizer == nil || source == nil {
		return nil, errNoSource
	}
	if !reflect.ValueOf(tokenizer).Comparable() {
		return nil, fmt.Errorf("executor: a %T has no identity to pin it by", tokenizer)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, ErrClosed
	}
	if e := r.pinned[tokenizer]; e != nil {
		return nil, fmt.Errorf("executor: this %T is pinned already", tokenizer)
	}
	if len(r.pinned) >= r.opts.MaxPinned {
		return nil, fmt.Errorf("executor: %d tokenizers are pinned already", len(r.pinned))
	}
	e := r.newExecutor(tokenizer, source)
	r.pinned[tokenizer] = e
	return e, nil
}

// Unpin closes the executor of a pinned tokenizer and lets the tokenizer go. It reports whether there was one.
func (r *Registry) Unpin(tokenizer any) bool {
	if tokenizer == nil || !reflect.ValueOf(tokenizer).Comparable() {
		return false
	}
	r.mu.Lock()
	e := r.pinned[tokenizer]
	r.mu.Unlock()
	if e == nil {
		return false
	}
	return e.Close() == nil
}

func (r *Registry) newExecutor(key any, source Source) *Executor {
	return &Executor{
		registry: r,
		source:   source,
		handle:   NewHandle(source.Close),
		key:      key,
		jobs:     make(chan *job, r.opts.Queue),
	}
}

// Live is the number of executors.
func (r *Registry) Live() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.weak) + len(r.pinned)
}

// remove deletes e's entry, if the registry still holds that very executor under its key. It reports false when the
// registry has been closed, which takes all executors with it.
func (r *Registry) remove(e *Executor) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.removeLocked(e)
	return !r.closed
}

func (r *Registry) removeLocked(e *Executor) {
	for _, table := range []map[any]*Executor{r.weak, r.pinned} {
		if table[e.key] == e {
			delete(table, e.key)
		}
	}
}

// collect runs on the runtime's cleanup goroutine after e's tokenizer has become unreachable. It waits for nothing: the
// last reference may free a lot of native memory, which is left to a goroutine of the registry.
func collect(e *Executor) {
	r := e.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	r.removeLocked(e)
	if r.closed || !e.shutdown() {
		return
	}
	r.metrics.evicted.WithLabelValues(evictedCollected).Inc()
	r.group.Go("free tokenizer", func(context.Context) error {
		e.release()
		return nil
	})
}

// Close shuts down all executors and returns when the last worker has finished what was queued. Calls on the executors
// return ErrClosed from then on. Close is idempotent.
func (r *Registry) Close() error {
	r.mu.Lock()
	var executors []*Executor
	for _, table := range []map[any]*Executor{r.weak, r.pinned} {
		for _, e := range table {
			executors = append(executors, e)
		}
		clear(table)
	}
	r.closed = true
	r.mu.Unlock()

	for _, e := range executors {
		if e.shutdown() {
			e.cleanup.Stop()
			r.metrics.evicted.WithLabelValues(evictedShutdown).Inc()
			e.release()
		}
	}
	// Not Stop at once: its context's end would fail the jobs that wait at the gate.
	if err := r.group.Wait(); err != nil {
		return err
	}
	return r.group.Stop()
}
