package worker

import (
	"encoding/hex"
	"encoding/json"
)

// Bootstrap is bootstrap_info: where a prefill worker and the decode worker of one request meet, to hand the KV cache
// over while both run.
type Bootstrap struct {
	Host string // of the prefill worker, as its card has it
	Port uint16 // likewise
	// Room names the request at the meeting place. A prefill worker with several data-parallel ranks takes the request on
	// the rank Room % ranks.
	Room uint64
	// Handoff is the id of this hand-over, a UUID; zero: none.
	Handoff [16]byte
}

// write writes the object. Msgpack has the id as its bytes, JSON as text.
func (b *Bootstrap) write(w *writer) {
	m := w.openMap()
	w.key(&m, "bootstrap_host")
	w.str(b.Host)
	w.key(&m, "bootstrap_port")
	w.uint(uint64(b.Port))
	w.key(&m, "bootstrap_room")
	w.uint(b.Room)
	if b.Handoff != [16]byte{} {
		w.key(&m, "handoff_id")
		if w.codec == JSON {
			w.str(uuidText(b.Handoff))
		} else {
			// bin 8, of 16 bytes
			w.b = append(append(w.b, 0xc4, 16), b.Handoff[:]...)
		}
	}
	w.closeMap(&m)
}

// readBootstrap reads the object; nil for null.
func (r *reader) readBootstrap() *Bootstrap {
	if r.null() {
		return nil
	}
	b := &Bootstrap{}
	r.fields(func(key []byte) bool {
		switch string(key) {
		case "bootstrap_host":
			b.Host = r.text()
		case "bootstrap_port":
			b.Port = uint16(r.uint(1<<16 - 1))
		case "bootstrap_room":
			b.Room = r.uint64()
		case "handoff_id":
			b.Handoff = r.uuid()
		default:
			return false
		}
		return true
	})
	return b
}

// uuid reads an id given as its bytes or as text; zero for null.
func (r *reader) uuid() (id [16]byte) {
	switch r.peek() {
	case kindNull:
		r.null()
	case kindBytes:
		b := r.bytes()
		if copy(id[:], b) != len(b) || len(b) != len(id) {
			r.failf("an id of %d bytes", len(b))
		}
	default:
		s := r.str()
		if r.err == nil && !parseUUID(&id, s) {
			r.failf("%q is no UUID", s)
		}
	}
	return id
}

// uuidLen is the length of a UUID's text.
const uuidLen = 36

// uuidText writes an id in its usual form.
func uuidText(id [16]byte) string {
	var b [uuidLen]byte
	hex.Encode(b[:8], id[:4])
	hex.Encode(b[9:13], id[4:6])
	hex.Encode(b[14:18], id[6:8])
	hex.Encode(b[19:23], id[8:10])
	hex.Encode(b[24:], id[10:])
	b[8], b[13], b[18], b[23] = '-', '-', '-', '-'
	return string(b[:])
}

// parseUUID reads the usual form.
func parseUUID(id *[16]byte, s []byte) bool {
	if len(s) != uuidLen || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return false
	}
	at := 0
	for _, part := range [][]byte{s[:8], s[9:13], s[14:18], s[19:23], s[24:]} {
		n, err := hex.Decode(id[at:], part)
		if err != nil {
			return false
		}
		at += n
	}
	return true
}

// BootstrapAddress returns where decode workers meet this prefill worker. It reports false for workers that have no such
// place: they hand over by way of the frontend, when they are done.
func (c *RuntimeConfig) BootstrapAddress() (host string, port uint16, ok bool) {
	if len(c.DisaggregatedEndpoint) == 0 {
		return "", 0, false
	}
	var at struct {
		Host string  `json:"bootstrap_host"`
		Port *uint16 `json:"bootstrap_port"`
	}
	// What can't be read is no address; the worker is still good for the other way.
	if json.Unmarshal(c.DisaggregatedEndpoint, &at) != nil || at.Host == "" || at.Port == nil {
		return "", 0, false
	}
	return at.Host, *at.Port, true
}
