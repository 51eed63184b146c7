package kvroute

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/events"
	"github.com/portico-llm/portico/internal/router/kvindex"
)

// cacheEvents is the Router as it hears the workers' KV events.
type cacheEvents Router

var _ events.Handler = (*cacheEvents)(nil)

// feed is the events of one publisher.
type feed struct {
	r         *Router
	p         *pool
	publisher uint64

	mu      sync.Mutex
	source  *worker.EventSource        // guarded by mu; nil: not in discovery
	streams map[kvindex.Worker]*stream // guarded by mu
	gone    bool                       // guarded by mu
	quit    chan struct{}              // closed when gone
}

// stream is the events of one rank. While it recovers, one goroutine works on it, and events wait.
type stream struct {
	at    kvindex.Worker
	known bool   // the index holds the state after event last
	last  uint64 // number of the last event that was applied

	phase   phase
	lost    int              // how often the index has forgotten the rank
	since   int              // lost when it was last asked for: what is known is gone unless the two are equal
	again   bool             // something was missed since the recovery under way began
	waiting []worker.KVEvent // for the recovery to end
	weight  int              // of waiting: blocks and hashes
}

// phase is what becomes of a stream's events.
type phase uint8

const (
	live       phase = iota // they are applied as they come
	recovering              // they wait
	blind                   // as live, on top of nothing, until another recovery is tried
)

// maxWaiting bounds the blocks and hashes of waiting events; beyond it they are dropped and asked for again.
const maxWaiting = 1 << 20

// wantsCache reports whether a worker's events matter here.
func (r *Router) wantsCache(ch *worker.EventChannel) bool {
	if ch.Scope.Kind != worker.ScopeEndpoint {
		return false
	}
	p := r.pool(ch.Scope.ID)
	return p != nil && p.cfg.Events
}

// followSources takes over who answers recovery queries. The caller holds the router's mutex.
func (r *Router) followSources(snap *router.Snapshot) {
	clear(r.sources)
	for _, s := range snap.Sources {
		if s.Topic == worker.TopicKVEvents {
			r.sources[s.Publisher] = s
		}
	}
	for publisher, f := range r.feeds {
		f.mu.Lock()
		late := f.source == nil && r.sources[publisher] != nil
		f.source = r.sources[publisher]
		if late { // there is somebody to ask at last
			f.missed()
		}
		f.mu.Unlock()
	}
}

// welcome asks anew for ranks that had left discovery and are back: the index has forgotten them meanwhile.
func (f *feed) welcome(back []kvindex.Worker) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, at := range back {
		if s := f.streams[at]; s != nil && !f.gone {
			s.lost++
			f.recover(s)
		}
	}
}

// feed returns a publisher's feed, which it makes if need be; nil when there is no pool for it. A fresh one, also where a
// pool was made anew, begins by asking.
func (c *cacheEvents) feed(ch *worker.EventChannel) (f *feed, fresh bool) {
	r := (*Router)(c)
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.pools[ch.Scope.ID]
	f = r.feeds[ch.Publisher]
	if f != nil && f.p == p {
		return f, false
	}
	if f != nil {
		delete(r.feeds, ch.Publisher)
		f.end()
	}
	if p == nil {
		return nil, false
	}
	f = &feed{
		r: r, p: p, publisher: ch.Publisher, source: r.sources[ch.Publisher],
		streams: map[kvindex.Worker]*stream{}, quit: make(chan struct{}),
	}
	r.feeds[ch.Publisher] = f
	f.mu.Lock()
	defer f.mu.Unlock()
	f.missed()
	return f, true
}

// end stops a feed and leaves its ranks' seats.
func (f *feed) end() {
	f.mu.Lock()
	f.gone = true
	close(f.quit)
	ranks := slices.Collect(maps.Keys(f.streams))
	f.mu.Unlock()
	for _, at := range ranks {
		f.p.leave(at, f)
	}
}

// Event implements events.Handler.
func (c *cacheEvents) Event(ch *worker.EventChannel, e *worker.Event) {
	f, _ := c.feed(ch)
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gone {
		return
	}
	err := worker.ReadKVEvents(worker.Msgpack, e.Payload, func(ev *worker.KVEvent) error {
		f.take(ev)
		return nil
	})
	if err != nil {
		f.r.opts.Log.Warn("KV events could not be read", "publisher", ch.Publisher, "error", err)
		f.missed()
	}
}

