package server

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/portico-llm/portico/api/anthropic"
	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/internal/fault"
)

// answerTo is how a kind of fault is answered.
type answerTo struct {
	status int    // HTTP
	kind   string // OpenAI's error type
	code   string // OpenAI's error code, when the fault has none of its own
	slug   string // Dynamo's type inside a stream
	reason string // Dynamo's type of a body; empty: the status's own text
	label  string // error_type of the request metric
	class  string // class of the failure metric
	cause  string // reason of the failure metric, in the words of the workers' protocol
}

// answers is the only place where a status is chosen. OpenAI has no types of its own for most server failures: its
// clients choose their exceptions by the status. The code tells the cases apart for those who look. In every entry the
// first line is what a response and a stream's event say; the second is the reason phrase, then the metrics' labels.
var answers = map[fault.Kind]answerTo{
	fault.Internal: {
		500, "server_error", "internal_error", "internal_server_error",
		"", "internal", "Internal", "runtime.internal",
	},
	fault.BadRequest: {
		400, "invalid_request_error", "", "invalid_request_error",
		"", "validation", "InvalidRequest", "request.invalid_argument",
	},
	fault.Unauthenticated: {
		401, "authentication_error", "unauthenticated", "authentication_error",
		"", "validation", "Unauthenticated", "request.unauthenticated",
	},
	fault.PermissionDenied: {
		403, "permission_error", "permission_denied", "permission_error",
		"", "validation", "PermissionDenied", "request.permission_denied",
	},
	fault.NotFound: {
		404, "invalid_request_error", "not_found", "not_found_error",
		"", "not_found", "NotFound", "request.not_found",
	},
	fault.Conflict: {
		409, "invalid_request_error", "conflict", "invalid_request_error",
		"", "validation", "Conflict", "request.conflict",
	},
	fault.TooLarge: {
		413, "invalid_request_error", "request_too_large", "invalid_request_error",
		"Payload Too Large", "validation", "PayloadTooLarge", "request.payload_too_large",
	},
	fault.UnsupportedMedia: {
		415, "invalid_request_error", "unsupported_media_type", "invalid_request_error",
		"", "validation", "UnsupportedMedia", "request.unsupported_media",
	},
	fault.RateLimited: {
		429, "rate_limit_error", "rate_limit_exceeded", "rate_limit_error",
		"", "overload", "RateLimited", "request.rate_limited",
	},
	fault.HeaderTooLarge: {
		431, "invalid_request_error", "headers_too_large", "invalid_request_error",
		"", "validation", "PayloadTooLarge", "request.payload_too_large",
	},
	fault.Cancelled: {
		499, "request_cancelled", "request_cancelled", "request_cancelled",
		"Client Closed Request", "cancelled", "Cancelled", "request.cancelled",
	},
	fault.NotImplemented: {
		501, "invalid_request_error", "not_implemented", "not_implemented_error",
		"", "not_implemented", "NotImplemented", "runtime.not_implemented",
	},
	fault.BadGateway: {
		502, "server_error", "bad_gateway", "internal_server_error",
		"", "internal", "BackendProtocol", "backend.protocol",
	},
	fault.Unavailable: {
		503, "server_error", "service_unavailable", "service_unavailable",
		"", "unavailable", "Unavailable", "backend.unavailable",
	},
	fault.Timeout: {
		504, "server_error", "timeout", "timeout_error",
		"", "response_timeout", "DeadlineExceeded", "request.deadline_exceeded",
	},
	fault.TooSlow: {
		408, "invalid_request_error", "request_timeout", "timeout_error",
		"", "validation", "DeadlineExceeded", "request.deadline_exceeded",
	},
	fault.Overloaded: {
		529, "server_error", "overloaded", "service_unavailable",
		"Overloaded", "overload", "CapacityExhausted", "capacity.exhausted",
	},
}

// retryAfter is what a service that is overloaded or away asks for when the fault doesn't say.
const retryAfter = time.Second

// Bounds of what an error says. Messages repeat names that clients choose, and a name may be as long as a body.
const (
	maxMessage = 4 << 10
	maxParam   = 512
)

// nested is f in OpenAI's form.
func nested(a answerTo, f *fault.Error) *openai.Error {
	return &openai.Error{Message: clip(f.Message, maxMessage), Type: a.kind, Param: clip(f.Param, maxParam), Code: a.code}
}

// errorForm is the form of failures.
type errorForm uint8

// The forms.
const (
	formOpenAI    errorForm = iota
	formFlat                // Dynamo's
	formAnthropic           // of the endpoints that speak Anthropic's API
)

