package callhome_test

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/router/callhome"
)

// timeWaits counts the sockets in TIME_WAIT with a port of this end.
func timeWaits(t *testing.T, port uint16) (n int) {
	t.Helper()
	b, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Skip(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) && f[3] == "06" {
			n++
		}
	}
	return n
}

// prompt is a worker's connection without the poller between: it closes as soon as the system says that it may.
func prompt(at netip.AddrPort, say []byte, until func(heard []byte) bool) error {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	if err := syscall.Connect(fd, &syscall.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}); err != nil {
		return err
	}
	if _, err := syscall.Write(fd, say); err != nil {
		return err
	}
	buf := make([]byte, 512)
	for heard := []byte(nil); !until(heard); {
		n, err := syscall.Read(fd, buf)
		if n <= 0 || err != nil {
			return err // the end of the stream is none
		}
		heard = append(heard, buf[:n]...)
	}
	return nil
}

// TestTimeWait: whoever closes first, a stream leaves no socket in TIME_WAIT at this end, and workers see its end.
func TestTimeWait(t *testing.T) {
	forever := func([]byte) bool { return false }
	for name, tc := range map[string]struct {
		answer []byte
		until  func(heard []byte) bool
		first  bool // the worker has closed before the frontend does
	}{
		"the frontend":     {append(data("a", final), sentinel...), forever, false},
		"the worker":       {append(data("a", final), sentinel...), func([]byte) bool { return true }, true},
		"without a word":   {data("a", final), func([]byte) bool { return true }, true},
		"told to, it does": {data("a"), func(heard []byte) bool { return len(heard) == len(cancel) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			l := listen(t, callhome.Options{})
			at := netip.MustParseAddrPort(l.Address())
			for range 100 {
				s := new(callhome.Stream)
				l.Expect(s)
				g := lifecycle.New(t.Context())
				g.Go("worker", func(context.Context) error {
					return prompt(at, bytes.Join([][]byte{call(s), begun, tc.answer}, nil), tc.until)
				})
				if _, err := s.Await(t.Context(), patience); err != nil {
					t.Fatal(err)
				}
				if bytes.Contains(tc.answer, []byte(final)) {
					if _, err := drainStream(s); err != nil {
						t.Fatal(err)
					}
				}
				if !tc.first { // two that close at the same instant would both wait, as TCP has it
					s.Close()
				}
				if err := g.Wait(); err != nil {
					t.Error(err)
				}
				s.Close()
			}
			if n := timeWaits(t, at.Port()); n != 0 {
				t.Errorf("%d of 100 connections wait", n)
			}
		})
	}
}
