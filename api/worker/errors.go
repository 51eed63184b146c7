package worker

import "strings"

// Error is an error as a worker reports it (DynamoError), with its class normalised.
type Error struct {
	Class      string // canonical class, such as InvalidRequest or Unavailable
	Reason     string // catalogue entry such as capacity.worker_overloaded
	Message    string // private
	Diagnostic string // private
	PublicType string // message, size_limit, context_length, rate_limit; empty when nothing may be shown
	Public     string // text that may be shown to a client
	PublicRaw  []byte // the public object as JSON, for its details; nil when absent
	CausedBy   *Error // nil: nothing was told
}

// Error returns the private message: for logs, not for clients.
func (e *Error) Error() string { return e.Class + " (" + e.Reason + "): " + e.Message }

// Unwrap returns the error that caused this one, if the worker told. A typed nil must not become an error that isn't
// nil, hence the test.
func (e *Error) Unwrap() error {
	if e.CausedBy == nil {
		return nil
	}
	return e.CausedBy
}

// maxDiagnostic is how much of a worker's private texts is kept. Bytes; the rest of a stack trace helps nobody, and
// logs have to hold it.
const maxDiagnostic = 4096

// maxCauses bounds a chain of causes. It also bounds the recursion that reads and writes them.
const maxCauses = 16

// legacyPrefix stands before the names of classes that older workers write as {"Backend":"<name>"}.
const legacyPrefix = "Backend."

// class is what a class name on the wire stands for: a canonical class, and the reason to assume when none is given.
type class struct{ name, reason string }

// classOf returns what a class name stands for. Unknown names are internal errors. The first group are the classes of
// present workers, with the reason that each implies; older names follow in transportClass. Each maps to one of the
// classes in the first group.
func classOf(name string) class {
	switch name {
	case "InvalidRequest":
		return class{name, "request.invalid"}
	case "InvalidArgument":
		return class{"InvalidRequest", "request.invalid_argument"}
	case "Unauthenticated":
		return class{name, "request.unauthenticated"}
	case "PermissionDenied":
		return class{name, "request.permission_denied"}
	case "NotFound":
		return class{name, "request.not_found"}
	case "Conflict":
		return class{name, "request.conflict"}
	case "PayloadTooLarge":
		return class{name, "request.payload_too_large"}
	case "UnsupportedMedia":
		return class{name, "request.unsupported_media"}
	case "RateLimited":
		return class{name, "request.rate_limited"}
	// Two names of one class; the next is a special case of it.
	case "CapacityExhausted", "ResourceExhausted":
		return class{"CapacityExhausted", "capacity.exhausted"}
	case "WorkerOverloaded":
		return class{"CapacityExhausted", "capacity.worker_overloaded"}
	case "BackendProtocol":
		return class{name, "backend.protocol"}
	case "DeadlineExceeded":
		return class{name, "request.deadline_exceeded"}
	case "NotImplemented":
		return class{name, "runtime.not_implemented"}
	case "Internal":
		return class{name, "runtime.internal"}
	case "Cancelled":
		return class{name, "request.cancelled"}
	}
	return transportClass(name)
}

