// Package transfer hands processed images to workers: over NIXL, from registered slots, or through shared memory. A
// request opens one Batch for all its images, has them written into the batch's memory, tells the worker where they are,
// and closes the batch when its answer has ended, whichever way.
//
// Closing never waits. What a worker may still read is held beside later requests, within a bound, until the worker has
// said that it is done: then it is used again. What it never said so of is given up in a way that no reader can come to
// harm, or do any, afterwards.
//
// A Transfer is safe for concurrent use; a Batch belongs to one request.
package transfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/multimodal/nixl"
	"github.com/portico-llm/portico/internal/multimodal/shm"
	"github.com/portico-llm/portico/internal/multimodal/slots"
)

// Options configure a Transfer. The zero value hands over through shared memory alone.
type Options struct {
	NIXL          bool          // NIXL is preferred; without its library shared memory is used
	Libraries     []string      // where NIXL's library may be; the first that opens is used
	ProgressDelay time.Duration // between two rounds of NIXL's own thread; 0 is 1 ms

	PoolBytes int64         // bound of slots, and of segments in shared memory: each; 0 is 1 GiB
	Wait      time.Duration // how long a request waits for slots; 0 is 250 ms
	Cleanup   time.Duration // how long a worker has to read, from the end of the answer; 0 is 60 s

	ShmDir     string                // empty: /dev/shm
	Stale      time.Duration         // age from which segments of dead processes are taken away; 0 is 10 min
	Idle       time.Duration         // after which slots that nobody needs go back to the system; 0 is 5 min
	Registerer prometheus.Registerer // nil: metrics are kept but not registered
	Log        *slog.Logger          // nil: slog.Default()
}

// withDefaults fills in what was left open.
func (o Options) withDefaults() Options {
	o.Cleanup = cmp.Or(o.Cleanup, time.Minute)
	o.Stale = cmp.Or(o.Stale, 10*time.Minute)
	o.Idle = cmp.Or(o.Idle, 5*time.Minute)
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}

// ErrNone says that nothing can hold a request's images now: they travel by URL.
var ErrNone = errors.New("no way to hand over the images")

// Transfer is the two ways with what they share.
type Transfer struct {
	opts     Options
	agent    *nixl.Agent // nil: there is no NIXL
	slots    *slots.Pool // nil without agent
	segments *shm.Store
	cleanups *lifecycle.Group // one goroutine for each batch that waits for its readers
	metrics  *metrics
}

// New opens what the options ask for. NIXL that can't be used is no failure: it is logged, and shared memory is used.
func New(opts Options) *Transfer {
	opts = opts.withDefaults()
	t := &Transfer{
		opts:     opts,
		segments: shm.New(shm.Options{Dir: opts.ShmDir, Bytes: opts.PoolBytes, Stale: opts.Stale}),
		cleanups: lifecycle.New(context.Background()),
		metrics:  newMetrics(opts.Registerer),
	}
	if !opts.NIXL {
		return t
	}
	agent, err := newAgent(&opts)
	if err != nil {
		opts.Log.Warn("NIXL can't be used: images go through shared memory", "error", err)
		return t
	}
	t.agent = agent
	t.slots = slots.New(slots.Options{
		Bytes: opts.PoolBytes, Wait: opts.Wait, Registrar: agent, Registerer: opts.Registerer, Log: opts.Log,
	})
	return t
}

// newAgent opens the first library that can be opened, and starts an agent.
func newAgent(o *Options) (*nixl.Agent, error) {
	errs := []error{errors.New("no library can be opened")}
	for _, path := range o.Libraries {
		lib, err := nixl.Open(path)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		o.Log.Info("NIXL's library is open", "path", path)
		return nixl.New(lib, nixl.Options{ProgressDelay: o.ProgressDelay, Registerer: o.Registerer, Log: o.Log})
	}
	return nil, errors.Join(errs...)
}

// Run takes workers' notifications, and takes away what dead processes have left in shared memory, until ctx ends.
func (t *Transfer) Run(ctx context.Context) error {
	g := lifecycle.New(ctx)
	if t.agent != nil {
		g.Go("nixl", t.agent.Run)
		g.Go("trim", t.trim)
	}
	g.Go("sweep", t.sweep)
	return g.Wait()
}

// trim gives idle slots back now and then.
func (t *Transfer) trim(ctx context.Context) error {
	tick := time.NewTicker(max(t.opts.Idle/2, time.Second))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			t.slots.Trim(t.opts.Idle)
		}
	}
}

// sweep looks for stale segments now and then.
func (t *Transfer) sweep(ctx context.Context) error {
	tick := time.NewTicker(max(t.opts.Stale/2, time.Second))
	defer tick.Stop()
	for {
		n, err := t.segments.Sweep(time.Now())
		if err != nil {
			t.opts.Log.Warn("stale segments in shared memory could not be taken away", "error", err)
		}
		if n > 0 {
			t.opts.Log.Info("took away what dead processes left in shared memory", "segments", n)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Close ends everything at once: what still waits for readers is given up. It is called when no request runs any more,
// and after Run has returned.
func (t *Transfer) Close() error {
	err := t.cleanups.Stop()
	t.segments.Close()
	if t.agent == nil {
		return err
	}
	t.slots.Close()
	return errors.Join(err, t.agent.Close())
}

// Stats is what is held at a moment.
type Stats struct {
	Slots        slots.Stats
	SegmentBytes int64 // in shared memory
}

// Stats counts.
func (t *Transfer) Stats() Stats {
	st := Stats{SegmentBytes: t.segments.Bytes()}
	if t.slots != nil {
		st.Slots = t.slots.Stats()
	}
	return st
}

// NIXL reports whether images go over NIXL, as long as there is room.
func (t *Transfer) NIXL() bool { return t.agent != nil }

// Open takes memory for the images of one request, one piece for each size: from the slots, or in shared memory when
// there is no NIXL or its slots stay full. Every batch has to be closed. ErrNone: there is no room anywhere.
func (t *Transfer) Open(ctx context.Context, sizes []int) (*Batch, error) {
	b, full := t.OpenNIXL(ctx, sizes)
	if full == nil || ctx.Err() != nil {
		return b, full
	}
	segments, err := t.segments.Create(sizes)
	if err != nil {
		t.metrics.refused.Inc()
		return nil, fmt.Errorf("%w: %w", ErrNone, errors.Join(full, err))
	}
	return &Batch{t: t, segments: segments}, nil
}

// OpenNIXL is Open for what goes over NIXL alone.
func (t *Transfer) OpenNIXL(ctx context.Context, sizes []int) (*Batch, error) {
	if t.agent == nil {
		return nil, fmt.Errorf("%w: there is no NIXL", ErrNone)
	}
	taken, err := t.slots.Take(ctx, sizes)
	if err != nil {
		return nil, err
	}
	return &Batch{t: t, slots: taken, ops: make([]*nixl.Op, len(taken))}, nil
}
