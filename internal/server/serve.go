package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/server/sse"
)

// lastWords is how long cancelled requests have to tell their clients.
const lastWords = time.Second

// life is the server's way from serving to its end.
type life struct {
	draining atomic.Bool   // set once, never taken back
	running  atomic.Int64  // inference requests
	idle     chan struct{} // capacity 1: a request that ends while draining knocks

	mu     sync.Mutex              // guards what follows
	http   *http.Server            // nil before Serve
	cancel context.CancelCauseFunc // of all requests; nil before Serve
	done   bool                    // Shutdown has been called
}

// init readies the zero value.
func (l *life) init() { l.idle = make(chan struct{}, 1) }

// enter counts a request in, and tells whether it may run.
func (l *life) enter() bool {
	l.running.Add(1) // before the look at draining, so that Shutdown misses no request that saw it false
	return !l.draining.Load()
}

// leave counts a request out. The knock is dropped when one is waiting already: wait looks at the count itself.
func (l *life) leave() {
	if l.running.Add(-1) == 0 && l.draining.Load() {
		select {
		case l.idle <- struct{}{}:
		default:
		}
	}
}

// wait returns when no request runs, or false when ctx ends first.
func (l *life) wait(ctx context.Context) bool {
	// A knock may be old: requests that are refused come and go as well.
	for l.running.Load() > 0 {
		select {
		case <-l.idle:
		case <-ctx.Done():
			return l.running.Load() == 0
		}
	}
	return true
}

// Serve answers requests on ln, which it closes, until Shutdown. When ctx ends, everything is broken off. It returns
// nil after Shutdown or the end of ctx, and may be called once.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	// The parent of every request's context; its cause reaches the handlers.
	all, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	hs := &http.Server{
		Handler:           s.handler,
		ReadHeaderTimeout: s.opts.HeaderTimeout,
		IdleTimeout:       s.opts.IdleTimeout,
		MaxHeaderBytes:    64 << 10,
		BaseContext:       func(net.Listener) context.Context { return all },
		// net/http reports what clients get wrong, port scanners included: nothing for an error log.
		ErrorLog:  slog.NewLogLogger(s.opts.Log.Handler(), slog.LevelDebug),
		Protocols: new(http.Protocols),
	}
	// Proxies may speak HTTP/2 to a service without asking first, as they can to Dynamo's frontend.
	hs.Protocols.SetHTTP1(true)
	hs.Protocols.SetUnencryptedHTTP2(true)
	sse.Install(hs)
	// Shutdown may come first: the process got its signal while it was starting.
	s.life.mu.Lock()
	if s.life.done {
		s.life.mu.Unlock()
		return ln.Close()
	}
	s.life.http, s.life.cancel = hs, cancel
	s.life.mu.Unlock()

	// The end of ctx is the hard way out: connections are closed without a word.
	stop := context.AfterFunc(ctx, func() {
		s.life.draining.Store(true)
		_ = hs.Close()
	})
	defer stop()
	corked := sse.Listener{Listener: ln, WriteTimeout: s.opts.Stream.WriteTimeout}
	if err := hs.Serve(corked); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP: %w", err)
	}
	return nil
}

// errStopping is the cause of the end of requests that outlive the grace period.
var errStopping = fault.New(fault.Unavailable, "The server is shutting down")

// Drain makes the server refuse inference requests with 503 and report itself as not ready. Running requests go on.
func (s *Server) Drain() { s.life.draining.Store(true) }

// Shutdown drains, waits for running requests until ctx ends, tells the rest that the server stops, and closes
// everything. While it waits, the server goes on answering: load balancers see that it isn't ready, and late requests
// get a 503. It returns ctx's error when requests had to be broken off.
func (s *Server) Shutdown(ctx context.Context) error {
	s.Drain()
	s.life.mu.Lock()
	s.life.done = true
	hs, abort := s.life.http, s.life.cancel
	s.life.mu.Unlock()

	if hs != nil {
		hs.SetKeepAlivesEnabled(false) // clients go elsewhere with their next request
	}
	finished := s.life.wait(ctx)
	var err error
	if !finished {
		err = fmt.Errorf("requests were broken off: %w", context.Cause(ctx))
	}
	if abort != nil { // streams get an error event with this text, and their workers are told
		abort(errStopping)
	}
	// ctx is over when requests were broken off; their last words still have a second.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWords)
	defer cancel()
	s.life.wait(last)
	if hs != nil {
		// Answers that are complete may still be on their way out of net/http: Shutdown lets them, Close doesn't.
		_ = hs.Shutdown(last)
		_ = hs.Close()
	}
	return err
}
