package router

import "github.com/portico-llm/portico/internal/fault"

// Verdict is what a worker's error class means to a client: a kind, and the text shown when the worker gave none. The
// text is fit for anybody: it says nothing of the deployment.
type Verdict struct {
	Kind   fault.Kind
	Phrase string
}

// VerdictOf returns the verdict of a class, as workers name them; a class that nobody knows is an internal error, as
// workers newer than this table may know further ones. The phrases are Dynamo's, which clients may look for.
func VerdictOf(class string) Verdict {
	switch class {
	case "InvalidRequest":
		return Verdict{fault.BadRequest, "Invalid request"}
	case "Unauthenticated":
		return Verdict{fault.Unauthenticated, "Authentication required"}
	case "PermissionDenied":
		return Verdict{fault.PermissionDenied, "Permission denied"}
	case "NotFound":
		return Verdict{fault.NotFound, "Resource not found"}
	case "Conflict":
		return Verdict{fault.Conflict, "Request conflict"}
	case "PayloadTooLarge":
		return Verdict{fault.TooLarge, "Request payload too large"}
	case "UnsupportedMedia":
		return Verdict{fault.UnsupportedMedia, "Unsupported media type"}
	case "RateLimited":
		return Verdict{fault.RateLimited, "Rate limit exceeded"}
	case "CapacityExhausted":
		return Verdict{fault.Overloaded, "Service temporarily overloaded"}
	case "Unavailable":
		return Verdict{fault.Unavailable, "Service temporarily unavailable"}
	case "BackendProtocol":
		return Verdict{fault.BadGateway, "Bad gateway"}
	case "DeadlineExceeded":
		return Verdict{fault.Timeout, "Request deadline exceeded"}
	case "NotImplemented":
		return Verdict{fault.NotImplemented, "Operation not implemented"}
	case "Cancelled":
		return Verdict{fault.Cancelled, "Request cancelled"}
	}
	return Verdict{fault.Internal, "Internal server error"}
}

// LostReason reports whether a worker's reason says that it, or its engine, is lost: another may do better.
func LostReason(reason string) bool {
	switch reason {
	case "transport.cannot_connect", "transport.disconnected", "transport.connection_timeout",
		"backend.cannot_connect", "backend.disconnected", "backend.connection_timeout", "backend.response_timeout",
		"backend.engine_shutdown", "backend.stream_incomplete", "backend.worker_unavailable":
		return true
	}
	return false
}
