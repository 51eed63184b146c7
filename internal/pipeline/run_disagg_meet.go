package pipeline

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/router"
)

// meeting is the stream of a decode worker that meets its prefill worker while both run. It belongs to one goroutine, as
// streams do; another reads the prefill worker's answer, of which only a failure matters.
type meeting struct {
	router.Stream // the decode worker's

	leg     *prefillLeg
	readers *lifecycle.Group // reads the prefill worker's answer
	ctx     context.Context  // of the decode worker's stream
	cancel  context.CancelCauseFunc
	read    chan struct{} // closed when the prefill worker's answer has ended
	state   atomic.Int32
	failure error // of the prefill worker; set before state becomes parted
	over    bool  // the decode worker has said all
}

// The states of a meeting.
const (
	meetingOpen   int32 = iota // the decode worker hasn't begun to answer, so the prefill worker is needed
	meetingHeld                // it has: all that was to be handed over has been
	meetingParted              // the prefill worker failed before that
)

// Waits at a meeting's end.
const (
	// partingWait is how long a decode worker's failure waits for the prefill worker's, whose consequence it may be.
	partingWait = 250 * time.Millisecond
	// farewellWait is how long a prefill worker has to say that it is done, when the decode worker is.
	farewellWait = 100 * time.Millisecond
)

// meet sends the request to a decode worker while the prefill worker is at it, and returns the decode worker's stream.
func (p *Pipeline) meet(ctx context.Context, s *sharing, leg *prefillLeg, begin time.Time) (router.Stream, error) {
	m := &meeting{leg: leg, readers: lifecycle.New(leg.ctx), read: make(chan struct{})}
	m.ctx, m.cancel = context.WithCancelCause(ctx)
	m.readers.Go("prefill", func(context.Context) error {
		m.follow(p, s, begin)
		return nil
	})
	call, toll := s.decode(leg), &s.leg.toll
	struck, tell := toll.Struck, call.Failed
	call.Failed = func(id uint64, err error) {
		// A decode worker that goes down with the prefill worker is no reason to send another to the same place.
		if toll.Struck > struck {
			m.parted()
		}
		if tell != nil {
			tell(id, err)
		}
	}
	stream, err := p.dispatch(m.ctx, call, p.stages.decode)
	if err != nil {
		m.end()
		if m.state.Load() == meetingParted {
			// Whoever else was lost on the way: it is one loss, which is counted as the prefill worker's.
			toll.Struck, err = struck, m.failure
		}
		return nil, err
	}
	p.prefills.count(s.req.Model, prefillMet)
	m.Stream = stream
	return m, nil
}

// follow reads the prefill worker's answer to its end. A failure ends the decode worker's stream, unless that has begun
// to answer.
func (m *meeting) follow(p *Pipeline, s *sharing, begin time.Time) {
	defer close(m.read)
	err := error(errPanicked)
	defer func() {
		if err == nil || m.leg.ctx.Err() != nil {
			return
		}
		if isLost(err) {
			err = &prefillLost{m.leg.stream.Instance(), err}
		}
		m.failure = err
		before := m.state.CompareAndSwap(meetingOpen, meetingParted)
		if before {
			m.cancel(err)
		}
		p.log.Warn("prefill worker failed", "request_id", s.req.Meta.RequestID, "worker", m.leg.stream.Instance().Hex(),
			"handed_over", !before, "error", err)
	}()
	err = m.leg.await(p)
	p.prefills.took.Observe(time.Since(begin).Seconds())
}

// errPanicked stands for a failure that never got a name.
var errPanicked = fault.New(fault.Internal, "Internal server error")

// Each implements router.Stream. A failure of the prefill worker is the stream's.
func (m *meeting) Each(f func(it *worker.Item, more bool) error) error {
	err := m.Stream.Each(func(it *worker.Item, more bool) error {
		if it.HasData && m.state.Load() != meetingHeld && !m.state.CompareAndSwap(meetingOpen, meetingHeld) {
			return m.failure
		}
		// What the decode worker reports may be no more than the echo.
		if it.Err != nil && m.parted() {
			return m.failure
		}
		return f(it, more)
	})
	switch {
	case err == nil:
		m.over = true
	case isLost(err) && m.parted(), errors.Is(err, context.Canceled) && m.state.Load() == meetingParted:
		return m.failure
	}
	return err
}

// parted reports whether the prefill worker has failed before the decode worker had anything, and gives it a moment to
// do so.
func (m *meeting) parted() bool {
	if m.state.Load() == meetingOpen {
		t := time.NewTimer(partingWait)
		defer t.Stop()
		select {
		case <-m.read:
		case <-t.C:
		case <-m.ctx.Done():
		}
	}
	return m.state.Load() == meetingParted
}

// Close implements router.Stream: it ends both streams. A prefill worker that is done gets a moment to say so, and isn't
// told to stop for want of a word.
func (m *meeting) Close() error {
	err := m.Stream.Close()
	if m.over {
		t := time.NewTimer(farewellWait)
		defer t.Stop()
		select {
		case <-m.read:
		case <-t.C:
		case <-m.ctx.Done():
		}
		m.over = false
	}
	m.end()
	return err
}

// end ends the prefill worker's stream and waits for its reader.
func (m *meeting) end() {
	m.leg.cancel()
	_ = m.readers.Stop() // it reports to the meeting
	m.leg.close()
	m.cancel(nil)
}
