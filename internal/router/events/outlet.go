package events

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	natsgo "github.com/nats-io/nats.go"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/zmtp"
)

// Registrar publishes records in discovery, for as long as it isn't closed.
type Registrar interface {
	Put(ctx context.Context, key string, value []byte) error
	Remove(ctx context.Context, key string) error
}

// OutletOptions are what an Outlet is built from. Registrar, Scope and Topic are required, and NATS unless ZMQ is set.
type OutletOptions struct {
	Registrar Registrar
	Scope     worker.EventScope
	Topic     string

	ZMQ  bool   // publish on a socket of this process; otherwise on NATS
	Host string // of the socket, as subscribers reach it, and where it is bound
	NATS func(...natsgo.Option) (*natsgo.Conn, error)

	Retry time.Duration // longest time between attempts to connect and to register; 2 s when zero
	Log   *slog.Logger  // nil: slog.Default()
}

// withDefaults fills in what was left open.
func (o OutletOptions) withDefaults() OutletOptions {
	if o.Retry <= 0 {
		o.Retry = 2 * time.Second
	}
	if o.Host == "" {
		o.Host = "127.0.0.1"
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}

// Outlet publishes one topic. Publish may be called at any time and by anybody; Run is called once.
type Outlet struct {
	opts      OutletOptions
	publisher uint64
	out       atomic.Pointer[func(*worker.Event)] // nil until there is somewhere to publish

	mu       sync.Mutex
	sequence uint64 // guarded by mu
}

// maxPublisher bounds publishers' ids: some readers keep numbers as doubles.
const maxPublisher = 1<<53 - 1

// NewOutlet returns an Outlet with a publisher id of its own. It starts nothing.
func NewOutlet(opts OutletOptions) *Outlet {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: the runtime ends the program instead
	return &Outlet{opts: opts.withDefaults(), publisher: binary.BigEndian.Uint64(b[:])&maxPublisher | 1}
}

// Publisher returns the id under which the outlet publishes.
func (o *Outlet) Publisher() uint64 { return o.publisher }

// Publish sends a payload, and keeps nothing of it. It never waits: messages that can't be sent are lost, and
// subscribers notice by their numbers.
func (o *Outlet) Publish(payload []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	e := worker.Event{
		Publisher: o.publisher, Sequence: o.sequence, PublishedAt: uint64(time.Now().UnixMilli()),
		Topic: o.opts.Topic, Payload: payload,
	}
	o.sequence++
	if out := o.out.Load(); out != nil {
		(*out)(&e)
	}
}

// Run makes the outlet known and keeps it so until ctx ends. What keeps it from publishing is tried again.
func (o *Outlet) Run(ctx context.Context) error {
	ch := &worker.EventChannel{Scope: o.opts.Scope, Topic: o.opts.Topic, Publisher: o.publisher}
	if o.opts.ZMQ {
		p, err := zmtp.Listen(zmtp.PublisherOptions{Address: net.JoinHostPort(o.opts.Host, "0"), Log: o.opts.Log})
		if err != nil {
			return fmt.Errorf("event socket: %w", err)
		}
		ch.Transport = worker.EventTransport{
			Kind: worker.TransportZMQ, Endpoint: "tcp://" + net.JoinHostPort(o.opts.Host, strconv.Itoa(p.Port())),
		}
		out := func(e *worker.Event) { p.Send(o.zmqMessage(e)...) }
		o.out.Store(&out)
		if !o.register(ctx, ch) {
			return p.Close()
		}
		defer o.unregister(ctx, ch)
		return p.Run(ctx)
	}
	conn := o.connect(ctx)
	if conn == nil {
		return nil
	}
	defer closeConn(conn)
	ch.Transport = worker.EventTransport{Kind: worker.TransportNATS, SubjectPrefix: o.opts.Scope.Subject()}
	subject := o.opts.Scope.Subject() + "." + o.opts.Topic
	// Publishing waits for a server that takes nothing, and whoever calls Publish must not: then messages are lost.
	queue := make(chan []byte, natsQueue)
	out := func(e *worker.Event) {
		select {
		case queue <- worker.AppendEvent(nil, e):
		default:
		}
	}
	o.out.Store(&out)
	if !o.register(ctx, ch) {
		return nil
	}
	defer o.unregister(ctx, ch)
	for {
		select {
		case b := <-queue:
			_ = conn.Publish(subject, b) // lost, as above
		case <-ctx.Done():
			o.out.Store(nil)
			_ = conn.FlushTimeout(closeTimeout) // what was published last still goes out, where there is a server
			return nil
		}
	}
}

// natsQueue bounds the messages that wait to be published.
const natsQueue = 10_000

// zmqMessage lays an event out as ZeroMQ subscribers want it.
func (o *Outlet) zmqMessage(e *worker.Event) [][]byte {
	envelope := worker.AppendEvent(make([]byte, frameHead, frameHead+len(e.Payload)+128), e)
	envelope[0] = frameVersion
	binary.BigEndian.PutUint32(envelope[1:], uint32(len(envelope)-frameHead))
	return [][]byte{
		[]byte(e.Topic), binary.BigEndian.AppendUint64(nil, e.Publisher), binary.BigEndian.AppendUint64(nil, e.Sequence), envelope,
	}
}

// connect returns a connection to NATS, or nil when ctx has ended before there was one.
func (o *Outlet) connect(ctx context.Context) (conn *natsgo.Conn) {
	o.persist(ctx, "connect to NATS", func() (err error) {
		if o.opts.NATS == nil {
			return errNoNATS
		}
		conn, err = o.opts.NATS()
		return err
	})
	return conn
}

// errNoNATS is the failure of an outlet that is to publish on NATS and can't.
var errNoNATS = errors.New("NATS isn't configured")

// register puts the outlet's record into discovery. It reports false when ctx has ended first.
func (o *Outlet) register(ctx context.Context, ch *worker.EventChannel) bool {
	return o.persist(ctx, "register in discovery", func() error {
		value, err := ch.Record()
		if err != nil {
			return err
		}
		return o.opts.Registrar.Put(ctx, router.BucketChannels+"/"+ch.Path(), value)
	})
}

// unregister takes the record away. It happens at the end, when ctx is over; a record that stays ends with its lease.
func (o *Outlet) unregister(ctx context.Context, ch *worker.EventChannel) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if err := o.opts.Registrar.Remove(ctx, router.BucketChannels+"/"+ch.Path()); err != nil {
		o.opts.Log.Warn("record of an event publisher stays behind", "topic", o.opts.Topic, "error", err)
	}
}

// persist tries f until it succeeds, and reports false when ctx ends first.
func (o *Outlet) persist(ctx context.Context, what string, f func() error) bool {
	for attempt := 0; ; attempt++ {
		err := f()
		if err == nil {
			return true
		}
		if attempt == 0 {
			o.opts.Log.Warn("event publisher can't "+what+" yet, trying again", "topic", o.opts.Topic, "error", err)
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(min(50*time.Millisecond<<min(attempt, 10), o.opts.Retry)):
		}
	}
}
