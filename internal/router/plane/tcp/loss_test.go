package tcp_test

import (
	"testing"
	"time"

	"github.com/portico-llm/portico/internal/router/plane/tcp"
	"github.com/portico-llm/portico/internal/testkit"
)

// TestLoss looks at who is told of a connection's end after its request was accepted: only those whose worker ended it,
// and only after the grace.
func TestLoss(t *testing.T) {
	const grace = 100 * time.Millisecond
	for name, c := range map[string]struct {
		opts tcp.Options
		end  func(*server, *tcp.Plane)
		told bool
	}{
		"worker hangs up":   {end: func(s *server, _ *tcp.Plane) { s.hangUp() }, told: true},
		"closed when idle":  {opts: tcp.Options{IdleTimeout: 20 * time.Millisecond}, end: func(*server, *tcp.Plane) {}},
		"plane closes":      {end: func(_ *server, p *tcp.Plane) { p.Close() }},
		"closes in between": {end: func(s *server, p *tcp.Plane) { s.hangUp(); time.Sleep(grace / 5); p.Close() }},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.NoLeaks(t)
			s, other := serve(t, loopback(t), accept), serve(t, loopback(t), accept)
			c.opts.LossGrace = grace
			p := newPlane(t, c.opts)
			start := func(s *server) <-chan struct{} {
				accepted := make(chan error, 1)
				lost, err := p.Start(t.Context(), message(s, nil), func(err error) { accepted <- err })
				if err != nil {
					t.Fatal(err)
				}
				if err := <-accepted; err != nil {
					t.Fatal(err)
				}
				return lost
			}
			lost, unconcerned := start(s), start(other)
			began := time.Now()
			c.end(s, p)
			select {
			case <-lost:
				if took := time.Since(began); !c.told || took < grace {
					t.Errorf("told after %s", took)
				}
			case <-unconcerned:
				t.Error("the loss of one worker is told of another")
			case <-time.After(4 * grace):
				if c.told {
					t.Error("not told")
				}
			}
		})
	}
}
