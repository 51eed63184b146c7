// Package etcd is discovery through etcd: records live under a lease of their worker and vanish with it.
//
// A Source lists both buckets at one revision and watches from the next. Whenever the connection or a watch breaks it
// keeps what it knew, connects again for as long as it takes, and lists anew: an etcd that was away, restarted, compacted
// or restored from a backup leaves neither ghosts nor gaps. A Registrar publishes records and outlives the loss of its
// lease: it takes a new one and publishes again.
package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/connectivity"

	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/router"
)

// Reasons why a session ends and the records are listed anew.
var (
	errDisconnected = errors.New("the connection was lost")
	errCompacted    = errors.New("the watched revision was compacted")
	errWatchClosed  = errors.New("the watch was closed")
)

// Source watches the discovery records in etcd. Each Run has a connection of its own. Safe for concurrent use.
type Source struct {
	opts Options     // with defaults
	tls  *tls.Config // nil: without TLS
}

var _ router.Source = (*Source)(nil)

// New checks the options, reads the TLS files, and returns a source. It doesn't connect. An error is a mistake in the
// options that no retry would cure.
func New(opts Options) (*Source, error) {
	opts = opts.withDefaults()
	tlsConfig, err := opts.validate()
	if err != nil {
		return nil, err
	}
	return &Source{opts, tlsConfig}, nil
}

// Run implements router.Source. An etcd that doesn't answer is tried for Options.StartTimeout at first, and for ever
// once it has answered. Refused credentials end Run at the start and are an outage later.
func (s *Source) Run(ctx context.Context, emit func(router.Change)) error {
	f := &follower{opts: s.opts, emit: emit}
	deadline := time.Now().Add(s.opts.StartTimeout)
	for attempt := 0; ; attempt++ {
		// A new client for each round: credentials are checked when it is made.
		client, err := s.opts.dial(ctx, s.tls)
		if err == nil {
			err = f.sessions(ctx, client, deadline)
			_ = client.Close() // it reports only that it is closed
		}
		if ctx.Err() != nil {
			return nil
		}
		if !f.listed && (time.Now().After(deadline) || refused(err)) {
			return fmt.Errorf("etcd at %s: %w", strings.Join(s.opts.Endpoints, ","), err)
		}
		f.outage(err)
		if !pause(ctx, attempt) {
			return nil
		}
	}
}

// refused reports whether the server turned the credentials down, so that trying again can't help. A server without
// authentication, asked to check a password, counts as well.
func refused(err error) bool {
	if err == nil {
		return false
	}
	for _, known := range []error{rpctypes.ErrAuthFailed, rpctypes.ErrUserEmpty, rpctypes.ErrPermissionDenied, rpctypes.ErrAuthNotEnabled} {
		// The client library flattens some errors of the server to text.
		if errors.Is(err, known) || strings.Contains(err.Error(), rpctypes.ErrorDesc(known)) {
			return true
		}
	}
	return false
}

// follower is the state of one Run; emit and the fields are used by one goroutine at a time. A new one is made for
// every Run, so that a second Run begins as the first did.
type follower struct {
	opts   Options
	emit   func(router.Change) // the caller's
	listed bool                // etcd has answered once
	away   bool                // an outage has been logged
}

// outage logs the beginning of an outage; its repetitions are not news. Its end is logged by the session that lists
// again.
func (f *follower) outage(err error) {
	if !f.away {
		f.away = true
		f.opts.Log.Warn("etcd is away, known workers stay", "endpoints", f.opts.Endpoints, "error", err)
	}
}

// sessions lists and watches again and again over one client. Until etcd has answered for the first time it returns
// once the deadline has passed; afterwards only when ctx ends or the credentials no longer work, so that the caller
// connects anew.
func (f *follower) sessions(ctx context.Context, client *clientv3.Client, deadline time.Time) error {
	for attempt := 0; ; attempt++ {
		listed, err := f.session(ctx, client)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		// The caller decides whether this is the end or an outage.
		case refused(err), !f.listed && time.Now().After(deadline):
			return err
		case errors.Is(err, errCompacted):
			continue // nothing is wrong with etcd
		}
		f.outage(err)
		// A session that got that far shows that etcd answers: waiting starts over.
		if listed {
			attempt = 0
		}
		if !pause(ctx, attempt) {
			return ctx.Err()
		}
	}
}

