package events_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/discovery"
	"github.com/portico-llm/portico/internal/router/discovery/mem"
	"github.com/portico-llm/portico/internal/router/events"
	"github.com/portico-llm/portico/internal/router/zmtp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var scope = worker.EndpointScope(worker.EndpointID{Namespace: "n", Component: "c", Name: "e"})

// diary notes what a Hub tells, by publisher.
type diary struct {
	mu    sync.Mutex
	lines map[uint64][]string
}

func (d *diary) note(ch *worker.EventChannel, what string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines[ch.Publisher] = append(d.lines[ch.Publisher], what)
}

func (d *diary) Event(ch *worker.EventChannel, e *worker.Event) { d.note(ch, string(e.Payload)) }
func (d *diary) Missed(ch *worker.EventChannel)                 { d.note(ch, "missed") }
func (d *diary) Gone(ch *worker.EventChannel)                   { d.note(ch, "gone") }

func (d *diary) of(publisher uint64) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.lines[publisher])
}

// wait waits until a publisher's lines are these.
func (d *diary) wait(t *testing.T, publisher uint64, want ...string) {
	t.Helper()
	for until := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		got := d.of(publisher)
		if slices.Equal(got, want) {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("publisher %d (-want +got):\n%s", publisher, cmp.Diff(want, got))
		}
	}
}

// bench is discovery, a hub over it, and a NATS server where there is one.
type bench struct {
	t       *testing.T
	records *mem.Source
	diary   *diary
	server  *server.Server
	group   *lifecycle.Group
}

func newBench(t *testing.T, withNATS bool) *bench {
	t.Helper()
	b := &bench{t: t, records: mem.New(), diary: &diary{lines: map[uint64][]string{}}, group: lifecycle.New(context.Background())}
	if withNATS {
		b.startNATS(-1)
	}
	log := slog.New(slog.DiscardHandler)
	store := discovery.NewStore(b.records, discovery.Options{Log: log})
	b.group.Go("discovery", store.Run)
	hub := events.NewHub(events.Options{
		Watch: store.Watch, NATS: b.dial, Log: log, Retry: 50 * time.Millisecond,
		Topics: []events.Topic{{Name: "t", Handler: b.diary, Wants: func(ch *worker.EventChannel) bool { return ch.Publisher != 99 }}},
	})
	b.group.Go("hub", hub.Run)
	t.Cleanup(func() {
		if err := b.group.Stop(); err != nil {
			t.Error(err)
		}
		if b.server != nil {
			b.server.Shutdown()
			b.server.WaitForShutdown()
		}
	})
	return b
}

func (b *bench) startNATS(port int) {
	b.t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: port, NoSigs: true, NoLog: true})
	if err != nil {
		b.t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		b.t.Fatal("NATS isn't ready")
	}
	b.server = s
}

func (b *bench) dial(opts ...natsgo.Option) (*natsgo.Conn, error) {
	return natsgo.Connect(b.server.ClientURL(), append([]natsgo.Option{
		natsgo.MaxReconnects(-1), natsgo.ReconnectWait(20 * time.Millisecond), natsgo.RetryOnFailedConnect(true),
	}, opts...)...)
}

func (b *bench) put(ch *worker.EventChannel) {
	value, err := ch.Record()
	if err != nil {
		b.t.Fatal(err)
	}
	b.records.Put(router.BucketChannels+"/"+ch.Path(), value)
}

func (b *bench) remove(ch *worker.EventChannel) {
	b.records.Remove(router.BucketChannels + "/" + ch.Path())
}

func event(publisher, sequence uint64, text string) *worker.Event {
	return &worker.Event{Publisher: publisher, Sequence: sequence, Topic: "t", Payload: []byte(text)}
}

// TestOutletToHub has outlets of both kinds found and heard, numbered from their start, and gone when they end.
func TestOutletToHub(t *testing.T) {
	for _, zmq := range []bool{false, true} {
		t.Run(fmt.Sprintf("zmq=%t", zmq), func(t *testing.T) {
			b := newBench(t, !zmq)
			o := events.NewOutlet(events.OutletOptions{
				Registrar: mem.NewRegistrar(b.records), Scope: scope, Topic: "t", ZMQ: zmq, NATS: b.dial,
			})
			o.Publish([]byte("nowhere"))
			g := lifecycle.New(context.Background())
			g.Go("outlet", o.Run)
			b.diary.wait(t, o.Publisher(), "missed")
			want := []string{"missed"}
			if zmq { // an outlet doesn't know of a subscription at once
				time.Sleep(200 * time.Millisecond)
			}
			for i := range 50 {
				o.Publish(fmt.Append(nil, i))
				want = append(want, fmt.Sprint(i))
			}
			b.diary.wait(t, o.Publisher(), want...)
			if err := g.Stop(); err != nil {
				t.Error(err)
			}
			b.diary.wait(t, o.Publisher(), append(want, "gone")...)
		})
	}
}

