package server

import (
	"context"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/pipeline"
)

// exchange is one inference request, from its headers to its last byte. It belongs to the handler's goroutine.
type exchange struct {
	s        *Server             // shared by all exchanges
	w        http.ResponseWriter // belongs to the stream's writer while there is one
	r        *http.Request       // its context ends when the client leaves or the server gives up
	span     trace.Span          // nil without a tracer, or when the trace isn't sampled
	endpoint endpoint            // for metrics
	errors   *errorTable         // the form of this endpoint's failures
	beat     string              // what an idle stream sends; empty: a comment
	began    time.Time           // times to the first token count from here
	meta     pipeline.Meta       // ids and routing headers
	claimed  string              // the id, when the client chose it
	answerID string              // of the answer, with its prefix

	model    *modelMetrics // nil until the model is known
	stream   bool          // the client wants events; false until known
	answered bool          // the status is out: a failure can no longer have one
	failure  *fault.Error  // how the request ended; nil: well
	queued   bool          // counted as waiting for its first token
}

// errNotReady refuses requests while draining. A second is long enough for a load balancer to look elsewhere.
var errNotReady = &fault.Error{Kind: fault.Unavailable, Message: "Service is not ready", RetryAfter: time.Second}

// errPanic is all that a client learns of a panic.
var errPanic = fault.New(fault.Internal, "Internal server error")

// inference wraps an inference handler with what all of them share.
func (s *Server) inference(e endpoint, handle func(*exchange) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		x := &exchange{s: s, w: w, r: r, endpoint: e, errors: s.errorsOf(e), began: time.Now()}
		// Even a refused request is counted in, so that Shutdown waits for its answer; deferred calls run in reverse, so
		// end, which also catches panics, comes before leave.
		ready := s.life.enter()
		defer s.life.leave()
		defer x.end()
		id := x.claim(requestID(r.Header))
		// The id is set before anything can fail: failures are what ids are asked for.
		echo(w, r, id)
		x.startSpan()
		err := error(errNotReady)
		if ready {
			if x.meta, err = s.meta(r.Header, id); err == nil {
				err = handle(x)
			}
		}
		if err != nil {
			x.fail(err)
		}
	}
}

// claim settles the request's id. One that the client chose is taken while no other running request has it: workers
// refuse a second request under the same id, which is what a client's retry beside its first attempt would be.
func (x *exchange) claim(id string, chosen bool) string {
	if !chosen {
		return id
	}
	if _, taken := x.s.chosen.LoadOrStore(id, nil); taken {
		return newID()
	}
	x.claimed = id
	return id
}

// echo tells the client under which id its request is known: its own, or ours.
func echo(w http.ResponseWriter, r *http.Request, id string) {
	if own := clipHeader(r.Header.Get("X-Request-Id")); own != "" {
		id = own
	}
	w.Header()["X-Request-Id"] = []string{id}
}

// identified makes a lesser handler's answers carry an id too: clients show it with every error. They are there at once,
// so one deadline for writing does for all that the request takes.
func (s *Server) identified(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.writeWithin(w, s.opts.BodyTimeout+s.opts.Stream.WriteTimeout)
		echo(w, r, newID())
		next(w, r)
	}
}

// known settles whose metrics the request counts for. A name that no model has is never a label. It is called once for
// each request.
func (x *exchange) known(model string, stream bool) {
	x.stream = stream
	x.model = x.s.metrics.model(model)
	x.model.started[x.endpoint][requestType(stream)].Inc()
	x.model.running.Add(1)
	x.model.active.Inc()
	x.model.inflight.Inc()
	x.model.queued.Inc()
	x.queued = true
}

// dequeue ends the wait for the first token. Later calls do nothing.
func (x *exchange) dequeue() {
	if x.queued {
		x.queued = false
		x.model.queued.Dec()
	}
}

// fail ends the request with err: as a status, when that is still possible.
func (x *exchange) fail(err error) {
	f := fault.From(err)
	if ctx := x.r.Context(); f.Kind == fault.Internal && ctx.Err() != nil {
		f = fault.From(context.Cause(ctx)) // whatever broke, it broke because the client left
	}
	x.failure = f
	x.log(f)
	if x.answered {
		return
	}
	x.answered = true
	x.s.writeWithin(x.w, x.s.opts.Stream.WriteTimeout)
	x.errors.write(x.w, f)
}

// writeWithin bounds what an answer takes from now on: a client that doesn't read must not keep the connection for ever.
func (s *Server) writeWithin(w http.ResponseWriter, timeout time.Duration) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(timeout)) // not every ResponseWriter has one
}

// log notes failures that somebody has to mend: ours, and the workers', whose texts no client is shown. A client's
// mistake is nobody's business, and lost workers are the router's.
func (x *exchange) log(f *fault.Error) {
	switch {
	case f.Kind == fault.Internal && f.Origin == fault.FromRequest:
		x.s.opts.Log.Error("request failed", "request_id", x.meta.RequestID, "error", f)
	case f.Origin == fault.FromWorker && x.errors.of(f).status >= http.StatusInternalServerError:
		x.s.opts.Log.Warn("worker failed a request", "request_id", x.meta.RequestID, "error", f)
	}
}

// end accounts for the request. A panic of the handler ends here too.
func (x *exchange) end() {
	if p := recover(); p != nil {
		x.s.metrics.panics.Inc()
		x.s.opts.Log.Error("panic while handling a request",
			"request_id", x.meta.RequestID, "panic", p, "stack", string(debug.Stack()))
		// The stack is logged; the client learns nothing of it.
		x.fail(errPanic)
	}
	if x.model == nil { // refused before its model was known
		x.known(unknownModel, x.stream)
	}
	if x.claimed != "" {
		x.s.chosen.Delete(x.claimed)
	}
	x.dequeue()
	// Zero for an answer that went well.
	var a answerTo
	if x.failure != nil {
		a = x.errors.of(x.failure)
	}
	x.s.metrics.done(x, a)
	x.model.duration.Observe(time.Since(x.began).Seconds())
	x.model.active.Dec()
	x.model.inflight.Dec()
	x.model.running.Add(-1)
	// Last, so that the span covers all of it.
	x.endSpan(a)
}

// around bounds the time for a request's body, logs every request at debug level, and turns a panic of the lesser
// handlers into a 500.
func (s *Server) around(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Inference handlers catch their own panics earlier, in end, where they are accounted for.
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			s.metrics.panics.Inc()
			s.opts.Log.Error("panic while handling a request", "path", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
			s.errors.write(w, errPanic)
		}()
		s.limitBody(w, r)
		// A line for every request costs a write, a good part of a whole request: it is for looking closer only.
		if !s.opts.Log.Enabled(r.Context(), slog.LevelDebug) {
			next.ServeHTTP(w, r)
			return
		}
		began := time.Now()
		next.ServeHTTP(w, r)
		s.opts.Log.Debug("request", "method", r.Method, "path", r.URL.Path, "remote", r.RemoteAddr,
			"request_id", w.Header().Get("X-Request-Id"), "duration", time.Since(began))
	})
}
