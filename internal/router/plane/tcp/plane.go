// Package tcp delivers requests to workers over TCP: a few persistent connections for each host, on which many requests
// may be outstanding. Workers answer in the order of the requests, with nothing to accept one and a text to refuse it.
//
// A Plane is safe for concurrent use. It starts a goroutine for each connection, which reads the answers; Close waits
// for all of them.
package tcp

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/router"
)

// Options configure a Plane. The zero value works.
type Options struct {
	PoolSize       int           // connections for each host at most; 100 when zero
	ConnectTimeout time.Duration // 5 s when zero
	AckTimeout     time.Duration // for the answer to a request; 5 s when zero
	IdleTimeout    time.Duration // after which an unused connection is closed; 5 min when zero
	LossGrace      time.Duration // from a broken connection until its worker counts as lost; 300 ms when zero
	MaxMessage     int           // bytes of one request; 32 MiB when zero
	TLS            *tls.Config   // nil: plain TCP
	Log            *slog.Logger  // nil: slog.Default()

	Registerer prometheus.Registerer // nil: metrics are kept but not registered
}

// withDefaults returns o with every option set that has a default.
func (o Options) withDefaults() Options {
	if o.PoolSize <= 0 {
		o.PoolSize = 100
	}
	if o.ConnectTimeout <= 0 {
		o.ConnectTimeout = 5 * time.Second
	}
	if o.AckTimeout <= 0 {
		o.AckTimeout = 5 * time.Second
	}
	if o.IdleTimeout <= 0 {
		o.IdleTimeout = 5 * time.Minute
	}
	if o.LossGrace <= 0 {
		o.LossGrace = 300 * time.Millisecond
	}
	if o.MaxMessage <= 0 {
		o.MaxMessage = 32 << 20
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}

// Plane is a router.Plane over TCP. After Close every delivery fails.
type Plane struct {
	opts    Options
	metrics *metrics
	group   *lifecycle.Group
	hosts   sync.Map // host:port → *host
	closed  atomic.Bool
}

var _ router.Plane = (*Plane)(nil)

// New returns a Plane without connections.
func New(opts Options) *Plane {
	// The connections' lifetime is the plane's own: it ends with Close.
	return &Plane{opts: opts.withDefaults(), metrics: newMetrics(opts.Registerer), group: lifecycle.New(context.Background())}
}

// Close closes all connections, which fails what is outstanding on them, and waits for their readers.
func (p *Plane) Close() error {
	p.closed.Store(true)
	p.hosts.Range(func(_, v any) bool {
		v.(*host).close()
		return true
	})
	return p.group.Stop()
}

// errClosed is the cause of failures after Close, and of those that Close brings about.
var errClosed = errors.New("request plane closed")

// Start implements router.Plane. lost is closed when the connection that m went by has broken, by the worker's doing or
// the network's, and LossGrace has passed. Whoever still waits for the worker to begin with what it accepted need not
// wait longer: the process has gone, most likely. It is never closed for a connection that this side ends.
func (p *Plane) Start(
	ctx context.Context, m *router.Message, done func(error),
) (lost <-chan struct{}, err error) {
	address, path, ok := strings.Cut(m.Instance.Transport.TCP, "/")
	if !ok || address == "" {
		return nil, fault.Lost(errors.New("malformed address "+m.Instance.Transport.TCP), "The worker can't be reached")
	}
	// send appends to the buffer, so what goes back to the pool is what bp points to in the end.
	bp := frames.Get().(*[]byte)
	defer frames.Put(bp)
	head, err := appendHead((*bp)[:0], path, m)
	*bp = head
	if err != nil {
		return nil, err
	}
	if size := len(head) + len(m.Envelope); size > p.opts.MaxMessage {
		return nil, tooLarge(size, p.opts.MaxMessage)
	}
	// A connection may have died since it was chosen. Nothing of m has been sent on it then, so another try is safe; it
	// ends with a live connection or a failed dial.
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		c, err := p.connection(ctx, address)
		if err != nil {
			return nil, err
		}
		// It may have taken a while, and a message that nobody waits for is work for nothing.
		if err := ctx.Err(); err != nil {
			c.unlock()
			return nil, err
		}
		if c.send(bp, m.Envelope, done) {
			return c.lost, nil
		}
	}
}

// tooLarge is the failure of a message above the limit. Its details let clients tell by how much.
func tooLarge(size, limit int) *fault.Error {
	e := fault.New(fault.TooLarge, "The request is %d bytes once encoded; workers take at most %d bytes", size, limit)
	e.Details = map[string]any{"type": "size_limit", "actual": size, "limit": limit}
	return e
}

// connection returns a connection to address, locked for writing. Hosts come and go while it looks: one that was
// forgotten is replaced by the first who needs it.
func (p *Plane) connection(ctx context.Context, address string) (*conn, error) {
	for {
		if p.closed.Load() {
			return nil, fault.Lost(errClosed, "The service is shutting down")
		}
		v, ok := p.hosts.Load(address)
		if !ok {
			v, _ = p.hosts.LoadOrStore(address, newHost(p, address))
		}
		c, err := v.(*host).acquire(ctx)
		if c != nil || err != nil {
			return c, err
		}
	}
}

// dial opens a connection, and with TLS completes the handshake, within ConnectTimeout. Probes find a host that has
// vanished while nothing is sent to it.
func (p *Plane) dial(ctx context.Context, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, p.opts.ConnectTimeout)
	defer cancel()
	d := net.Dialer{KeepAlive: 30 * time.Second}
	if p.opts.TLS == nil {
		return d.DialContext(ctx, "tcp", address)
	}
	return (&tls.Dialer{NetDialer: &d, Config: p.opts.TLS}).DialContext(ctx, "tcp", address)
}
