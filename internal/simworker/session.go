package simworker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/lifecycle"
)

// session is one request and the connection that carries its answer. One goroutine runs it from decode to settle; the
// reader of the frontend's words runs beside it and shares ctl, conn and fault with it.
type session struct {
	w       *Worker
	headers Headers         // as the plane delivered them
	control *worker.Control // the envelope: where to call back, and in which codec to answer
	req     *Request        // nil when the request could not be decoded
	fault   Fault           // what the plan has for this request

	// Set by serve, once the frontend has been dialled.
	conn net.Conn
	ctx  context.Context // what the engine runs under
	ctl  atomic.Int32    // the control message that came, if any

	body, frame []byte // memory used again from item to item: the item, and its frame
	sent        int    // items so far; faults count by it
	failed      bool   // the engine reported an error
	struck      bool   // nothing more is planned for the items: an error has been reported
}

// What ended a session from the frontend's side. The first word counts: a connection that closes after a stop is
// stopped.
const (
	ctlNone int32 = iota
	ctlStop
	ctlKill
	ctlGone // end of connection before ours
)

// decode reads the envelope and the body. A request that can't be read stays without a req.
func (s *session) decode(payload []byte) {
	req, err := s.parse(payload)
	if err != nil {
		// Real workers have acknowledged by then, and never call back.
		s.w.o.Log.Error("request not understood", "error", err)
		s.w.count.undecoded.Add(1)
		return
	}
	s.req = req
	s.fault = s.w.o.Fault(req)
}

// parse reads the envelope and the body in the codec it names. Nothing may follow the envelope: a message is one
// request.
func (s *session) parse(payload []byte) (*Request, error) {
	header, body, n, err := worker.ParseFrame(payload)
	if err != nil {
		return nil, err
	}
	if n != len(payload) {
		return nil, fmt.Errorf("envelope of %d bytes in a message of %d", n, len(payload))
	}
	c, err := worker.ParseControl(header)
	if err != nil {
		return nil, err
	}
	s.control = c
	// A body that can't be read takes a number all the same: it was a request, too.
	req := &Request{ID: c.ID, Ordinal: s.w.ordinal.Add(1) - 1, Headers: s.headers}
	// Workers with this model input take the client's own request, which has no common structure: engines get it as
	// JSON.
	if s.w.o.Card != nil && s.w.o.Card.ModelInput == "Text" {
		req.JSON = body
		if c.Codec == worker.Msgpack {
			req.JSON, err = worker.AppendMsgpackAsJSON(nil, body)
		}
		return req, err
	}
	req.Tokens, err = worker.DecodeRequest(c.Codec, body)
	return req, err
}

// serve calls back and streams the answer. It returns when the outcome has been counted and the connection is closed;
// ctx is the worker's, whose end breaks the connection off.
func (s *session) serve(ctx context.Context) {
	// The frontend waits for a call that doesn't come, which is what its handshake time-out is for.
	if s.req == nil || s.fault.Kind == NeverCall {
		return
	}
	if s.fault.Kind == SlowCall {
		var p pace
		if p.wait(ctx, s.fault.Delay) != nil {
			return
		}
	}
	// Without probes: the connection lasts as long as one answer.
	d := net.Dialer{Timeout: s.w.o.DialTimeout, KeepAlive: -1}
	conn, err := d.DialContext(ctx, "tcp", s.control.Conn.Address)
	if err != nil {
		s.w.o.Log.Warn("call back", "error", err)
		s.w.count.lost.Add(1)
		return
	}
	s.conn = conn
	g := lifecycle.New(ctx)
	defer g.Stop()
	defer conn.Close() // before Stop, which waits for the control reader
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	var cancel context.CancelFunc
	s.ctx, cancel = context.WithCancel(ctx)
	defer cancel()
	closed := make(chan struct{})
	g.Go("control", func(context.Context) error {
		defer close(closed)
		s.readControl(cancel)
		return nil
	})
	// From here on both directions run: answer writes, readControl reads.
	err = s.answer(ctx)
	s.settle(err, closed)
}

