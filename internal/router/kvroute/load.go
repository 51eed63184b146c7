package kvroute

import (
	"sort"

	"github.com/portico-llm/portico/api/worker"
)

// request is one request at work at a rank, this router's own or another's. Own ones are their choice's ticket: item and
// end are told by the goroutine that reads the answer. What the pool counts is guarded by its mutex.
type request struct {
	pool   *pool
	rank   *rank
	id     string
	path   []uint64 // sequence hashes of the prompt's blocks
	shared bool     // blocks are shared with requests that begin alike
	track  bool     // prefill is counted
	own    bool     // other routers are to be told

	prefill int64 // tokens to be computed before the first output; 0 afterwards
	extra   int64 // blocks generated
	at      int   // among the rank's requests
	done    bool

	// Of the goroutine that reads the answer.
	tokens   int // of the prompt
	output   int // generated
	cached   int // tokens of the prompt that the router thought cached
	begun    bool
	reported *int // what the worker said
}

// place counts a request at its rank and returns it. The caller holds mu.
func (p *pool) place(q *request) *request {
	q.own = true
	p.add(q)
	p.tell(q, worker.SequenceAdded)
	return q
}

// add counts a request. The caller holds mu.
func (p *pool) add(q *request) {
	k := q.rank
	if q.track {
		k.load.PrefillTokens += q.prefill
	} else {
		q.prefill = 0
	}
	k.load.Requests++
	if p.cfg.TrackBlocks {
		k.load.DecodeBlocks += int64(len(q.path) - p.common(q))
		if q.shared {
			// Never full: what it holds is bounded by the requests at work.
			_ = p.active.Hold(k.at, q.path)
		}
	}
	q.at = len(k.requests)
	k.requests = append(k.requests, q)
	p.metrics.active.Inc()
	p.report(k)
}

// report tells what a rank has to do. The caller holds mu.
func (p *pool) report(k *rank) {
	if p.r.opts.Loads == nil || k.gone {
		return
	}
	var blocks, prefill *uint64
	if p.cfg.TrackBlocks {
		blocks = new(uint64(max(k.load.DecodeBlocks, 0)))
	}
	if p.cfg.TrackPrefill {
		prefill = new(uint64(max(k.load.PrefillTokens, 0)))
	}
	p.r.opts.Loads(p.id, k.at.ID, k.at.Rank, blocks, prefill)
}

// common returns how many blocks at the path's beginning another request of the rank holds, too. The caller holds mu.
func (p *pool) common(q *request) (n int) {
	if !q.shared || len(q.path) == 0 {
		return 0
	}
	for _, o := range q.rank.requests {
		if o == q || !o.shared || len(o.path) <= n || n >= len(q.path) || o.path[n] != q.path[n] {
			continue // nothing beyond n
		}
		// Sequence hashes are equal up to where the paths part, and nowhere behind it.
		short := min(len(o.path), len(q.path))
		n = n + 1 + sort.Search(short-n-1, func(i int) bool { return o.path[n+1+i] != q.path[n+1+i] })
	}
	return n
}

// prefilled notes that a request's answer has begun. The caller holds mu.
func (p *pool) prefilled(q *request) {
	q.rank.load.PrefillTokens -= q.prefill
	q.prefill = 0
}

// free takes a request off its rank. The caller holds mu.
func (p *pool) free(q *request) {
	if q.done {
		return
	}
	q.done = true
	k := q.rank
	p.prefilled(q)
	k.load.Requests--
	last := len(k.requests) - 1
	k.requests[q.at] = k.requests[last]
	k.requests[q.at].at = q.at
	k.requests[last] = nil
	k.requests = k.requests[:last]
	if p.cfg.TrackBlocks {
		keep := p.common(q)
		k.load.DecodeBlocks -= int64(len(q.path)-keep) + q.extra
		if q.shared {
			p.active.Trim(k.at, q.path, keep)
		}
	}
	q.path = nil
	p.metrics.active.Dec()
	p.report(k)
	p.bury(k)
}

// Item implements router.Ticket.
func (q *request) Item(it *worker.Item) {
	if !it.HasData {
		return
	}
	if !q.begun {
		q.begin()
	}
	if u := it.Output.Usage; u != nil && u.CachedTokens != nil {
		n := *u.CachedTokens
		q.reported = &n
	}
	p := q.pool
	if !p.cfg.TrackOutput || !p.cfg.TrackBlocks || len(it.Output.TokenIDs) == 0 {
		return
	}
	before := (q.tokens + q.output) / p.layout.BlockSize
	q.output += len(it.Output.TokenIDs)
	if more := int64((q.tokens+q.output)/p.layout.BlockSize - before); more > 0 {
		p.mu.Lock()
		q.extra += more
		q.rank.load.DecodeBlocks += more
		p.report(q.rank)
		p.mu.Unlock()
	}
}

// begin notes the first output.
func (q *request) begin() {
	q.begun = true
	p := q.pool
	p.mu.Lock()
	p.prefilled(q)
	p.report(q.rank)
	p.tell(q, worker.SequencePrefilled)
	p.mu.Unlock()
}

// Done implements router.Ticket.
func (q *request) Done() {
	p := q.pool
	p.mu.Lock()
	p.free(q)
	p.tell(q, worker.SequenceFreed)
	p.mu.Unlock()
	if q.reported != nil {
		p.metrics.reported.Add(float64(max(*q.reported, 0)))
		p.metrics.predicted.Add(float64(q.cached))
	}
}
