package simworker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/lifecycle"
)

// Worker is one simulated worker process. Run may be called once; the other methods are safe for concurrent use,
// before, during and after it.
type Worker struct {
	o        Options
	instance worker.Instance
	faulty   bool // faults are planned, so requests are decoded before they are acknowledged

	// Both are closed once and carry nothing.
	ready    chan struct{}
	aborted  chan struct{}
	abort    sync.Once
	slots    chan struct{} // one per request that may run at a time
	admitted atomic.Int64  // running and waiting requests
	ordinal  atomic.Uint64 // of the next request
	count    counters
}

// Stats are a worker's counts since its start. Each is read by itself: while requests run they need not add up.
type Stats struct {
	Received  uint64 // requests acknowledged
	Refused   uint64 // refused as over capacity
	Undecoded uint64 // acknowledged and then found unreadable: never answered, as real workers do
	Completed uint64 // answered to the end
	Stopped   uint64 // ended by the frontend's stop
	Killed    uint64 // ended by the frontend's kill
	Lost      uint64 // the frontend went away without a word, or could not be dialled
	Failed    uint64 // ended by an error of the engine or by a fault
	Tokens    uint64 // sent to frontends, end tokens included
	Active    int64  // requests running or waiting now
}

// counters are Stats as they are counted.
type counters struct {
	received, refused, undecoded, completed, stopped, killed, lost, failed, tokens atomic.Uint64
}

// New returns a worker; it starts nothing. Options that contradict each other are an error.
func New(options Options) (*Worker, error) {
	faulty := options.Fault != nil
	o := options.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	return &Worker{
		o: o, faulty: faulty,
		instance: worker.Instance{
			Namespace: o.Endpoint.Namespace, Component: o.Endpoint.Component, Endpoint: o.Endpoint.Name,
			InstanceID: o.InstanceID, DeviceType: o.DeviceType, CodecName: o.Codec.String(),
		},
		ready: make(chan struct{}), aborted: make(chan struct{}), slots: make(chan struct{}, o.MaxActive),
	}, nil
}

// Ready is closed once the worker is registered and takes requests.
func (w *Worker) Ready() <-chan struct{} { return w.ready }

// Instance is the worker's discovery record. Its transport is known once Ready is closed.
func (w *Worker) Instance() *worker.Instance { return &w.instance }

// Stats returns the counts so far.
func (w *Worker) Stats() Stats {
	c := &w.count
	return Stats{
		Received: c.received.Load(), Refused: c.refused.Load(), Undecoded: c.undecoded.Load(), Completed: c.completed.Load(),
		Stopped: c.stopped.Load(), Killed: c.killed.Load(), Lost: c.lost.Load(), Failed: c.failed.Load(),
		Tokens: c.tokens.Load(), Active: w.admitted.Load(),
	}
}

// Abort ends the worker as a crash would: connections break, records stay. Run returns nil soon after.
func (w *Worker) Abort() { w.abort.Do(func() { close(w.aborted) }) }

// plane is a way requests come in.
type plane interface {
	// start begins to listen and returns the address to advertise. After a start that failed only stop may follow.
	start(ctx context.Context) (worker.Transport, error)
	// run hands requests to the worker until ctx ends.
	run(ctx context.Context) error
	// stop ends it and waits, for no longer than the plane itself takes: requests go on. It may be called again.
	stop()
}

// Run serves until ctx ends, then removes its records, lets running requests finish within Grace, and returns after
// the last goroutine. It returns an error when the worker could not start or lost its plane.
func (w *Worker) Run(ctx context.Context) error {
	serving := lifecycle.New(context.WithoutCancel(ctx)) // requests outlive ctx by the grace period
	defer serving.Stop()
	p := w.newPlane(serving)
	defer p.stop()
	transport, err := p.start(ctx)
	if err != nil {
		return err
	}
	w.instance.Transport = transport
	// Listening comes before the record: whoever reads that may send at once.
	serving.Go("plane", p.run)
	if err := w.register(ctx); err != nil {
		return err
	}
	close(w.ready)
	w.o.Log.Info("worker ready", "endpoint", w.o.Endpoint.String(), "instance", w.instance.Hex(),
		"nats", transport.NATS, "tcp", transport.TCP)
	select {
	case <-w.aborted:
		return nil
	// The plane is lost, and no request can come in any more.
	case <-serving.Context().Done():
		err = context.Cause(serving.Context())
	case <-ctx.Done():
	}
	// No new requests come once frontends see that the records have gone; those under way may still end well.
	err = errors.Join(err, w.unregister(context.WithoutCancel(ctx)))
	w.drain()
	return err
}