// readControl follows what the frontend says until the connection ends. Bytes that are no control frame end the request
// as a kill does: the two sides no longer understand each other.
func (s *session) readControl(cancel context.CancelFunc) {
	note := func(what int32) {
		s.ctl.CompareAndSwap(ctlNone, what)
		if s.fault.Kind == IgnoreStop && what != ctlGone {
			return
		}
		cancel()
		s.conn.SetWriteDeadline(time.Unix(1, 0)) // a write to a reader that stopped must not hang
	}
	var buf []byte
	// Control frames are some dozen bytes, and few; one may still come in pieces.
	chunk := make([]byte, 256)
	for {
		n, err := s.conn.Read(chunk)
		buf = append(buf, chunk[:n]...)
		for {
			header, _, used, perr := worker.ParseFrame(buf)
			if perr != nil {
				note(ctlKill)
				return
			}
			if used == 0 {
				break
			}
			if worker.ParseSignal(header) == worker.SignalStop {
				note(ctlStop)
			} else { // a sentinel from this side means kill, too
				note(ctlKill)
			}
			buf = buf[used:]
		}
		if err != nil {
			note(ctlGone)
			return
		}
	}
}

// answer runs the steps of the call back, up to the end marks. Its error is why there are none, be it the frontend's
// word to stop. ctx is the worker's: an engine that ignores stops runs under it.
func (s *session) answer(ctx context.Context) error {
	// Faults before the engine starts.
	if s.fault.Kind == NoHandshake {
		<-s.ctx.Done()
		return errFault
	}
	subject := s.control.Conn.Subject
	if s.fault.Kind == BadSubject {
		subject = "00000000-0000-4000-8000-000000000000"
	}
	// Handshake and prologue go out in one write. Only the fault that stops between them needs them apart.
	s.frame = worker.AppendHandshake(s.frame[:0], subject, worker.StreamResponse)
	if s.fault.Kind == HandshakeOnly {
		_ = s.write(s.frame) // the connection ends in any case
		return errFault
	}
	if err := s.admit(); err != nil {
		return s.refuse(err)
	}
	s.frame = worker.AppendPrologue(s.frame, nil)
	if err := s.write(s.frame); err != nil {
		return err
	}
	// The engine's context ends with the frontend's word to stop, unless a fault makes it deaf.
	engineCtx := s.ctx
	if s.fault.Kind == IgnoreStop {
		engineCtx = ctx
	}
	if err := s.w.o.Engine.Generate(engineCtx, s.req, s); err != nil {
		// None of these is an error to tell: nobody listens, or the end is meant to be abrupt.
		if s.ctl.Load() != ctlNone || errors.Is(err, ErrDie) || errors.Is(err, errFault) || ctx.Err() != nil {
			return err
		}
		if err := s.sendError(err); err != nil {
			return err
		}
		s.failed = true // and yet the stream ends in good order
	}
	return s.end()
}

// errFault ends an answer that a planned fault has broken off. It is told to nobody.
var errFault = errors.New("fault")

// admit asks the engine, and the plan of faults, whether the request may start.
func (s *session) admit() error {
	if s.fault.Kind == ErrorPrologue {
		return &worker.Error{Class: "Unavailable", Reason: "backend.engine_shutdown", Message: "planned fault"}
	}
	if a, ok := s.w.o.Engine.(Admitter); ok {
		return a.Admit(s.req)
	}
	return nil
}

// end writes the end marks: an item that says it is the last, and the sentinel frame. Both go out in one write. A
// request that was stopped gets neither: the frontend has closed its side, or is about to.
func (s *session) end() error {
	if s.ctl.Load() != ctlNone && s.fault.Kind != IgnoreStop {
		return ErrStopped
	}
	s.frame = s.frame[:0]
	if s.fault.Kind != NoFinal {
		s.frame = worker.AppendFrame(s.frame, nil, worker.AppendFinal(nil, s.control.Codec))
	}
	if s.fault.Kind == DataAfterEnd {
		s.frame = worker.AppendFrame(s.frame, nil, s.body)
	}
	if s.fault.Kind != NoSentinel {
		s.frame = worker.AppendSignal(s.frame, worker.SignalSentinel)
	}
	return s.write(s.frame)
}