// Missed implements events.Handler.
func (c *cacheEvents) Missed(ch *worker.EventChannel) {
	f, fresh := c.feed(ch)
	if f == nil || fresh {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.missed()
}

// Gone implements events.Handler. What the publisher's ranks held can't be followed any more.
func (c *cacheEvents) Gone(ch *worker.EventChannel) {
	r := (*Router)(c)
	r.mu.Lock()
	f := r.feeds[ch.Publisher]
	delete(r.feeds, ch.Publisher)
	r.mu.Unlock()
	if f != nil {
		f.end()
	}
}

// rankOf is the rank whose events a source publishes.
func rankOf(s *worker.EventSource) kvindex.Worker {
	return kvindex.Worker{ID: s.Metadata.Worker.WorkerID, Rank: s.Metadata.Worker.DPRank}
}

// missed begins to recover everything that the publisher speaks for. The caller holds mu.
func (f *feed) missed() {
	if f.source != nil {
		f.stream(rankOf(f.source))
	}
	for _, s := range f.streams {
		f.recover(s)
	}
}

// stream returns a rank's stream. The caller holds mu.
func (f *feed) stream(at kvindex.Worker) *stream {
	s := f.streams[at]
	if s == nil {
		s = &stream{at: at}
		f.streams[at] = s
		f.p.take(at, f)
	}
	return s
}

// take handles one event. The caller holds mu.
func (f *feed) take(e *worker.KVEvent) {
	at := kvindex.Worker{ID: e.Worker.WorkerID, Rank: e.Worker.DPRank}
	if f.p.muted(at.ID) || !f.p.here(at) {
		return
	}
	s := f.stream(at)
	switch {
	case s.phase == recovering:
		s.wait(e)
	case !s.known && s.last == 0: // the first that is heard of the rank, and nobody could be asked
		f.p.apply(f, at, e)
		s.last = e.ID
	case e.ID <= s.last: // it has come before
	case e.ID == s.last+1:
		f.p.apply(f, at, e)
		s.last = e.ID
	default:
		f.p.metrics.gaps.Inc()
		f.r.opts.Log.Warn("KV events of a worker are missing, asking for them",
			"endpoint", f.p.id.String(), "worker", at.ID, "dp_rank", at.Rank, "after", s.last, "next", e.ID)
		if f.recover(s); s.phase == recovering {
			s.wait(e)
			return
		}
		f.p.apply(f, at, e)
		s.last = e.ID
	}
}

// wait keeps an event until the recovery has ended.
func (s *stream) wait(e *worker.KVEvent) {
	if s.weight > maxWaiting {
		s.again = true // it is asked for instead
		return
	}
	c := *e
	c.Blocks, c.Hashes = slices.Clone(e.Blocks), slices.Clone(e.Hashes)
	s.waiting = append(s.waiting, c)
	s.weight += weight(e)
}

// weight is what an event that waits counts.
func weight(e *worker.KVEvent) int { return len(e.Blocks) + len(e.Hashes) + 1 }

// recover begins to ask for what a stream misses. A rank that nobody can be asked about loses its place in the index: it
// begins anew with what comes. The caller holds mu.
func (f *feed) recover(s *stream) {
	asked := f.source != nil && f.source.Metadata.Recovery != nil
	switch {
	case s.phase == recovering: // what waits is older than what the next answer tells, or of a count that has ended
		s.again, s.waiting, s.weight = true, nil, 0
	case s.phase == blind, !asked:
		f.p.forget(f, s.at)
		s.known, s.last = false, 0
	default:
		s.phase = recovering
		f.r.start("KV recovery", func(ctx context.Context) error {
			f.mend(ctx, s)
			return nil
		})
	}
}

// Tries of a recovery before the rank's place in the index is given up, and the longest pause between two.
const (
	patience  = 3
	longPause = 100 // times Options.Retry
)

// mend recovers a stream. Until it has succeeded, or the publisher is gone, it tries again; after a few failures the rank
// begins anew with what comes meanwhile, so that the index holds nothing that may be untrue.
func (f *feed) mend(ctx context.Context, s *stream) {
	pause := func(d time.Duration) bool {
		select {
		case <-ctx.Done():
		case <-f.quit:
		case <-time.After(d):
			return true
		}
		return false
	}
	// A publisher's socket learns of a subscription a moment after it was made.
	if !pause(f.r.opts.Settle) {
		return
	}
	for try := 1; ; try++ {
		err := f.ask(ctx, s)
		if err == nil {
			f.p.metrics.recoveries.WithLabelValues("ok").Inc()
			if f.catchUp(s) {
				return
			}
			try = 0 // something has been missed since
			if !pause(f.r.opts.Retry) {
				return
			}
			continue
		}
		if ctx.Err() != nil {
			return
		}
		f.p.metrics.recoveries.WithLabelValues("failed").Inc()
		if try == patience {
			f.r.opts.Log.Warn("a worker doesn't tell what its cache holds, its place in the index begins anew",
				"endpoint", f.p.id.String(), "worker", s.at.ID, "dp_rank", s.at.Rank, "error", err)
		}
		if try >= patience {
			f.giveUp(s, try == patience)
		}
		if !pause(f.r.opts.Retry * time.Duration(min(1<<min(try-1, 10), longPause))) {
			return
		}
		if try >= patience { // from here on events were applied as they came: only a whole answer helps
			f.mu.Lock()
			s.phase, s.again = recovering, false
			f.mu.Unlock()
		}
	}
}

// giveUp goes on with what comes, on top of what has come since the last time, or of nothing if this is the first or
// something was missed meanwhile.
func (f *feed) giveUp(s *stream, first bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if first || s.again {
		f.p.forget(f, s.at)
		s.known, s.last = false, 0
	}
	s.phase, s.again = blind, false
	list := s.waiting
	s.waiting, s.weight = nil, 0
	for i := range list {
		f.take(&list[i])
	}
}

// catchUp applies the events that came during the recovery, and reports whether the stream is whole again.
func (f *feed) catchUp(s *stream) bool {
	for {
		f.mu.Lock()
		list, again := s.waiting, s.again
		s.waiting, s.weight, s.again = nil, 0, false
		if len(list) == 0 || f.gone {
			whole := !again || f.gone
			if whole {
				s.phase = live
			}
			f.mu.Unlock()
			return whole
		}
		f.mu.Unlock()
		// Without the mutex: only this goroutine applies events of a stream that recovers.
		for i := range list {
			switch e := &list[i]; {
			case e.ID <= s.last:
			case e.ID == s.last+1:
				f.p.apply(f, s.at, e)
				s.last = e.ID
			default: // there is a gap among them
				f.p.metrics.gaps.Inc()
				f.mu.Lock()
				if !s.again {
					s.waiting = append(list[i:], s.waiting...)
					for k := i; k < len(list); k++ {
						s.weight += weight(&list[k])
					}
				}
				s.again = false
				f.mu.Unlock()
				return false
			}
		}
		if again {
			return false
		}
	}
}

// errGone ends a recovery whose publisher is gone.
var errGone = errors.New("the publisher is gone")