// transportClass is classOf for the classes that say how a worker was lost, and for those of backends.
func transportClass(name string) class {
	switch name {
	// The worker is there and can't serve, or isn't there.
	case "Unavailable":
		return class{name, "backend.unavailable"}
	case "CannotConnect":
		return class{"Unavailable", "transport.cannot_connect"}
	case "Disconnected":
		return class{"Unavailable", "transport.disconnected"}
	case "WorkerUnavailable":
		return class{"Unavailable", "backend.worker_unavailable"}
	case "ConnectionTimeout":
		return class{"DeadlineExceeded", "transport.connection_timeout"}
	case "ResponseTimeout":
		return class{"DeadlineExceeded", "backend.response_timeout"}
	// What the engine behind a worker reported, by older workers.
	case legacyPrefix + "InvalidArgument":
		return class{"InvalidRequest", "backend.invalid_argument"}
	case legacyPrefix + "CannotConnect":
		return class{"Unavailable", "backend.cannot_connect"}
	case legacyPrefix + "Disconnected":
		return class{"Unavailable", "backend.disconnected"}
	case legacyPrefix + "EngineShutdown":
		return class{"Unavailable", "backend.engine_shutdown"}
	case legacyPrefix + "StreamIncomplete":
		return class{"Unavailable", "backend.stream_incomplete"}
	case legacyPrefix + "ConnectionTimeout":
		return class{"DeadlineExceeded", "backend.connection_timeout"}
	case legacyPrefix + "ResponseTimeout":
		return class{"DeadlineExceeded", "backend.response_timeout"}
	case legacyPrefix + "Cancelled":
		return class{"Cancelled", "backend.cancelled"}
	case legacyPrefix + "Unknown":
		return class{"Internal", "backend.unknown"}
	}
	// A newer worker's class: it can't be told apart from a failure of the worker's own.
	return class{"Internal", "runtime.unclassified"}
}

// reasonClass returns the class that a reason of the catalogue belongs to; empty when any will do, and false when the
// catalogue has no such reason. The catalogue is the worker protocol's; a reason that isn't in it comes of a mistake.
func reasonClass(reason string) (string, bool) {
	// Reasons have two parts: where it happened, and what.
	area, name, _ := strings.Cut(reason, ".")
	switch area {
	case "capacity":
		switch name {
		case "pool_exhausted", "worker_overloaded", "exhausted":
			return "CapacityExhausted", true
		}
	case "router":
		// It goes with any class.
		return "", name == "queue_deadline_exceeded"
	case "runtime":
		switch name {
		case "unclassified", "invalid_error", "internal":
			return "Internal", true
		case "not_implemented":
			return "NotImplemented", true
		}
	case "request":
		c, ok := requestReasons[name]
		return c, ok
	case "transport", "backend":
		c, ok := workerReasons[name]
		return c, ok
	}
	return "", false
}

// requestReasons are the catalogue's reasons that begin with request, with their class.
var requestReasons = map[string]string{
	"invalid": "InvalidRequest", "invalid_argument": "InvalidRequest", "cancelled": "Cancelled",
	"deadline_exceeded": "DeadlineExceeded", "unauthenticated": "Unauthenticated",
	"permission_denied": "PermissionDenied", "not_found": "NotFound", "conflict": "Conflict",
	"payload_too_large": "PayloadTooLarge", "unsupported_media": "UnsupportedMedia", "rate_limited": "RateLimited",
}

// workerReasons are the reasons that begin with transport or backend: both areas use the same names.
var workerReasons = map[string]string{
	"unavailable": "Unavailable", "worker_unavailable": "Unavailable", "cannot_connect": "Unavailable",
	"disconnected": "Unavailable", "engine_shutdown": "Unavailable", "stream_incomplete": "Unavailable",
	"response_timeout": "DeadlineExceeded", "connection_timeout": "DeadlineExceeded",
	"invalid_argument": "InvalidRequest", "cancelled": "Cancelled", "unknown": "Internal", "protocol": "BackendProtocol",
}

// ParseError reads a DynamoError object given as JSON. The error is normalised; its public part aliases json.
func ParseError(json []byte) (*Error, error) {
	r := reader{b: json, codec: JSON}
	e := r.workerError()
	if err := r.finish(); err != nil {
		return nil, err
	}
	return e, nil
}

// workerError reads a DynamoError; nil after an error of the reader.
func (r *reader) workerError() *Error { return r.workerErrorAt(0) }

