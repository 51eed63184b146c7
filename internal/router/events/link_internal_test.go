package events

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// TestConnectedTooLate: a subscription that is in place only when its link has been closed counts no more.
func TestConnectedTooLate(t *testing.T) {
	h := NewHub(Options{Topics: []Topic{{Name: "t"}}})
	for _, before := range []bool{false, true} {
		l := newLink(h, address{transport: "nats"})
		if before {
			l.connected()
		}
		l.close()
		l.connected()
		l.down()
		if n := testutil.ToFloat64(h.metrics.connected.WithLabelValues("nats")); n != 0 {
			t.Fatalf("%v links are connected (connected before: %v)", n, before)
		}
		l.connected()
		if n := testutil.ToFloat64(h.metrics.connected.WithLabelValues("nats")); n != 0 {
			t.Fatalf("%v links are connected (connected before: %v)", n, before)
		}
	}
}