// drain waits for running requests, within the grace period.
func (w *Worker) drain() {
	deadline := time.NewTimer(w.o.Grace)
	defer deadline.Stop()
	// Polling costs nothing here, and a counter needs no care about who signals the last end.
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for w.admitted.Load() > 0 {
		select {
		case <-deadline.C:
			w.o.Log.Warn("requests cut off at the end of the grace period", "active", w.admitted.Load())
			return
		case <-w.aborted:
			return
		case <-tick.C:
		}
	}
}

// newPlane returns the plane the options ask for.
func (w *Worker) newPlane(g *lifecycle.Group) plane {
	if w.o.NATS != nil || w.o.NATSURL != "" {
		return &natsPlane{w: w, group: g}
	}
	return &tcpPlane{w: w, group: g}
}

// delivery is a request as it came in.
type delivery struct {
	payload []byte // two-part message; owned by the delivery
	headers Headers
}

// verdict is what becomes of a delivery.
type verdict uint8

const (
	accepted verdict = iota
	atCapacity
	unknownEndpoint
	unanswered // not even acknowledged
)

// accept takes a delivery on and starts its goroutine. It never blocks: what can't run yet waits in the goroutine for a
// slot. The verdict is the plane's to tell; only accepted means that an answer may come.
func (w *Worker) accept(g *lifecycle.Group, d delivery) verdict {
	s := &session{w: w, headers: d.headers}
	// A planned fault may concern the acknowledgement, so the request has to be known before.
	if w.faulty {
		s.decode(d.payload)
		switch s.fault.Kind {
		case Overloaded:
			w.count.refused.Add(1)
			return atCapacity
		case Unknown:
			return unknownEndpoint
		case NoAck:
			return unanswered
		}
	}
	if w.admitted.Add(1) > int64(w.o.MaxActive+w.o.MaxQueued) {
		w.admitted.Add(-1)
		w.count.refused.Add(1)
		return atCapacity
	}
	w.count.received.Add(1) // before its end is counted, or its answer read
	started := g.Go("request", func(ctx context.Context) error {
		defer w.admitted.Add(-1)
		select {
		case w.slots <- struct{}{}:
			defer func() { <-w.slots }()
		case <-ctx.Done():
			return nil
		}
		// Decoding takes its turn like the rest of the work: the plane's goroutine only passes deliveries on.
		if !w.faulty {
			s.decode(d.payload)
		}
		s.serve(ctx)
		return nil
	})
	// The worker is shutting down: to the frontend it is gone.
	if !started {
		w.admitted.Add(-1)
		w.count.received.Add(^uint64(0))
		return unknownEndpoint
	}
	return accepted
}

const (
	// The folders of the records, as Dynamo names them. A worker's two records have the same key in both.
	bucketInstances = "v1/instances/"
	bucketModels    = "v1/mdc/"
	registerTimeout = 10 * time.Second
)

// register publishes the endpoint before the model: a frontend that sees the model finds a worker for it. After a
// failure halfway the first record is left to its registrar's end.
func (w *Worker) register(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	instance, err := w.instance.Record()
	if err != nil {
		return fmt.Errorf("simworker: encode endpoint record: %w", err)
	}
	if err := w.o.Registrar.Put(ctx, bucketInstances+w.instance.Path(), instance); err != nil {
		return fmt.Errorf("simworker: register endpoint: %w", err)
	}
	if w.o.Card == nil {
		return nil
	}
	record := worker.ModelRecord{
		Namespace: w.instance.Namespace, Component: w.instance.Component, Endpoint: w.instance.Endpoint,
		InstanceID: w.instance.InstanceID, Card: *w.o.Card,
	}
	model, err := record.Record()
	if err != nil {
		return fmt.Errorf("simworker: encode model record: %w", err)
	}
	if err := w.o.Registrar.Put(ctx, bucketModels+w.instance.Path(), model); err != nil {
		return fmt.Errorf("simworker: register model: %w", err)
	}
	return nil
}

// unregister removes the records, the model's first, so that no frontend sees a model without a worker for longer than
// it must. It tries both even when the first can't be removed.
func (w *Worker) unregister(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	var err error
	if w.o.Card != nil {
		err = w.o.Registrar.Remove(ctx, bucketModels+w.instance.Path())
	}
	if err = errors.Join(err, w.o.Registrar.Remove(ctx, bucketInstances+w.instance.Path())); err != nil {
		return fmt.Errorf("simworker: unregister: %w", err)
	}
	return nil
}
