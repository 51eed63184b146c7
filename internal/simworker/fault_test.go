package simworker_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/simworker"
)

// withFault runs a worker whose every request has the fault.
func withFault(t *testing.T, fault simworker.Fault) *running {
	t.Helper()
	return start(t, simworker.Options{
		Engine: echo(), Fault: func(*simworker.Request) simworker.Fault { return fault }, CloseWait: 100 * time.Millisecond,
	})
}

// TestFaultsBeforeAcknowledgement reads how requests are refused, by the words that frontends look for, and sees that
// nobody calls back for them.
func TestFaultsBeforeAcknowledgement(t *testing.T) {
	for kind, want := range map[simworker.FaultKind]string{
		simworker.Overloaded: "Server overloaded: worker at capacity",
		simworker.Unknown:    "Server unavailable: unknown endpoint",
	} {
		t.Run(string(kind), func(t *testing.T) {
			w := withFault(t, simworker.Fault{Kind: kind})
			f := newFrontend(t)
			c, path := dial(t, w)
			if _, err := c.Write(tcpFrame(path, f.envelope("a", worker.JSON, request(3, 1, 2, 3)))); err != nil {
				t.Fatal(err)
			}
			if ack := readAck(t, c); !strings.HasPrefix(ack, want) {
				t.Errorf("acknowledgement %q, want %q", ack, want)
			}
			f.noCall(30 * time.Millisecond)
		})
	}
	t.Run("no-ack", func(t *testing.T) {
		w := withFault(t, simworker.Fault{Kind: simworker.NoAck})
		f := newFrontend(t)
		c, path := dial(t, w)
		if _, err := c.Write(tcpFrame(path, f.envelope("a", worker.JSON, request(3, 1, 2, 3)))); err != nil {
			t.Fatal(err)
		}
		c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if n, err := c.Read(make([]byte, 4)); err == nil {
			t.Errorf("%d bytes of acknowledgement", n)
		}
	})
}

func TestNeverCall(t *testing.T) {
	w := withFault(t, simworker.Fault{Kind: simworker.NeverCall})
	f := newFrontend(t)
	f.send(w, "a", worker.JSON, request(3, 1, 2, 3))
	f.noCall(50 * time.Millisecond)
}

func TestSlowCall(t *testing.T) {
	w := withFault(t, simworker.Fault{Kind: simworker.SlowCall, Delay: 80 * time.Millisecond})
	f := newFrontend(t)
	began := time.Now()
	f.send(w, "a", worker.JSON, request(3, 1, 2, 3))
	c := f.accept()
	if took := time.Since(began); took < 80*time.Millisecond {
		t.Errorf("called back after %s", took)
	}
	c.prologue()
	c.rest(worker.JSON)
}

func TestHandshakeFaults(t *testing.T) {
	t.Run("bad-subject", func(t *testing.T) {
		f := newFrontend(t)
		f.send(withFault(t, simworker.Fault{Kind: simworker.BadSubject}), "a", worker.JSON, request(1, 1))
		if c := f.accept(); c.subject == "s-a" {
			t.Errorf("subject %q", c.subject)
		}
	})
	t.Run("handshake-only", func(t *testing.T) {
		f := newFrontend(t)
		f.send(withFault(t, simworker.Fault{Kind: simworker.HandshakeOnly}), "a", worker.JSON, request(1, 1))
		if a := f.accept().rest(worker.JSON); a.end != "eof" {
			t.Errorf("end %q", a.end)
		}
	})
	t.Run("no-handshake", func(t *testing.T) {
		f := newFrontend(t)
		f.send(withFault(t, simworker.Fault{Kind: simworker.NoHandshake}), "a", worker.JSON, request(1, 1))
		c := f.acceptRaw()
		c.conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if n, _ := c.conn.Read(make([]byte, 8)); n > 0 {
			t.Errorf("%d bytes", n)
		}
		c.conn.Close()
	})
	t.Run("error-prologue", func(t *testing.T) {
		f := newFrontend(t)
		f.send(withFault(t, simworker.Fault{Kind: simworker.ErrorPrologue}), "a", worker.JSON, request(1, 1))
		c := f.accept()
		if e := c.prologue(); e == nil || e.Class != "Unavailable" {
			t.Errorf("prologue %v", e)
		}
		c.conn.Close()
	})
}

