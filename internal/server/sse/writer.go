// Package sse writes streams of server-sent events. A Writer owns everything about how bytes reach the client: the
// headers, when they leave, the write deadline of a slow reader, heartbeat comments while the stream is idle, and the
// one end mark. What the events say is its caller's business.
//
// The cost of a stream is its system calls, so a Writer gathers events until its caller says that nothing more is
// there, sends them with one write (see Conn), and, when its writes come closer together than the hold-back, waits a
// little for more to arrive.
//
// A Writer belongs to one request. Its methods are called from one goroutine at a time; the heartbeat runs beside them.
package sse

import (
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Options say how streams are written. The zero value writes without heartbeat, hold-back and deadline.
type Options struct {
	Heartbeat    time.Duration // a comment after so long without an event; 0: never
	Beat         string        // what is sent then; empty: a comment that event-stream readers skip
	WriteTimeout time.Duration // a client that takes nothing for so long is given up; 0: never

	HoldBack     time.Duration // at most so long does a busy stream wait to gather more
	HoldBackUnit time.Duration // for every open stream; a lone stream never waits
	Open         *atomic.Int64 // number of open streams, shared by all writers; nil: no hold-back
}

// minHold is the shortest wait worth its timer: an idle process rounds shorter ones up to a millisecond.
const minHold = 200 * time.Microsecond

// keptBuffer is the largest event buffer that goes back to the pool.
const keptBuffer = 64 << 10

// buffers holds event buffers for the time between a first event and its flush.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}

// ErrClosed is returned by writes after the end of the stream.
var ErrClosed = errors.New("sse: stream has ended")

// Writer writes one stream.
type Writer struct {
	opts Options
	w    http.ResponseWriter
	ctl  *http.ResponseController
	conn *Conn // nil: not served through a Listener

	buf  *[]byte   // events that have not been sent; nil while there are none, so that an idle stream holds no memory
	last time.Time // when the last write left

	mu        sync.Mutex  // guards the fields below and the response: the heartbeat writes too
	committed bool        // headers have been sent, and with them the status
	closed    bool        // nothing more may be written
	err       error       // of the first write that failed
	deadline  time.Time   // set on the connection; zero: none
	beat      *time.Timer // nil before Begin, and without heartbeat
}

// NewWriter returns a Writer for the answer to r. Nothing is sent before the first Flush or heartbeat, so that until
// then the request can still be answered with a status.
func NewWriter(w http.ResponseWriter, r *http.Request, opts Options) *Writer {
	s := &Writer{opts: opts, w: w, ctl: http.NewResponseController(w)}
	if r.ProtoMajor == 1 { // the streams of HTTP/2 share their connection
		s.conn, _ = r.Context().Value(connKey{}).(*Conn)
	}
	if opts.Open != nil {
		opts.Open.Add(1)
	}
	return s
}

// Begin starts the heartbeat, if there is one.
func (s *Writer) Begin() {
	if s.opts.Heartbeat <= 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed && s.beat == nil {
		s.beat = time.AfterFunc(s.opts.Heartbeat, s.heartbeat)
	}
}

// Buffer returns the events gathered so far, to be appended to and given back with SetBuffer.
func (s *Writer) Buffer() []byte {
	if s.buf == nil {
		s.buf = buffers.Get().(*[]byte)
	}
	return *s.buf
}

// SetBuffer takes back the grown buffer.
func (s *Writer) SetBuffer(b []byte) { *s.buf = b }

// Abandon gives the response back when nothing has been sent: what was gathered is dropped, and the request can be
// answered with a status. It reports false when the stream has begun.
func (s *Writer) Abandon() bool {
	s.mu.Lock()
	abandoned := !s.committed
	if abandoned {
		s.closed = true // before a heartbeat can send the headers
	}
	s.mu.Unlock()
	return abandoned
}

// Flush sends what was gathered, with one write.
func (s *Writer) Flush() error {
	if s.empty() {
		return s.failed()
	}
	return s.send(false)
}

// FlushAndHold is Flush for a stream that goes on: when the write before was only a moment ago, it waits for the
// hold-back before it returns, and so lets its caller gather more.
func (s *Writer) FlushAndHold() error {
	if s.empty() {
		return s.failed()
	}
	err := s.send(false)
	if err == nil {
		s.hold()
	}
	return err
}

// empty reports whether nothing was gathered. A buffer that was taken for nothing goes back: the stream may be idle for
// long.
func (s *Writer) empty() bool {
	if s.buf != nil && len(*s.buf) == 0 {
		s.release()
	}
	return s.buf == nil
}

// hold waits when writes come closer together than the hold-back, which grows with the number of open streams: a
// stream that is alone or slow never waits.
func (s *Writer) hold() {
	if s.opts.Open == nil {
		return
	}
	d := min(s.opts.HoldBack, time.Duration(s.opts.Open.Load()-1)*s.opts.HoldBackUnit)
	if d < minHold {
		return
	}
	now := time.Now()
	if now.Sub(s.last) < d {
		time.Sleep(d)
		now = now.Add(d)
	}
	s.last = now
}

// Finish sends what was gathered and the end mark, together with the end of the response. The Writer takes nothing
// after it.
func (s *Writer) Finish() error {
	s.SetBuffer(append(s.Buffer(), "data: [DONE]\n\n"...))
	return s.send(true)
}

// End is Finish without the end mark, for streams whose last event says that it is the last.
func (s *Writer) End() error {
	s.Buffer() // there is something to be sent, if only the end of the response
	return s.send(true)
}

// Close ends the Writer without an end mark, and drops what was gathered. It is safe after Finish and must be called.
func (s *Writer) Close() {
	s.mu.Lock()
	if s.beat != nil {
		s.beat.Stop()
	}
	s.closed = true
	s.mu.Unlock()
	s.release()
	if s.opts.Open != nil {
		s.opts.Open.Add(-1)
		s.opts.Open = nil
	}
}

// release gives the buffer back to the pool, and drops a large one.
func (s *Writer) release() {
	b := s.buf
	if s.buf = nil; b != nil && cap(*b) <= keptBuffer {
		*b = (*b)[:0]
		buffers.Put(b)
	}
}

// send writes the buffer. The last piece stays corked: it leaves with net/http's end of the body.
func (s *Writer) send(last bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.release()
	if s.closed {
		return ErrClosed
	}
	if s.err != nil {
		return s.err
	}
	s.write(*s.buf, last)
	if s.beat != nil && !last {
		s.beat.Reset(s.opts.Heartbeat)
	}
	return s.err
}

// failed returns the failure of an earlier write, or of a heartbeat: a caller with nothing to send learns of it, too.
func (s *Writer) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// heartbeat sends a comment, which event-stream readers skip (WHATWG HTML, server-sent events), or whatever the
// endpoint's clients take for one. It keeps proxies from
// closing an idle connection, and finds out whether the client is still there. It runs on the timer's goroutine.
func (s *Writer) heartbeat() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.err != nil {
		return
	}
	beat := s.opts.Beat
	if beat == "" {
		beat = ": keep-alive\n\n"
	}
	s.write([]byte(beat), false)
	s.beat.Reset(s.opts.Heartbeat)
}