// workerErrorAt reads an error at some depth of a chain of causes. Beyond the bound causes are skipped. Fields may come
// in any order, so class and reason are settled at the end.
func (r *reader) workerErrorAt(depth int) *Error {
	e := &Error{}
	var canonical, legacy string
	for s := r.openMap(); r.entry(&s); {
		switch string(s.key) {
		case "class":
			canonical = r.className()
		// The older name of class; current workers write both, for readers of either age.
		case "error_type":
			legacy = r.className()
		case "reason":
			e.Reason = r.text()
		case "message":
			e.Message = clip(r.text())
		case "diagnostic":
			e.Diagnostic = clip(r.text())
		case "public":
			e.PublicRaw = r.raw()
		case "caused_by":
			if depth < maxCauses && !r.null() {
				e.CausedBy = r.workerErrorAt(depth + 1)
			} else {
				r.skip()
			}
		default:
			r.skip()
		}
	}
	if r.err != nil {
		return nil
	}
	e.normalise(canonical, legacy)
	return e
}

// className reads a class: a string, or {"Backend":name} as older workers write it. The second form becomes
// Backend.name, a name that classOf knows.
func (r *reader) className() (name string) {
	if r.peek() != kindMap {
		return r.text()
	}
	for s := r.openMap(); r.entry(&s); {
		prefix := string(s.key) + "."
		name = prefix + r.text()
	}
	return name
}

// normalise settles class, reason and public part. A reason that contradicts the class makes the whole error internal:
// one of the two is wrong, and neither may decide what the client sees. Afterwards Class is one that classOf returns,
// and Reason is never empty.
func (e *Error) normalise(canonical, legacy string) {
	name := canonical
	if name == "" {
		name = legacy
	}
	c := classOf(name)
	e.Class = c.name
	if e.Reason == "" {
		e.Reason = c.reason
		// The older name is often the more precise one: its reason counts where the class agrees.
		if canonical != "" && legacy != "" && classOf(legacy).name == c.name {
			e.Reason = classOf(legacy).reason
		}
	} else if want, ok := reasonClass(e.Reason); !ok || (want != "" && want != e.Class) {
		e.Class, e.Reason = "Internal", "runtime.invalid_error"
	}
	e.readPublic()
}

// readPublic finds out what of the error may be shown. A public part of an unknown type may not: nobody knows what
// is in it.
func (e *Error) readPublic() {
	if len(e.PublicRaw) == 0 {
		return
	}
	r := reader{b: e.PublicRaw, codec: JSON}
	if r.peek() != kindMap {
		e.PublicRaw = nil
		return
	}
	r.fields(func(key []byte) bool {
		switch {
		case string(key) == "type" && r.peek() == kindString:
			e.PublicType = r.text()
		case string(key) == "message" && r.peek() == kindString:
			e.Public = r.text()
		default:
			return false
		}
		return true
	})
	switch e.PublicType {
	case "message", "size_limit", "context_length", "rate_limit":
	default:
		e.PublicType, e.Public, e.PublicRaw = "", "", nil
	}
}

// clip keeps the beginning of a text, whole characters only. A character cut in half at the end goes away.
func clip(s string) string {
	if len(s) <= maxDiagnostic {
		return s
	}
	return strings.ToValidUTF8(s[:maxDiagnostic], "")
}

// write writes the error as a worker does, its class under both keys. What was normalised on reading is written as it
// is: an error passes through unchanged.
func (e *Error) write(w *writer) {
	m := w.openMap()
	w.key(&m, "error_type")
	w.str(e.Class)
	w.key(&m, "class")
	w.str(e.Class)
	w.optStr(&m, "reason", e.Reason)
	w.key(&m, "message")
	w.str(e.Message)
	w.optStr(&m, "diagnostic", e.Diagnostic)
	if len(e.PublicRaw) > 0 {
		w.jsonField(&m, "public", e.PublicRaw)
	} else if e.PublicType != "" {
		w.key(&m, "public")
		p := w.openMap()
		w.key(&p, "type")
		w.str(e.PublicType)
		w.optStr(&p, "message", e.Public)
		w.closeMap(&p)
	}
	if e.CausedBy != nil {
		w.key(&m, "caused_by")
		e.CausedBy.write(w)
	}
	w.closeMap(&m)
}