// TestStreamFaults compares the whole answer of a request for three tokens under each fault.
func TestStreamFaults(t *testing.T) {
	// End is how the stream ended: with the sentinel, with the connection, or with what could not be read.
	type seen struct {
		Tokens, Errors int
		Final          bool
		End            string
	}
	for _, c := range []struct {
		fault simworker.Fault
		want  seen
	}{
		{simworker.Fault{}, seen{3, 0, true, "sentinel"}},
		{simworker.Fault{Kind: simworker.DieAfter, After: 2}, seen{2, 0, false, "eof"}},
		{simworker.Fault{Kind: simworker.DieAfter}, seen{0, 0, false, "eof"}},
		{simworker.Fault{Kind: simworker.ErrorAfter, After: 1}, seen{1, 1, true, "sentinel"}},
		{simworker.Fault{Kind: simworker.GarbageAfter, After: 1}, seen{1, 0, false, "frame"}},
		{simworker.Fault{Kind: simworker.BadItemAfter, After: 1}, seen{1, 0, false, "item"}},
		{simworker.Fault{Kind: simworker.NoFinal}, seen{3, 0, false, "sentinel"}},
		{simworker.Fault{Kind: simworker.NoSentinel}, seen{3, 0, true, "eof"}},
		{simworker.Fault{Kind: simworker.DataAfterEnd}, seen{4, 0, true, "sentinel"}},
		{simworker.Fault{Kind: simworker.SlowItems, Delay: time.Millisecond}, seen{3, 0, true, "sentinel"}},
	} {
		t.Run(string(c.fault.Kind), func(t *testing.T) {
			w := withFault(t, c.fault)
			f := newFrontend(t)
			f.send(w, "a", worker.Msgpack, request(3, 1, 2, 3))
			call := f.accept()
			call.prologue()
			a := call.rest(worker.Msgpack)
			got := seen{len(a.tokens[0]), len(a.errs), a.final, a.end}
			for _, short := range []string{"frame", "item"} {
				if strings.HasPrefix(got.End, short) {
					got.End = short
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestHangAfter(t *testing.T) {
	w := withFault(t, simworker.Fault{Kind: simworker.HangAfter, After: 1})
	f := newFrontend(t)
	f.send(w, "a", worker.JSON, request(3, 1, 2, 3))
	c := f.accept()
	c.prologue()
	if _, _, err := c.frame(); err != nil {
		t.Fatal(err)
	}
	c.conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if _, _, err := c.frame(); err == nil {
		t.Error("another frame")
	}
	c.signal(worker.SignalKill)
	waitStats(t, w, func(s simworker.Stats) bool { return s.Killed == 1 && s.Active == 0 })
}

func TestIgnoreStop(t *testing.T) {
	w := withFault(t, simworker.Fault{Kind: simworker.IgnoreStop})
	f := newFrontend(t)
	f.send(w, "a", worker.JSON, request(3, 1, 2, 3))
	c := f.accept()
	c.signal(worker.SignalStop)
	c.prologue()
	if a := c.rest(worker.JSON); len(a.tokens[0]) != 3 || !a.final {
		t.Errorf("answer %+v", a)
	}
}

func TestParseFaults(t *testing.T) {
	plan, err := simworker.ParseFaults("die-after=3/4, slow=50ms/2")
	if err != nil {
		t.Fatal(err)
	}
	want := []simworker.Fault{{}, {Kind: simworker.SlowItems, Delay: 50 * time.Millisecond}, {}, {Kind: simworker.DieAfter, After: 3}}
	for i, fault := range want {
		if got := plan(&simworker.Request{Ordinal: uint64(i)}); got != fault {
			t.Errorf("request %d: %+v, want %+v", i, got, fault)
		}
	}
	for _, bad := range []string{"explode", "slow=soon", "die-after=1/0", "die-after=1/x"} {
		if _, err := simworker.ParseFaults(bad); err == nil {
			t.Errorf("%q: accepted", bad)
		}
	}
}
