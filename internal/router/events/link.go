package events

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	natsgo "github.com/nats-io/nats.go"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/router/zmtp"
)

// link is one subject or connection, which several publishers may share. Its tracks change with discovery while messages
// come.
type link struct {
	hub    *Hub
	at     address
	topic  *Topic
	tracks atomic.Pointer[map[uint64]*track] // by publisher; never nil, replaced as a whole
	cancel context.CancelFunc

	state atomic.Int32
}

// The states of a link. A closed one stays so: whoever is connecting it may come late.
const (
	linkDown int32 = iota
	linkUp         // messages can come
	linkClosed
)

// track is what is known of one publisher. Links share it: at several brokers a publisher has one count.
type track struct {
	hub   *Hub
	topic *Topic

	mu   sync.Mutex
	ch   *worker.EventChannel // guarded by mu
	gone bool                 // guarded by mu
	seen bool                 // guarded by mu: next holds
	next uint64               // guarded by mu: number of the message that is to come
	at   uint64               // guarded by mu: when the last one was published
}

func newLink(h *Hub, at address) *link {
	l := &link{hub: h, at: at, topic: &h.opts.Topics[at.topic]}
	l.tracks.Store(&map[uint64]*track{})
	return l
}

// close ends the link. What is being handled still is.
func (l *link) close() {
	if l.cancel != nil {
		l.cancel()
	}
	if l.state.Swap(linkClosed) == linkUp {
		l.hub.metrics.connected.WithLabelValues(l.at.transport).Dec()
	}
}

// follow sets whose messages are taken.
func (l *link) follow(next map[uint64]*track) {
	old := *l.tracks.Load()
	l.tracks.Store(&next)
	if l.state.Load() != linkUp {
		return // all of them will be told when the link is up
	}
	for id, t := range next {
		if old[id] == nil {
			t.missed()
		}
	}
}

// missed tells the handler that messages may have been lost.
func (t *track) missed() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.gone {
		t.topic.Handler.Missed(t.ch)
	}
}

// end tells the handler that the publisher is gone.
func (t *track) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.gone = true
	t.topic.Handler.Gone(t.ch)
}

// connected is called when messages can come, for the first time or again.
func (l *link) connected() {
	if !l.state.CompareAndSwap(linkDown, linkUp) {
		return
	}
	l.hub.metrics.connected.WithLabelValues(l.at.transport).Inc()
	for _, t := range *l.tracks.Load() {
		t.missed()
	}
}

// down is called when none can.
func (l *link) down() {
	if l.state.CompareAndSwap(linkUp, linkDown) {
		l.hub.metrics.connected.WithLabelValues(l.at.transport).Dec()
	}
}

// receive takes one encoded envelope.
func (l *link) receive(envelope []byte) {
	m := l.hub.metrics
	var e worker.Event
	if err := worker.ParseEvent(envelope, &e); err != nil {
		m.refused.WithLabelValues(l.topic.Name).Inc()
		l.hub.opts.Log.Warn("event could not be read", "from", l.at.String(), "error", err)
		return
	}
	t := (*l.tracks.Load())[e.Publisher]
	if t == nil || (e.Topic != "" && e.Topic != l.topic.Name) {
		m.refused.WithLabelValues(l.topic.Name).Inc()
		return
	}
	t.take(&e)
}

// take hands a message on if it is a new one.
func (t *track) take(e *worker.Event) {
	m, name := t.hub.metrics, t.topic.Name
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gone {
		return
	}
	m.received.WithLabelValues(name).Inc()
	switch {
	case !t.seen: // what came before was told of when the link came up
	case e.Sequence == t.next:
	case e.Sequence > t.next:
		m.missed.WithLabelValues(name).Add(float64(e.Sequence - t.next))
		t.hub.opts.Log.Warn("events lost", "topic", name, "publisher", e.Publisher, "messages", e.Sequence-t.next)
		t.topic.Handler.Missed(t.ch)
	case e.Sequence == 0 && e.PublishedAt > t.at: // the publisher counts anew
		t.topic.Handler.Missed(t.ch)
	default:
		return // it has come before
	}
	t.seen, t.next, t.at = true, e.Sequence+1, e.PublishedAt
	t.topic.Handler.Event(t.ch, e)
}