// session lists the records, emits them in full, and follows them until something breaks, which is the error. listed
// tells whether it got as far as to emit.
func (f *follower) session(parent context.Context, client *clientv3.Client) (listed bool, _ error) {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	// Without a leader the member at the other end knows no news: better to be told.
	ctx = clientv3.WithRequireLeader(ctx)

	// Listed and watched from one revision: etcd keeps the history between, so nothing is missed.
	full, revision, err := f.list(ctx, client)
	if err != nil {
		return false, err
	}
	monitor := lifecycle.New(ctx)
	defer func() { _ = monitor.Stop() }() // it returns no error
	monitor.Go("etcd connection", func(ctx context.Context) error {
		// The client library mends a broken watch by itself, but can't know that etcd came back with other data.
		if client.ActiveConnection().WaitForStateChange(ctx, connectivity.Ready) {
			cancel(errDisconnected)
		}
		return nil
	})
	if f.away {
		f.away = false
		f.opts.Log.Info("etcd is back", "endpoints", f.opts.Endpoints, "records", len(full.Put))
	}
	f.listed = true
	f.emit(full)
	return true, f.follow(ctx, client, revision)
}

// list reads all buckets at one revision. The revision is that of the listing: a watch goes on with the next one.
func (f *follower) list(ctx context.Context, client *clientv3.Client) (router.Change, int64, error) {
	ctx, cancel := context.WithTimeout(ctx, f.opts.RequestTimeout)
	defer cancel()
	// One transaction: a worker's instance and its card are seen together or not at all.
	var gets []clientv3.Op
	for _, bucket := range router.Buckets() {
		gets = append(gets, clientv3.OpGet(bucket+"/", clientv3.WithPrefix()))
	}
	resp, err := client.Txn(ctx).Then(gets...).Commit()
	if err != nil {
		return router.Change{}, 0, fmt.Errorf("list records: %w", err)
	}
	full := router.Change{Full: true}
	for _, r := range resp.Responses {
		for _, kv := range r.GetResponseRange().GetKvs() {
			full.Put = append(full.Put, router.Record{Key: string(kv.Key), Value: kv.Value})
		}
	}
	return full, resp.Header.Revision, nil
}

// follow emits what happens after the revision until the watch breaks or ctx ends, and says why.
func (f *follower) follow(parent context.Context, client *clientv3.Client, revision int64) error {
	ctx, cancel := context.WithCancel(parent)
	defer cancel() // ends all watches
	// Fragments let a burst of events be larger than one message of gRPC.
	watch := func(bucket string) clientv3.WatchChan {
		return client.Watch(ctx, bucket+"/", clientv3.WithPrefix(), clientv3.WithRev(revision+1), clientv3.WithFragment())
	}
	instances, models := watch(router.BucketInstances), watch(router.BucketModels)
	channels, sources := watch(router.BucketChannels), watch(router.BucketSources)
	for {
		var resp clientv3.WatchResponse
		var open bool
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case resp, open = <-instances:
		case resp, open = <-models:
		case resp, open = <-channels:
		case resp, open = <-sources:
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		// etcd has thrown away what came after our revision: only a new listing helps.
		case resp.CompactRevision != 0:
			return errCompacted
		// Refused credentials, among others.
		case resp.Err() != nil:
			return fmt.Errorf("watch: %w", resp.Err())
		case !open || resp.Canceled:
			return errWatchClosed
		}
		if c := change(resp.Events); len(c.Put) > 0 || len(c.Removed) > 0 {
			f.emit(c)
		}
	}
}

// change gathers events, in their order, into one change. A key that was deleted and put again is in both lists: its
// old record ended. One response of a watch holds all events of a revision, or of several.
func change(events []*clientv3.Event) router.Change {
	var c router.Change
	at := map[string]int{} // key → index in c.Put
	for _, ev := range events {
		key := string(ev.Kv.Key)
		i, known := at[key]
		// Deletions come first when a change is applied, so a put before one must not be among the puts.
		if ev.Type == mvccpb.DELETE {
			if known {
				c.Put[i].Key = "" // dropped below
				delete(at, key)
			}
			c.Removed = append(c.Removed, key)
			continue
		}
		if known {
			c.Put[i].Value = ev.Kv.Value
			continue
		}
		at[key] = len(c.Put)
		c.Put = append(c.Put, router.Record{Key: key, Value: ev.Kv.Value})
	}
	// The order of the rest stays.
	kept := c.Put[:0]
	for _, r := range c.Put {
		if r.Key != "" {
			kept = append(kept, r)
		}
	}
	c.Put = kept
	return c
}
