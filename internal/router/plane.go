package router

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/fault"
)

// ErrPlaneDown is the cause of a delivery's failure that says nothing of the worker: what carries the messages is away
// itself. The worker isn't to be left aside for it.
var ErrPlaneDown = errors.New("request plane down")

// Message is one request on its way to one worker.
type Message struct {
	Instance  *worker.Instance
	RequestID string
	Envelope  []byte // two-part message: control header and body

	Traceparent string
	Tracestate  string
	XRequestID  string
}

// Plane delivers messages to workers. Safe for concurrent use. Close waits for what the plane started; Start fails after
// it.
type Plane interface {
	// Start sends m and returns, without waiting until it is accepted: the worker's call says that, too, and comes at
	// about the same time. Unless Start returns an error it calls done exactly once, from another goroutine and possibly
	// before returning, with nil when the worker has accepted the message or with the failure. m is not used after Start
	// has returned. ctx bounds the sending only.
	//
	// lost is closed when the worker has been lost since it accepted m; nil where the plane can't tell.
	//
	// Failures are ctx's error, or a *fault.Error: FromTransport when the worker can't be reached or refuses as unknown,
	// the same with the cause ErrPlaneDown when no worker can be, Overloaded when it is at capacity, TooLarge when the
	// transport can't carry the message.
	Start(ctx context.Context, m *Message, done func(error)) (lost <-chan struct{}, err error)

	Close() error
}

// Acceptance turns a worker's answer to a message into done's argument. Workers send nothing to accept; any text is a
// refusal, whether it is known or not. One that is full is apart from the rest: it is left alone for a moment, not
// counted as lost.
func Acceptance(text string) error {
	switch {
	case text == "":
		return nil
	case strings.HasPrefix(text, "Server overloaded:"):
		e := &fault.Error{Kind: fault.Overloaded, Origin: fault.FromTransport, Message: "The worker is at capacity"}
		return e.Because(errors.New(text))
	}
	return fault.Lost(errors.New(text), "The worker refused the request")
}

// Unaccepted is the failure of a message to which the worker's answer has not come in time.
func Unaccepted(timeout time.Duration) *fault.Error {
	return &fault.Error{
		Kind: fault.Unavailable, Origin: fault.FromTransport,
		Message: "The worker did not accept the request within " + timeout.String(),
	}
}
