package kvroute

import (
	"cmp"
	"slices"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/kvindex"
)

// RankLoad is what one rank has to do.
type RankLoad struct {
	Worker                    uint64
	Rank                      uint32
	Prefill, Blocks, Requests int64
}

// Loads lists what the ranks of an endpoint have to do.
func (r *Router) Loads(id worker.EndpointID) (out []RankLoad) {
	p := r.pool(id)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range p.ranks {
		out = append(out, RankLoad{k.at.ID, k.at.Rank, k.load.PrefillTokens, k.load.DecodeBlocks, k.load.Requests})
	}
	slices.SortFunc(out, func(a, b RankLoad) int {
		return cmp.Or(cmp.Compare(a.Worker, b.Worker), cmp.Compare(a.Rank, b.Rank))
	})
	return out
}

// Quiet reports whether no feed is recovering, all of them know their ranks' states unless nobody can be asked, and no
// worker is being forgotten.
func (r *Router) Quiet() bool {
	return r.every(func(f *feed, s *stream) bool {
		mute := f.source == nil || f.source.Metadata.Recovery == nil
		return s.phase == live && (s.known || mute)
	})
}

// Settled reports whether no feed waits for an answer, though some may be going to ask again, and no worker is being
// forgotten.
func (r *Router) Settled() bool {
	return r.every(func(_ *feed, s *stream) bool { return s.phase != recovering })
}

// every reports whether all streams are such, and no worker is being forgotten.
func (r *Router) every(such func(*feed, *stream) bool) bool {
	if r.vacating.Load() > 0 {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.feeds {
		f.mu.Lock()
		for _, s := range f.streams {
			if !such(f, s) {
				f.mu.Unlock()
				return false
			}
		}
		f.mu.Unlock()
	}
	return true
}

// Held is Cached for the prompt of a request.
func (r *Router) Held(id worker.EndpointID, q *router.Query) (map[kvindex.Worker]int, error) {
	in, err := r.pool(id).prompt(q)
	if err != nil {
		return nil, err
	}
	return r.Cached(id, in.local), nil
}

// Cached returns how many leading blocks each rank of an endpoint is thought to hold.
func (r *Router) Cached(id worker.EndpointID, local []uint64) map[kvindex.Worker]int {
	x := r.pool(id).index
	v := x.View()
	out := make([]uint32, v.Slots())
	x.Match(local, out)
	got := map[kvindex.Worker]int{}
	for slot, n := range out {
		if w, ok := v.Worker(slot); ok && n > 0 {
			got[w] = int(n)
		}
	}
	return got
}

// Entries returns how many blocks an endpoint's ranks are thought to hold.
func (r *Router) Entries(id worker.EndpointID) int64 { return r.pool(id).index.Entries() }
