package events

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/router"
)

// Handler takes the messages of one topic. What concerns one publisher is told in order, from one goroutine at a time;
// different publishers may be heard at once. Methods must return soon: a publisher's later messages wait for them. The
// channel is the publisher's record.
type Handler interface {
	// Event is told of every message once, in the order of its publisher. The event is valid during the call.
	Event(ch *worker.EventChannel, e *worker.Event)
	// Missed says that messages before the next one were missed, or may have been.
	Missed(ch *worker.EventChannel)
	// Gone says that the publisher's record is gone: nothing of it will come any more.
	Gone(ch *worker.EventChannel)
}

// Topic is what one Handler wants to hear.
type Topic struct {
	Name    string
	Wants   func(ch *worker.EventChannel) bool // asked with every change in discovery; nil: all publishers
	Handler Handler
}

// Options are what a Hub is built from. Watch is required.
type Options struct {
	// Watch calls a function with the current snapshot and with every later one, one at a time, until it is cancelled.
	Watch func(func(*router.Snapshot)) (cancel func())
	// NATS connects to the NATS server; it is called when the first publisher needs it, and the Hub closes what it
	// returns. Nil: publishers on NATS can't be heard.
	NATS func(...natsgo.Option) (*natsgo.Conn, error)

	Topics []Topic

	// Retry is the longest time between two attempts to reach a publisher; 2 s when zero.
	Retry time.Duration

	Registerer prometheus.Registerer // nil: metrics are kept but not registered
	Log        *slog.Logger          // nil: slog.Default()
}

