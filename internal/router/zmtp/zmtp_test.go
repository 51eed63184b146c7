package zmtp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/portico-llm/portico/internal/lifecycle"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func publisher(t *testing.T, opts PublisherOptions) (*Publisher, string) {
	t.Helper()
	opts.Address = "127.0.0.1:0"
	p, err := Listen(opts)
	if err != nil {
		t.Fatal(err)
	}
	g := lifecycle.New(context.Background())
	g.Go("publisher", p.Run)
	t.Cleanup(func() {
		if err := g.Stop(); err != nil {
			t.Error(err)
		}
	})
	return p, fmt.Sprintf("tcp://127.0.0.1:%d", p.Port())
}

// TestPublishAndSubscribe sends messages of all frame sizes to two subscribers with different topics.
func TestPublishAndSubscribe(t *testing.T) {
	p, endpoint := publisher(t, PublisherOptions{})
	large := bytes.Repeat([]byte("x"), 200_000)
	enough := errors.New("enough")
	g := lifecycle.New(t.Context())
	for _, topic := range []string{"kv", ""} {
		g.Go("subscriber", func(ctx context.Context) error {
			n := 0
			err := Subscribe(ctx, endpoint, topic, func() {}, func(parts [][]byte) error {
				if string(parts[0]) == "other" && topic == "" {
					return nil
				}
				if len(parts) != 3 || string(parts[0]) != "kv-events" || string(parts[1]) != fmt.Sprint(n) || !bytes.Equal(parts[2], large[:n*n*100]) {
					t.Errorf("message %d: %q", n, parts[:2])
				}
				if n++; n == 40 {
					return enough
				}
				return nil
			})
			if !errors.Is(err, enough) {
				t.Error(err)
			}
			return nil
		})
	}
	waitFor(t, func() bool { return subscriptions(p) == 2 })
	for i := range 40 {
		p.Send([]byte("other"), []byte("no"))
		p.Send([]byte("kv-events"), fmt.Append(nil, i), large[:i*i*100])
	}
	waitFor(t, func() bool { return subscriptions(p) == 0 })
	if err := g.Stop(); err != nil {
		t.Error(err)
	}
	if p.lost.Load() != 0 {
		t.Errorf("%d lost", p.lost.Load())
	}
}

// subscriptions counts subscribers that have a topic.
func subscriptions(p *Publisher) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.subs {
		s.mu.Lock()
		n += len(s.topics)
		s.mu.Unlock()
	}
	return n
}

func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for until := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("too late")
		}
	}
}

// TestSlowSubscriber takes nothing: messages beyond the queue are lost to it and to nobody else, and it is let go.
func TestSlowSubscriber(t *testing.T) {
	p, endpoint := publisher(t, PublisherOptions{Queue: 4, WriteTimeout: time.Second})
	block := make(chan struct{})
	g := lifecycle.New(t.Context())
	g.Go("slow", func(ctx context.Context) error {
		if err := Subscribe(ctx, endpoint, "", func() {}, func([][]byte) error { <-block; return nil }); err == nil {
			t.Error("no error")
		}
		return nil
	})
	waitFor(t, func() bool { return subscriptions(p) == 1 })
	large := make([]byte, 1<<20)
	waitFor(t, func() bool {
		p.Send([]byte("t"), large)
		return p.lost.Load() > 0
	})
	waitFor(t, func() bool { return subscriptions(p) == 0 })
	close(block)
	if err := g.Stop(); err != nil {
		t.Error(err)
	}
}

