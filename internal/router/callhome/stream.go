package callhome

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/fault"
)

// Stream is one worker's answer on its way: Expect, Await, Each, Close, in this order, of which any may be left out but
// the first and the last. It is used by one goroutine, Fail excepted. The zero value is ready for Expect.
type Stream struct {
	l       *Listener
	id      subject         // what the worker is to name
	arrived chan arrival    // one slot: the first of connection and failure
	doom    <-chan struct{} // see Watch; nil: nothing tells

	ctx    context.Context // ends the stream; kept because its end is noticed between two waits
	unhook func() bool
	hooked sync.WaitGroup  // cancel, once unhook comes too late
	conn   *net.TCPConn    // nil until the worker has called
	raw    syscall.RawConn // of conn, whose Read waits without a buffer
	in     input           // read and not yet used
	err    error           // what the last step leaves for outcome
	step   func() bool     // consumes what has been read; true ends the pump

	limit  time.Time     // when waiting for the worker ends; zero: never
	idle   time.Duration // moves limit with every read; 0: never
	wake   time.Time     // the deadline that is set; zero: none
	probed bool          // it ends a wait within probeAfter of the last read

	gone     atomic.Bool // ctx has ended
	told     atomic.Bool // the worker was told to stop, or needs no telling
	ended    bool        // the connection has ended
	complete bool        // the end mark has been read
	quiet    bool        // so has the sentinel
	closed   bool        // Close has been called
}

// lostPhrase is what clients are told when a worker's stream breaks off.
const lostPhrase = "Stream ended before generation completed"

// tellTimeout bounds the write that tells a worker to stop.
const tellTimeout = time.Second

// cancelFrames tell a worker to stop, in good order if it can, and to drop the request.
var cancelFrames = worker.AppendSignal(worker.AppendSignal(nil, worker.SignalStop), worker.SignalKill)

// past is a deadline that has passed.
var past = time.Unix(1, 0)

// Expect registers s under a fresh subject. It ends with Close.
func (l *Listener) Expect(s *Stream) {
	s.l, s.id, s.arrived = l, newSubject(), make(chan arrival, 1) // one slot: nobody waits to fill it
	l.shard(s.id).add(s)
}

// Subject returns the name that the worker is to give.
func (s *Stream) Subject() string { return s.id.String() }

// Fail ends a wait for the worker with err. It may be called from any goroutine, and does nothing once the worker has
// called or another failure came first.
func (s *Stream) Fail(err error) {
	select {
	case s.arrived <- arrival{err: err}:
	default:
	}
}

// Watch makes Await fail when lost is closed before the worker has called. Nil is the same as no Watch. It is called
// before Await.
func (s *Stream) Watch(lost <-chan struct{}) { s.doom = lost }

// timers are stopped timers for Await, which every request needs once.
var timers = sync.Pool{New: func() any { t := time.NewTimer(time.Hour); t.Stop(); return t }}

// Await waits until the worker has called and said that it begins. It returns the worker's own error when the worker
// says that it can't begin; else a failure given to Fail, a *fault.Error, or ctx's error. ctx covers the whole life of
// the stream: when it ends, the worker is told to stop.
func (s *Stream) Await(ctx context.Context, timeout time.Duration) (*worker.Error, error) {
	s.ctx, s.limit = ctx, time.Now().Add(timeout)
	a, err := s.meet(ctx, timeout)
	if err != nil {
		return nil, err
	}
	s.take(a)
	// From here on the end of ctx reaches the worker, whatever this goroutine is busy with.
	s.hooked.Add(1)
	s.unhook = context.AfterFunc(ctx, s.cancel)
	typed, err := s.prologue(timeout)
	if f, ok := errors.AsType[*fault.Error](err); ok && f.Origin == fault.FromTransport {
		err = f.Because(errors.Join(ErrBroken, f.Unwrap()))
	}
	return typed, err
}

