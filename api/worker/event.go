package worker

import "encoding/binary"

// Event is the envelope of one message of a topic.
type Event struct {
	Publisher   uint64
	Sequence    uint64 // of the publisher, from 0, one more with each message
	PublishedAt uint64 // ms since 1970
	Topic       string
	Payload     []byte // msgpack; after a parse it aliases the message
}

// ParseEvent reads an envelope, which is always msgpack.
func ParseEvent(b []byte, e *Event) error {
	*e = Event{}
	r := reader{b: b, codec: Msgpack}
	for s := r.openMap(); r.entry(&s); {
		switch string(s.key) {
		case "publisher_id":
			e.Publisher = r.uint64()
		case "sequence":
			e.Sequence = r.uint64()
		case "published_at":
			e.PublishedAt = r.uint64()
		case "topic":
			e.Topic = r.text()
		case "payload":
			e.Payload = r.payload()
		default:
			r.skip()
		}
	}
	return r.finish()
}

// payload reads bytes, packed or as an array of numbers: both are what encoders make of them.
func (r *reader) payload() []byte {
	if r.peek() == kindBytes {
		return r.bytes()
	}
	var out []byte
	for s := r.openArray(); r.elem(&s); {
		out = append(out, byte(r.uint(0xff)))
	}
	return out
}

// AppendEvent appends an envelope.
func AppendEvent(dst []byte, e *Event) []byte {
	w := writer{b: dst, codec: Msgpack}
	m := w.openMap()
	w.key(&m, "publisher_id")
	w.uint(e.Publisher)
	w.key(&m, "sequence")
	w.uint(e.Sequence)
	w.key(&m, "published_at")
	w.uint(e.PublishedAt)
	w.key(&m, "topic")
	w.str(e.Topic)
	w.key(&m, "payload")
	w.bin(e.Payload)
	w.closeMap(&m)
	return w.b
}

// bin writes packed bytes; msgpack only.
func (w *writer) bin(b []byte) {
	switch n := len(b); {
	case n <= 0xff:
		w.b = append(w.b, 0xc4, byte(n))
	case n <= 0xffff:
		w.b = binary.BigEndian.AppendUint16(append(w.b, 0xc5), uint16(n))
	default:
		w.b = binary.BigEndian.AppendUint32(append(w.b, 0xc6), uint32(n))
	}
	w.b = append(w.b, b...)
}

// KVEventKind is what happened to a KV cache.
type KVEventKind uint8

// The kinds of KVEvent. Kinds that this package doesn't know are skipped when events are read.
const (
	KVUnknown KVEventKind = iota
	KVStored              // Blocks were stored behind Parent
	KVRemoved             // the blocks named in Hashes were dropped
	KVCleared             // everything was
)

// KVBlock is a stored block: the engine's own hash, by which later events speak of it, and the hash of its tokens.
type KVBlock struct{ Hash, Tokens uint64 }

// KVEvent is one event of a worker's KV cache (RouterEvent of the worker protocol).
type KVEvent struct {
	Worker    WorkerRank
	Tier      string // "device", "host_pinned", "disk", "external"; empty: device
	ID        uint64 // one more with each event of the worker's rank
	Kind      KVEventKind
	HasParent bool
	Parent    uint64    // the engine's hash of the block before the first
	Blocks    []KVBlock // of a stored event
	Hashes    []uint64  // of a removed event
}

// ReadKVEvents calls f with each event of a payload, which holds one event or an array of them. The event is used again
// for the next: f keeps nothing of it. Reading ends with the first error, f's own included.
func ReadKVEvents(codec Codec, payload []byte, f func(*KVEvent) error) error {
	r := reader{b: payload, codec: codec}
	if err := r.kvEvents(f); err != nil {
		return err
	}
	return r.finish()
}

// kvEvents reads one event or an array of them. It returns f's error; its own sticks.
func (r *reader) kvEvents(f func(*KVEvent) error) error {
	var e KVEvent
	if r.peek() == kindMap {
		if r.kvEvent(&e); r.err != nil {
			return r.err
		}
		return f(&e)
	}
	for s := r.openArray(); r.elem(&s); {
		if r.kvEvent(&e); r.err != nil {
			return r.err
		}
		if err := f(&e); err != nil {
			return err
		}
	}
	return nil
}

// kvEvent reads one event.
func (r *reader) kvEvent(e *KVEvent) {
	*e = KVEvent{Blocks: e.Blocks[:0], Hashes: e.Hashes[:0]}
	for s := r.openMap(); r.entry(&s); {
		switch string(s.key) {
		case "worker_id":
			e.Worker.WorkerID = r.uint64()
		case "storage_tier":
			e.Tier = tier(r)
		case "event":
			r.kvCacheEvent(e)
		default:
			r.skip()
		}
	}
}

