package affinity_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/affinity"
	"github.com/portico-llm/portico/internal/router/discovery"
	"github.com/portico-llm/portico/internal/router/discovery/mem"
	"github.com/portico-llm/portico/internal/router/events"
)

var at = worker.EndpointID{Namespace: "n", Component: "c", Name: "generate"}

// town is a discovery that several frontends share.
type town struct {
	t     *testing.T
	group *lifecycle.Group
	store *discovery.Store
	mem   *mem.Source
	nats  string // empty: ZeroMQ
}

func newTown(t *testing.T, withNATS bool) *town {
	t.Helper()
	c := &town{t: t, group: lifecycle.New(context.Background()), mem: mem.New()}
	if withNATS {
		s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true})
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
		t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
		if !s.ReadyForConnections(10 * time.Second) {
			t.Fatal("NATS isn't ready")
		}
		c.nats = s.ClientURL()
	}
	c.store = discovery.NewStore(c.mem, discovery.Options{Log: slog.New(slog.DiscardHandler)})
	c.group.Go("discovery", c.store.Run)
	t.Cleanup(func() {
		if err := c.group.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// frontend is one of them.
type frontend struct {
	replicas *affinity.Replicas
	metrics  *prometheus.Registry
	table    *affinity.Table
	stop     func()
}

func (c *town) frontend() *frontend {
	c.t.Helper()
	log := slog.New(slog.DiscardHandler)
	dial := func(opts ...natsgo.Option) (*natsgo.Conn, error) { return natsgo.Connect(c.nats, opts...) }
	registrar := mem.NewRegistrar(c.mem)
	f := &frontend{metrics: prometheus.NewPedanticRegistry()}
	f.replicas = affinity.NewReplicas(affinity.ReplicasOptions{
		Registrar: registrar, ZMQ: c.nats == "", EventHost: "127.0.0.1", NATS: dial, Registerer: f.metrics, Log: log})
	f.table = f.replicas.Table(at, time.Hour, affinity.Hard)
	hub := events.NewHub(events.Options{
		Watch: func(w func(*router.Snapshot)) func() { return c.store.Watch(w) }, NATS: dial,
		Topics: []events.Topic{f.replicas.Topic()}, Retry: 50 * time.Millisecond, Log: log})
	g := lifecycle.New(c.group.Context())
	g.Go("replicas", f.replicas.Run)
	g.Go("hub", hub.Run)
	stopped := false
	f.stop = func() {
		if stopped {
			return
		}
		stopped = true
		if err := g.Stop(); err != nil {
			c.t.Error(err)
		}
		if err := registrar.Close(); err != nil {
			c.t.Error(err)
		}
	}
	c.t.Cleanup(f.stop)
	return f
}

// eventually waits until a session is bound to an instance; 0 is none.
func eventually(t *testing.T, what string, f *frontend, id string, instance uint64) {
	t.Helper()
	for until := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		got, _ := f.table.Find(id)
		if got == instance {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("%s: %s is bound to %d, want %d", what, id, got, instance)
		}
	}
}

// meet waits until frontends hear each other: what is published before that is lost, as it is for real ones.
func meet(t *testing.T, list ...*frontend) {
	t.Helper()
	for i, from := range list {
		for j, to := range list {
			if i == j {
				continue
			}
			for n := 0; ; n++ {
				id := fmt.Sprintf("probe %d %d %d", i, j, n)
				from.table.Bind(id, nil, 99, nil)
				if heard(to, id) {
					break
				}
				if n > 200 {
					t.Fatalf("frontend %d doesn't hear %d", j, i)
				}
			}
		}
	}
}

func heard(f *frontend, id string) bool {
	for range 100 {
		if _, ok := f.table.Find(id); ok {
			return true
		}
		time.Sleep(time.Millisecond)
	}
	return false
}

// TestReplicas: a session that is bound, moved or ended at one frontend is so at all, those that come later included.
func TestReplicas(t *testing.T) {
	for name, withNATS := range map[string]bool{"ZeroMQ": false, "NATS": true} {
		t.Run(name, func(t *testing.T) {
			c := newTown(t, withNATS)
			one, two := c.frontend(), c.frontend()
			meet(t, one, two)
			one.table.Bind("a", nil, 1, new(uint32(3)))
			one.table.Bind("b", nil, 2, nil)
			eventually(t, "bound", two, "a", 1)
			eventually(t, "bound", two, "b", 2)
			two.table.Bind("a", ptr[uint64](1), 5, nil)
			eventually(t, "moved", one, "a", 5)
			two.table.End("b")
			eventually(t, "ended", one, "b", 0)
			one.table.Bind("b", nil, 7, nil)
			eventually(t, "begun anew", two, "b", 7)

			late := c.frontend()
			eventually(t, "late", late, "a", 5)
			eventually(t, "late", late, "b", 7)
			if got, ok := late.table.Find("c"); ok {
				t.Errorf("c is bound to %d", got)
			}
			one.stop()
			meet(t, late, two)
			late.table.Bind("c", nil, 8, nil)
			eventually(t, "without the first", two, "c", 8)
		})
	}
}

// TestTables: an endpoint keeps its table for as long as it is the same, and leaves nothing behind.
func TestTables(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	r := affinity.NewReplicas(affinity.ReplicasOptions{Registerer: reg})
	table := r.Table(at, time.Hour, affinity.Soft)
	table.Bind("a", nil, 1, nil)
	if r.Table(at, time.Hour, affinity.Soft) != table || table.Hard() {
		t.Error("another table")
	}
	err := testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP portico_sessions Sessions that are bound to workers, by endpoint; those of other frontends included
# TYPE portico_sessions gauge
portico_sessions{endpoint="n/c/generate"} 1
`))
	if err != nil {
		t.Error(err)
	}
	if r.Table(at, time.Minute, affinity.Soft) == table {
		t.Error("the same table for another time")
	}
	r.Retain(func(id worker.EndpointID) bool { return id != at })
	if n, err := testutil.GatherAndCount(reg); err != nil || n != 0 {
		t.Errorf("%d series are left, %v", n, err)
	}
}
