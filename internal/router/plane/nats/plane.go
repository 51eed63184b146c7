// Package nats delivers requests to workers over NATS: one request message for each, whose empty reply says that the
// worker has queued it.
//
// A Plane is safe for concurrent use. It connects on first use, or in Connect, and reconnects for ever; while the
// server is away, deliveries fail at once but for a short wait. Close waits for what it started.
package nats

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/router"
)

// Options configure a Plane. The zero value connects to a server on this machine.
type Options struct {
	URL  string       // nats:// or tls://, several separated by commas; nats://localhost:4222 when empty
	Conn *natsgo.Conn // a connection to use instead; Close leaves it open

	// Credentials. The first of these that is set is used, else user "user" with password "user".
	Username, Password string
	Token              string
	NKeySeed           string // the seed itself, not a file
	CredentialsFile    string
	TLS                *tls.Config

	ConnectTimeout time.Duration // for one attempt; 5 s when zero
	RequestTimeout time.Duration // for the reply to a request; 10 s when zero
	DownWait       time.Duration // how long a request waits for a server that is away; 500 ms when zero
	// ReturnTime is how long after an outage a worker that can't be reached may still be on its way back: that isn't held
	// against it. Dynamo's workers try every four seconds at the most. 5 s when zero.
	ReturnTime time.Duration
	Log        *slog.Logger // nil: slog.Default()
}

// withDefaults returns o with every option set that has a default, credentials excepted.
func (o Options) withDefaults() Options {
	if o.URL == "" {
		o.URL = "nats://localhost:4222"
	}
	if o.ConnectTimeout <= 0 {
		o.ConnectTimeout = 5 * time.Second
	}
	if o.RequestTimeout <= 0 {
		o.RequestTimeout = 10 * time.Second
	}
	if o.DownWait <= 0 {
		o.DownWait = 500 * time.Millisecond
	}
	if o.ReturnTime <= 0 {
		o.ReturnTime = 5 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}

// validate checks the servers' addresses, of which the client library would report the first time they are used.
func (o Options) validate() error {
	// One wrong address among several is a slip all the same: it would show on the day the others fail.
	for server := range strings.SplitSeq(o.URL, ",") {
		u, err := url.Parse(strings.TrimSpace(server))
		if err != nil {
			return fmt.Errorf("NATS server %q: %w", server, err)
		}
		if u.Scheme != "nats" && u.Scheme != "tls" {
			return fmt.Errorf("NATS server %q: the scheme must be nats:// or tls://", server)
		}
	}
	return nil
}

// Plane is a router.Plane over NATS. After Close every delivery fails.
type Plane struct {
	opts Options
	auth []natsgo.Option // credentials

	connecting chan struct{}        // one slot: one first connect at a time
	link       atomic.Pointer[link] // nil before the first use; set once
	closed     atomic.Bool

	mu sync.Mutex
	up chan struct{} // guarded by mu; closed and replaced when the server is back
}

var _ router.Plane = (*Plane)(nil)

// New returns a Plane that is not connected yet. Malformed addresses and seeds are an error here, so that they are
// found at start-up; a credentials file is read with each connect.
func New(opts Options) (*Plane, error) {
	opts = opts.withDefaults()
	if opts.Conn == nil {
		if err := opts.validate(); err != nil {
			return nil, err
		}
	}
	auth, err := opts.credentials()
	if err != nil {
		return nil, err
	}
	return &Plane{opts: opts, auth: auth, connecting: make(chan struct{}, 1), up: make(chan struct{})}, nil
}

// credentials returns the options for the first kind of credentials that is set. The order, and the user without any,
// are those of Dynamo's workers: a frontend with the same environment gets in where they do.
func (o Options) credentials() ([]natsgo.Option, error) {
	switch {
	case o.Username != "":
		return []natsgo.Option{natsgo.UserInfo(o.Username, o.Password)}, nil
	case o.Token != "":
		return []natsgo.Option{natsgo.Token(o.Token)}, nil
	case o.NKeySeed != "":
		opt, err := nkey(o.NKeySeed)
		if err != nil {
			return nil, err
		}
		return []natsgo.Option{opt}, nil
	case o.CredentialsFile != "":
		return []natsgo.Option{natsgo.UserCredentials(o.CredentialsFile)}, nil
	}
	return []natsgo.Option{natsgo.UserInfo("user", "user")}, nil
}

// nkey signs the server's challenges with the key of a seed. Errors don't show the seed.
func nkey(seed string) (natsgo.Option, error) {
	pair, err := nkeys.FromSeed([]byte(seed))
	if err != nil {
		return nil, fmt.Errorf("NATS nkey seed: %w", err)
	}
	public, err := pair.PublicKey()
	if err != nil {
		return nil, fmt.Errorf("NATS nkey seed: %w", err)
	}
	return natsgo.Nkey(public, pair.Sign), nil
}

// Connect connects now instead of on first use, so that no request has to wait for it. A server that is away is not an
// error: the plane goes on trying. ctx ends the wait for another first connect only.
func (p *Plane) Connect(ctx context.Context) error {
	_, err := p.connected(ctx)
	return err
}

// Await connects, unless that has begun, and returns once the server is there. It fails when ctx ends first, with what
// the last attempt said; the plane goes on trying all the same.
func (p *Plane) Await(ctx context.Context) error {
	l, err := p.connected(ctx)
	if err != nil {
		return err
	}
	if err := p.awaitUp(ctx, l, nil); err == nil || ctx.Err() == nil {
		return err
	}
	return errors.Join(context.Cause(ctx), l.nc.LastError())
}

// nextUp is closed when the server comes up next. It is taken before the state is looked at: a connect in between closes
// it.
func (p *Plane) nextUp() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.up
}

