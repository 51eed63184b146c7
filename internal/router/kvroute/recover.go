package kvroute

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/google/uuid"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/kvindex"
)

// answer is what a worker says to a query.
type answer struct {
	worker.KVAnswer
	events []worker.KVEvent
}

// ask brings a stream up to date by one query, or by two where the first shows that the worker counts anew.
func (f *feed) ask(ctx context.Context, s *stream) error {
	select { // answers may be large: not too many at a time
	case f.r.slots <- struct{}{}:
		defer func() { <-f.r.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	f.mu.Lock()
	source, known, last, gone, lost := f.source, s.known && s.since == s.lost, s.last, f.gone, s.lost
	f.mu.Unlock()
	switch {
	case gone:
		return errGone
	case source == nil || source.Metadata.Recovery == nil:
		return errors.New("nobody answers queries")
	}
	var start *uint64
	if known {
		next := last + 1
		start = &next
	}
	a, err := f.query(ctx, source.Metadata.Recovery, s, start)
	if err != nil {
		return err
	}
	if start != nil && f.stale(a, last) {
		if a, err = f.query(ctx, source.Metadata.Recovery, s, nil); err != nil {
			return err
		}
		start = nil
	}
	return f.use(s, a, start != nil, lost)
}

// stale reports whether an answer to a question behind the last event shows that the worker's numbers aren't those that
// are known here.
func (f *feed) stale(a *answer, last uint64) bool {
	switch a.Kind {
	case "TooNew":
		return a.LastID != last
	case "InvalidRange":
		return true
	case "Events":
		// There may be none yet, and they may be more than asked for, but none may be missing.
		return a.LastID < last || (len(a.events) > 0 && a.events[0].ID > last+1)
	}
	return false
}

// use applies an answer. behind says that it continues what is known; otherwise it is all that the rank holds. lost is as
// it was when the question was asked.
func (f *feed) use(s *stream, a *answer, behind bool, lost int) error {
	switch a.Kind {
	case "TooNew": // there is nothing behind the last event
		if !behind {
			return fmt.Errorf("answer %s to a question for everything", a.Kind)
		}
		return nil
	case "Events", "TreeDump":
	default:
		return fmt.Errorf("answer %s: %s", a.Kind, a.Message)
	}
	whole := !behind || a.Kind == "TreeDump"
	if whole {
		f.p.forget(f, s.at)
	}
	for i := range a.events {
		e := &a.events[i]
		if at := (kvindex.Worker{ID: e.Worker.WorkerID, Rank: e.Worker.DPRank}); at != s.at {
			continue // somebody else's
		}
		if !whole && e.ID <= s.last {
			continue
		}
		f.p.apply(f, s.at, e)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s.known, s.last, s.since = true, a.LastID, lost
	return nil
}

// query asks one worker for the events from start on, or for everything.
func (f *feed) query(ctx context.Context, target *worker.Instance, s *stream, start *uint64) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, f.r.opts.QueryTimeout)
	defer cancel()
	q := worker.KVQuery{Worker: worker.WorkerRank{WorkerID: s.at.ID, DPRank: s.at.Rank}, Start: start}
	stream, err := f.r.opts.Dispatch(ctx, &router.Call{
		RequestID: uuid.NewString(), Endpoint: target.ID(), Pin: &target.InstanceID, Bare: true,
		Body: func(dst []byte, codec worker.Codec, _ router.Target) ([]byte, error) { return q.Append(dst, codec) },
	})
	if err != nil {
		return nil, err
	}
	defer func() { _ = stream.Close() }() // nothing is left to be told
	var a *answer
	err = stream.Each(func(it *worker.Item, _ bool) error {
		if it.Err != nil {
			return it.Err
		}
		if !it.HasData || a != nil {
			return nil
		}
		a = &answer{}
		var bad error
		a.KVAnswer, bad = worker.ReadKVAnswer(worker.JSON, it.Raw, func(e *worker.KVEvent, _ bool) error {
			c := *e
			c.Blocks, c.Hashes = slices.Clone(e.Blocks), slices.Clone(e.Hashes)
			a.events = append(a.events, c)
			return nil
		})
		return bad
	})
	switch {
	case err != nil:
		return nil, err
	case a == nil:
		return nil, errors.New("no answer")
	}
	return a, nil
}

// seat is a rank's place in the index. Of several publishers that speak for a rank the latest has it: a worker may
// replace its publisher, and what the old one still says mustn't be mixed with it.
type seat struct {
	mu   sync.Mutex
	of   *feed // guarded by mu
	gone bool  // guarded by mu: it is nobody's any more, and there may be another
}

// sit returns a rank's seat with its mutex held; join says whether to make one where there is none.
func (p *pool) sit(at kvindex.Worker, join bool) *seat {
	for {
		p.seating.Lock()
		s := p.seats[at]
		if s == nil && join {
			s = &seat{}
			p.seats[at] = s
		}
		p.seating.Unlock()
		if s == nil {
			return nil
		}
		s.mu.Lock()
		if !s.gone {
			return s
		}
		s.mu.Unlock()
	}
}

// take gives a rank's seat to a feed, empty.
func (p *pool) take(at kvindex.Worker, f *feed) {
	s := p.sit(at, true)
	defer s.mu.Unlock()
	s.of = f
	p.index.Cleared(at)
}

// leave takes a feed's seat away, with what the index holds there.
func (p *pool) leave(at kvindex.Worker, f *feed) {
	s := p.sit(at, false)
	if s == nil {
		return
	}
	defer s.mu.Unlock()
	if s.of != f {
		return
	}
	s.gone = true
	if p.index.Cleared(at); !p.here(at) {
		p.index.RemoveRank(at)
	}
	p.seating.Lock()
	defer p.seating.Unlock()
	delete(p.seats, at)
}

// vacate drops what the index holds of a rank whose worker has left discovery. That takes a while for a full cache, so it
// is no part of what waits for a snapshot. A rank that is back is left alone: its feed asks for everything.
func (p *pool) vacate(at kvindex.Worker) {
	s := p.sit(at, true)
	defer s.mu.Unlock()
	if !p.here(at) {
		p.index.RemoveRank(at)
		if p.guess != nil {
			p.guess.RemoveRank(at)
		}
	}
	if s.of == nil {
		s.gone = true
		p.seating.Lock()
		defer p.seating.Unlock()
		delete(p.seats, at)
	}
}

// forget drops what the index holds of a rank, if the feed has its seat.
func (p *pool) forget(f *feed, at kvindex.Worker) {
	s := p.sit(at, false)
	if s == nil {
		return
	}
	defer s.mu.Unlock()
	if s.of == f {
		p.index.Cleared(at)
	}
}

// apply brings the index in line with one event of a rank, if the feed has its seat.
func (p *pool) apply(f *feed, at kvindex.Worker, e *worker.KVEvent) {
	s := p.sit(at, false)
	if s == nil {
		return
	}
	defer s.mu.Unlock()
	if s.of != f || !p.here(at) {
		return // it has another publisher by now, or has left discovery
	}
	p.store(at, e)
}

// store is apply without conditions.
func (p *pool) store(at kvindex.Worker, e *worker.KVEvent) {
	tier := kvindex.Device
	switch e.Tier {
	case "", "device":
	case "host_pinned":
		tier = kvindex.Host
	case "disk":
		tier = kvindex.Disk
	default:
		return // what all workers share isn't a worker's
	}
	switch e.Kind {
	case worker.KVStored:
		p.metrics.stored.Inc()
		blocks := make([]kvindex.Block, len(e.Blocks))
		for i, b := range e.Blocks {
			blocks[i] = kvindex.Block{Hash: b.Hash, Local: b.Tokens}
		}
		var parent *uint64
		if e.HasParent {
			parent = &e.Parent
		}
		// What is refused, for want of its parent or of room, is counted by the index and costs a hit at most.
		_ = p.index.Stored(tier, at, parent, blocks)
	case worker.KVRemoved:
		p.metrics.removed.Inc()
		p.index.Removed(tier, at, e.Hashes)
	case worker.KVCleared:
		p.metrics.cleared.Inc()
		p.index.Cleared(at)
	}
}
