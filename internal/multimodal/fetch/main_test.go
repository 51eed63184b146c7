package fetch_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/multimodal"
	"github.com/portico-llm/portico/internal/multimodal/fetch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const part = "messages[1].content[2].image_url"

// newFetcher returns a Fetcher that ends with the test.
func newFetcher(t testing.TB, opts fetch.Options) *fetch.Fetcher {
	t.Helper()
	f, err := fetch.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// get fetches one URL.
func get(t testing.TB, f *fetch.Fetcher, url string) ([]byte, error) {
	t.Helper()
	got, err := f.Fetch(t.Context(), []multimodal.Source{{Kind: multimodal.ImageURL, URL: url, Path: part}})
	if err != nil {
		return nil, err
	}
	return got[0].Data, nil
}

// refused checks that an error is the client's, names the part, and says reason.
func refused(t testing.TB, err error, reason string) {
	t.Helper()
	e, ok := errors.AsType[*fault.Error](err)
	if !ok || e.Kind != fault.BadRequest || e.Param != part || e.Code != "invalid_image_url" {
		t.Fatalf("got %#v, want a bad request that names %s", err, part)
	}
	if !strings.HasPrefix(e.Message, "`"+part+"` ") || !strings.Contains(e.Message, reason) {
		t.Errorf("got message %q, want one with %q", e.Message, reason)
	}
}

// trap is a listener that nobody may connect to; it returns its port.
func trap(t *testing.T, network, host string) string {
	t.Helper()
	l, err := net.Listen(network, net.JoinHostPort(host, "0"))
	if err != nil {
		t.Skipf("no %s here: %v", host, err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			t.Errorf("a connection to %s", l.Addr())
			_ = conn.Close()
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

// nameServer answers questions for addresses from lists: the first question for a name gets the first list, and so on;
// the last one stays.
type nameServer struct {
	conn    net.PacketConn
	answers map[string][][]string

	mu    sync.Mutex
	asked map[string]int // questions for A records by name
}

// newNameServer starts a server that ends with the test, and returns a resolver that asks it alone.
func newNameServer(t *testing.T, answers map[string][][]string) (*nameServer, *net.Resolver) {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &nameServer{conn: conn, answers: answers, asked: map[string]int{}}
	var wg sync.WaitGroup
	wg.Go(s.serve)
	t.Cleanup(func() {
		_ = conn.Close()
		wg.Wait()
	})
	return s, &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

func (s *nameServer) serve() {
	buf := make([]byte, 1500)
	for {
		n, from, err := s.conn.ReadFrom(buf)
		if err != nil {
			return
		}
		var q dnsmessage.Message
		if q.Unpack(buf[:n]) != nil || len(q.Questions) != 1 {
			continue
		}
		if out, err := s.answer(&q); err == nil {
			_, _ = s.conn.WriteTo(out, from)
		}
	}
}

// answer makes the reply to one question.
func (s *nameServer) answer(q *dnsmessage.Message) ([]byte, error) {
	question := q.Questions[0]
	name := strings.TrimSuffix(question.Name.String(), ".")
	reply := dnsmessage.Message{Questions: q.Questions}
	reply.ID, reply.Response, reply.RecursionDesired = q.ID, true, true
	lists := s.answers[name]
	if len(lists) == 0 {
		reply.RCode = dnsmessage.RCodeNameError
		return reply.Pack()
	}
	s.mu.Lock()
	round := min(s.asked[name], len(lists)-1)
	if question.Type == dnsmessage.TypeA {
		// The question for AAAA records comes beside it, in either order.
		s.asked[name]++
	}
	s.mu.Unlock()
	for _, text := range lists[round] {
		ip := netip.MustParseAddr(text)
		head := dnsmessage.ResourceHeader{Name: question.Name, Class: dnsmessage.ClassINET, TTL: 1}
		switch {
		case ip.Is4() && question.Type == dnsmessage.TypeA:
			reply.Answers = append(reply.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AResource{A: ip.As4()}})
		case ip.Is6() && question.Type == dnsmessage.TypeAAAA:
			reply.Answers = append(reply.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AAAAResource{AAAA: ip.As16()}})
		}
	}
	return reply.Pack()
}

// drip sends a byte now and then, until the client goes away.
func drip(w io.Writer, flush func(), gone <-chan struct{}) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-gone:
			return
		case <-tick.C:
			if _, err := w.Write([]byte("x")); err != nil {
				return
			}
			flush()
		}
	}
}
