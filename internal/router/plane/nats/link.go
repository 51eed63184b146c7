package nats

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	natsgo "github.com/nats-io/nats.go"

	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/router"
)

// shardCount is how many parts the outstanding requests have, each with its own lock. Requests go to them in turn.
const shardCount = 32

// link is a connection with one inbox for the replies to all requests. One subscription for all saves the server two
// messages a request. A plane has one link, from its first use to its end; reconnecting is the connection's own work.
type link struct {
	plane  *Plane
	nc     *natsgo.Conn
	sub    *natsgo.Subscription
	prefix string // of reply subjects; a number follows

	next   atomic.Uint64 // numbers requests
	back   atomic.Int64  // when the last outage ended, as Unix time in nanoseconds; 0: there was none
	shards [shardCount]shard
}

// shard is part of the outstanding requests, by their numbers.
type shard struct {
	mu          sync.Mutex
	outstanding map[uint64]*request // guarded by mu
}

// request is one whose reply has not come. Whoever takes it out of its shard calls done, so that it is called once:
// the reply, the timer, a lost connection or Close.
type request struct {
	done  func(error)
	timer *time.Timer
}

// newLink connects, unless the options have a connection, and subscribes to replies. A server that is away is no error:
// the connection goes on trying, and the subscription waits with it. It blocks for one attempt, ConnectTimeout each
// server at most.
func newLink(p *Plane) (*link, error) {
	l := &link{plane: p}
	for i := range l.shards {
		l.shards[i].outstanding = map[uint64]*request{}
	}
	nc := p.opts.Conn
	if nc == nil {
		var err error
		if nc, err = natsgo.Connect(p.opts.URL, l.options()...); err != nil {
			return nil, fmt.Errorf("connect to NATS: %w", err)
		}
	}
	l.nc = nc
	l.prefix = nc.NewInbox() + "."
	var err error
	if l.sub, err = nc.Subscribe(l.prefix+"*", l.reply); err == nil {
		// Replies are short; a burst of them must not count as a slow consumer.
		err = l.sub.SetPendingLimits(-1, -1)
	}
	if err != nil {
		l.close(p.opts.Conn == nil)
		return nil, fmt.Errorf("subscribe to replies: %w", err)
	}
	return l, nil
}

// options are those of a connection of this plane's own. Its callbacks run on the connection's goroutine, one at a
// time.
func (l *link) options() []natsgo.Option {
	p := l.plane
	opts := append([]natsgo.Option{
		natsgo.Name("portico"),
		natsgo.RetryOnFailedConnect(true),
		natsgo.MaxReconnects(-1),
		natsgo.CustomReconnectDelay(reconnectDelay),
		natsgo.ReconnectBufSize(-1), // a request for a server that is away fails at once
		natsgo.Timeout(p.opts.ConnectTimeout),
		natsgo.PingInterval(pingInterval),
		natsgo.ConnectHandler(func(*natsgo.Conn) { p.cameUp() }),
		natsgo.ReconnectHandler(func(*natsgo.Conn) {
			p.opts.Log.Info("connected to NATS again")
			l.back.Store(time.Now().UnixNano())
			p.cameUp()
		}),
		natsgo.DisconnectErrHandler(func(_ *natsgo.Conn, err error) {
			if !p.closed.Load() {
				p.opts.Log.Warn("NATS connection lost", "error", err)
			}
			// At once: waiting for their time-outs would hold their clients up for nothing.
			l.failAll(away(errors.Join(natsgo.ErrDisconnected, err)))
		}),
		natsgo.ErrorHandler(func(_ *natsgo.Conn, _ *natsgo.Subscription, err error) {
			p.opts.Log.Warn("NATS error", "error", err)
		}),
	}, p.auth...)
	if p.opts.TLS != nil {
		// Also for nats:// addresses: whoever gives a TLS configuration wants it used.
		opts = append(opts, natsgo.Secure(p.opts.TLS))
	}
	return opts
}

// pingInterval is such that a server that has gone without a word is noticed within a minute.
const pingInterval = 20 * time.Second

// reconnectDelay doubles from 100 ms to two seconds: a server that is back is to be noticed soon.
func reconnectDelay(attempts int) time.Duration {
	return min(100*time.Millisecond<<min(attempts, 5), 2*time.Second)
}