// Dial makes a further connection to the plane's servers, with its credentials, for whatever else is exchanged there; it
// is the caller's to close. A server that is away is no error: the connection goes on trying. It blocks for one attempt.
func (p *Plane) Dial(extra ...natsgo.Option) (*natsgo.Conn, error) {
	opts := append([]natsgo.Option{
		natsgo.Name("portico"), natsgo.RetryOnFailedConnect(true), natsgo.MaxReconnects(-1),
		natsgo.CustomReconnectDelay(reconnectDelay), natsgo.ReconnectBufSize(-1),
		natsgo.Timeout(p.opts.ConnectTimeout), natsgo.PingInterval(pingInterval),
		natsgo.ErrorHandler(func(_ *natsgo.Conn, _ *natsgo.Subscription, err error) { p.opts.Log.Warn("NATS error", "error", err) }),
	}, p.auth...)
	if p.opts.TLS != nil {
		opts = append(opts, natsgo.Secure(p.opts.TLS))
	}
	nc, err := natsgo.Connect(p.opts.URL, append(opts, extra...)...)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	return nc, nil
}

// Connected reports whether the server can be reached now; false before the first use. It never blocks.
func (p *Plane) Connected() bool {
	l := p.link.Load()
	return l != nil && l.nc.IsConnected()
}

// Close closes the connection, unless it is the caller's, and fails what is outstanding. It may be called again.
func (p *Plane) Close() error {
	p.closed.Store(true)
	p.connecting <- struct{}{} // a first connect under way takes its time-out at most
	defer func() { <-p.connecting }()
	if l := p.link.Load(); l != nil {
		// What is outstanding fails with the connection; its callers are waiting for it.
		l.close(p.opts.Conn == nil)
	}
	return nil
}

// errClosed is the cause of failures after Close, and of those that Close brings about.
var errClosed = errors.New("request plane closed")

