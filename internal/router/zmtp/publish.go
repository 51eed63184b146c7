package zmtp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/portico-llm/portico/internal/lifecycle"
)

// PublisherOptions configure a Publisher. The zero value listens on any free port of all addresses.
type PublisherOptions struct {
	Address string // host:port; ":0" when empty

	// Queue bounds the messages that wait for one subscriber; beyond it they are lost to it. 10,000 when zero.
	Queue int
	// WriteTimeout is how long a subscriber may take nothing before its connection is closed; 10 s when zero.
	WriteTimeout time.Duration
	// MaxSubscribers bounds the connections; 1,000 when zero.
	MaxSubscribers int

	Log *slog.Logger // nil: slog.Default()
}

// withDefaults fills in what was left open.
func (o PublisherOptions) withDefaults() PublisherOptions {
	if o.Address == "" {
		o.Address = ":0"
	}
	if o.Queue <= 0 {
		o.Queue = 10_000
	}
	if o.WriteTimeout <= 0 {
		o.WriteTimeout = 10 * time.Second
	}
	if o.MaxSubscribers <= 0 {
		o.MaxSubscribers = 1_000
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}

// Publisher sends messages to whoever has subscribed to them. Safe for concurrent use.
type Publisher struct {
	opts PublisherOptions
	ln   net.Listener
	lost atomic.Uint64 // messages that subscribers were too slow for, once for each of those

	mu   sync.Mutex
	subs map[*subscriber]struct{} // guarded by mu
}

// subscriber is one connection of a Publisher.
type subscriber struct {
	p     *peer
	queue chan []byte // whole messages, shared with other subscribers

	mu     sync.Mutex
	topics [][]byte // guarded by mu
}

// Listen binds the publisher's port. Nothing is served until Run.
func Listen(opts PublisherOptions) (*Publisher, error) {
	opts = opts.withDefaults()
	ln, err := net.Listen("tcp", opts.Address)
	if err != nil {
		return nil, fmt.Errorf("zmtp: %w", err)
	}
	return &Publisher{opts: opts, ln: ln, subs: map[*subscriber]struct{}{}}, nil
}

// Port returns the port that was bound.
func (p *Publisher) Port() int { return p.ln.Addr().(*net.TCPAddr).Port }

// Close releases the port of a publisher that is not run. Run does so itself.
func (p *Publisher) Close() error { return p.ln.Close() }

// Run serves subscribers until ctx ends, and then returns nil. It owns two goroutines for each.
func (p *Publisher) Run(ctx context.Context) error {
	g := lifecycle.New(ctx)
	stop := context.AfterFunc(ctx, func() { _ = p.ln.Close() })
	defer stop()
	for {
		c, err := p.ln.Accept()
		if err != nil {
			if ctx.Err() == nil && !errors.Is(err, net.ErrClosed) {
				p.opts.Log.Warn("event subscriber not accepted", "error", err)
				select { // out of files, most likely: not to be hurried
				case <-ctx.Done():
				case <-time.After(100 * time.Millisecond):
				}
				continue
			}
			_ = p.ln.Close()
			return g.Stop()
		}
		s := &subscriber{p: newPeer(c), queue: make(chan []byte, p.opts.Queue)}
		if !p.admit(s) {
			p.opts.Log.Warn("event subscriber refused: there are too many", "peer", c.RemoteAddr().String())
			_ = c.Close()
			continue
		}
		g.Go("event subscriber", func(ctx context.Context) error {
			defer p.forget(s)
			p.serve(ctx, s)
			return nil
		})
	}
}

// admit adds a subscriber unless there are too many.
func (p *Publisher) admit(s *subscriber) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.subs) >= p.opts.MaxSubscribers {
		return false
	}
	p.subs[s] = struct{}{}
	return true
}

// forget removes a subscriber.
func (p *Publisher) forget(s *subscriber) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.subs, s)
}

// serve reads what the subscriber wants, beside a goroutine that writes to it.
func (p *Publisher) serve(ctx context.Context, s *subscriber) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(ctx, func() { _ = s.p.conn.Close() })
	defer stop()
	defer cancel()
	if err := s.p.handshake("PUB"); err != nil {
		p.opts.Log.Debug("event subscriber failed its handshake", "error", err)
		return
	}
	g := lifecycle.New(ctx)
	defer func() { _ = g.Stop() }() // its failures end the connection and are no news
	defer cancel()
	g.Go("event writer", func(ctx context.Context) error {
		defer cancel()
		s.write(ctx, p.opts.WriteTimeout)
		return nil
	})
	for {
		parts, err := s.p.message(func(name string, rest []byte) error {
			switch name {
			case "SUBSCRIBE":
				s.subscribe(rest)
			case "CANCEL":
				s.cancel(rest)
			case "PING":
				s.offer(pong(rest))
			}
			return nil
		})
		if err != nil {
			return
		}
		// Version 3.0 says the same in messages.
		if len(parts) != 1 || len(parts[0]) == 0 {
			continue
		}
		switch parts[0][0] {
		case 1:
			s.subscribe(parts[0][1:])
		case 0:
			s.cancel(parts[0][1:])
		}
	}
}

// Bounds of the subscriptions of one connection, and of each in bytes. What is beyond them is nobody's topic.
const (
	maxTopics = 1_000
	maxTopic  = 4 << 10
)

// subscribe adds a topic; each is counted, as ZeroMQ does.
func (s *subscriber) subscribe(topic []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.topics) < maxTopics && len(topic) <= maxTopic {
		s.topics = append(s.topics, bytes.Clone(topic))
	}
}

// cancel takes one subscription to a topic back.
func (s *subscriber) cancel(topic []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.IndexFunc(s.topics, func(t []byte) bool { return bytes.Equal(t, topic) }); i >= 0 {
		s.topics = slices.Delete(s.topics, i, i+1)
	}
}

// wants reports whether a message is subscribed to.
func (s *subscriber) wants(first []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.topics, func(t []byte) bool { return bytes.HasPrefix(first, t) })
}

// offer queues a message unless there are too many.
func (s *subscriber) offer(message []byte) bool {
	select {
	case s.queue <- message:
		return true
	default:
		return false
	}
}

// write sends what is queued until ctx ends or the subscriber is lost.
func (s *subscriber) write(ctx context.Context, timeout time.Duration) {
	for {
		select {
		case <-ctx.Done():
			return
		case b := <-s.queue:
			if s.p.conn.SetWriteDeadline(time.Now().Add(timeout)) != nil {
				return
			}
			if _, err := s.p.conn.Write(b); err != nil {
				return
			}
		}
	}
}

// Send queues a message for everyone who has subscribed to the beginning of its first part. It never blocks, and keeps
// nothing of the parts.
func (p *Publisher) Send(parts ...[]byte) {
	var message []byte
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.subs {
		if !s.wants(parts[0]) {
			continue
		}
		if message == nil {
			message = appendMessage(nil, parts)
		}
		if !s.offer(message) {
			p.lost.Add(1)
		}
	}
}
