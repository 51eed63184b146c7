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

// stream is a router.Stream over one called-home connection.
type stream struct {
	home  callhome.Stream
	d     *Dispatcher
	in    *instance
	codec worker.Codec
	raw   bool
	sent  time.Time
	first bool // an item has been read
	over  bool
}

var _ router.Stream = (*stream)(nil)

var items = sync.Pool{New: func() any { return new(worker.Item) }}

// Instance implements router.Stream.
func (s *stream) Instance() *worker.Instance { return s.in.record }

// Each implements router.Stream. Error items are passed to f like any other.
func (s *stream) Each(f func(it *worker.Item, more bool) error) error {
	it := items.Get().(*worker.Item)
	var own error // f's, which says nothing of the worker
	err := s.home.Each(s.d.opts.StreamTimeout, func(body []byte, more bool) (bool, error) {
		if err := s.decode(body, it); err != nil {
			return false, err
		}
		if it.Final && !it.HasData && it.Err == nil && it.Event == "" {
			return true, nil
		}
		own = f(it, more)
		return it.Final, own
	})
	it.Reset()
	items.Put(it)
	switch f, ok := errors.AsType[*fault.Error](err); {
	case errors.Is(own, router.ErrStop):
		return nil
	case own == nil && ok && f.Origin == fault.FromTransport:
		s.d.quarantine(s.in, f)
	}
	return err
}

func (s *stream) decode(body []byte, it *worker.Item) error {
	decode := worker.DecodeItem
	if s.raw {
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
	if it.Err != nil && lostReason(it.Err.Reason) {
		s.d.quarantine(s.in, it.Err)
	}
	return nil
}

// Close implements router.Stream.
func (s *stream) Close() error {
	if s.over {
		return nil
	}
	s.abandon()
	s.d.left()
	return nil
}

// abandon releases the stream of an attempt.
func (s *stream) abandon() {
	s.over = true
	s.home.Close()
	s.in.inFlight.Add(-1)
}