// runZMQ keeps a connection to a publisher or broker until ctx ends.
func (l *link) runZMQ(ctx context.Context) {
	defer l.down()
	log := l.hub.opts.Log
	for attempt := 0; ctx.Err() == nil; attempt++ {
		err := zmtp.Subscribe(ctx, l.at.where, l.at.subject, func() { attempt = 0; l.connected() }, func(parts [][]byte) error {
			l.receiveZMQ(parts)
			return nil
		})
		l.down()
		if ctx.Err() != nil {
			return
		}
		if attempt == 0 { // once for each time it was there
			log.Warn("event publisher can't be reached, trying again", "endpoint", l.at.where, "topic", l.topic.Name, "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(min(50*time.Millisecond<<min(attempt, 10), l.hub.opts.Retry)):
		}
	}
}

// Parts of a message on ZeroMQ: topic or subject, publisher, sequence, and a frame of version, length and envelope.
const (
	zmqParts     = 4
	frameVersion = 1
	frameHead    = 5
)

// errFrame is for what no publisher of this protocol sends. The connection goes on: it is one message's fault.
var errFrame = errors.New("malformed event frame")

// receiveZMQ takes one message. Subscriptions are by prefix, so other topics may come along.
func (l *link) receiveZMQ(parts [][]byte) {
	if len(parts) == 0 || string(parts[0]) != l.at.subject {
		return
	}
	envelope, err := zmqEnvelope(parts)
	if err != nil {
		l.hub.metrics.refused.WithLabelValues(l.topic.Name).Inc()
		l.hub.opts.Log.Warn("event could not be read", "from", l.at.String(), "error", err)
		return
	}
	l.receive(envelope)
}

// zmqEnvelope unpacks the last part. What the middle ones say stands in the envelope, too.
func zmqEnvelope(parts [][]byte) ([]byte, error) {
	if len(parts) != zmqParts {
		return nil, errFrame
	}
	b := parts[zmqParts-1]
	if len(b) < frameHead || b[0] != frameVersion || uint64(binary.BigEndian.Uint32(b[1:])) != uint64(len(b)-frameHead) {
		return nil, errFrame
	}
	return b[frameHead:], nil
}

// natsHub is the one connection to NATS that all links on it share. It is made when the first of them is opened.
type natsHub struct {
	hub *Hub
	g   *lifecycle.Group

	mu    sync.Mutex
	began bool                           // guarded by mu
	conn  *natsgo.Conn                   // guarded by mu; nil until it is there
	links map[*link]*natsgo.Subscription // guarded by mu; nil: not subscribed yet
}

func newNATSHub(h *Hub, g *lifecycle.Group) *natsHub {
	return &natsHub{hub: h, g: g, links: map[*link]*natsgo.Subscription{}}
}

// open subscribes a link, now or as soon as there is a connection; the end of ctx unsubscribes it.
func (n *natsHub) open(ctx context.Context, l *link) {
	n.mu.Lock()
	n.links[l] = nil
	begin := !n.began && n.hub.opts.NATS != nil
	n.began = n.began || begin
	conn := n.conn
	n.mu.Unlock()
	context.AfterFunc(ctx, func() { n.forget(l) })
	switch {
	case n.hub.opts.NATS == nil:
		n.hub.opts.Log.Error("events are published on NATS, which isn't configured here", "subject", l.at.subject)
	case begin:
		n.g.Go("events on NATS", n.connect)
	case conn != nil:
		n.subscribe(conn, l)
	}
}

// flushTimeout is how long the server may take for one round trip.
const flushTimeout = 5 * time.Second

// Bounds of what may wait between the connection and a slow handler; beyond them messages are lost, and noticed.
const (
	natsPendingMessages = 1 << 20
	natsPendingBytes    = 256 << 20
)

// connect tries until there is a connection. A server that is away is the client library's to wait for.
func (n *natsHub) connect(ctx context.Context) error {
	up := func(nc *natsgo.Conn) {
		// The server has heard of the subscriptions before anybody asks for what came earlier.
		if nc.FlushTimeout(flushTimeout) == nil {
			n.each((*link).connected)
		}
	}
	options := []natsgo.Option{
		natsgo.ConnectHandler(up), natsgo.ReconnectHandler(up),
		natsgo.DisconnectErrHandler(func(_ *natsgo.Conn, err error) {
			if ctx.Err() == nil {
				n.hub.opts.Log.Warn("NATS connection for events lost", "error", err)
			}
			n.each((*link).down)
		}),
		natsgo.ErrorHandler(func(_ *natsgo.Conn, sub *natsgo.Subscription, err error) {
			n.hub.opts.Log.Warn("NATS error on events", "error", err)
			if errors.Is(err, natsgo.ErrSlowConsumer) { // messages have been dropped, the last ones maybe
				n.lost(sub)
			}
		}),
	}
	for attempt := 0; ; attempt++ {
		conn, err := n.hub.opts.NATS(options...)
		if err == nil {
			n.use(conn)
			return nil
		}
		if attempt == 0 {
			n.hub.opts.Log.Warn("no connection for events on NATS, trying again", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(min(50*time.Millisecond<<min(attempt, 10), n.hub.opts.Retry)):
		}
	}
}

// use subscribes what has waited for the connection.
func (n *natsHub) use(conn *natsgo.Conn) {
	n.mu.Lock()
	n.conn = conn
	var waiting []*link
	for l := range n.links {
		waiting = append(waiting, l)
	}
	n.mu.Unlock()
	for _, l := range waiting {
		n.subscribe(conn, l)
	}
}

// each calls f with every subscribed link.
func (n *natsHub) each(f func(*link)) {
	n.mu.Lock()
	var list []*link
	for l, sub := range n.links {
		if sub != nil {
			list = append(list, l)
		}
	}
	n.mu.Unlock()
	for _, l := range list {
		f(l)
	}
}

// lost tells the publishers of a subscription's link that messages were dropped on this side.
func (n *natsHub) lost(sub *natsgo.Subscription) {
	n.mu.Lock()
	var of *link
	for l, s := range n.links {
		if s == sub {
			of = l
		}
	}
	n.mu.Unlock()
	if of == nil {
		return
	}
	for _, t := range *of.tracks.Load() {
		t.missed()
	}
}

// subscribe begins to listen to a link's subject. Its failure means that the connection is closed.
func (n *natsHub) subscribe(conn *natsgo.Conn, l *link) {
	sub, err := conn.Subscribe(l.at.subject, func(msg *natsgo.Msg) { l.receive(msg.Data) })
	if err == nil {
		err = sub.SetPendingLimits(natsPendingMessages, natsPendingBytes)
	}
	if err != nil {
		n.hub.opts.Log.Error("no events: the subject can't be subscribed to", "subject", l.at.subject, "error", err)
		return
	}
	n.mu.Lock()
	_, open := n.links[l]
	if open {
		n.links[l] = sub
	}
	n.mu.Unlock()
	if !open {
		_ = sub.Unsubscribe() // closed meanwhile
		return
	}
	// As above. While the server is away, its return tells.
	if conn.IsConnected() && conn.FlushTimeout(flushTimeout) == nil {
		l.connected()
	}
}

// forget ends a link's subscription.
func (n *natsHub) forget(l *link) {
	n.mu.Lock()
	sub := n.links[l]
	delete(n.links, l)
	n.mu.Unlock()
	if sub != nil {
		_ = sub.Unsubscribe() // the connection may be closed
	}
}

// closeTimeout bounds the wait for the connection's own goroutines.
const closeTimeout = time.Second

// close ends the connection.
func (n *natsHub) close() {
	n.mu.Lock()
	conn := n.conn
	n.mu.Unlock()
	if conn != nil {
		closeConn(conn)
	}
}

// closeConn closes a connection and waits for its goroutines, within bounds.
func closeConn(conn *natsgo.Conn) {
	closed := conn.StatusChanged(natsgo.CLOSED)
	conn.Close()
	select {
	case <-closed:
	case <-time.After(closeTimeout):
	}
}
