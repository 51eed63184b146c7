package dispatch

import (
	"context"
	"errors"
	"time"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/router"
)

// try sends the call to one instance and waits until it has begun. After an error nothing of it is left: the worker, if
// it should call, is told to stop. entered is when the request came in.
func (d *Dispatcher) try(
	ctx context.Context, call *router.Call, a *attempt, in *instance, entered time.Time,
) (*stream, error) {
	// An instance is reached over one plane, the one whose address it announced.
	plane := d.opts.NATS
	if in.record.Transport.NATS == "" {
		plane = d.opts.TCP
	}
	if plane == nil {
		if a.chosen.Ticket != nil {
			a.chosen.Ticket.Done()
		}
		return nil, fault.Lost(errors.New("no plane for the worker's transport"), "The worker can't be reached")
	}
	// Registered before anything is sent: a worker may call before the plane has its answer.
	s := &stream{d: d, in: in, ticket: a.chosen.Ticket, raw: call.Raw, bare: call.Bare, codec: in.record.Codec()}
	d.opts.CallHome.Expect(&s.home)
	in.inFlight.Add(1)
	s.prefill = int64(len(call.TokenIDs))
	in.load.prefill.Add(s.prefill)
	if err := d.reach(ctx, call, a, s, plane, entered); err != nil {
		s.abandon()
		return nil, err
	}
	return s, nil
}

// reach delivers the call and waits for the worker. An instance that leaves discovery meanwhile ends the wait, as do a
// refusal by the plane, its word that the worker is lost, HandshakeTimeout and ctx.
func (d *Dispatcher) reach(
	ctx context.Context, call *router.Call, a *attempt, s *stream, plane router.Plane, entered time.Time,
) error {
	if err := a.seal(call, s, d.opts.CallHome.Address()); err != nil {
		return err
	}
	// From here until met, the instance's removal ends the wait.
	if err := s.in.load.expect(&s.home); err != nil {
		return err
	}
	defer s.in.load.met(&s.home)
	s.sent = time.Now()
	d.metrics.queue.Observe(s.sent.Sub(entered).Seconds())
	lost, err := plane.Start(ctx, &a.message, s.accepted)
	if err != nil {
		return err
	}
	s.home.Watch(lost)
	typed, err := s.home.Await(ctx, d.patience(a))
	// The worker's own word stands above what became of the connection.
	if typed != nil {
		return errPrologue(typed)
	}
	return err
}

// accepted takes the plane's word on the message. It runs on the plane's goroutine and must not block. It may come
// after the worker's call, or after the request's end, and then changes nothing but the metric.
func (s *stream) accepted(err error) {
	if err != nil {
		s.home.Fail(err)
		return
	}
	s.d.metrics.send.Observe(time.Since(s.sent).Seconds())
}

// seal makes the message: control header and body are appended in place to one buffer. Room for the frame's head is
// left in front, since it holds the lengths of both.
func (a *attempt) seal(call *router.Call, s *stream, address string) error {
	control := worker.Control{
		ID: call.RequestID, Codec: s.codec, Metadata: call.Metadata,
		Conn: worker.Connection{Address: address, Subject: s.home.Subject(), Context: call.RequestID},
	}
	// b's bytes are used again by later tries and requests, grown if need be.
	b := worker.AppendControl(worker.BeginFrame(a.envelope[:0]), &control)
	header := len(b) - worker.FrameHead
	if header > worker.MaxControl {
		return fault.New(fault.HeaderTooLarge, "The request's metadata is too large")
	}
	// The body is encoded for each try, since instances may differ in their codecs.
	body, err := call.Body(b, s.codec, router.Target{Instance: s.in.record, Rank: a.chosen.Rank})
	if err != nil {
		return fault.New(fault.Internal, "The request could not be encoded").Because(err)
	}
	worker.PutFrameHead(body, header, len(body)-len(b))
	// Kept in any case: it may have been moved to larger memory.
	a.envelope = body
	a.message = router.Message{
		Instance: s.in.record, RequestID: call.RequestID, Envelope: body,
		Traceparent: call.Traceparent, Tracestate: call.Tracestate, XRequestID: call.XRequestID,
	}
	return nil
}

// errPrologue is the failure of a worker that said that it can't begin, in the prologue of its stream. An invalid
// request, a cancelled one and an engine that is full are what they are; anything else may go better elsewhere.
func errPrologue(e *worker.Error) error {
	switch e.Reason {
	case "request.cancelled", "request.deadline_exceeded", "backend.cancelled", "capacity.exhausted",
		"capacity.pool_exhausted":
		return faultOf(e)
	}
	if e.Class == "InvalidRequest" {
		return faultOf(e)
	}
	f := fault.Lost(errors.Join(errBeginning, e), "The worker failed before it began to answer")
	// The worker itself says that it is lost: without errBeginning it is left aside, too.
	if router.LostReason(e.Reason) {
		f = f.Because(e)
	}
	return f
}