// errorTable writes faults in the form this server was told to use.
type errorTable struct {
	form     errorForm
	overload int // status of Overloaded
}

// newErrorTable returns a table that is never changed, and so is safe for concurrent use.
func newErrorTable(form errorForm, overload int) *errorTable {
	return &errorTable{form: form, overload: overload}
}

// errorsOf is the table of an endpoint.
func (s *Server) errorsOf(e endpoint) *errorTable {
	if e == endpointMessages || e == endpointCountTokens {
		return s.anthropicErrors
	}
	return s.errors
}

// anthropicError is f in Anthropic's form. Its clients choose their exceptions by the status too.
func anthropicError(a answerTo, f *fault.Error) *anthropic.Error {
	kind := "api_error"
	switch f.Kind {
	case fault.Unauthenticated:
		kind = "authentication_error"
	case fault.PermissionDenied:
		kind = "permission_error"
	case fault.NotFound:
		kind = "not_found_error"
	case fault.Conflict:
		kind = "conflict_error"
	case fault.TooLarge:
		kind = "request_too_large"
	case fault.RateLimited:
		kind = "rate_limit_error"
	case fault.Timeout, fault.TooSlow:
		kind = "timeout_error"
	case fault.Overloaded, fault.Unavailable: // both pass by themselves, and clients try again
		kind = "overloaded_error"
	default:
		if a.status < http.StatusInternalServerError {
			kind = "invalid_request_error"
		}
	}
	return &anthropic.Error{Type: kind, Message: clip(f.Message, maxMessage)}
}

// of returns how f is answered.
func (t *errorTable) of(f *fault.Error) answerTo {
	a, ok := answers[f.Kind]
	if !ok {
		a = answers[fault.Internal]
	}
	if f.Kind == fault.Overloaded { // operators choose what their load balancers understand
		a.status = t.overload
	}
	if a.reason == "" {
		a.reason = http.StatusText(a.status)
	}
	if f.Code != "" {
		a.code = f.Code
	}
	return a
}

// write answers with f's status and body.
func (t *errorTable) write(w http.ResponseWriter, f *fault.Error) {
	t.respond(w, t.of(f), f)
}

// writeStatus answers with a status that no kind of fault has.
func (t *errorTable) writeStatus(w http.ResponseWriter, status int, f *fault.Error) {
	a := t.of(f)
	a.status, a.reason = status, http.StatusText(status)
	t.respond(w, a, f)
}

// respond writes status, headers and body. Nothing may have been written before.
func (t *errorTable) respond(w http.ResponseWriter, a answerTo, f *fault.Error) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	if f.NoRetry {
		// OpenAI's clients ask again after any status from 500 on, unless told not to.
		h.Set("X-Should-Retry", "false")
	}
	after := f.RetryAfter
	// Both pass by themselves. Without a word from us clients try again at once, all of them.
	if after <= 0 && (f.Kind == fault.Overloaded || f.Kind == fault.Unavailable) {
		after = retryAfter
	}
	if after > 0 {
		// Whole seconds (RFC 9110), rounded up: nobody is to come too early.
		h.Set("Retry-After", strconv.FormatInt(int64((after+time.Second-1)/time.Second), 10))
	}
	var body []byte
	switch t.form {
	case formFlat:
		body = openai.AppendFlatError(nil, t.flatError(a, f, a.reason))
	case formAnthropic:
		e := anthropicError(a, f)
		e.RequestID = h.Get("X-Request-Id")
		body = anthropic.AppendError(nil, e)
	default:
		body = openai.AppendError(nil, nested(a, f))
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(a.status)
	_, _ = w.Write(body) // a client that has left doesn't read it
}

// appendEvent appends the data of an error event.
func (t *errorTable) appendEvent(dst []byte, f *fault.Error) []byte {
	a := t.of(f)
	switch t.form {
	case formFlat:
		return openai.AppendFlatStreamError(dst, t.flatError(a, f, a.slug))
	case formAnthropic:
		return anthropic.AppendError(dst, anthropicError(a, f))
	}
	return openai.AppendError(dst, nested(a, f))
}

// flatError is f in Dynamo's form. Details that make no JSON are left out: the failure itself is what counts.
func (t *errorTable) flatError(a answerTo, f *fault.Error, kind string) *openai.FlatError {
	e := &openai.FlatError{Message: clip(f.Message, maxMessage), Type: kind, Code: a.status}
	if len(f.Details) > 0 {
		if d, err := json.Marshal(f.Details); err == nil {
			e.Details = d
		}
	}
	return e
}