// withDefaults fills in what was left open.
func (o Options) withDefaults() Options {
	if o.Retry <= 0 {
		o.Retry = 2 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}

// Hub hears all publishers of its topics. Run is called once.
type Hub struct {
	opts    Options
	metrics *metrics

	wake chan struct{} // holds one token: latest has changed
	mu   sync.Mutex
	late *router.Snapshot // guarded by mu

	// What follows belongs to Run's goroutine.
	links  map[address]*link
	tracks map[publisher]*track
	nats   *natsHub
}

// publisher is one publisher as one handler hears it, over however many links.
type publisher struct {
	topic int // index into Options.Topics
	id    uint64
}

// NewHub returns a Hub. It starts nothing.
func NewHub(opts Options) *Hub {
	return &Hub{
		opts: opts.withDefaults(), metrics: newMetrics(opts.Registerer), wake: make(chan struct{}, 1), links: map[address]*link{},
		tracks: map[publisher]*track{},
	}
}

// address is where the messages of one topic come from. It is comparable.
type address struct {
	transport string // of worker.EventTransport
	where     string // endpoint of a socket; empty for NATS
	subject   string // on NATS and at brokers: all of it; at a publisher's own socket the topic
	topic     int    // index into Options.Topics: handlers don't share links
}

// Run follows discovery and hears the publishers until ctx ends; then it returns nil, when all handlers have returned. It
// owns one goroutine for each ZeroMQ connection.
func (h *Hub) Run(ctx context.Context) error {
	g := lifecycle.New(ctx)
	h.nats = newNATSHub(h, g)
	cancel := h.opts.Watch(func(s *router.Snapshot) {
		h.mu.Lock()
		h.late = s
		h.mu.Unlock()
		select {
		case h.wake <- struct{}{}:
		default:
		}
	})
	defer cancel()
	defer h.nats.close()
	for {
		select {
		case <-ctx.Done():
			for _, l := range h.links {
				l.close()
			}
			return g.Stop()
		case <-h.wake:
			h.mu.Lock()
			s := h.late
			h.mu.Unlock()
			h.follow(g, s)
		}
	}
}

// follow brings tracks and links in line with a snapshot.
func (h *Hub) follow(g *lifecycle.Group, s *router.Snapshot) {
	wanted := map[address]map[uint64]*track{}
	tracks := map[publisher]*track{}
	for i := range h.opts.Topics {
		topic := &h.opts.Topics[i]
		for _, ch := range s.Channels {
			if ch.Topic != topic.Name || (topic.Wants != nil && !topic.Wants(ch)) {
				continue
			}
			where := addresses(ch, i)
			if len(where) == 0 {
				continue
			}
			t := h.track(publisher{i, ch.Publisher}, ch)
			tracks[publisher{i, ch.Publisher}] = t
			for _, a := range where {
				if wanted[a] == nil {
					wanted[a] = map[uint64]*track{}
				}
				wanted[a][ch.Publisher] = t
			}
		}
	}
	for a, l := range h.links {
		if _, ok := wanted[a]; !ok {
			l.close()
			delete(h.links, a)
		}
	}
	for p, t := range h.tracks {
		if tracks[p] == nil {
			t.end()
		}
	}
	h.tracks = tracks
	for a, list := range wanted {
		if l := h.links[a]; l != nil {
			l.follow(list)
			continue
		}
		l := newLink(h, a)
		h.links[a] = l
		l.follow(list) // known before the first message can come
		h.open(g, l)
	}
	h.metrics.publishers.Set(float64(len(tracks)))
}

// track returns what is known of a publisher, under its latest record.
func (h *Hub) track(p publisher, ch *worker.EventChannel) *track {
	t := h.tracks[p]
	if t == nil {
		t = &track{hub: h, topic: &h.opts.Topics[p.topic]}
	}
	t.mu.Lock()
	t.ch = ch
	t.mu.Unlock()
	return t
}

// addresses returns where a channel can be heard: nowhere, for a transport that this version doesn't know.
func addresses(ch *worker.EventChannel, topic int) []address {
	t := &ch.Transport
	switch t.Kind {
	case worker.TransportNATS:
		prefix := t.SubjectPrefix
		if prefix == "" {
			prefix = ch.Scope.Subject()
		}
		return []address{{t.Kind, "", prefix + "." + ch.Topic, topic}}
	case worker.TransportZMQ:
		return []address{{t.Kind, t.Endpoint, ch.Topic, topic}}
	case worker.TransportZMQBroker:
		var out []address
		// Brokers of one plane pass on what each other gets; whatever comes twice is dropped by its number.
		for _, endpoint := range slices.Compact(slices.Sorted(slices.Values(t.XPub))) {
			out = append(out, address{t.Kind, endpoint, ch.Scope.Subject() + "." + ch.Topic, topic})
		}
		return out
	}
	return nil
}

// open starts to listen.
func (h *Hub) open(g *lifecycle.Group, l *link) {
	ctx, cancel := context.WithCancel(g.Context())
	l.cancel = cancel
	if l.at.transport == worker.TransportNATS {
		h.nats.open(ctx, l)
		return
	}
	g.Go("events of "+l.at.where, func(context.Context) error {
		l.runZMQ(ctx)
		return nil
	})
}

// metrics count messages by topic.
type metrics struct {
	received   *prometheus.CounterVec
	missed     *prometheus.CounterVec
	refused    *prometheus.CounterVec
	publishers prometheus.Gauge
	connected  *prometheus.GaugeVec
}

// newMetrics registers the metrics with reg, if there is one.
func newMetrics(reg prometheus.Registerer) *metrics {
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "dynamo_frontend", Subsystem: "events", Name: name, Help: help}, []string{"topic"})
	}
	m := &metrics{
		received: counter("received_total", "Messages received from event publishers"),
		missed:   counter("missed_total", "Messages of event publishers that were lost on the way, by their numbers"),
		refused:  counter("refused_total", "Messages that couldn't be read, or are of no known publisher"),
		publishers: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "dynamo_frontend", Subsystem: "events", Name: "publishers",
			Help: "Event publishers that are listened to"}),
		connected: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "dynamo_frontend", Subsystem: "events", Name: "connected_links",
			Help: "Connections and subscriptions over which events can come now"}, []string{"transport"}),
	}
	if reg != nil {
		reg.MustRegister(m.received, m.missed, m.refused, m.publishers, m.connected)
	}
	return m
}

// String names the address in logs.
func (a address) String() string {
	if a.where == "" {
		return a.subject
	}
	return fmt.Sprintf("%s %s", a.where, a.subject)
}
