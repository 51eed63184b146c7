package main

import (
	"context"
	"net"

	natsgo "github.com/nats-io/nats.go"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/config"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/affinity"
	"github.com/portico-llm/portico/internal/router/busy"
	"github.com/portico-llm/portico/internal/router/callhome"
	"github.com/portico-llm/portico/internal/router/discovery/etcd"
	"github.com/portico-llm/portico/internal/router/discovery/file"
	"github.com/portico-llm/portico/internal/router/discovery/mem"
	"github.com/portico-llm/portico/internal/router/dispatch"
	"github.com/portico-llm/portico/internal/router/events"
	"github.com/portico-llm/portico/internal/router/kvcost"
	"github.com/portico-llm/portico/internal/router/kvroute"
	"github.com/portico-llm/portico/internal/router/plane/nats"
)

// kvRouter makes what chooses workers by their caches. It is always there: a model's card may ask for it.
func (a *app) kvRouter(
	home *callhome.Listener, plane *nats.Plane, registrar events.Registrar,
	dispatch func(context.Context, *router.Call) (router.Stream, error),
) *kvroute.Router {
	k := a.cfg.Router.KV
	opts := kvroute.Options{
		Mode: a.cfg.Router.Mode, Config: kvConfig(&k), BlockSize: k.BlockSize, MemoryLimit: k.MemoryLimit,
		Dispatch: dispatch, ZMQ: k.EventPlane != "nats",
		Loads: func(id worker.EndpointID, instanceID uint64, rank uint32, blocks, prefill *uint64) {
			a.loads.Track(id, instanceID, rank, busy.Load{Decode: blocks, Prefill: prefill})
		},
		NATS:       func(extra ...natsgo.Option) (*natsgo.Conn, error) { return plane.Dial(extra...) },
		Registerer: a.registry, Log: a.target("router"),
	}
	opts.EventHost = a.eventHost(home)
	if k.ReplicaSync {
		opts.Registrar = registrar
	}
	return kvroute.New(opts)
}

// eventHost is where others reach this process's event sockets.
func (a *app) eventHost(home *callhome.Listener) string {
	if host := a.cfg.Router.KV.EventHost; host != "" {
		return host
	}
	if host, _, err := net.SplitHostPort(home.Address()); err == nil {
		return host
	}
	return ""
}

// shareSessions makes what binds sessions to workers, and tells other frontends of it.
func (a *app) shareSessions(home *callhome.Listener, plane *nats.Plane, registrar events.Registrar) (*sessions, error) {
	opts := affinity.ReplicasOptions{
		ZMQ: a.cfg.Router.KV.EventPlane != "nats", EventHost: a.eventHost(home),
		NATS:       func(extra ...natsgo.Option) (*natsgo.Conn, error) { return plane.Dial(extra...) },
		Registerer: a.registry, Log: a.target("router"),
	}
	if a.cfg.Loads.AffinitySync {
		opts.Registrar = registrar
	}
	return newSessions(&a.cfg.Loads, affinity.NewReplicas(opts))
}

// kvConfig is the settings as the router wants them.
func kvConfig(k *config.KVRouter) kvroute.Config {
	return kvroute.Config{
		Cost: kvcost.Config{
			OverlapCredit: k.OverlapCredit, CreditDecay: k.CreditDecay, HostWeight: k.HostWeight, DiskWeight: k.DiskWeight,
			PrefillScale: k.PrefillScale, RequestWeight: k.RequestWeight, Temperature: k.Temperature,
		},
		Events: k.Events, TTL: k.TTL, Predicted: k.Predicted, TrackBlocks: k.TrackBlocks, TrackOutput: k.TrackOutput,
		AssumeReuse: k.AssumeReuse, TrackPrefill: k.TrackPrefill, ReplicaSync: k.ReplicaSync,
		Conditional: kvroute.Conditional{
			On: k.Conditional.On, Policy: k.Conditional.Policy, Tokens: k.Conditional.Tokens, Share: k.Conditional.Share,
			PrefillBusy: k.Conditional.PrefillBusy, DecodeBusy: k.Conditional.DecodeBusy,
		},
	}
}

// aloneBy asks the router in mode kv whether a decode worker had better read a prompt itself.
func aloneBy(kv *kvroute.Router, d *dispatch.Dispatcher) func(decode *router.Call, prefill func() *router.Call) bool {
	return func(decode *router.Call, prefill func() *router.Call) bool {
		return kv.Alone(decode.Endpoint,
			func(f func(router.Chooser, *router.Query, []router.Candidate)) error { return d.Preview(decode, f) },
			func(f func(router.Chooser, *router.Query, []router.Candidate)) error { return d.Preview(prefill(), f) })
	}
}

// hearEvents starts what listens to workers and to other routers. It follows discovery behind the router, so that a
// publisher isn't heard before its endpoint is known.
func (a *app) hearEvents(kv *kvroute.Router, sessions *affinity.Replicas, plane *nats.Plane) {
	a.run("kv routing", kv.Run)
	a.run("session affinity", sessions.Run)
	hub := events.NewHub(events.Options{
		Watch: func(f func(*router.Snapshot)) (cancel func()) {
			return a.store.Watch(func(s *router.Snapshot) {
				kv.Follow(s)
				f(s)
			})
		},
		NATS: plane.Dial, Topics: append(kv.Topics(), a.loadReports(), sessions.Topic()), Registerer: a.registry, Log: a.target("router"),
	})
	a.run("events", hub.Run)
}

// registrar makes this process known in discovery, as publisher of events.
func (a *app) registrar() (events.Registrar, error) {
	d, log := a.cfg.Discovery, a.target("discovery")
	switch {
	case a.records != nil:
		r := mem.NewRegistrar(a.records)
		a.onClose(func(context.Context) error { return r.Close() })
		return r, nil
	case d.Backend == "file":
		r := file.NewRegistrarWith(file.Options{Root: d.FileKV, Log: log})
		a.onClose(func(context.Context) error { return r.Close() })
		return r, nil
	case d.Backend != "etcd":
		return nil, nil // nobody could find it
	}
	r, err := etcd.NewRegistrar(a.etcdOptions())
	if err != nil {
		return nil, err
	}
	a.onClose(func(context.Context) error { return r.Close() })
	return r, nil
}
