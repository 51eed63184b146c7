package dispatch

import (
	"errors"
	"sync"
	"time"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/callhome"
)

// stream is a router.Stream over one called-home connection. For one goroutine, but for accepted, which a plane calls.
type stream struct {
	home   callhome.Stream // the connection; registered before the request is sent
	d      *Dispatcher
	in     *instance     // where the request went
	ticket router.Ticket // of whoever chose it; nil for none
	codec  worker.Codec  // of the items
	raw    bool          // items keep their data as it came
	bare   bool          // and have no envelope
	sent   time.Time     // when the plane was given the message
	// prefill is the number of the prompt's tokens until the answer begins, then 0.
	prefill int64
	first   bool // an item has been read
	over    bool // abandoned or closed
}

var _ router.Stream = (*stream)(nil)

// items are what streams decode into; they keep their slices from one stream to the next.
var items = sync.Pool{New: func() any { return new(worker.Item) }}

// Instance implements router.Stream.
func (s *stream) Instance() *worker.Instance { return s.in.record }

// Each implements router.Stream. Error items are passed to f like any other. An item is f's for the time of the call. A
// worker that is lost on the way is left aside here, since nobody else knows which it was.
func (s *stream) Each(f func(it *worker.Item, more bool) error) error {
	it := items.Get().(*worker.Item)
	var own error // f's, which says nothing of the worker
	err := s.home.Each(s.d.opts.StreamTimeout, func(body []byte, more bool) (bool, error) {
		if err := s.decode(body, it); err != nil {
			return false, err
		}
		// The end mark alone carries nothing that f could use.
		if it.Final && !it.HasData && it.Err == nil && it.Event == "" {
			return true, nil
		}
		own = f(it, more)
		return it.Final, own
	})
	it.Reset()
	items.Put(it)
	switch f, ok := errors.AsType[*fault.Error](err); {
	// f has had enough, which is a good end.
	case errors.Is(own, router.ErrStop):
		return nil
	case own == nil && ok && f.Origin == fault.FromTransport:
		s.d.quarantine(s.in, f)
	}
	return err
}

// decode reads one item. The first says how long the answer took to begin; an error item may say that its worker is
// lost.
func (s *stream) decode(body []byte, it *worker.Item) error {
	decode := worker.DecodeItem
	switch {
	case s.bare:
		decode = worker.DecodeBareItem
	case s.raw:
		decode = worker.DecodeRawItem
	}
	if err := decode(s.codec, body, it); err != nil {
		f := &fault.Error{
			Kind: fault.BadGateway, Origin: fault.FromWorker, Message: "The worker's answer could not be read",
		}
		return f.Because(err)
	}
	if !s.first {
		s.first = true
		s.d.metrics.roundtrip.Observe(time.Since(s.sent).Seconds())
	}
	if it.HasData {
		s.prefilled()
	}
	if s.ticket != nil {
		s.ticket.Item(it)
	}
	if it.Err != nil && router.LostReason(it.Err.Reason) {
		s.d.quarantine(s.in, it.Err)
	}
	return nil
}

// Close implements router.Stream. A worker that has not finished is told to stop; Close doesn't wait for it to do so.
// It may be called again.
func (s *stream) Close() error {
	if s.over {
		return nil
	}
	s.abandon()
	s.d.left()
	return nil
}

// abandon releases the stream of an attempt, and its place in the instance's load. To be called once.
func (s *stream) abandon() {
	s.over = true
	s.home.Close()
	s.in.inFlight.Add(-1)
	s.prefilled()
	if s.ticket != nil {
		s.ticket.Done()
	}
}

// prefilled takes the prompt's tokens out of the instance's prefill. Later calls do nothing.
func (s *stream) prefilled() {
	if s.prefill != 0 {
		s.in.load.prefill.Add(-s.prefill)
		s.prefill = 0
	}
}
