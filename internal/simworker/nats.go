package simworker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/lifecycle"
)

// flushTimeout bounds the wait for the server's word that it has seen the end of the subscription.
const flushTimeout = 2 * time.Second

// natsPlane takes requests from a NATS subject of the worker's own. Its methods are for the goroutines of Worker.Run;
// take runs on the subscription's.
type natsPlane struct {
	w     *Worker
	group *lifecycle.Group
	conn  *nats.Conn         // the caller's, or one of this plane
	own   bool               // the connection is this plane's
	sub   *nats.Subscription // nil until start has subscribed
	gone  chan struct{}      // closed when an own connection has ended
}

// start subscribes under the subject that an instance has by Dynamo's rule: namespace_component.endpoint-id, the
// id in hexadecimal. It returns once the server delivers to it.
func (p *natsPlane) start(ctx context.Context) (worker.Transport, error) {
	p.conn = p.w.o.NATS
	if p.conn == nil {
		if err := p.connect(); err != nil {
			return worker.Transport{}, err
		}
	}
	e := p.w.o.Endpoint
	subject := e.Namespace + "_" + e.Component + "." + e.Name + "-" + p.w.instance.Hex()
	// A queue group, as real workers have one: a second subscriber under the same id would share the requests, not
	// double them.
	sub, err := p.conn.QueueSubscribe(subject, "q", p.take)
	if err != nil {
		return worker.Transport{}, fmt.Errorf("simworker: subscribe to %s: %w", subject, err)
	}
	p.sub = sub
	// A frontend may send as soon as the record is there, so the server must know of the subscription before.
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	if err := p.conn.FlushWithContext(ctx); err != nil {
		return worker.Transport{}, fmt.Errorf("simworker: subscribe to %s: %w", subject, err)
	}
	return worker.Transport{NATS: subject}, nil
}

// connect opens a connection that comes back by itself after an outage, with its subscription.
func (p *natsPlane) connect() error {
	p.gone = make(chan struct{})
	conn, err := nats.Connect(p.w.o.NATSURL,
		nats.Name("portico simworker"), nats.MaxReconnects(-1), nats.ReconnectWait(250*time.Millisecond),
		nats.ClosedHandler(func(*nats.Conn) { close(p.gone) }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			p.w.o.Log.Warn("nats", "error", err)
		}))
	if err != nil {
		return fmt.Errorf("simworker: connect to NATS: %w", err)
	}
	p.conn, p.own = conn, true
	return nil
}

// take runs on the subscription's goroutine, one message at a time. The empty reply says that the request is queued.
func (p *natsPlane) take(m *nats.Msg) {
	d := delivery{payload: m.Data, headers: headersFrom(m.Header.Get)}
	if p.w.accept(p.group, d) != accepted {
		return // NATS workers cannot refuse: the sender gets no reply, as from a queue that never comes to it
	}
	// The request runs already, with or without this reply.
	if err := m.Respond(nil); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		p.w.o.Log.Warn("acknowledge", "error", err)
	}
}

// run leaves the work to the subscription and takes it back when ctx ends.
func (p *natsPlane) run(ctx context.Context) error {
	<-ctx.Done()
	p.stop()
	return nil
}

// stop ends the subscription, and the connection if that is the plane's own. It may be called again, and after a start
// that failed halfway. It waits for the server, up to flushTimeout.
func (p *natsPlane) stop() {
	if p.sub != nil && p.sub.Unsubscribe() == nil {
		// Once the server has answered, it sends nothing more here: no request is lost on the way. When it doesn't
		// answer there is nobody who could send one.
		_ = p.conn.FlushTimeout(flushTimeout)
	}
	if p.own {
		p.conn.Close()
		<-p.gone
	}
}
