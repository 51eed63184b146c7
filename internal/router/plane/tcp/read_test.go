package tcp

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
)

// TestReadEndsWithContext ends a connection that Close hasn't seen, with what is outstanding on it.
func TestReadEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		defer there.Close()
		c := newConn(newHost(New(Options{}), "x"), here)
		var got error
		if !c.enqueue(func(err error) { got = err }) {
			t.Fatal("dead")
		}
		ctx, stop := context.WithCancel(t.Context())
		stop()
		if err := c.read(ctx); err != nil {
			t.Error(err)
		}
		if !errors.Is(got, errClosed) {
			t.Errorf("%v", got)
		}
	})
}
