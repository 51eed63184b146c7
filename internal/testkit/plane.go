package testkit

import (
	"context"

	"github.com/portico-llm/portico/internal/router"
)

// Deliver sends m and waits until the worker has accepted it. When ctx ends first the message stays sent, and the
// worker's answer is dropped.
func Deliver(ctx context.Context, p router.Plane, m *router.Message) error {
	answered := make(chan error, 1)
	if _, err := p.Start(ctx, m, func(err error) { answered <- err }); err != nil {
		return err
	}
	select {
	case err := <-answered:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
