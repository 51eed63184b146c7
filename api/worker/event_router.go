package worker

// KVMetrics is one report of a worker's load on the topic kv_metrics. Nil is what the worker doesn't say.
type KVMetrics struct {
	Worker              WorkerRank
	ActiveDecodeBlocks  *uint64
	ActivePrefillTokens *uint64
	KVUsedBlocks        *uint64
}

// ParseKVMetrics reads the payload of a report.
func ParseKVMetrics(payload []byte) (KVMetrics, error) {
	var k KVMetrics
	r := reader{b: payload, codec: Msgpack}
	for s := r.openMap(); r.entry(&s); {
		switch string(s.key) {
		case "worker_id":
			k.Worker.WorkerID = r.uint64()
		case "dp_rank":
			k.Worker.DPRank = r.uint32()
		case "active_decode_blocks":
			k.ActiveDecodeBlocks = r.optUint64()
		case "active_prefill_tokens":
			k.ActivePrefillTokens = r.optUint64()
		case "kv_used_blocks":
			k.KVUsedBlocks = r.optUint64()
		default:
			r.skip()
		}
	}
	return k, r.finish()
}

// AppendKVMetrics appends the payload of a report.
func AppendKVMetrics(dst []byte, k *KVMetrics) []byte {
	w := writer{b: dst, codec: Msgpack}
	m := w.openMap()
	w.key(&m, "worker_id")
	w.uint(k.Worker.WorkerID)
	w.key(&m, "dp_rank")
	w.uint(uint64(k.Worker.DPRank))
	for _, f := range []struct {
		name  string
		value *uint64
	}{
		{"active_decode_blocks", k.ActiveDecodeBlocks}, {"active_prefill_tokens", k.ActivePrefillTokens},
		{"kv_used_blocks", k.KVUsedBlocks},
	} {
		w.key(&m, f.name)
		w.optUint64(f.value)
	}
	w.closeMap(&m)
	return w.b
}

// optUint64 reads a nullable integer.
func (r *reader) optUint64() *uint64 {
	if r.null() {
		return nil
	}
	v := r.uint64()
	return &v
}

// optUint64 writes a nullable integer.
func (w *writer) optUint64(v *uint64) {
	if v == nil {
		w.null()
		return
	}
	w.uint(*v)
}

// SequenceKind is what became of a request that a router has placed.
type SequenceKind uint8

// The kinds of ActiveSequence. Others are skipped by whoever reads them.
const (
	SequenceUnknown   SequenceKind = iota
	SequenceAdded                  // it was placed
	SequencePrefilled              // its answer has begun
	SequenceFreed                  // it has ended
)

// ActiveSequence is what a router tells other routers of a request (topic active_sequences_events).
type ActiveSequence struct {
	RequestID string
	Worker    WorkerRank
	Router    uint64 // who says so
	LoRA      string
	Kind      SequenceKind

	// Of an added one.
	Blocks       []uint64 // sequence hashes of the prompt
	Counted      bool     // Blocks are there: the router tracks them
	TrackPrefill bool
	Expected     *uint64 // output tokens
	Prefill      uint64  // tokens still to be computed, as the router thought
	HasPrefill   bool
}

// ReadActiveSequences calls f with each event of a payload: a single one, or a batch. Reading ends with the first error,
// f's own included.
func ReadActiveSequences(payload []byte, f func(*ActiveSequence) error) error {
	r := reader{b: payload, codec: Msgpack}
	var single ActiveSequence
	batch := false
	for s := r.openMap(); r.entry(&s); {
		if string(s.key) != "events" {
			r.sequenceField(string(s.key), &single)
			continue
		}
		batch = true
		for e := r.openArray(); r.elem(&e); {
			var a ActiveSequence
			for m := r.openMap(); r.entry(&m); {
				r.sequenceField(string(m.key), &a)
			}
			if r.err != nil {
				return r.err
			}
			if err := f(&a); err != nil {
				return err
			}
		}
	}
	if err := r.finish(); err != nil || batch {
		return err
	}
	return f(&single)
}

// sequenceField reads one field of an event.
func (r *reader) sequenceField(key string, a *ActiveSequence) {
	switch key {
	case "request_id":
		a.RequestID = r.text()
	case "worker":
		a.Worker = r.workerRank()
	case "data":
		r.sequenceData(a)
	case "router_id":
		a.Router = r.uint64()
	case "lora_name":
		a.LoRA = r.text()
	default:
		r.skip()
	}
}

// workerRank reads a worker and its rank.
func (r *reader) workerRank() (w WorkerRank) {
	for s := r.openMap(); r.entry(&s); {
		switch string(s.key) {
		case "worker_id":
			w.WorkerID = r.uint64()
		case "dp_rank":
			w.DPRank = r.uint32()
		default:
			r.skip()
		}
	}
	return w
}

// sequenceData reads an enum: a bare name, or a map of one name and its content.
func (r *reader) sequenceData(a *ActiveSequence) {
	if r.peek() == kindString {
		switch string(r.str()) {
		case "Free":
			a.Kind = SequenceFreed
		case "MarkPrefillCompleted":
			a.Kind = SequencePrefilled
		}
		return
	}
	for s := r.openMap(); r.entry(&s); {
		if string(s.key) == "AddRequest" {
			a.Kind = SequenceAdded
			r.sequenceAdded(a)
			continue
		}
		r.skip()
	}
}

// sequenceAdded reads what a router says of a request it has placed.
func (r *reader) sequenceAdded(a *ActiveSequence) {
	for s := r.openMap(); r.entry(&s); {
		switch string(s.key) {
		case "token_sequence":
			if a.Counted = !r.null(); !a.Counted {
				continue
			}
			for e := r.openArray(); r.elem(&e); {
				a.Blocks = append(a.Blocks, r.uint64())
			}
		case "track_prefill_tokens":
			a.TrackPrefill = r.boolean()
		case "expected_output_tokens":
			a.Expected = r.optUint64()
		case "prefill_load_hint":
			r.prefillHint(a)
		default:
			r.skip()
		}
	}
}

