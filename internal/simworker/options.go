package simworker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/portico-llm/portico/api/worker"
)

// Registrar publishes discovery records and keeps them alive until they are removed. The worker calls it from one
// goroutine at a time and never after Run has returned; closing it is its owner's part.
type Registrar interface {
	// Put publishes a record; one that is there under the key is replaced.
	Put(ctx context.Context, key string, value []byte) error
	// Remove takes a record back. A record that isn't there is no error.
	Remove(ctx context.Context, key string) error
}

// Options describe a worker. Registrar, Engine and one plane are needed: NATS, NATSURL, or neither for TCP.
type Options struct {
	Endpoint   worker.EndpointID // zero: dynamo/backend/generate
	InstanceID uint64            // 0: drawn at random
	Card       *worker.Card      // model to register; nil: none
	DeviceType string            // advertised; may be empty
	Codec      worker.Codec      // advertised; requests are answered in the codec they name

	NATS    *nats.Conn // a connection owned by the caller
	NATSURL string     // or the address of a server to connect to

	Host          string // TCP plane: address to listen on; empty is 127.0.0.1
	Port          int    // TCP plane: 0 is any free port
	AdvertiseHost string // TCP plane: host in the advertised address; empty is Host

	Registrar Registrar
	Engine    Engine
	Fault     func(*Request) Fault // fault of a request; nil: none

	MaxActive int // requests at a time; 0 is 10000
	MaxQueued int // requests that wait beyond those; more are refused (TCP) or left to wait (NATS); 0 is 40000

	DialTimeout time.Duration // for the call back; 0 is 5 s
	CloseWait   time.Duration // for the frontend's close after the sentinel; 0 is 10 s
	Grace       time.Duration // for running requests when Run's context ends; 0 is 5 s
	Log         *slog.Logger
}

// withDefaults returns o with every option set that has a default.
func (o Options) withDefaults() Options {
	if o.Endpoint == (worker.EndpointID{}) {
		o.Endpoint = worker.EndpointID{Namespace: "dynamo", Component: "backend", Name: "generate"}
	}
	// Zero is drawn again: as an id it would read as none.
	for o.InstanceID == 0 {
		o.InstanceID = rand.Uint64()
	}
	set := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	set(&o.MaxActive, 10000)
	set(&o.MaxQueued, 40000)
	duration := func(p *time.Duration, v time.Duration) {
		if *p == 0 {
			*p = v
		}
	}
	duration(&o.DialTimeout, 5*time.Second)
	duration(&o.CloseWait, 10*time.Second)
	duration(&o.Grace, 5*time.Second)
	if o.Host == "" {
		o.Host = "127.0.0.1"
	}
	if o.AdvertiseHost == "" {
		o.AdvertiseHost = o.Host
	}
	if o.Fault == nil {
		o.Fault = func(*Request) Fault { return Fault{} }
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}

// validate checks what no default can mend. Whether an address can be listened on is found out by Run.
func (o *Options) validate() error {
	switch {
	case o.Registrar == nil:
		return errors.New("simworker: a registrar is needed")
	case o.Engine == nil:
		return errors.New("simworker: an engine is needed")
	case o.NATS != nil && o.NATSURL != "":
		return errors.New("simworker: give a NATS connection or an address, not both")
	case o.MaxActive < 0 || o.MaxQueued < 0:
		return fmt.Errorf("simworker: negative limits: %d active, %d queued", o.MaxActive, o.MaxQueued)
	}
	return nil
}
