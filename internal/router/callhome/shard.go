package callhome

import (
	"encoding/hex"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
)

// shardCount is how many parts the registrations have, each with its own lock. Subjects are random, so a byte of theirs
// spreads them evenly.
const shardCount = 64

// subject names a stream: a random UUID.
type subject [16]byte

// newSubject returns a subject that nobody has had: a UUID of version 4.
func newSubject() (s subject) {
	for i := 0; i < len(s); i += 8 {
		v := rand.Uint64()
		for k := range 8 {
			s[i+k] = byte(v >> (8 * k))
		}
	}
	// Version and variant, as RFC 9562 places them.
	s[6], s[8] = s[6]&0x0f|0x40, s[8]&0x3f|0x80
	return s
}

// dashes are where a UUID's text form has them.
var dashes = [...]int{8, 13, 18, 23}

// String returns the subject's text form.
func (s subject) String() string {
	var b [36]byte
	hex.Encode(b[:8], s[:4])
	hex.Encode(b[9:13], s[4:6])
	hex.Encode(b[14:18], s[6:8])
	hex.Encode(b[19:23], s[8:10])
	hex.Encode(b[24:], s[10:])
	for _, i := range dashes {
		b[i] = '-'
	}
	return string(b[:])
}

// parseSubject reads a subject's text form: 32 hexadecimal digits in either case and four dashes.
func parseSubject(b []byte) (s subject, ok bool) {
	if len(b) != 36 {
		return s, false
	}
	var digits [32]byte
	n := 0
	for i, c := range b {
		if c == '-' {
			continue
		}
		if n == len(digits) || i < n {
			return s, false
		}
		digits[n] = c
		n++
	}
	if n != len(digits) {
		return s, false
	}
	_, err := hex.Decode(s[:], digits[:])
	return s, err == nil
}

// arrival is what a waiting stream gets: a connection and what has been read beyond its handshake, or a failure.
type arrival struct {
	conn *net.TCPConn
	raw  syscall.RawConn // of conn
	in   input           // whoever takes the arrival releases it
	err  error
}

// shard holds part of the registrations. Subjects that nobody waits for any more are not remembered: whoever names one
// that isn't here is told to stop.
type shard struct {
	mu      sync.Mutex
	waiting map[subject]*Stream // guarded by mu
}

// shard returns the part that a subject belongs to.
func (l *Listener) shard(id subject) *shard { return &l.shards[int(id[0])%shardCount] }

// add registers a stream.
func (h *shard) add(s *Stream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waiting[s.id] = s
}

// outcome is what became of a connection that named a subject.
type outcome uint8

const (
	// A subject that was never registered, is taken, or whose request has ended.
	unknown outcome = iota
	// The stream has the connection.
	delivered
	// The request has just failed for another reason, and its user is about to find out.
	abandoned
)

// deliver gives a connection to the stream that waits for it. It happens under the lock, so that abandon knows whether
// to expect it.
func (h *shard) deliver(id subject, a *arrival) outcome {
	h.mu.Lock()
	defer h.mu.Unlock()
	s, ok := h.waiting[id]
	if !ok {
		return unknown
	}
	delete(h.waiting, id)
	select {
	case s.arrived <- *a:
		return delivered
	default: // a failure came first
		return abandoned
	}
}

// abandon ends the wait for a stream. A connection that had arrived already is returned, and is the caller's to close;
// with none its conn is nil.
func (h *shard) abandon(s *Stream) (a arrival) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.waiting, s.id)
	select {
	case a = <-s.arrived:
	default:
	}
	return a
}