// settle waits for the frontend to close after a whole answer, and counts the outcome. Closing first could reset the
// connection under bytes that the frontend hasn't read.
func (s *session) settle(err error, closed <-chan struct{}) {
	c := &s.w.count
	if err == nil {
		t := time.NewTimer(s.w.o.CloseWait)
		defer t.Stop()
		select {
		case <-closed:
		case <-t.C:
			s.w.o.Log.Warn("the frontend left the connection open", "request", s.req.ID)
		case <-s.w.aborted:
		}
		if s.failed {
			c.failed.Add(1)
		} else {
			c.completed.Add(1)
		}
		return
	}
	switch s.ctl.Load() {
	case ctlStop:
		c.stopped.Add(1)
	case ctlKill:
		c.killed.Add(1)
	case ctlGone:
		c.lost.Add(1)
	default:
		c.failed.Add(1)
	}
}

// write sends bytes, and blocks while the frontend reads none: that is the back-pressure an engine feels. A failure
// after the frontend's word to stop is no failure.
func (s *session) write(b []byte) error {
	if _, err := s.conn.Write(b); err != nil {
		if s.ctx.Err() != nil {
			return ErrStopped
		}
		return fmt.Errorf("simworker: write: %w", err)
	}
	return nil
}

// Send implements Output.
func (s *session) Send(it *worker.Item) error {
	var err error
	if s.body, err = worker.AppendItem(s.body[:0], s.control.Codec, it); err != nil {
		return fmt.Errorf("simworker: encode item: %w", err)
	}
	s.w.count.tokens.Add(uint64(len(it.Output.TokenIDs)))
	return s.sendBody()
}

// SendJSON implements Output. Tokens in such items are not counted, as nothing here decodes them.
func (s *session) SendJSON(annotated []byte) error {
	body := append([]byte(`{"data":`), annotated...)
	body = append(body, `,"complete_final":false}`...)
	if s.control.Codec == worker.JSON {
		s.body = body
		return s.sendBody()
	}
	var err error
	if s.body, err = worker.AppendJSONAsMsgpack(s.body[:0], body); err != nil {
		return fmt.Errorf("simworker: encode item: %w", err)
	}
	return s.sendBody()
}

// sendBody frames and writes s.body, unless a fault strikes first.
func (s *session) sendBody() error {
	if err := s.strike(); err != nil {
		return err
	}
	s.sent++
	s.frame = worker.AppendFrame(s.frame[:0], nil, s.body)
	if s.ctx.Err() != nil && s.fault.Kind != IgnoreStop {
		return ErrStopped
	}
	return s.write(s.frame)
}

// strike runs the fault that is due before the next item: an error ends the answer in place of the item, nil lets it go
// out, with a body that strike may have replaced.
func (s *session) strike() error {
	if s.struck {
		return nil
	}
	if s.fault.Kind == SlowItems {
		var p pace
		return p.wait(s.ctx, s.fault.Delay)
	}
	if s.sent != s.fault.After {
		return nil
	}
	switch s.fault.Kind {
	case DieAfter:
		return ErrDie
	case HangAfter:
		<-s.ctx.Done()
		return errFault
	case ErrorAfter:
		return &worker.Error{Class: "Internal", Reason: "backend.unknown", Message: "planned fault"}
	case GarbageAfter:
		// Read as a frame's head these lengths are above every limit, so that readers need not wait for more.
		return errors.Join(errFault, s.write([]byte("\xff\xff\xff\xff\xff\xff\xff\xffthis is no frame at all")))
	case BadItemAfter:
		s.body = append(s.body[:0], `not an item`...)
	}
	return nil
}
