package lifecycle_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/portico-llm/portico/internal/lifecycle"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStopWaitsForAll(t *testing.T) {
	g := lifecycle.New(t.Context())
	var ended atomic.Int32
	for range 8 {
		g.Go("wait", func(ctx context.Context) error {
			<-ctx.Done()
			ended.Add(1)
			return ctx.Err()
		})
	}
	if err := g.Stop(); err != nil {
		t.Errorf("Stop returned %v: being cancelled is not a failure", err)
	}
	if ended.Load() != 8 {
		t.Errorf("%d of 8 goroutines had ended when Stop returned", ended.Load())
	}
	if g.Go("late", func(context.Context) error { return nil }) {
		t.Error("a goroutine started after Stop")
	}
	if err := g.Stop(); err != nil {
		t.Errorf("the second Stop returned %v", err)
	}
}

func TestFirstErrorEndsTheGroup(t *testing.T) {
	g := lifecycle.New(t.Context())
	boom := errors.New("boom")
	g.Go("watcher", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
	g.Go("reader", func(context.Context) error { return boom })
	err := g.Wait()
	if !errors.Is(err, boom) || !strings.HasPrefix(err.Error(), "reader: ") {
		t.Errorf("Wait returned %v, want the reader's error with its name", err)
	}
	if cause := context.Cause(g.Context()); !errors.Is(cause, boom) {
		t.Errorf("the context ended because of %v", cause)
	}
	_ = g.Stop()
}

func TestPanicIsAnError(t *testing.T) {
	g := lifecycle.New(t.Context())
	g.Go("fragile", func(context.Context) error { panic("lost it") })
	if err := g.Wait(); err == nil || !strings.Contains(err.Error(), "fragile: panic: lost it") {
		t.Errorf("Wait returned %v", err)
	}
	_ = g.Stop()
}
