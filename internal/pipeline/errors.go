package pipeline

import (
	"encoding/json"
	"strings"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/router"
)

// workerFault makes a fault of an error item. Nothing but what the worker marked as public reaches the client. first
// tells that no output came before it.
func workerFault(it *worker.Item, first bool) *fault.Error {
	e := it.Err
	if e == nil { // an error event that says nothing
		return engineFault("", first)
	}
	// A bare engine error may still name a status inside its text.
	if unclassified(e) && e.PublicType == "" {
		return engineFault(e.Message, first).Because(e)
	}
	class := e.Class
	if e.Reason == "router.queue_deadline_exceeded" { // the worker's own queue was too long
		class = "RateLimited"
	}
	v := router.VerdictOf(class)
	f := &fault.Error{Kind: v.Kind, Origin: fault.FromWorker, Message: v.Phrase}
	switch e.PublicType {
	case "message":
		if e.Public != "" {
			f.Message = e.Public
		}
	// These come as JSON objects of numbers (limits, counts), made to be shown.
	case "context_length", "size_limit", "rate_limit":
		if json.Unmarshal(e.PublicRaw, &f.Details) != nil {
			f.Details = nil
		}
		if e.PublicType == "context_length" {
			f.Code = "context_length_exceeded"
		}
	}
	return f.Because(e)
}

// unclassified reports whether the worker said no more than that something went wrong.
func unclassified(e *worker.Error) bool {
	if e.Class != "Internal" {
		return false
	}
	// Other reasons say what happened inside the worker, and are a classification of their own.
	switch e.Reason {
	case "runtime.unclassified", "backend.unknown":
		return true
	}
	return false
}

// statuses are the kinds of those HTTP codes an engine may name in a JSON message. Further 4xx codes are bad requests
// and everything else is internal.
var statuses = map[int]string{
	401: "Unauthenticated", 403: "PermissionDenied", 404: "NotFound", 409: "Conflict", 413: "PayloadTooLarge",
	415: "UnsupportedMedia", 429: "RateLimited", 499: "Cancelled", 501: "NotImplemented", 503: "Unavailable",
	529: "CapacityExhausted",
}

// engineFault makes a fault of an engine's own message, which is private. Engines may state a status by making it a
// JSON object {"code":N,"message":…}. The message goes to the log only: engines quote prompts and paths in theirs.
func engineFault(message string, first bool) *fault.Error {
	var said struct {
		Code int `json:"code"`
	}
	status := 500
	if strings.HasPrefix(message, "{") && json.Unmarshal([]byte(message), &said) == nil && said.Code != 0 {
		status = said.Code
	}
	// A status below 400 in an error makes no sense and is internal too.
	class := "Internal"
	switch name, ok := statuses[status]; {
	case ok:
		class = name
	case status >= 400 && status < 500:
		class = "InvalidRequest"
	}
	v := router.VerdictOf(class)
	f := &fault.Error{Kind: v.Kind, Origin: fault.FromWorker, Message: v.Phrase}
	// After the first output the client has its status: there is nobody left to tell the engine's to.
	if v.Kind == fault.Internal && first {
		f.Details = map[string]any{"backend_status": status}
	}
	return f.Because(engineError(message))
}

// engineError is an engine's message, for the log.
type engineError string

// Error returns the engine's text.
func (e engineError) Error() string { return "engine: " + string(e) }
