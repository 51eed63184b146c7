package dispatch_test

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/dispatch"
)

// first is a policy that takes the candidate with the lowest id.
type first struct{}

func (first) Pick(*router.Query, []router.Candidate) (int, error) { return 0, nil }

// hangsUp starts a worker that accepts one request on each connection and then closes it, while s plays.
func (f *fleet) hangsUp(id uint64, s script) *worker.Instance {
	f.tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.tb.Fatal(err)
	}
	f.tb.Cleanup(func() { ln.Close() })
	f.group.Go("worker", func(context.Context) error {
		for {
			c, err := ln.Accept()
			if err != nil {
				return nil
			}
			if envelope, err := readEnvelope(c); err == nil {
				f.note(id)
				c.Write(make([]byte, 4))
				f.play(envelope, s)
			}
			c.Close()
		}
	})
	in := instance(id)
	in.Transport.TCP = ln.Addr().String() + "/" + in.Path()
	return in
}

// told returns what the frontend says first, as long as the order to stop, and closes: the frontend need not wait for it.
func (w *session) told() string {
	if w.conn == nil {
		return ""
	}
	defer w.conn.Close()
	w.conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	b := make([]byte, len(cancel))
	n, _ := io.ReadFull(w.conn, b)
	return string(b[:n])
}

// counter reads one of the dispatcher's counters.
func counter(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	all, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// TestLostAfterAcceptance breaks the connection that a request was accepted on before the worker calls. One that is dead
// is left aside and another answers, long before the time-out; one that calls a little later is not blamed.
func TestLostAfterAcceptance(t *testing.T) {
	for name, c := range map[string]struct {
		script script
		asked  []uint64
		aside  float64
	}{
		"dead":       {func(*session) {}, []uint64{1, 2}, 1},
		"alive":      {answer(1), []uint64{1}, 0},
		"alive, but": {func(w *session) { time.Sleep(50 * time.Millisecond); answer(1)(w) }, []uint64{1}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			reg := prometheus.NewRegistry()
			f := newFleet(t, dispatch.Options{HandshakeTimeout: time.Minute, Registerer: reg, Policy: first{}})
			f.publish(f.hangsUp(1, c.script), f.worker(2, "", answer(2)))
			began := time.Now()
			ids, err := f.ask(newCall())
			want := uint32(c.asked[len(c.asked)-1])
			if err != nil || !slices.Equal(ids, []uint32{want}) || !slices.Equal(f.asked(), c.asked) {
				t.Errorf("%v, %v; asked %v", ids, err, f.asked())
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("after %s", took)
			}
			time.Sleep(400 * time.Millisecond) // beyond the grace
			if n := counter(t, reg, "portico_dispatch_quarantines_total"); n != c.aside {
				t.Errorf("left aside %v times, want %v", n, c.aside)
			}
		})
	}
}

// TestLateAfterLoss has a worker call that was taken for lost: it is told to stop, as another has the request.
func TestLateAfterLoss(t *testing.T) {
	f := newFleet(t, dispatch.Options{Policy: first{}})
	heard := make(chan string, 1)
	f.publish(f.hangsUp(1, func(w *session) {
		time.Sleep(600 * time.Millisecond)
		w.dial()
		heard <- w.told()
	}), f.worker(2, "", answer(2)))
	if ids, err := f.ask(newCall()); err != nil || !slices.Equal(ids, []uint32{2}) {
		t.Errorf("%v, %v", ids, err)
	}
	if got := <-heard; got != cancel {
		t.Errorf("a late worker heard %q", got)
	}
}

// TestHandshakeTimeout tries another worker when one is silent, within MaxAttempts and the caller's time. The silence may
// be the request's fault, so that its worker isn't left aside. A worker that calls late is told to stop.
func TestHandshakeTimeout(t *testing.T) {
	heard := make(chan string, 10)
	late := func(w *session) {
		time.Sleep(200 * time.Millisecond)
		w.dial()
		heard <- w.told()
	}
	silent := func(w *session) { w.dial(); heard <- w.told() }
	for name, c := range map[string]struct {
		scripts []script
		within  time.Duration // the client's; 0: any
		pin     bool
		asked   []uint64
		answers bool
	}{
		"late":              {scripts: []script{late, answer(2)}, asked: []uint64{1, 2}, answers: true},
		"no prologue":       {scripts: []script{silent, answer(2)}, asked: []uint64{1, 2}, answers: true},
		"none is left":      {scripts: []script{late}, asked: []uint64{1}},
		"attempts":          {scripts: []script{late, late, answer(3)}, asked: []uint64{1, 2}},
		"pinned":            {scripts: []script{late, answer(2)}, pin: true, asked: []uint64{1}},
		"client's time-out": {scripts: []script{late, answer(2)}, within: 20 * time.Millisecond, asked: []uint64{1}},
	} {
		t.Run(name, func(t *testing.T) {
			reg := prometheus.NewRegistry()
			f := newFleet(t, dispatch.Options{
				HandshakeTimeout: 80 * time.Millisecond, MaxAttempts: 2, Policy: first{}, Registerer: reg,
			})
			var list []*worker.Instance
			for i, s := range c.scripts {
				list = append(list, f.worker(uint64(i+1), "", s))
			}
			f.publish(list...)
			call := newCall()
			if c.pin {
				call.Pin = &list[0].InstanceID
			}
			ctx := t.Context()
			if c.within > 0 {
				var stop context.CancelFunc
				ctx, stop = context.WithTimeout(ctx, c.within)
				defer stop()
			}
			s, err := f.d.Dispatch(ctx, call)
			switch {
			case err == nil:
				if ids, err := collect(s); !c.answers || err != nil || len(ids) != 1 {
					t.Errorf("%v, %v", ids, err)
				}
			case c.answers:
				t.Error(err)
			case c.within > 0:
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
			default:
				wantFault(t, err, fault.Timeout, fault.FromWorker)
			}
			if !slices.Equal(f.asked(), c.asked) {
				t.Errorf("asked %v, want %v", f.asked(), c.asked)
			}
			quiet := len(c.asked)
			if c.answers {
				quiet--
			}
			for range quiet {
				if got := <-heard; got != cancel {
					t.Errorf("a silent worker heard %q", got)
				}
			}
			if n := counter(t, reg, "portico_dispatch_quarantines_total"); n != 0 {
				t.Errorf("left aside %v times", n)
			}
		})
	}
}
