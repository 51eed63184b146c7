package callhome

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/lifecycle"
)

// Options say where a Listener listens. The zero value listens on the first reachable address and a free port.
type Options struct {
	Host          string // IP address, wildcard or interface name; empty: the first address that isn't loopback
	Port          int    // 0: any free port
	AdvertiseHost string // what workers are told to dial; empty: the address bound, or a reachable one for a wildcard

	HandshakeTimeout time.Duration // for a connection to say which stream it is for; 10 s when zero

	Registerer prometheus.Registerer // nil: metrics are kept but not registered
	Log        *slog.Logger          // nil: slog.Default()
}

// withDefaults returns o with every option set that has a default; the addresses are resolveHost's.
func (o Options) withDefaults() Options {
	if o.HandshakeTimeout <= 0 {
		o.HandshakeTimeout = 10 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}

// maxGreeting bounds the connections that have not said what they are for. Workers say it with their first packet.
const maxGreeting = 4096

// Listener takes the connections that workers dial back with. Safe for concurrent use.
type Listener struct {
	opts    Options
	ln      *net.TCPListener
	address string // see Address
	metrics *metrics

	shards   [shardCount]shard
	greeting atomic.Int64                    // connections that have not said what they are for
	group    atomic.Pointer[lifecycle.Group] // of Run; nil before it
}

// Listen binds the listener's socket. Connections are taken once Run runs; until then the kernel queues them, so that
// the address can be given out at once. Without Run, Close gives the socket back.
func Listen(opts Options) (*Listener, error) {
	opts = opts.withDefaults()
	bind, advertise, err := resolveHost(opts.Host)
	if err != nil {
		return nil, err
	}
	// No probes, which would cost every connection system calls: a stream's idle time-out finds a worker that has
	// vanished.
	lc := net.ListenConfig{KeepAlive: -1, Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) { failed = listenOptions(int(fd), opts.HandshakeTimeout) })
		return errors.Join(err, failed)
	}}
	at := netip.AddrPortFrom(bind, uint16(opts.Port)).String()
	ln, err := lc.Listen(context.Background(), "tcp", at)
	if err != nil {
		return nil, fmt.Errorf("listen for response streams on %s: %w", at, err)
	}
	host := opts.AdvertiseHost
	if host == "" {
		host = advertise.String()
	}
	l := &Listener{opts: opts, ln: ln.(*net.TCPListener), metrics: newMetrics(opts.Registerer)}
	l.address = net.JoinHostPort(host, strconv.Itoa(l.ln.Addr().(*net.TCPAddr).Port))
	for i := range l.shards {
		l.shards[i].waiting = map[subject]*Stream{}
	}
	return l, nil
}

// Address returns host and port that workers are told to dial.
func (l *Listener) Address() string { return l.address }

// Close closes the socket of a Listener that doesn't run. Run closes it by itself.
func (l *Listener) Close() error { return l.ln.Close() }

// Run takes connections until ctx ends, then closes the socket and waits for what is still being closed. It must be
// called once at most.
func (l *Listener) Run(ctx context.Context) error {
	g := lifecycle.New(ctx)
	l.group.Store(g)
	stop := context.AfterFunc(ctx, func() { l.ln.Close() })
	defer stop()
	// Streams are not ended here: they have contexts of their own, and their users close them.
	err := l.accept(ctx)
	l.ln.Close()
	return errors.Join(err, g.Stop())
}

