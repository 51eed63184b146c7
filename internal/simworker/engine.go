package simworker

import (
	"context"
	"errors"

	"github.com/portico-llm/portico/api/worker"
)

// Request is one request as an engine sees it.
type Request struct {
	ID      string
	Ordinal uint64          // number of this request at its worker: 0, 1, 2, …
	Tokens  *worker.Request // nil for workers with model input Text
	JSON    []byte          // the body as JSON, for workers with model input Text; nil otherwise
	Headers Headers
}

// Headers are the tracing headers that came with a request.
type Headers struct {
	RequestID   string // names the request in both sides' logs
	Traceparent string // of W3C trace context, as is tracestate; empty without tracing
	Tracestate  string
	XRequestID  string // the client's own name for the request; empty without one
}

// Engine answers requests. Generate is called once per request, from many goroutines at a time. It sends what it
// produces and returns when the answer is complete; ctx ends when the frontend asks to stop or goes away.
//
// An error becomes an error item, as a failing engine's does. A *worker.Error is sent as it is.
type Engine interface {
	Generate(ctx context.Context, req *Request, out Output) error
}

// Admitter is an Engine that looks at requests before they start: an error goes out in the prologue, so that the
// request fails before there is any answer.
type Admitter interface {
	Admit(req *Request) error
}

// Output takes an engine's items, in order. For the goroutine that runs Generate. Errors mean that nobody listens any
// more: the engine returns.
type Output interface {
	// Send sends an item. It is encoded before Send returns; the caller may use it again.
	Send(it *worker.Item) error
	// SendJSON sends an item given as JSON: {"data":{…}} or {"event":…}.
	SendJSON(annotated []byte) error
}

// ErrStopped is what Output methods return after the frontend asked to stop.
var ErrStopped = errors.New("stopped by the frontend")

// ErrDie from an engine breaks the connection off without any end mark, as a killed process does.
var ErrDie = errors.New("die")