// TestSequences feeds gaps, repetitions and a new count, on one subject that two publishers share with a stranger.
func TestSequences(t *testing.T) {
	b := newBench(t, true)
	nats := worker.EventTransport{Kind: worker.TransportNATS, SubjectPrefix: scope.Subject()}
	one := &worker.EventChannel{Scope: scope, Topic: "t", Publisher: 1, Transport: nats}
	two := &worker.EventChannel{Scope: scope, Topic: "t", Publisher: 2, Transport: nats}
	b.put(one)
	b.put(two)
	b.put(&worker.EventChannel{Scope: scope, Topic: "t", Publisher: 99, Transport: nats})
	b.put(&worker.EventChannel{Scope: scope, Topic: "t", Publisher: 7, Transport: worker.EventTransport{Kind: "Pigeon"}})
	b.put(&worker.EventChannel{Scope: scope, Topic: "other", Publisher: 8, Transport: nats})
	b.diary.wait(t, 1, "missed")
	b.diary.wait(t, 2, "missed")
	nc, err := b.dial()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	for _, e := range []*worker.Event{
		event(1, 5, "a"), event(1, 6, "b"), event(2, 0, "x"), event(99, 0, "stranger"), event(1, 6, "b again"),
		event(1, 9, "gap"), event(1, 7, "late"), event(1, 10, "c"), event(1, 0, "anew"), event(1, 1, "d"),
	} {
		if e.PublishedAt = uint64(len(e.Payload)); string(e.Payload) == "anew" {
			e.PublishedAt = 100
		}
		nc.Publish(scope.Subject()+".t", worker.AppendEvent(nil, e))
	}
	nc.Publish(scope.Subject()+".t", []byte("\xc1 no msgpack"))
	nc.Publish(scope.Subject()+".t", worker.AppendEvent(nil, event(1, 2, "e")))
	b.diary.wait(t, 1, "missed", "a", "b", "missed", "gap", "c", "missed", "anew", "d", "e")
	b.remove(two)
	b.diary.wait(t, 2, "missed", "x", "gone")
	if got := b.diary.of(99); got != nil {
		t.Errorf("stranger: %v", got)
	}
}

// TestNATSRestart tells that messages may have been missed when the server is back.
func TestNATSRestart(t *testing.T) {
	b := newBench(t, true)
	nats := worker.EventTransport{Kind: worker.TransportNATS, SubjectPrefix: scope.Subject()}
	b.put(&worker.EventChannel{Scope: scope, Topic: "t", Publisher: 1, Transport: nats})
	b.diary.wait(t, 1, "missed")
	port := b.server.Addr().(*net.TCPAddr).Port
	b.server.Shutdown()
	b.server.WaitForShutdown()
	b.startNATS(port)
	b.diary.wait(t, 1, "missed", "missed")
	nc, err := b.dial()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	nc.Publish(scope.Subject()+".t", worker.AppendEvent(nil, event(1, 3, "a")))
	b.diary.wait(t, 1, "missed", "missed", "a")
}

// TestZMQRestart finds a publisher again that comes back at its old port.
func TestZMQRestart(t *testing.T) {
	b := newBench(t, false)
	p, err := zmtp.Listen(zmtp.PublisherOptions{Address: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", p.Port())
	ch := &worker.EventChannel{Scope: scope, Topic: "t", Publisher: 3, Transport: worker.EventTransport{Kind: worker.TransportZMQ, Endpoint: "tcp://" + address}}
	b.put(ch)
	g := lifecycle.New(context.Background())
	g.Go("publisher", p.Run)
	b.diary.wait(t, 3, "missed")
	send := func(p *zmtp.Publisher, topic string, sequence uint64, text string) {
		envelope := worker.AppendEvent(nil, event(3, sequence, text))
		frame := append(binary.BigEndian.AppendUint32([]byte{1}, uint32(len(envelope))), envelope...)
		p.Send([]byte(topic), make([]byte, 8), make([]byte, 8), frame)
	}
	// A publisher doesn't know of a subscription at once.
	first := func(sequence uint64, text string) {
		t.Helper()
		for range 5000 {
			if send(p, "t", sequence, text); slices.Contains(b.diary.of(3), text) {
				return
			}
			time.Sleep(time.Millisecond)
		}
	}
	first(0, "a")
	send(p, "tx", 1, "other topic")
	p.Send([]byte("t"), []byte("short"))
	p.Send([]byte("t"), nil, nil, []byte("\x01\x00\x00\x00\x09abc"))
	send(p, "t", 1, "b")
	b.diary.wait(t, 3, "missed", "a", "b")
	if err := g.Stop(); err != nil {
		t.Error(err)
	}
	if p, err = zmtp.Listen(zmtp.PublisherOptions{Address: address}); err != nil {
		t.Fatal(err)
	}
	g = lifecycle.New(context.Background())
	g.Go("publisher", p.Run)
	b.diary.wait(t, 3, "missed", "a", "b", "missed")
	first(2, "c")
	b.diary.wait(t, 3, "missed", "a", "b", "missed", "c")
	if err := g.Stop(); err != nil {
		t.Error(err)
	}
}

// TestBroker hears a publisher through two brokers, each message once.
func TestBroker(t *testing.T) {
	b := newBench(t, false)
	var brokers []*zmtp.Publisher
	var xpub []string
	g := lifecycle.New(context.Background())
	defer g.Stop()
	for range 2 {
		p, err := zmtp.Listen(zmtp.PublisherOptions{Address: "127.0.0.1:0"})
		if err != nil {
			t.Fatal(err)
		}
		g.Go("broker", p.Run)
		brokers, xpub = append(brokers, p), append(xpub, fmt.Sprintf("tcp://127.0.0.1:%d", p.Port()))
	}
	b.put(&worker.EventChannel{Scope: scope, Topic: "t", Publisher: 4, Transport: worker.EventTransport{Kind: worker.TransportZMQBroker, XPub: xpub}})
	b.diary.wait(t, 4, "missed", "missed")
	time.Sleep(200 * time.Millisecond) // until the brokers know of the subscriptions
	for i := range uint64(3) {
		envelope := worker.AppendEvent(nil, event(4, i, fmt.Sprint(i)))
		frame := append(binary.BigEndian.AppendUint32([]byte{1}, uint32(len(envelope))), envelope...)
		for _, p := range brokers {
			p.Send([]byte(scope.Subject()+".t"), nil, nil, frame)
		}
	}
	b.diary.wait(t, 4, "missed", "missed", "0", "1", "2")
}