// connected returns the link, making it if this is the first use. Others wait for the one that makes it; after a
// failure the next tries again.
func (p *Plane) connected(ctx context.Context) (*link, error) {
	if p.closed.Load() {
		return nil, away(errClosed)
	}
	if l := p.link.Load(); l != nil {
		return l, nil
	}
	select {
	case p.connecting <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-p.connecting }()
	if p.closed.Load() {
		return nil, away(errClosed)
	}
	if l := p.link.Load(); l != nil {
		return l, nil
	}
	// The slot is held meanwhile: a second connection would be lost.
	l, err := newLink(p)
	if err != nil {
		return nil, away(err)
	}
	p.link.Store(l)
	return l, nil
}

// away is the failure of a request that the server can't take. Nothing has begun, so another try is safe, and the
// worker isn't to blame.
func away(err error) *fault.Error {
	return fault.Lost(fmt.Errorf("%w: %w", router.ErrPlaneDown, err), "The message server can't be reached")
}

// Start implements router.Plane. The message stays sent when nobody waits for its reply any more. Nothing here tells that
// a worker has gone.
func (p *Plane) Start(
	ctx context.Context, m *router.Message, done func(error),
) (lost <-chan struct{}, err error) {
	l, err := p.connected(ctx)
	if err != nil {
		return nil, err
	}
	if !l.nc.IsConnected() {
		t := time.NewTimer(p.opts.DownWait) // a hiccup
		defer t.Stop()
		if err := p.awaitUp(ctx, l, t.C); err != nil {
			return nil, err
		}
	}
	msg := &natsgo.Msg{Subject: m.Instance.Transport.NATS, Data: m.Envelope, Header: header(m)}
	// The server says its limit when it connects, headers counted. It may be another after a reconnect, so send looks
	// at what publishing says of it, too.
	if limit := l.nc.MaxPayload(); limit > 0 {
		if size := int64(len(m.Envelope) + headerSize(msg.Header)); size > limit {
			return nil, tooLarge(size, limit)
		}
	}
	return nil, l.send(msg, done)
}

// tooLarge is the failure of a message above the server's limit. Its details let clients tell by how much.
func tooLarge(size, limit int64) *fault.Error {
	e := fault.New(fault.TooLarge,
		"The request is %d bytes once encoded; the message server of this deployment takes at most %d bytes", size, limit)
	e.Details = map[string]any{"type": "size_limit", "actual": size, "limit": limit}
	return e
}

// awaitUp returns once the server can be reached. It fails when late is sent to first; nil: never.
func (p *Plane) awaitUp(ctx context.Context, l *link, late <-chan time.Time) error {
	for {
		up := p.nextUp()
		switch {
		case l.nc.IsConnected():
			return nil
		case p.closed.Load():
			return away(errClosed)
		}
		select {
		case <-up:
		case <-late:
			return away(natsgo.ErrDisconnected)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// cameUp wakes everyone in awaitUp.
func (p *Plane) cameUp() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.up)
	p.up = make(chan struct{})
}

// header returns a message's headers: the same names as over TCP, without the path, which the subject stands for.
func header(m *router.Message) natsgo.Header {
	// Keys as they stand: NATS headers are case-sensitive, and Set doesn't change them.
	h := make(natsgo.Header, 5)
	// Always there, the second in nanoseconds since 1970; the tracing headers only with a value.
	h["request-id"] = []string{m.RequestID}
	h["x-frontend-send-ts-ns"] = []string{strconv.FormatInt(time.Now().UnixNano(), 10)}
	for _, kv := range [...]struct{ name, value string }{
		{"traceparent", m.Traceparent}, {"tracestate", m.Tracestate}, {"x-request-id", m.XRequestID},
	} {
		if kv.value != "" {
			h[kv.name] = []string{kv.value}
		}
	}
	return h
}

// headerSize is what the headers add to a message, in bytes: a version line, a line each, and an empty line. The
// server's limit counts them with the data.
func headerSize(h natsgo.Header) int {
	n := len("NATS/1.0\r\n\r\n")
	for k, values := range h {
		for _, v := range values {
			n += len(k) + len(": ") + len(v) + len("\r\n")
		}
	}
	return n
}
