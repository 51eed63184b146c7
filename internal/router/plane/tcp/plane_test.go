package tcp_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/plane/tcp"
	"github.com/portico-llm/portico/internal/testkit"
)

// server is the worker's side of the plane.
type server struct {
	t     *testing.T
	ln    net.Listener
	group *lifecycle.Group
	conns atomic.Int32
	seen  chan request

	mu   sync.Mutex
	open []net.Conn
}

type request struct {
	path     string
	headers  map[string]string
	envelope []byte
	conn     int32
}

// serve answers every request with what answer says; nil: not at all.
func serve(t *testing.T, ln net.Listener, answer func(request) []byte) *server {
	t.Helper()
	s := &server{t: t, ln: ln, group: lifecycle.New(t.Context()), seen: make(chan request, 10000)}
	s.group.Go("accept", func(context.Context) error {
		for {
			c, err := ln.Accept()
			if err != nil {
				return nil
			}
			n := s.conns.Add(1)
			s.mu.Lock()
			s.open = append(s.open, c)
			s.mu.Unlock()
			s.group.Go("connection", func(context.Context) error {
				defer c.Close()
				for {
					q, err := readRequest(c)
					if err != nil {
						return nil
					}
					q.conn = n
					s.seen <- q
					if b := answer(q); b != nil {
						c.Write(binary.BigEndian.AppendUint32(nil, uint32(len(b))))
						c.Write(b)
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		s.hangUp()
		s.group.Stop()
	})
	return s
}

func (s *server) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.open {
		c.Close()
	}
	s.open = nil
}

func readRequest(r io.Reader) (q request, err error) {
	read := func(width int) []byte {
		if err != nil {
			return nil
		}
		b := make([]byte, 4)
		_, err = io.ReadFull(r, b[4-width:])
		body := make([]byte, binary.BigEndian.Uint32(b))
		if err == nil {
			_, err = io.ReadFull(r, body)
		}
		return body
	}
	q.path = string(read(2))
	if h := read(2); err == nil {
		err = json.Unmarshal(h, &q.headers)
	}
	q.envelope = read(4)
	return q, err
}

func loopback(t *testing.T) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

func newPlane(t *testing.T, opts tcp.Options) *tcp.Plane {
	t.Helper()
	opts.Log = slog.New(slog.DiscardHandler)
	p := tcp.New(opts)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func message(s *server, envelope []byte) *router.Message {
	return &router.Message{
		Instance:  &worker.Instance{Transport: worker.Transport{TCP: s.ln.Addr().String() + "/ff/ns/c/e%2F"}},
		RequestID: `id"1`, Envelope: envelope, Traceparent: "00-a-b-01", XRequestID: "x",
	}
}

func accept(request) []byte { return []byte{} }

func TestDeliver(t *testing.T) {
	testkit.NoLeaks(t)
	s := serve(t, loopback(t), accept)
	p := newPlane(t, tcp.Options{})
	for _, size := range []int{10, 60 << 10, 200 << 10, 5 << 20} {
		envelope := bytes.Repeat([]byte{7}, size)
		if err := testkit.Deliver(t.Context(), p, message(s, envelope)); err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		q := <-s.seen
		if q.path != "ff/ns/c/e%2F" || !bytes.Equal(q.envelope, envelope) {
			t.Errorf("path %q, %d bytes", q.path, len(q.envelope))
		}
		if q.headers["x-endpoint-path"] != q.path || q.headers["request-id"] != `id"1` || q.headers["traceparent"] == "" ||
			q.headers["x-request-id"] != "x" || q.headers["x-frontend-send-ts-ns"] == "" {
			t.Errorf("headers %v", q.headers)
		}
		if _, ok := q.headers["tracestate"]; ok {
			t.Error("an empty header is sent")
		}
	}
	if n := s.conns.Load(); n != 1 {
		t.Errorf("%d connections for requests one after another", n)
	}
}

func TestManyAtOnce(t *testing.T) {
	testkit.NoLeaks(t)
	s := serve(t, loopback(t), func(q request) []byte {
		if q.envelope[0]%2 == 1 {
			return []byte("Server overloaded: worker at capacity")
		}
		return []byte{}
	})
	p := newPlane(t, tcp.Options{PoolSize: 4})
	g := lifecycle.New(t.Context())
	for i := range 400 {
		g.Go("client", func(ctx context.Context) error {
			// Answers belong to requests by order alone.
			err := testkit.Deliver(ctx, p, message(s, []byte{byte(i)}))
			if got := err != nil; got != (i%2 == 1) {
				t.Errorf("request %d: %v", i, err)
			}
			return nil
		})
	}
	g.Wait()
	if n := s.conns.Load(); n > 4 {
		t.Errorf("%d connections", n)
	}
}

// TestRefusals has the answers that workers give, and one that none gives today: only the words of overload make a
// difference, and all texts stay private.
func TestRefusals(t *testing.T) {
	testkit.NoLeaks(t)
	for answer, want := range map[string]fault.Kind{
		"Server overloaded: worker at capacity":          fault.Overloaded,
		"Server unavailable: unknown endpoint x":         fault.Unavailable,
		"Server unavailable: worker pool channel closed": fault.Unavailable,
		"Invalid endpoint path":                          fault.Unavailable,
		"something new " + strings.Repeat("x", 10000):    fault.Unavailable,
	} {
		s := serve(t, loopback(t), func(request) []byte { return []byte(answer) })
		p := newPlane(t, tcp.Options{})
		err := testkit.Deliver(t.Context(), p, message(s, nil))
		f, ok := errors.AsType[*fault.Error](err)
		if !ok || f.Kind != want || f.Origin != fault.FromTransport || f.Unwrap().Error() != answer {
			t.Errorf("%.40q is %v", answer, err)
		}
		if strings.Contains(f.Message, answer) {
			t.Errorf("the worker's text is public: %s", f.Message)
		}
	}
}

func TestUnreachable(t *testing.T) {
	testkit.NoLeaks(t)
	ln := loopback(t)
	s := &server{ln: ln}
	ln.Close()
	p := newPlane(t, tcp.Options{})
	if err := testkit.Deliver(t.Context(), p, message(s, nil)); fault.From(err).Origin != fault.FromTransport {
		t.Errorf("%v", err)
	}
	for _, address := range []string{"no-slash", "host:1/" + strings.Repeat("x", 1<<16)} {
		bad := message(s, nil)
		bad.Instance = &worker.Instance{Transport: worker.Transport{TCP: address}}
		if err := testkit.Deliver(t.Context(), p, bad); fault.From(err).Origin != fault.FromTransport {
			t.Errorf("%v", err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := testkit.Deliver(ctx, p, message(s, nil)); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestTooLarge(t *testing.T) {
	testkit.NoLeaks(t)
	s := serve(t, loopback(t), accept)
	p := newPlane(t, tcp.Options{MaxMessage: 1000})
	err := testkit.Deliver(t.Context(), p, message(s, make([]byte, 1000)))
	f := fault.From(err)
	if f.Kind != fault.TooLarge || !strings.Contains(f.Message, "1000 bytes") || f.Details["limit"] != 1000 {
		t.Errorf("%v %v", err, f.Details)
	}
	m := message(s, nil)
	m.Tracestate = strings.Repeat("x", 70000)
	if err := testkit.Deliver(t.Context(), newPlane(t, tcp.Options{}), m); fault.KindOf(err) != fault.HeaderTooLarge {
		t.Errorf("%v", err)
	}
	if s.conns.Load() != 0 {
		t.Error("a connection was made for a message that can't be sent")
	}
}

// A worker that goes away fails what is outstanding there, and nothing else.
func TestLostConnection(t *testing.T) {
	testkit.NoLeaks(t)
	silent := serve(t, loopback(t), func(request) []byte { return nil })
	other := serve(t, loopback(t), accept)
	p := newPlane(t, tcp.Options{})
	g := lifecycle.New(t.Context())
	var failed atomic.Int32
	for range 20 {
		g.Go("client", func(ctx context.Context) error {
			if f := fault.From(testkit.Deliver(ctx, p, message(silent, nil))); f == nil || f.Origin != fault.FromTransport {
				t.Errorf("%v", f)
			}
			failed.Add(1)
			return nil
		})
	}
	for range 20 {
		<-silent.seen
	}
	if failed.Load() != 0 {
		t.Error("requests failed before their worker did")
	}
	silent.hangUp()
	g.Wait()
	if err := testkit.Deliver(t.Context(), p, message(other, nil)); err != nil {
		t.Error(err)
	}
	// The next request to the first makes a new connection.
	before := silent.conns.Load()
	ctx, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer stop()
	if err := testkit.Deliver(ctx, p, message(silent, nil)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if silent.conns.Load() != before+1 {
		t.Error("no new connection")
	}
}

func TestAckTimeout(t *testing.T) {
	testkit.NoLeaks(t)
	s := serve(t, loopback(t), func(q request) []byte {
		if q.envelope[0] == 0 {
			return nil
		}
		return []byte{}
	})
	p := newPlane(t, tcp.Options{AckTimeout: 100 * time.Millisecond})
	if err := testkit.Deliver(t.Context(), p, message(s, []byte{1})); err != nil {
		t.Fatal(err)
	}
	time.Sleep(150 * time.Millisecond) // the deadline set for the first passes while nothing is outstanding
	start := time.Now()
	err := testkit.Deliver(t.Context(), p, message(s, []byte{0}))
	if f := fault.From(err); f.Origin != fault.FromTransport || !strings.Contains(f.Message, "100ms") {
		t.Errorf("%v", err)
	}
	if took := time.Since(start); took < 90*time.Millisecond || took > time.Second {
		t.Errorf("after %v", took)
	}
	if err := testkit.Deliver(t.Context(), p, message(s, []byte{1})); err != nil {
		t.Error(err)
	}
}

func TestIdleConnections(t *testing.T) {
	testkit.NoLeaks(t)
	s := serve(t, loopback(t), accept)
	p := newPlane(t, tcp.Options{IdleTimeout: 50 * time.Millisecond})
	for want := range int32(3) {
		if err := testkit.Deliver(t.Context(), p, message(s, nil)); err != nil {
			t.Fatal(err)
		}
		if n := s.conns.Load(); n != want+1 {
			t.Errorf("%d connections, want %d", n, want+1)
		}
		time.Sleep(150 * time.Millisecond)
	}
}

func TestBadAnswers(t *testing.T) {
	testkit.NoLeaks(t)
	ln := loopback(t)
	s := &server{ln: ln}
	g := lifecycle.New(t.Context())
	g.Go("worker", func(context.Context) error {
		for _, answer := range []string{"\xff\xff\xff\xff", "\x00\x00\x00\x05ab", "\x00\x00\x00\x00\x00\x00\x00\x00"} {
			c, err := ln.Accept()
			if err != nil {
				return err
			}
			readRequest(c)
			io.WriteString(c, answer)
			if len(answer) == 6 {
				c.Close()
			} else {
				defer c.Close()
			}
		}
		return nil
	})
	p := newPlane(t, tcp.Options{})
	for _, ok := range []bool{false, false, true} {
		if err := testkit.Deliver(t.Context(), p, message(s, nil)); (err == nil) != ok {
			t.Errorf("%v", err)
		}
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	ln.Close()
}

func TestClose(t *testing.T) {
	testkit.NoLeaks(t)
	s := serve(t, loopback(t), func(request) []byte { return nil })
	p := tcp.New(tcp.Options{Log: slog.New(slog.DiscardHandler)})
	g := lifecycle.New(t.Context())
	g.Go("client", func(ctx context.Context) error {
		if err := testkit.Deliver(ctx, p, message(s, nil)); fault.KindOf(err) != fault.Unavailable {
			t.Errorf("outstanding: %v", err)
		}
		return nil
	})
	<-s.seen
	p.Close()
	p.Close()
	g.Wait()
	if err := testkit.Deliver(t.Context(), p, message(s, nil)); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("after close: %v", err)
	}
}

func TestTLS(t *testing.T) {
	testkit.NoLeaks(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	s := serve(t, tls.NewListener(loopback(t), &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
	}), accept)
	if err := testkit.Deliver(t.Context(), newPlane(t, tcp.Options{TLS: &tls.Config{RootCAs: pool}}), message(s, make([]byte, 100<<10))); err != nil {
		t.Error(err)
	}
	if err := testkit.Deliver(t.Context(), newPlane(t, tcp.Options{TLS: &tls.Config{}}), message(s, nil)); fault.From(err).Origin != fault.FromTransport {
		t.Errorf("unknown authority: %v", err)
	}
}
