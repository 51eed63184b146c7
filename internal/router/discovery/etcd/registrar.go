package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/portico-llm/portico/internal/lifecycle"
)

// closeTimeout bounds the revocation of the lease; without it the records go when the lease ends by itself.
const closeTimeout = 3 * time.Second

// errClosed is the failure of calls after Close.
var errClosed = errors.New("the registrar is closed")

// Registrar publishes the records of one worker under a lease. Safe for concurrent use. It connects, takes its lease and
// starts a goroutine at the first call that needs them; Close ends them all. A lost lease is replaced and all records
// are published again.
type Registrar struct {
	opts Options     // with defaults
	tls  *tls.Config // nil: without TLS

	closed atomic.Bool                     // read without the lock, by calls that wait for etcd
	keep   atomic.Pointer[lifecycle.Group] // nil until there is a lease

	// mu is held during calls to etcd, so that records and lease change together; it guards what follows.
	mu      sync.Mutex
	client  *clientv3.Client  // nil: not connected yet, or closed
	lease   clientv3.LeaseID  // 0: none
	id      uint64            // the first lease's id, which the worker keeps as its own
	records map[string][]byte // what ought to be published
}

// NewRegistrar checks the options, reads the TLS files, and returns a registrar. It doesn't connect. An error is a
// mistake in the options that no retry would cure.
func NewRegistrar(opts Options) (*Registrar, error) {
	opts = opts.withDefaults()
	tlsConfig, err := opts.validate()
	if err != nil {
		return nil, err
	}
	return &Registrar{opts: opts, tls: tlsConfig, records: map[string][]byte{}}, nil
}

// InstanceID returns the id the worker is to register under: that of its first lease. An etcd that doesn't answer is
// tried for Options.StartTimeout.
func (r *Registrar) InstanceID(ctx context.Context) (uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.startLocked(ctx); err != nil {
		return 0, err
	}
	return r.id, nil
}

// Put publishes or replaces a record. It returns once etcd has the record. The value is copied, and published again
// should the lease be lost.
func (r *Registrar) Put(ctx context.Context, key string, value []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.startLocked(ctx); err != nil {
		return err
	}
	// Noted first, because putLocked reads it there; taken back when etcd refuses it, for what it has.
	before, had := r.records[key]
	r.records[key] = slices.Clone(value)
	err := r.putLocked(ctx, key)
	if err != nil {
		delete(r.records, key)
		if had {
			r.records[key] = before
		}
	}
	return err
}

// Remove takes one of the registrar's records away. Keys of others are left alone. After a failure the record may stay
// until the lease ends or is replaced.
func (r *Registrar) Remove(ctx context.Context, key string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, mine := r.records[key]; !mine {
		return nil
	}
	delete(r.records, key)
	if r.client == nil {
		return nil // closed: the record went with the lease
	}
	ctx, cancel := context.WithTimeout(ctx, r.opts.RequestTimeout)
	defer cancel()
	if _, err := r.client.Delete(ctx, key); err != nil {
		return fmt.Errorf("remove %s from etcd: %w", key, err)
	}
	return nil
}

// Close revokes the lease, with which all records go at once, and closes the connection. It may be called again; Put
// and InstanceID fail after it.
func (r *Registrar) Close() error {
	r.closed.Store(true)
	// Twice, and never under the lock, for which the goroutine may wait: a first call may be under way and start it
	// just now. Past the lock no other call can.
	errs := []error{r.stopKeeping()}
	r.mu.Lock()
	r.mu.Unlock() //nolint:staticcheck // empty on purpose: waits for the call under way
	errs = append(errs, r.stopKeeping())

	r.mu.Lock()
	defer r.mu.Unlock()
	if r.client == nil {
		return errors.Join(errs...)
	}
	if r.lease != 0 {
		ctx, cancel := context.WithTimeout(r.client.Ctx(), closeTimeout)
		defer cancel()
		if _, err := r.client.Revoke(ctx, r.lease); err != nil {
			errs = append(errs, fmt.Errorf("revoke etcd lease: %w", err))
		}
	}
	_ = r.client.Close() // it reports only that it is closed
	r.client, r.lease = nil, 0
	return errors.Join(errs...)
}

// stopKeeping ends the goroutine, if it runs, and waits for it.
func (r *Registrar) stopKeeping() error {
	if g := r.keep.Swap(nil); g != nil {
		return g.Stop()
	}
	return nil
}