// meet waits for the worker's connection. A failure leaves what may still arrive to Close.
func (s *Stream) meet(ctx context.Context, timeout time.Duration) (arrival, error) {
	t := timers.Get().(*time.Timer)
	t.Reset(timeout)
	defer func() { t.Stop(); timers.Put(t) }()
	select {
	case a := <-s.arrived:
		return a, a.err
	case <-ctx.Done():
		return arrival{}, ctx.Err()
	case <-t.C:
		return arrival{}, errSilent(timeout)
	case <-s.doom:
	}
	// Of two that are ready select takes any: a worker that has called is there.
	select {
	case a := <-s.arrived:
		return a, a.err
	default:
		return arrival{}, fault.Lost(ErrBroken, "The worker was lost before it began to answer")
	}
}

// take makes the connection, and what came with it, the stream's own.
func (s *Stream) take(a arrival) { s.conn, s.raw, s.in = a.conn, a.raw, a.in }

// ErrSilent is the cause of Await's failure when the time has passed.
var ErrSilent = errors.New("worker silent")

// ErrBroken is the cause of Await's failure when the worker was lost after it had the request: its request connection
// broke, or its own did before it began.
var ErrBroken = errors.New("connection broken")

// errSilent is the failure of a worker that accepted a request and never began. The worker may have gone without anything
// that tells, or it may be the request: workers drop bodies that they can't read without a word. So the worker isn't
// blamed. Should it call after all, it is told to stop.
func errSilent(timeout time.Duration) *fault.Error {
	e := &fault.Error{
		Kind: fault.Timeout, Origin: fault.FromWorker,
		Message: "The worker accepted the request but did not begin to answer within " + timeout.String(),
	}
	return e.Because(ErrSilent)
}

// prologue reads the frame in which the worker says that it begins, or with which error it doesn't. timeout is only for
// the message: the limit has been set.
func (s *Stream) prologue(timeout time.Duration) (typed *worker.Error, err error) {
	err = s.pump(func() bool {
		header, body, n, err := worker.ParseFrame(s.in.unread())
		if err == nil && n == 0 {
			return false
		}
		if err == nil && len(body) > 0 {
			err = errors.New("data before the prologue")
		}
		if err == nil {
			typed, err = worker.ParsePrologue(header)
		}
		s.in.consume(n)
		if err != nil {
			s.err = broken(err)
		}
		return true
	})
	if typed != nil {
		s.told.Store(true) // it has ended by itself
	}
	if errors.Is(err, errPatience) {
		err = errSilent(timeout)
	}
	return typed, err
}

// cancel runs when ctx ends, on a goroutine of its own: the stream's goroutine may be busy with a slow client.
func (s *Stream) cancel() {
	defer s.hooked.Done()
	s.gone.Store(true)
	s.tell()
	s.conn.SetReadDeadline(past)
}

// tell tells the worker to stop, once. It may be called from two goroutines at a time, of which the first does it.
func (s *Stream) tell() {
	if !s.told.CompareAndSwap(false, true) {
		return
	}
	s.conn.SetWriteDeadline(time.Now().Add(tellTimeout))
	// A worker that can't be told has gone, or finds out when the connection closes.
	_, _ = s.conn.Write(cancelFrames)
}

// Each reads data frames and calls f with each body, until f reports the end mark. more tells f that another frame has
// been received already. The body is valid only during the call. idle bounds the time between two frames; 0 is no
// bound. f's error ends the stream and is returned. When ctx ends its error is returned.
//
// The end of the connection before the end mark is a lost worker: a *fault.Error from the transport.
func (s *Stream) Each(idle time.Duration, f func(body []byte, more bool) (final bool, err error)) error {
	if s.complete || s.closed {
		return nil
	}
	s.idle, s.limit = idle, time.Time{}
	if idle > 0 {
		s.limit = time.Now().Add(idle)
	}
	err := s.pump(func() bool { return s.frames(f) })
	if errors.Is(err, errPatience) {
		err = &fault.Error{
			Kind: fault.Timeout, Origin: fault.FromTransport,
			Message: "The worker sent nothing for " + idle.String(),
		}
	}
	return err
}

