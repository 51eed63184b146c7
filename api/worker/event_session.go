package worker

// SessionBinding is what a router tells other routers of a session (topic session_affinity_events): the worker that the
// session's requests go to. It is told with every change and now and then with use; of two that differ the later one
// holds.
type SessionBinding struct {
	Session  string
	WorkerID uint64  // 0: the session has ended. No worker has this id, so routers that don't know of ends ignore it
	DPRank   *uint32 // the rank there; nil: any
	Sequence uint64  // grows with every change of any binding, over all routers; begins with nanoseconds since 1970
	Writer   uint64  // the router that made the change; decides between equal sequences
}

// Later reports whether b is a later change than another one.
func (b *SessionBinding) Later(than *SessionBinding) bool {
	if b.Sequence != than.Sequence {
		return b.Sequence > than.Sequence
	}
	return b.Writer > than.Writer
}

// ParseSessionBinding reads a payload.
func ParseSessionBinding(payload []byte) (SessionBinding, error) {
	r := reader{b: payload, codec: Msgpack}
	var b SessionBinding
	for s := r.openMap(); r.entry(&s); {
		switch string(s.key) {
		case "session_id":
			b.Session = r.text()
		case "worker_id":
			b.WorkerID = r.uint64()
		case "dp_rank":
			b.DPRank = r.optU32()
		case "sequence":
			b.Sequence = r.uint64()
		case "writer_id":
			b.Writer = r.uint64()
		default:
			r.skip()
		}
	}
	return b, r.finish()
}

// AppendSessionBinding appends a payload.
func AppendSessionBinding(dst []byte, b *SessionBinding) []byte {
	w := writer{b: dst, codec: Msgpack}
	m := w.openMap()
	w.key(&m, "session_id")
	w.str(b.Session)
	w.key(&m, "worker_id")
	w.uint(b.WorkerID)
	w.key(&m, "dp_rank")
	if b.DPRank == nil {
		w.null()
	} else {
		w.uint(uint64(*b.DPRank))
	}
	w.key(&m, "sequence")
	w.uint(b.Sequence)
	w.key(&m, "writer_id")
	w.uint(b.Writer)
	w.closeMap(&m)
	return w.b
}