// accept never does more than one read of a new connection, and that without waiting: streams behind it would wait too.
// It returns nil when ctx ends, and an error when somebody else has closed the socket.
func (l *Listener) accept(ctx context.Context) error {
	var delay time.Duration
	for {
		c, err := l.ln.AcceptTCP()
		switch {
		case err == nil:
			delay = 0
			l.greet(c)
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("response stream listener: %w", err)
		default:
			// Out of descriptors, most likely: it passes when streams end.
			delay = min(max(2*delay, 5*time.Millisecond), time.Second)
			l.metrics.backoffs.Inc()
			l.opts.Log.Warn("response stream not accepted", "error", err, "retry_in", delay)
			select {
			case <-time.After(delay):
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// greet hands a connection to its stream, at once when the handshake is there, else from a goroutine that waits for it.
func (l *Listener) greet(c *net.TCPConn) {
	a := arrival{conn: c}
	rc, err := c.SyscallConn()
	if err != nil {
		c.Close()
		return
	}
	a.raw = rc
	// On Linux the handshake has come with the connection, nearly always.
	a.in.poll(rc)
	switch done, err := l.introduce(&a); {
	case done:
		return
	case err != nil:
		l.refuse(&a, reasonMalformed, err)
		return
	case l.greeting.Load() >= maxGreeting:
		l.refuse(&a, reasonCrowded, nil)
		return
	}
	l.greeting.Add(1)
	if !l.group.Load().Go("greet", func(ctx context.Context) error {
		defer l.greeting.Add(-1)
		l.await(ctx, &a)
		return nil
	}) {
		l.greeting.Add(-1)
		l.refuse(&a, reasonStopped, nil)
	}
}

// await reads the handshake of a connection that came without one. It returns when the connection belongs to its stream
// or is closed: after HandshakeTimeout, or with ctx, at the latest.
func (l *Listener) await(ctx context.Context, a *arrival) {
	stop := context.AfterFunc(ctx, func() { a.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	a.conn.SetReadDeadline(time.Now().Add(l.opts.HandshakeTimeout))
	for {
		n, err := a.conn.Read(a.in.room())
		a.in.filled(n)
		if err != nil {
			l.refuse(a, reasonSilent, err)
			return
		}
		if n := a.in.buffered(); n > worker.FrameHead+worker.MaxControl {
			l.refuse(a, reasonMalformed, worker.ErrFrameTooLarge)
			return
		}
		done, err := l.introduce(a)
		if err != nil {
			l.refuse(a, reasonMalformed, err)
			return
		}
		if done {
			return
		}
	}
}

// introduce hands the connection over if its handshake is complete. It then belongs to the stream, or is closed, and
// done is true. An error means that the handshake is none; the caller closes then.
func (l *Listener) introduce(a *arrival) (done bool, err error) {
	header, body, n, err := worker.ParseFrame(a.in.unread())
	if err != nil || n == 0 {
		return false, err
	}
	name, streamType, err := worker.ParseHandshake(header)
	if err != nil {
		return false, err
	}
	// Request streams exist in the protocol, but no worker of this kind of service opens them.
	if len(body) > 0 || streamType != worker.StreamResponse {
		return false, fmt.Errorf("handshake for a stream of type %q", streamType)
	}
	id, ok := parseSubject(name)
	if !ok {
		return false, fmt.Errorf("handshake for stream %q, which is no UUID", name)
	}
	a.in.consume(n)
	// await's deadline is not the stream's.
	a.conn.SetReadDeadline(time.Time{})
	switch l.shard(id).deliver(id, a) {
	case delivered:
		l.metrics.accepted.Inc()
	case abandoned:
		l.dismiss(a, reasonAbandoned)
	case unknown:
		l.dismiss(a, reasonUnknown)
	}
	return true, nil
}

// dismiss tells a worker to drop its work and closes the connection: nobody waits for the answer. Its request has ended
// here, however long ago, or was that of a frontend which had this address before.
func (l *Listener) dismiss(a *arrival, reason string) {
	l.metrics.refused.WithLabelValues(reason).Inc()
	l.opts.Log.Debug("response stream dismissed", "reason", reason, "peer", a.conn.RemoteAddr())
	a.conn.SetWriteDeadline(time.Now().Add(tellTimeout))
	_, _ = a.conn.Write(cancelFrames) // one that can't be told finds out when the connection closes
	a.in.release()
	l.drain(a.conn, 0)
}

// refuse closes a connection and counts why. Nothing is written: whoever is there doesn't speak the protocol.
func (l *Listener) refuse(a *arrival, reason string, err error) {
	l.metrics.refused.WithLabelValues(reason).Inc()
	if reason != reasonStopped {
		l.opts.Log.Debug("response stream refused", "reason", reason, "peer", a.conn.RemoteAddr(), "error", err)
	}
	a.in.release()
	a.conn.Close()
}

// drainTimeout bounds how long a connection is kept after its stream's end, for the worker to see what it was told.
const drainTimeout = time.Second

// drain reads and drops what still comes until the worker closes, or enough bytes have come (0: any number), and then
// closes. Closing with unread data would reset the connection under the worker's last words. It returns at once, and
// closes at once when the listener has stopped.
func (l *Listener) drain(c *net.TCPConn, enough int) {
	g := l.group.Load()
	if g == nil || !g.Go("drain", func(context.Context) error {
		defer c.Close()
		c.SetReadDeadline(time.Now().Add(drainTimeout))
		bp := buffers.Get().(*[]byte)
		defer buffers.Put(bp)
		for got := 0; ; {
			n, err := c.Read(*bp)
			got += n
			if err != nil || (enough > 0 && got >= enough) {
				return nil
			}
		}
	}) {
		c.Close()
	}
}
