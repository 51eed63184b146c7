package dispatch

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/router"
)

// faultOf turns a worker's error into a failure. Only what the worker marked as public is shown. The whole error is the
// failure's cause, for logs. What says that the worker is lost has the transport as its origin, so that it may be tried
// elsewhere.
func faultOf(e *worker.Error) *fault.Error {
	// A request that waited too long for its turn was too much for the service, whatever class it comes with.
	if e.Reason == "router.queue_deadline_exceeded" {
		return worded(e, router.VerdictOf("RateLimited"))
	}
	if e.Class == "Internal" && e.PublicType == "" {
		// Engines behind a worker report their failures as internal ones with a status inside.
		if f := stated(e.Message); f != nil {
			return f.Because(e)
		}
	}
	return worded(e, router.VerdictOf(e.Class))
}

// worded returns the failure of a verdict, in the worker's public words where there are some.
func worded(e *worker.Error, v router.Verdict) *fault.Error {
	f := &fault.Error{Kind: v.Kind, Origin: fault.FromWorker, Message: v.Phrase}
	if router.LostReason(e.Reason) {
		f.Origin = fault.FromTransport
	}
	switch e.PublicType {
	case "":
	// A text for the client, in place of the verdict's.
	case "message":
		if e.Public != "" {
			f.Message = e.Public
		}
	default:
		// Details that aren't an object are dropped: the message is still worth sending.
		if json.Unmarshal(e.PublicRaw, &f.Details) != nil {
			f.Details = nil
		}
		// The code by which OpenAI's clients tell this error from other bad requests.
		if e.PublicType == "context_length" {
			f.Code = "context_length_exceeded"
		}
	}
	return f.Because(e)
}

// stated reads a message that states a status, {"code":N,"message":…}: engines put the statuses of their own HTTP
// servers there. Its text is private like any other. Nil when the message is no such thing.
func stated(message string) *fault.Error {
	var m struct {
		Code    int     `json:"code"`
		Message *string `json:"message"`
	}
	if !strings.HasPrefix(message, "{") || json.Unmarshal([]byte(message), &m) != nil || m.Message == nil {
		return nil
	}
	f := &fault.Error{Origin: fault.FromWorker}
	switch m.Code {
	case http.StatusUnauthorized:
		f.Kind = fault.Unauthenticated
	case http.StatusForbidden:
		f.Kind = fault.PermissionDenied
	case http.StatusNotFound:
		f.Kind = fault.NotFound
	case http.StatusConflict:
		f.Kind = fault.Conflict
	case http.StatusRequestEntityTooLarge:
		f.Kind = fault.TooLarge
	case http.StatusUnsupportedMediaType:
		f.Kind = fault.UnsupportedMedia
	case http.StatusTooManyRequests:
		f.Kind = fault.RateLimited
	case http.StatusServiceUnavailable:
		f.Kind, f.Message = fault.Unavailable, router.VerdictOf("Unavailable").Phrase
	case overloadedStatus:
		f.Kind, f.Message = fault.Overloaded, router.VerdictOf("CapacityExhausted").Phrase
	// Client errors of other kinds are bad requests. Anything else is the engine's own trouble, whose status is a
	// detail.
	default:
		if m.Code < 400 || m.Code > 499 {
			f.Message, f.Details = router.VerdictOf("Internal").Phrase, map[string]any{"backend_status": m.Code}
			return f
		}
		f.Kind = fault.BadRequest
	}
	// The status's own words: the engine's are private.
	if f.Message == "" {
		if f.Message = http.StatusText(m.Code); f.Message == "" {
			f.Message = router.VerdictOf("InvalidRequest").Phrase
		}
	}
	return f
}

// overloadedStatus is the status of an overloaded service among those who use it.
const overloadedStatus = 529
