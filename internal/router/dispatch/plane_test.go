package dispatch_test

import (
	"context"
	"errors"
	"testing"

	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/dispatch"
)

// failing is a plane that delivers nothing.
type failing struct {
	err   error
	tried int
}

func (p *failing) Start(context.Context, *router.Message, func(error)) (<-chan struct{}, error) {
	p.tried++
	return nil, p.err
}

func (p *failing) Close() error { return nil }

// TestPlaneDown doesn't blame a worker for the plane, and tries it again at once.
func TestPlaneDown(t *testing.T) {
	for _, tc := range []struct {
		name  string
		cause error
		tried int
	}{
		{"plane", errors.Join(router.ErrPlaneDown, errors.New("no server")), 3},
		{"worker", errors.New("gone"), 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			plane := &failing{err: fault.Lost(tc.cause, "Can't be reached")}
			f := newFleet(t, dispatch.Options{NATS: plane})
			in := instance(1)
			in.Transport.NATS = "x"
			f.publish(in)
			for range 3 {
				if _, err := f.ask(newCall()); fault.KindOf(err) != fault.Unavailable {
					t.Errorf("%v", err)
				}
			}
			if plane.tried != tc.tried {
				t.Errorf("tried %d times, want %d", plane.tried, tc.tried)
			}
		})
	}
}