// startLocked connects and takes the first lease, unless that has been done. The connection and the goroutine live
// until Close, whatever becomes of ctx. An etcd that is away is tried again until the start time-out, a closed
// registrar or the end of ctx.
func (r *Registrar) startLocked(ctx context.Context) error {
	if r.lease != 0 && !r.closed.Load() {
		return nil
	}
	deadline := time.Now().Add(r.opts.StartTimeout)
	for attempt := 0; ; attempt++ {
		if r.closed.Load() {
			return errClosed
		}
		err := r.connectLocked(ctx)
		if err == nil {
			err = r.grantLocked(ctx)
		}
		if err == nil {
			break
		}
		if refused(err) || time.Now().After(deadline) || !pause(ctx, attempt) {
			return err
		}
	}
	// Dynamo's workers do the same: a lease id is unique in the cluster.
	r.id = uint64(r.lease)
	keep := lifecycle.New(context.WithoutCancel(ctx))
	r.keep.Store(keep)
	keep.Go("etcd lease", r.keepLease)
	return nil
}

// connectLocked makes the client, once; it connects in the background and again after each loss.
func (r *Registrar) connectLocked(ctx context.Context) error {
	if r.client != nil {
		return nil
	}
	client, err := r.opts.dial(context.WithoutCancel(ctx), r.tls)
	if err != nil {
		return err
	}
	r.client = client
	return nil
}

// grantLocked takes a lease. etcd counts its time in whole seconds.
func (r *Registrar) grantLocked(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.opts.RequestTimeout)
	defer cancel()
	ttl := max(1, int64(r.opts.LeaseTTL/time.Second))
	resp, err := r.client.Grant(ctx, ttl)
	if err != nil {
		return fmt.Errorf("take an etcd lease: %w", err)
	}
	r.lease = resp.ID
	return nil
}

// putLocked publishes one of records under the present lease: when that ends, etcd deletes the key.
func (r *Registrar) putLocked(ctx context.Context, key string) error {
	ctx, cancel := context.WithTimeout(ctx, r.opts.RequestTimeout)
	defer cancel()
	if _, err := r.client.Put(ctx, key, string(r.records[key]), clientv3.WithLease(r.lease)); err != nil {
		return fmt.Errorf("publish %s in etcd: %w", key, err)
	}
	return nil
}

// keepLease renews the lease, and replaces it when it is lost, until ctx ends. A lease that was renewed at all resets
// the back-off: its loss is a new outage.
func (r *Registrar) keepLease(ctx context.Context) error {
	for attempt := 0; ctx.Err() == nil; attempt++ {
		r.mu.Lock()
		client, lease := r.client, r.lease
		r.mu.Unlock()
		if client == nil {
			return nil // being closed
		}
		if r.renew(ctx, client, lease) {
			attempt = 0
		}
		if ctx.Err() != nil {
			return nil
		}
		r.opts.Log.Warn("etcd lease lost, taking another", "lease", int64(lease))
		for n := attempt; !r.republish(ctx); n++ {
			if !pause(ctx, n) {
				return nil
			}
		}
	}
	return nil
}

// renew keeps the lease alive until it is lost or ctx ends, and reports whether it was renewed at all. The library
// sends a keep-alive every third of the lease's time.
func (r *Registrar) renew(ctx context.Context, client *clientv3.Client, lease clientv3.LeaseID) (renewed bool) {
	answers, err := client.KeepAlive(ctx, lease)
	if err != nil {
		return false
	}
	for range answers { // the library closes the channel when the lease is gone
		renewed = true
	}
	return renewed
}

// republish takes a new lease and publishes every record under it. Either all of it succeeds, or the next attempt
// begins with a further lease; etcd drops the records of half an attempt with theirs.
func (r *Registrar) republish(ctx context.Context) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.client == nil {
		return true // closed meanwhile
	}
	err := r.grantLocked(ctx)
	for _, key := range slices.Sorted(maps.Keys(r.records)) {
		if err != nil {
			break
		}
		err = r.putLocked(ctx, key)
	}
	if err != nil {
		r.opts.Log.Debug("etcd lease not replaced yet", "error", err)
		return false
	}
	r.opts.Log.Info("etcd lease replaced, records published again", "lease", int64(r.lease), "records", len(r.records))
	return true
}