// shard returns the part that request n belongs to.
func (l *link) shard(n uint64) *shard { return &l.shards[n%shardCount] }

// send publishes msg and registers done for the reply. It returns an error or sees to it that done is called, never
// both. Publishing copies to the connection's buffer, and waits for the server only while that is full.
func (l *link) send(msg *natsgo.Msg, done func(error)) error {
	n := l.next.Add(1)
	q := &request{done: done}
	timeout := l.plane.opts.RequestTimeout
	h := l.shard(n)
	h.mu.Lock()
	// Under the lock: a timer that fires at once must find the request.
	q.timer = time.AfterFunc(timeout, func() {
		l.settle(n, router.Unaccepted(timeout))
	})
	h.outstanding[n] = q
	h.mu.Unlock()

	// The request is registered before it is sent: its reply can't come too early.
	msg.Reply = l.prefix + strconv.FormatUint(n, 36)
	err := l.nc.PublishMsg(msg)
	if err == nil {
		if !l.nc.IsConnected() {
			// The disconnect may have come between the two and not found this request.
			l.settle(n, away(natsgo.ErrDisconnected))
		}
		return nil
	}
	if l.take(n) == nil {
		return nil // settled meanwhile: done has been called
	}
	// The limit may have come with a reconnect since the plane looked.
	if errors.Is(err, natsgo.ErrMaxPayload) {
		return tooLarge(int64(len(msg.Data)+headerSize(msg.Header)), l.nc.MaxPayload())
	}
	return away(err)
}

// take removes an outstanding request; nil when it has been settled.
func (l *link) take(n uint64) *request {
	h := l.shard(n)
	h.mu.Lock()
	defer h.mu.Unlock()
	q := h.outstanding[n]
	delete(h.outstanding, n)
	// The timer may fire all the same, and then finds nothing.
	if q != nil {
		q.timer.Stop()
	}
	return q
}

// settle ends a request, unless that has happened already. It calls done without any lock.
func (l *link) settle(n uint64, err error) {
	if q := l.take(n); q != nil {
		q.done(err)
	}
}

// failAll fails what is outstanding: replies don't come after a reconnect.
func (l *link) failAll(err error) {
	for i := range l.shards {
		h := &l.shards[i]
		h.mu.Lock()
		// Taken out as a whole, so that done runs without the lock.
		failed := h.outstanding
		h.outstanding = map[uint64]*request{}
		h.mu.Unlock()
		for _, q := range failed {
			q.timer.Stop()
			q.done(err)
		}
	}
}

// noResponders is the status of the reply that the server makes when nobody subscribes to a subject.
const noResponders = "503"

// reply takes one reply. It runs on the subscription's goroutine, which done must not hold up. Replies that come too
// late and subjects that are no number are dropped.
func (l *link) reply(msg *natsgo.Msg) {
	n, err := strconv.ParseUint(msg.Subject[len(l.prefix):], 36, 64)
	if err != nil {
		return
	}
	// Nobody listens on the worker's subject: it has gone, or has not come up yet.
	if len(msg.Data) == 0 && msg.Header.Get("Status") == noResponders {
		err := natsgo.ErrNoResponders
		if time.Now().UnixNano()-l.back.Load() < int64(l.plane.opts.ReturnTime) {
			err = fmt.Errorf("%w: %w", router.ErrPlaneDown, err)
		}
		l.settle(n, fault.Lost(err, "The worker can't be reached"))
		return
	}
	l.settle(n, router.Acceptance(string(msg.Data)))
}

// close ends the link, with its connection if that is its own, and fails what is outstanding. It waits a second at most
// for the connection's goroutines.
func (l *link) close(own bool) {
	switch {
	case own:
		closed := l.nc.StatusChanged(natsgo.CLOSED)
		l.nc.Close()
		// Close itself doesn't wait for the connection's callbacks.
		select {
		case <-closed:
		case <-time.After(time.Second):
		}
	case l.sub != nil:
		// The connection's owner may have closed it, and the subscription with it.
		_ = l.sub.Unsubscribe()
	}
	l.failAll(away(errClosed))
}
