// Package fault is the vocabulary of failures that can reach a client.
//
// Every error that may end a request carries a Kind, from which the server's one table chooses the HTTP status and the
// OpenAI error type; nothing else picks a status. A fault also says where it came from: the request itself, the worker
// ("the worker said so") or the way to the worker ("we lost the worker"). Only the last kind may be tried elsewhere.
//
// Values are immutable after construction and safe for concurrent use.
package fault

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Kind classifies a failure. The zero value is Internal.
type Kind uint8

// The kinds, with the HTTP status the server gives each.
const (
	Internal         Kind = iota // 500
	BadRequest                   // 400
	Unauthenticated              // 401
	PermissionDenied             // 403
	NotFound                     // 404
	Conflict                     // 409
	TooLarge                     // 413
	UnsupportedMedia             // 415
	RateLimited                  // 429
	HeaderTooLarge               // 431
	Cancelled                    // 499: the client left; nobody reads the answer
	NotImplemented               // 501
	BadGateway                   // 502: the worker broke the protocol
	Unavailable                  // 503
	Timeout                      // 504
	Overloaded                   // 529, or DYN_HTTP_OVERLOAD_STATUS_CODE
	TooSlow                      // 408: the client took too long to send its request
)

var kindNames = [...]string{
	"internal", "bad_request", "unauthenticated", "permission_denied", "not_found", "conflict", "too_large",
	"unsupported_media", "rate_limited", "header_too_large", "cancelled", "not_implemented", "bad_gateway",
	"unavailable", "timeout", "overloaded", "too_slow",
}

// String returns the kind's name as used in logs and metric labels.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "unknown"
}

// Origin says who found the failure.
type Origin uint8

const (
	// FromRequest is a failure of this request or of this process. It is the zero value.
	FromRequest Origin = iota
	// FromWorker is a failure the worker reported: another worker would most likely say the same.
	FromWorker
	// FromTransport is a lost or unreachable worker: another worker may succeed.
	FromTransport
)

// Error is a failure with everything the server needs to answer with it.
type Error struct {
	Kind    Kind
	Origin  Origin
	Message string // public: goes to the client
	Param   string // JSON path of the offending request field, such as messages[2].content; may be empty
	Code    string // machine-readable code such as context_length_exceeded; may be empty

	RetryAfter time.Duration  // when positive, the client is told to come back after this long
	NoRetry    bool           // asking again would go no better, and clients are told so
	Details    map[string]any // further public facts, such as the limit that was exceeded; may be nil

	cause error // private: for logs
}

// Error returns the public message, then the private cause.
func (e *Error) Error() string {
	if e.cause != nil {
		return e.Message + ": " + e.cause.Error()
	}
	return e.Message
}

// Unwrap returns the private cause, which may be nil.
func (e *Error) Unwrap() error { return e.cause }

// New returns an Error of the given kind with a public message.
func New(kind Kind, format string, args ...any) *Error {
	return &Error{Kind: kind, Message: fmt.Sprintf(format, args...)}
}

// Bad returns a BadRequest that names the offending field by its JSON path.
func Bad(param, format string, args ...any) *Error {
	return &Error{Kind: BadRequest, Param: param, Message: fmt.Sprintf(format, args...)}
}

// Lost returns the failure of a worker that could not be reached or whose stream broke off.
func Lost(cause error, format string, args ...any) *Error {
	return &Error{Kind: Unavailable, Origin: FromTransport, Message: fmt.Sprintf(format, args...), cause: cause}
}

// Because returns a copy of e with a private cause.
func (e *Error) Because(cause error) *Error {
	c := *e
	c.cause = cause
	return &c
}

// WithCode returns a copy of e with a machine-readable code.
func (e *Error) WithCode(code string) *Error {
	c := *e
	c.Code = code
	return &c
}

// From returns the Error in err's chain. An error without one becomes Cancelled or Timeout when a context ended, and
// Internal otherwise, with a public message that tells nothing of the cause. From(nil) is nil.
func From(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	switch {
	case errors.Is(err, context.Canceled):
		return &Error{Kind: Cancelled, Message: "Request cancelled", cause: err}
	case errors.Is(err, context.DeadlineExceeded):
		return &Error{Kind: Timeout, Message: "Request deadline exceeded", cause: err}
	}
	return &Error{Kind: Internal, Message: "Internal server error", cause: err}
}

// KindOf returns the kind of err as From classifies it; Internal for nil.
func KindOf(err error) Kind {
	if e := From(err); e != nil {
		return e.Kind
	}
	return Internal
}