// frames passes on every whole frame that has been read. It is a step of pump: false asks for more bytes, true ends it
// with the outcome in s.err.
func (s *Stream) frames(f func(body []byte, more bool) (bool, error)) bool {
	for !s.gone.Load() {
		header, body, n, err := worker.ParseFrame(s.in.unread())
		if err != nil {
			s.err = broken(err)
			return true
		}
		if n == 0 {
			return false
		}
		s.in.consume(n)
		if len(header) > 0 || len(body) == 0 {
			s.err = unexpected(header, body)
			return true
		}
		// A frame that is malformed is none to wait for; the next turn finds out.
		next, err := worker.FrameSize(s.in.unread())
		more := err == nil && next > 0 && next <= s.in.buffered()
		final, err := f(body, more)
		if err != nil {
			s.err = err
			return true
		}
		if final {
			s.finished()
			return true
		}
	}
	s.err = s.ctx.Err()
	return true
}

// unexpected is the failure for a frame that is not data.
func unexpected(header, body []byte) error {
	if len(body) > 0 {
		return broken(errors.New("a data frame with a header"))
	}
	switch sig := worker.ParseSignal(header); sig {
	case worker.SignalSentinel:
		return fault.Lost(errors.New("sentinel without an end mark"), lostPhrase)
	case worker.SignalNone:
		return broken(errors.New("unknown control frame"))
	default:
		return broken(errors.New("control frame " + string(sig) + " from a worker"))
	}
}

// broken is the failure of a worker that doesn't keep to the protocol. Another worker would not be asked: it runs the
// same program, most likely.
func broken(cause error) *fault.Error {
	e := &fault.Error{Kind: fault.BadGateway, Origin: fault.FromWorker, Message: "The worker's answer could not be read"}
	return e.Because(cause)
}

// finished notes the end mark. Nothing but the sentinel may follow, a frame of its own that may not be here yet.
func (s *Stream) finished() {
	s.complete = true
	s.told.Store(true)
	header, body, n, err := worker.ParseFrame(s.in.unread())
	switch {
	case err != nil:
		s.err = broken(err)
	case n == 0:
	case len(body) > 0:
		s.err = broken(errors.New("data after the end mark"))
	default:
		s.quiet = worker.ParseSignal(header) == worker.SignalSentinel
	}
}

// sentinelSize is the size of the sentinel's frame.
var sentinelSize = len(worker.AppendSignal(nil, worker.SignalSentinel))

// Close ends the stream and releases everything. A worker that has not finished is told to stop. Close may be called
// again. It doesn't wait for the worker: what the worker has still to say is awaited elsewhere.
func (s *Stream) Close() {
	if s.closed || s.l == nil {
		return
	}
	s.closed = true
	if s.conn == nil {
		// The worker may have called without having been awaited.
		a := s.l.shard(s.id).abandon(s)
		if a.conn == nil {
			return
		}
		s.take(a)
	}
	if s.unhook != nil && !s.unhook() {
		s.hooked.Wait() // tellTimeout at most: what it says must be said before the connection closes
	}
	s.tell()
	// How many bytes the worker has still to send: the sentinel's rest after a whole answer, else nobody knows.
	enough := 0
	if s.complete && !s.quiet {
		if s.in.buffered() < sentinelSize {
			s.conn.SetReadDeadline(time.Time{})
			s.in.poll(s.raw)
		}
		enough = sentinelSize - s.in.buffered()
		s.quiet = enough <= 0
	}
	s.in.release()
	// Both sides have said all they had to say: the worker sees an end of stream.
	if s.quiet {
		s.conn.Close()
		return
	}
	s.l.drain(s.conn, enough)
}

// errPatience is returned by pump when limit has passed.
var errPatience = os.ErrDeadlineExceeded

