// Package lifecycle owns goroutines. Whoever starts one does it through a Group and waits for it: a bare go statement
// outside this package fails the project's own checks.
//
// A Group is safe for concurrent use. Its goroutines get a context that ends when Stop is called, when the parent
// context ends, or when one of them returns an error.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
)

// Group is a named set of goroutines with one lifetime.
type Group struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	closed bool // guarded by mu: no goroutine starts once Stop has begun
	err    error
}

// New returns an empty group whose context is derived from parent.
func New(parent context.Context) *Group {
	ctx, cancel := context.WithCancelCause(parent)
	return &Group{ctx: ctx, cancel: cancel}
}

// Context returns the context the group's goroutines run under.
func (g *Group) Context() context.Context { return g.ctx }

// Go runs f in a goroutine of the group. An error other than the group's own cancellation ends the whole group; a
// panic becomes such an error. Go reports false, and runs nothing, when the group has been stopped.
func (g *Group) Go(name string, f func(ctx context.Context) error) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.wg.Go(func() {
		defer func() {
			if p := recover(); p != nil {
				g.fail(fmt.Errorf("%s: panic: %v\n%s", name, p, debug.Stack()))
			}
		}()
		if err := f(g.ctx); err != nil && !(g.ctx.Err() != nil && errors.Is(err, context.Canceled)) {
			g.fail(fmt.Errorf("%s: %w", name, err))
		}
	})
	return true
}

func (g *Group) fail(err error) {
	g.mu.Lock()
	if g.err == nil {
		g.err = err
	}
	g.mu.Unlock()
	g.cancel(err)
}

// Stop ends the group's context and waits for every goroutine. It returns the first error. Stop is idempotent.
func (g *Group) Stop() error {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.cancel(context.Canceled)
	return g.Wait()
}

// Wait waits, without ending the context, until every goroutine has returned, and returns the first error.
// Goroutines may still be started while Wait waits.
func (g *Group) Wait() error {
	g.wg.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}
