package worker

// Error is an error as a worker reports it (DynamoError), with its class normalised.
type Error struct {
	Class      string // canonical class, such as InvalidRequest or Unavailable
	Reason     string // catalogue entry such as capacity.worker_overloaded; may be empty
	Message    string // private
	Diagnostic string // private
	PublicType string // message, size_limit, context_length, rate_limit; empty when nothing may be shown
	Public     string // text that may be shown to a client
	PublicRaw  []byte // the public object as JSON, for its details; nil when absent
	CausedBy   *Error
}

// Error returns the private message: for logs, not for clients.
func (e *Error) Error() string { return e.Class + " (" + e.Reason + "): " + e.Message }
