package tcp_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/portico-llm/portico/internal/router/plane/tcp"
	"github.com/portico-llm/portico/internal/testkit"
)

// TestMetrics: bytes are counted both ways, and requests that their connection takes along as errors.
func TestMetrics(t *testing.T) {
	testkit.NoLeaks(t)
	reg := prometheus.NewPedanticRegistry()
	value := func(name string) float64 {
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "dynamo_transport_tcp_"+name {
				return f.GetMetric()[0].GetCounter().GetValue()
			}
		}
		t.Fatalf("%s isn't there", name)
		return 0
	}
	silent := make(chan struct{})
	answers := 0
	s := serve(t, loopback(t), func(request) []byte {
		if answers++; answers == 2 {
			<-silent
		}
		return []byte{}
	})
	p := newPlane(t, tcp.Options{AckTimeout: 50 * time.Millisecond, Registerer: reg})
	if err := testkit.Deliver(t.Context(), p, message(s, make([]byte, 1000))); err != nil {
		t.Fatal(err)
	}
	// An answer is at least its length, of four bytes.
	if sent, received := value("bytes_sent_total"), value("bytes_received_total"); sent < 1000 || received < 4 {
		t.Errorf("%v bytes sent, %v received", sent, received)
	}
	if err := testkit.Deliver(t.Context(), p, message(s, make([]byte, 1000))); err == nil {
		t.Error("accepted in silence")
	}
	close(silent)
	if n := value("errors_total"); n != 1 {
		t.Errorf("%v errors", n)
	}
}