// probeAfter bounds how long a stream waits without having seen that its socket has nothing to tell.
const probeAfter = 500 * time.Millisecond

// pump reads until step says that it is done, which it asks first, as something may have been read before. It returns
// what step left in s.err, or why reading ended.
func (s *Stream) pump(step func() bool) error {
	if s.in.buffered() > 0 {
		if step() {
			return s.outcome()
		}
		s.alive()
	}
	s.rest()
	s.step = step
	for {
		// Read calls readable at once, and again whenever the socket may have more.
		err := s.raw.Read(s.readable)
		switch {
		case err == nil:
			return s.outcome()
		case s.gone.Load():
			return s.ctx.Err()
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return fault.Lost(err, lostPhrase)
		case !s.limit.IsZero() && !time.Now().Before(s.limit):
			return errPatience
		}
		// The deadline was a probe's, or passed while data came: another look is due.
		s.disarm()
	}
}

// outcome returns the error that ended the pump, nil when a step was content. A worker that was told to stop closes the
// connection, which may be noticed before the end of ctx is: it is not lost.
func (s *Stream) outcome() error {
	err := s.err
	s.err = nil
	s.rest()
	if err != nil && s.gone.Load() && s.ended {
		return s.ctx.Err()
	}
	return err
}

// readable is called by the poller when the socket may be read; false waits for more.
//
// After a read that didn't fill its buffer the socket is empty, so it waits without another read that would only say
// so. Data that comes meanwhile is a new edge and wakes the wait. An end of stream that came together with the data
// just read is not: the deadline set here lets the wait look again.
func (s *Stream) readable(fd uintptr) bool {
	for {
		room := s.in.room()
		n, err := syscall.Read(int(fd), room)
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
			s.rest()
			s.wakeBy(s.limit)
			return false
		case err != nil:
			s.lost(os.NewSyscallError("read", err))
			return true
		case n == 0:
			s.lost(errors.New("connection closed by the worker"))
			return true
		}
		s.in.filled(n)
		if s.step() {
			return true
		}
		s.alive()
		if n < len(room) {
			s.rest()
			s.probe()
			return false
		}
	}
}

// alive moves the limit: any bytes count as a sign of life, a part of a frame too. It comes after they were used, as a
// worker may fill its side of the connection, and then wait, while their user takes its time.
func (s *Stream) alive() {
	if s.idle > 0 {
		s.limit = time.Now().Add(s.idle)
	}
}

// lost notes that the worker has gone. There is nobody left to tell.
func (s *Stream) lost(cause error) {
	s.told.Store(true)
	s.ended = true
	s.err = fault.Lost(cause, lostPhrase)
}

// rest gives the buffer of an idle stream back.
func (s *Stream) rest() {
	if s.in.buffered() == 0 {
		s.in.release()
	}
}

// probe makes the coming wait end in time for another look at the socket. One deadline serves all waits until it
// passes, so that a steady stream sets two a second and not one for every read.
func (s *Stream) probe() {
	if s.probed {
		return
	}
	s.probed = true
	at := time.Now().Add(probeAfter)
	if !s.limit.IsZero() && s.limit.Before(at) {
		at = s.limit
	}
	s.wakeBy(at)
}

// wakeBy makes the coming wait end at t at the latest; a zero t asks for nothing.
func (s *Stream) wakeBy(t time.Time) {
	if t.IsZero() || (!s.wake.IsZero() && !t.Before(s.wake)) {
		return
	}
	s.wake = t
	s.setDeadline(t)
}

// disarm forgets a deadline that has passed, without which the next wait would end at once.
func (s *Stream) disarm() {
	s.wake, s.probed = time.Time{}, false
	s.setDeadline(time.Time{})
}

// setDeadline must not undo the deadline with which cancel wakes the stream: whichever of the two comes later finds the
// other's mark.
func (s *Stream) setDeadline(t time.Time) {
	s.conn.SetReadDeadline(t)
	if s.gone.Load() {
		s.conn.SetReadDeadline(past)
	}
}
