package tcp_test

import (
	"context"
	"crypto/tls"
	"errors"
	"testing"
	"time"

	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/router/plane/tcp"
	"github.com/portico-llm/portico/internal/testkit"
)

// TestSharedDialFailure has many wait for a worker that answers no dial: one time-out serves them all.
func TestSharedDialFailure(t *testing.T) {
	testkit.NoLeaks(t)
	ln := loopback(t) // accepts nothing, so that no handshake is answered
	defer ln.Close()
	const limit = 500 * time.Millisecond
	p := newPlane(t, tcp.Options{ConnectTimeout: limit, TLS: &tls.Config{ServerName: "localhost"}})
	m := message(&server{ln: ln}, nil)
	g := lifecycle.New(t.Context())
	began := time.Now()
	for range 20 {
		g.Go("deliver", func(ctx context.Context) error {
			if err := testkit.Deliver(ctx, p, m); fault.From(err).Origin != fault.FromTransport {
				t.Errorf("%v", err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	// Two, as a slow goroutine may come after the first time-out.
	if took := time.Since(began); took < limit || took > 2*limit+limit/2 {
		t.Errorf("took %s", took)
	}
	// The failure is of those who waited: the next one tries.
	began = time.Now()
	if err := testkit.Deliver(t.Context(), p, m); err == nil || time.Since(began) < limit {
		t.Errorf("%v after %s", err, time.Since(began))
	}
}

// TestCancelBehindWrite ends the wait for a connection on which another message is stuck.
func TestCancelBehindWrite(t *testing.T) {
	testkit.NoLeaks(t)
	ln := loopback(t) // reads nothing
	defer ln.Close()
	p := newPlane(t, tcp.Options{PoolSize: 1, AckTimeout: 3 * time.Second})
	s := &server{ln: ln}
	stuck := make(chan struct{})
	g := lifecycle.New(t.Context())
	g.Go("deliver", func(ctx context.Context) error {
		defer close(stuck)
		if err := testkit.Deliver(ctx, p, message(s, make([]byte, 24<<20))); err == nil {
			t.Error("delivered")
		}
		return nil
	})
	time.Sleep(200 * time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := testkit.Deliver(ctx, p, message(s, nil)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	select {
	case <-stuck:
		t.Error("waited for the message ahead")
	default:
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}