// write sends b under the lock.
func (s *Writer) write(b []byte, last bool) {
	if !s.committed {
		s.committed = true
		h := s.w.Header()
		h["Content-Type"] = contentType
		h["Cache-Control"] = cacheControl
		h["X-Accel-Buffering"] = noBuffering
		s.w.WriteHeader(http.StatusOK)
	}
	s.armDeadline()
	if s.conn != nil {
		s.conn.Cork()
	}
	if _, err := s.w.Write(b); err != nil {
		s.err = err
		return
	}
	// The server uncorks when the connection turns idle, or closes it.
	if last && s.conn != nil {
		return
	}
	if err := s.ctl.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		s.err = err
		return
	}
	if s.conn != nil {
		s.err = s.conn.Uncork()
	}
}

// The headers of every stream, shared: nobody changes a header's values in place.
var (
	contentType  = []string{"text/event-stream"}
	cacheControl = []string{"no-cache, no-transform"} // compressing proxies gather what they compress
	noBuffering  = []string{"no"}                     // keeps nginx and its like from gathering the stream
)

// armDeadline moves the write deadline ahead, at most every quarter of the time-out: setting it is not free.
func (s *Writer) armDeadline() {
	t := s.opts.WriteTimeout
	if t <= 0 {
		return
	}
	now := time.Now()
	if s.deadline.Sub(now) > t*3/4 {
		return
	}
	s.deadline = now.Add(t)
	_ = s.ctl.SetWriteDeadline(s.deadline) // not every ResponseWriter has one
}