// TestNewerPeer subscribes by commands and pings, as version 3.1 does.
func TestNewerPeer(t *testing.T) {
	p, endpoint := publisher(t, PublisherOptions{})
	address, err := hostPort(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	peer := newPeer(c)
	hello := greeting()
	hello[11] = 1
	c.Write(hello)
	if _, err := io.ReadFull(peer.r, make([]byte, greetingSize)); err != nil {
		t.Fatal(err)
	}
	c.Write(ready("SUB"))
	if flags, body, err := peer.frame(nil); err != nil || flags != flagCommand || !bytes.HasPrefix(body, []byte("\x05READY")) {
		t.Fatalf("%d %q %v", flags, body, err)
	}
	c.Write(appendFrame(nil, flagCommand, []byte("\x09SUBSCRIBEa")))
	c.Write(appendFrame(nil, flagCommand, []byte("\x09SUBSCRIBEb")))
	c.Write(appendFrame(nil, flagCommand, []byte("\x06CANCELb")))
	c.Write(appendFrame(nil, flagCommand, append([]byte("\x09SUBSCRIBE"), make([]byte, maxTopic+1)...))) // nobody's topic
	c.Write(appendFrame(nil, flagCommand, []byte("\x04PING\x00\x05ctx")))
	if flags, body, err := peer.frame(nil); err != nil || flags != flagCommand || string(body) != "\x04PONGctx" {
		t.Fatalf("%d %q %v", flags, body, err)
	}
	if n := subscriptions(p); n != 1 {
		t.Errorf("%d subscriptions", n)
	}
	p.Send([]byte("b"))
	p.Send([]byte("ab"), []byte("x"))
	parts, err := peer.message(func(string, []byte) error { return nil })
	if err != nil || len(parts) != 2 || string(parts[0]) != "ab" {
		t.Errorf("%q, %v", parts, err)
	}
}

// TestRefused lists what a subscriber gives up for.
func TestRefused(t *testing.T) {
	for name, answer := range map[string]string{
		"http":      "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n.............",
		"old":       "\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x01" + string(make([]byte, 53)),
		"curve":     "\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x00CURVE" + string(make([]byte, 47)),
		"not ready": string(greeting()) + "\x00\x01x",
		"flags":     string(greeting()) + string(ready("PUB")) + "\xf0\x00",
		"huge":      string(greeting()) + string(ready("PUB")) + "\x02\x7f\x00\x00\x00\x00\x00\x00\x00",
		"cut":       string(greeting()) + string(ready("PUB")) + "\x00\x10abc",
		"command":   string(greeting()) + string(appendFrame(nil, flagCommand, bytes.Repeat([]byte{255}, 300))),
		"parts":     string(greeting()) + string(ready("PUB")) + string(bytes.Repeat([]byte("\x01\x00"), 100)),
	} {
		t.Run(name, func(t *testing.T) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			g := lifecycle.New(t.Context())
			g.Go("peer", func(context.Context) error {
				c, err := ln.Accept()
				if err != nil {
					return nil
				}
				io.WriteString(c, answer)
				c.(*net.TCPConn).CloseWrite()
				io.Copy(io.Discard, c)
				return c.Close()
			})
			err = Subscribe(t.Context(), "tcp://"+ln.Addr().String(), "t", func() {}, func(parts [][]byte) error {
				t.Errorf("message %q", parts)
				return nil
			})
			if err == nil {
				t.Error("no error")
			}
			ln.Close()
			g.Stop()
		})
	}
	for _, bad := range []string{"", "ipc:///x", "tcp://", "tcp://host"} {
		if err := Subscribe(t.Context(), bad, "", nil, nil); err == nil {
			t.Errorf("endpoint %q: no error", bad)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, endpoint := publisher(t, PublisherOptions{})
	err := Subscribe(ctx, endpoint, "", cancel, nil)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// FuzzMessage reads what a peer may send: only errors may come of it, and never more memory than was sent.
func FuzzMessage(f *testing.F) {
	f.Add(appendMessage(nil, [][]byte{[]byte("a"), bytes.Repeat([]byte("b"), 300), nil}))
	f.Add(ready("PUB"))
	f.Add(appendFrame(nil, flagCommand, bytes.Repeat([]byte{255}, 300))) // a name of all the bytes there can be
	f.Add([]byte("\x02\x00\x00\x00\x00\x00\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, c := net.Pipe()
		defer a.Close()
		g := lifecycle.New(context.Background())
		g.Go("writer", func(context.Context) error {
			a.SetWriteDeadline(time.Now().Add(time.Second))
			a.Write(b)
			return a.Close()
		})
		defer g.Stop()
		defer c.Close()
		p := newPeer(c)
		for {
			parts, err := p.message(func(string, []byte) error { return nil })
			if err != nil {
				return
			}
			size := 0
			for _, part := range parts {
				size += len(part)
			}
			if size > len(b) {
				t.Fatalf("%d bytes out of %d", size, len(b))
			}
		}
	})
}