// tier reads a storage tier without allocating the usual ones.
func tier(r *reader) string {
	if r.null() {
		return ""
	}
	switch b := r.str(); string(b) {
	case "device":
		return "device"
	case "host_pinned":
		return "host_pinned"
	case "disk":
		return "disk"
	default:
		return string(b)
	}
}

// kvCacheEvent reads what the worker's cache itself says.
func (r *reader) kvCacheEvent(e *KVEvent) {
	for s := r.openMap(); r.entry(&s); {
		switch string(s.key) {
		case "event_id":
			e.ID = r.uint64()
		case "dp_rank":
			e.Worker.DPRank = r.uint32()
		case "data":
			r.kvData(e)
		default:
			r.skip()
		}
	}
}

// kvData reads an enum: a bare name, or a map of one name and its content.
func (r *reader) kvData(e *KVEvent) {
	if r.peek() == kindString {
		if string(r.str()) == "cleared" {
			e.Kind = KVCleared
		}
		return
	}
	for s := r.openMap(); r.entry(&s); {
		switch string(s.key) {
		case "stored":
			e.Kind = KVStored
			r.kvStored(e)
		case "removed":
			e.Kind = KVRemoved
			r.kvRemoved(e)
		case "cleared":
			e.Kind = KVCleared
			r.skip()
		default:
			r.skip()
		}
	}
}

// kvStored reads where blocks were stored, and which.
func (r *reader) kvStored(e *KVEvent) {
	for s := r.openMap(); r.entry(&s); {
		switch string(s.key) {
		case "parent_hash":
			if e.HasParent = !r.null(); e.HasParent {
				e.Parent = r.uint64()
			}
		case "blocks":
			for a := r.openArray(); r.elem(&a); {
				e.Blocks = append(e.Blocks, r.kvBlock())
			}
		default:
			r.skip()
		}
	}
}

// kvBlock reads one stored block.
func (r *reader) kvBlock() (b KVBlock) {
	for s := r.openMap(); r.entry(&s); {
		switch string(s.key) {
		case "block_hash":
			b.Hash = r.uint64()
		case "tokens_hash":
			b.Tokens = r.uint64()
		default:
			r.skip()
		}
	}
	return b
}

// kvRemoved reads which blocks were dropped.
func (r *reader) kvRemoved(e *KVEvent) {
	for s := r.openMap(); r.entry(&s); {
		if string(s.key) != "block_hashes" {
			r.skip()
			continue
		}
		for a := r.openArray(); r.elem(&a); {
			e.Hashes = append(e.Hashes, r.uint64())
		}
	}
}

// AppendKVEvents appends an array of events in msgpack, as workers publish them.
func AppendKVEvents(dst []byte, events ...*KVEvent) []byte {
	w := writer{b: dst, codec: Msgpack}
	w.kvEvents(events)
	return w.b
}

// kvEvents writes an array of events.
func (w *writer) kvEvents(events []*KVEvent) {
	a := w.openArray(len(events))
	for _, e := range events {
		w.elem(&a)
		w.kvEvent(e)
	}
	w.closeArray(&a)
}

// kvEvent writes one event.
func (w *writer) kvEvent(e *KVEvent) {
	m := w.openMap()
	w.key(&m, "worker_id")
	w.uint(e.Worker.WorkerID)
	w.key(&m, "storage_tier")
	if e.Tier == "" {
		w.str("device")
	} else {
		w.str(e.Tier)
	}
	w.key(&m, "event")
	c := w.openMap()
	w.key(&c, "event_id")
	w.uint(e.ID)
	w.key(&c, "data")
	w.kvData(e)
	w.key(&c, "dp_rank")
	w.uint(uint64(e.Worker.DPRank))
	w.closeMap(&c)
	w.closeMap(&m)
}

// kvData writes what happened.
func (w *writer) kvData(e *KVEvent) {
	if e.Kind == KVCleared {
		w.str("cleared")
		return
	}
	d := w.openMap()
	if e.Kind == KVRemoved {
		w.key(&d, "removed")
		m := w.openMap()
		w.key(&m, "block_hashes")
		w.hashes(e.Hashes)
		w.closeMap(&m)
	} else {
		w.key(&d, "stored")
		m := w.openMap()
		w.key(&m, "parent_hash")
		if e.HasParent {
			w.uint(e.Parent)
		} else {
			w.null()
		}
		w.key(&m, "blocks")
		a := w.openArray(len(e.Blocks))
		for _, b := range e.Blocks {
			w.elem(&a)
			o := w.openMap()
			w.key(&o, "block_hash")
			w.uint(b.Hash)
			w.key(&o, "tokens_hash")
			w.uint(b.Tokens)
			w.closeMap(&o)
		}
		w.closeArray(&a)
		w.closeMap(&m)
	}
	w.closeMap(&d)
}

// hashes writes an array of hashes.
func (w *writer) hashes(list []uint64) {
	a := w.openArray(len(list))
	for _, h := range list {
		w.elem(&a)
		w.uint(h)
	}
	w.closeArray(&a)
}