// prefillHint reads how much there is to compute ahead of the answer.
func (r *reader) prefillHint(a *ActiveSequence) {
	if r.null() {
		return
	}
	for s := r.openMap(); r.entry(&s); {
		if string(s.key) == "initial_effective_prefill_tokens" {
			a.Prefill, a.HasPrefill = r.uint64(), true
			continue
		}
		r.skip()
	}
}

// AppendActiveSequence appends a payload of one event, as routers publish on NATS.
func AppendActiveSequence(dst []byte, a *ActiveSequence) []byte {
	w := writer{b: dst, codec: Msgpack}
	w.sequence(a)
	return w.b
}

// AppendActiveSequences appends a batch, as routers publish over ZeroMQ, single events included.
func AppendActiveSequences(dst []byte, list ...*ActiveSequence) []byte {
	w := writer{b: dst, codec: Msgpack}
	m := w.openMap()
	w.key(&m, "events")
	e := w.openArray(len(list))
	for _, a := range list {
		w.elem(&e)
		w.sequence(a)
	}
	w.closeArray(&e)
	w.closeMap(&m)
	return w.b
}

// sequence writes one event.
func (w *writer) sequence(a *ActiveSequence) {
	m := w.openMap()
	w.key(&m, "request_id")
	w.str(a.RequestID)
	w.key(&m, "worker")
	o := w.openMap()
	w.key(&o, "worker_id")
	w.uint(a.Worker.WorkerID)
	w.key(&o, "dp_rank")
	w.uint(uint64(a.Worker.DPRank))
	w.closeMap(&o)
	w.key(&m, "data")
	switch a.Kind {
	case SequenceAdded:
		w.sequenceAdded(a)
	case SequencePrefilled:
		w.str("MarkPrefillCompleted")
	default:
		w.str("Free")
	}
	w.key(&m, "router_id")
	w.uint(a.Router)
	w.key(&m, "lora_name")
	if a.LoRA == "" {
		w.null()
	} else {
		w.str(a.LoRA)
	}
	w.closeMap(&m)
}

// sequenceAdded writes the content of an added sequence.
func (w *writer) sequenceAdded(a *ActiveSequence) {
	d := w.openMap()
	w.key(&d, "AddRequest")
	m := w.openMap()
	w.key(&m, "token_sequence")
	if a.Counted {
		w.hashes(a.Blocks)
	} else {
		w.null()
	}
	w.key(&m, "track_prefill_tokens")
	w.boolean(a.TrackPrefill)
	w.key(&m, "expected_output_tokens")
	w.optUint64(a.Expected)
	w.key(&m, "prefill_load_hint")
	if a.HasPrefill {
		h := w.openMap()
		w.key(&h, "initial_effective_prefill_tokens")
		w.uint(a.Prefill)
		w.key(&h, "expected_prefill_duration")
		w.null()
		w.closeMap(&h)
	} else {
		w.null()
	}
	w.closeMap(&m)
	w.closeMap(&d)
}

// KVQuery asks the publisher of KV events for events that were missed, or for all that its worker holds.
type KVQuery struct {
	Worker     WorkerRank
	Start, End *uint64 // event ids, both included; nil: open
}

// Append appends the query as a request body.
func (q *KVQuery) Append(dst []byte, codec Codec) ([]byte, error) {
	w := writer{b: dst, codec: codec}
	m := w.openMap()
	w.key(&m, "worker_id")
	w.uint(q.Worker.WorkerID)
	w.key(&m, "dp_rank")
	w.uint(uint64(q.Worker.DPRank))
	w.key(&m, "start_event_id")
	w.optUint64(q.Start)
	w.key(&m, "end_event_id")
	w.optUint64(q.End)
	w.key(&m, "supports_tree_dump_failed")
	w.boolean(true)
	w.key(&m, "kind")
	w.str("recovery")
	w.closeMap(&m)
	return w.b, w.err
}

// KVAnswer is the answer to a KVQuery.
type KVAnswer struct {
	Kind    string // Events, TreeDump, TreeDumpFailed, TooNew, InvalidRange, Error, or what newer workers have
	LastID  uint64 // the last event that is part of the answer; of TooNew the last there is
	Message string // of a failure
}

// ReadKVAnswer reads an answer and calls f with each event in it, under the rules of ReadKVEvents. Dump tells beforehand
// whether the events are everything the worker holds, rather than what comes behind something known.
func ReadKVAnswer(codec Codec, body []byte, f func(e *KVEvent, dump bool) error) (KVAnswer, error) {
	var a KVAnswer
	var own error
	r := reader{b: body, codec: codec}
	for s := r.openMap(); r.entry(&s); {
		a.Kind = string(s.key)
		if r.peek() == kindString {
			a.Message = r.text()
			continue
		}
		own = r.kvAnswer(&a, func(e *KVEvent) error { return f(e, a.Kind == "TreeDump") })
		if own != nil {
			return a, own
		}
	}
	return a, r.finish()
}

// kvAnswer reads the content of an answer. It returns f's error; its own sticks.
func (r *reader) kvAnswer(a *KVAnswer, f func(*KVEvent) error) error {
	for s := r.openMap(); r.entry(&s); {
		switch string(s.key) {
		case "events":
			if err := r.kvEvents(f); err != nil {
				return err
			}
		case "last_event_id", "newest_available":
			a.LastID = r.uint64()
		case "message":
			a.Message = r.text()
		default:
			r.skip()
		}
	}
	return nil
}
