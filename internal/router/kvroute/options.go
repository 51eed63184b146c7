package kvroute

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	natsgo "github.com/nats-io/nats.go"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/events"
	"github.com/portico-llm/portico/internal/router/kvcost"
)

// Mode is the name of this way to choose, as given by --router-mode.
const Mode = "kv"

// Config is how the workers of one endpoint are chosen. Default gives the usual one.
type Config struct {
	Cost kvcost.Config

	Events bool          // workers publish KV events; otherwise what they hold is guessed
	TTL    time.Duration // how long a guess holds
	// Predicted is how long a prompt counts as cached where it was sent, beside what events say: requests that begin alike
	// and come close together find each other. 0: not at all.
	Predicted time.Duration

	TrackBlocks  bool // count the blocks of the prompts at work
	TrackOutput  bool // count the blocks of what they generate, too
	AssumeReuse  bool // requests that begin alike share blocks
	TrackPrefill bool // count the prompt tokens still to be computed
	ReplicaSync  bool // tell other routers, and hear them

	Conditional Conditional // of decode workers: when they read prompts themselves
}

// Default returns the Config that holds when nothing is configured.
func Default() Config {
	return Config{
		Cost: kvcost.Default(), Events: true, TTL: 120 * time.Second,
		TrackBlocks: true, AssumeReuse: true, TrackPrefill: true, Conditional: DefaultConditional(),
	}
}

// Options are what a Router is built from. Dispatch is required where workers publish events.
type Options struct {
	// Mode is the router mode of endpoints whose cards don't say otherwise; Config goes with it.
	Mode   string
	Config Config // the zero value is Default

	BlockSize   int   // in place of the cards', in tokens; 0: theirs
	MemoryLimit int64 // of the index of each endpoint, in bytes; 0: no limit

	// Dispatch sends recovery queries to workers.
	Dispatch func(ctx context.Context, call *router.Call) (router.Stream, error)

	// Loads is told of what the requests at work at a rank come to, with every change: blocks, and prompt tokens to be
	// computed; nil for what isn't counted. It is called under a lock and must be quick. Nil: nobody wants to know.
	Loads func(id worker.EndpointID, instanceID uint64, rank uint32, blocks, prefill *uint64)

	// How other routers are told of requests, where an endpoint's Config asks for it. Registrar nil: they aren't.
	Registrar events.Registrar
	ZMQ       bool   // on a socket of this process; otherwise on NATS
	EventHost string // of the socket
	NATS      func(...natsgo.Option) (*natsgo.Conn, error)

	// Settle is how long a recovery query waits for the subscription before it to be in place at the worker; 50 ms when
	// zero.
	Settle time.Duration
	// QueryTimeout bounds one recovery query; 30 s when zero.
	QueryTimeout time.Duration
	// Retry is the time after which a failed query is repeated, at first; 100 ms when zero. It doubles up to a hundred
	// times of it.
	Retry time.Duration

	Registerer prometheus.Registerer // nil: metrics are kept but not registered
	Log        *slog.Logger          // nil: slog.Default()
}

// withDefaults fills in what was left open.
func (o Options) withDefaults() Options {
	if o.Config == (Config{}) {
		o.Config = Default()
	}
	if o.Settle <= 0 {
		o.Settle = 50 * time.Millisecond
	}
	if o.QueryTimeout <= 0 {
		o.QueryTimeout = 30 * time.Second
	}
	if o.Retry <= 0 {
		o.Retry = 100 * time.Millisecond
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}
