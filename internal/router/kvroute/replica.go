package kvroute

import (
	"context"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/router/events"
	"github.com/portico-llm/portico/internal/router/kvindex"
)

// remoteKey names a request of another router.
type remoteKey struct {
	publisher uint64 // the router's outlet
	id        string
}

// openOutlet makes a pool heard by other routers, where its configuration asks for it. The caller holds the router's
// mutex.
func (r *Router) openOutlet(p *pool) {
	if !p.cfg.ReplicaSync {
		return
	}
	if r.opts.Registrar == nil {
		r.opts.Log.Warn("other routers aren't told of requests: there is no discovery to be found by", "endpoint", p.id.String())
		return
	}
	p.outlet = events.NewOutlet(events.OutletOptions{
		Registrar: r.opts.Registrar, Scope: worker.EndpointScope(p.id), Topic: worker.TopicActiveSequences,
		ZMQ: r.opts.ZMQ, Host: r.opts.EventHost, NATS: r.opts.NATS, Log: r.opts.Log,
	})
	r.start("replica sync", func(ctx context.Context) error {
		g := lifecycle.New(ctx)
		g.Go("outlet", p.outlet.Run)
		select {
		case <-ctx.Done():
		case <-g.Context().Done(): // it can't publish
		case <-p.quit:
		}
		if err := g.Stop(); err != nil {
			r.opts.Log.Error("other routers aren't told of requests", "endpoint", p.id.String(), "error", err)
		}
		return nil
	})
}

// tell publishes what became of one of this router's requests. The caller holds mu, so that the order is that of the
// books.
func (p *pool) tell(q *request, kind worker.SequenceKind) {
	if p.outlet == nil || !q.own {
		return
	}
	a := worker.ActiveSequence{
		RequestID: q.id, Worker: worker.WorkerRank{WorkerID: q.rank.at.ID, DPRank: q.rank.at.Rank}, Router: p.r.id, Kind: kind,
	}
	if kind == worker.SequenceAdded {
		a.Counted, a.TrackPrefill = p.cfg.TrackBlocks, q.track
		if a.Counted {
			a.Blocks = q.path
		}
		a.HasPrefill, a.Prefill = q.track, uint64(q.prefill)
	}
	if p.r.opts.ZMQ {
		p.outlet.Publish(worker.AppendActiveSequences(nil, &a))
		return
	}
	p.outlet.Publish(worker.AppendActiveSequence(nil, &a))
}

// sequenceEvents is the Router as it hears other routers.
type sequenceEvents Router

var _ events.Handler = (*sequenceEvents)(nil)

// wantsSequences reports whether another router's requests matter here.
func (r *Router) wantsSequences(ch *worker.EventChannel) bool {
	if ch.Scope.Kind != worker.ScopeEndpoint {
		return false
	}
	p := r.pool(ch.Scope.ID)
	return p != nil && p.cfg.ReplicaSync && (p.outlet == nil || p.outlet.Publisher() != ch.Publisher)
}

// Event implements events.Handler.
func (s *sequenceEvents) Event(ch *worker.EventChannel, e *worker.Event) {
	r := (*Router)(s)
	p := r.pool(ch.Scope.ID)
	if p == nil {
		return
	}
	err := worker.ReadActiveSequences(e.Payload, func(a *worker.ActiveSequence) error {
		// What this frontend says itself may come back through records of an earlier life.
		if a.Router != r.id {
			p.heard(remoteKey{ch.Publisher, a.RequestID}, a)
		}
		return nil
	})
	if err != nil {
		r.opts.Log.Warn("another router's event could not be read", "publisher", ch.Publisher, "error", err)
	}
}

// maxRemote bounds the requests of other routers that are counted at once.
const maxRemote = 1 << 20

// heard counts what another router says.
func (p *pool) heard(key remoteKey, a *worker.ActiveSequence) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch a.Kind {
	case worker.SequenceAdded:
		p.dismiss(key) // a retry under the same id
		k := p.ranks[kvindex.Worker{ID: a.Worker.WorkerID, Rank: a.Worker.DPRank}]
		if p.stopped || k == nil || k.gone || len(p.remote) >= maxRemote {
			return
		}
		q := &request{
			pool: p, rank: k, id: a.RequestID, path: a.Blocks, shared: p.cfg.AssumeReuse,
			track: a.TrackPrefill && p.cfg.TrackPrefill, prefill: int64(min(a.Prefill, maxPrefill)),
		}
		p.remote[key] = q
		p.add(q)
	case worker.SequencePrefilled:
		if q := p.remote[key]; q != nil {
			p.prefilled(q)
			p.report(q.rank)
		}
	case worker.SequenceFreed:
		p.dismiss(key)
	}
}

// dismiss forgets another router's request, if it is counted. The caller holds mu.
func (p *pool) dismiss(key remoteKey) {
	if q := p.remote[key]; q != nil {
		p.free(q)
		delete(p.remote, key)
	}
}

// maxPrefill bounds what another router may claim of one request.
const maxPrefill = 1 << 40

// Missed implements events.Handler: what has ended may have been missed, so that nothing of the router is counted on.
func (s *sequenceEvents) Missed(ch *worker.EventChannel) { s.Gone(ch) }

// Gone implements events.Handler.
func (s *sequenceEvents) Gone(ch *worker.EventChannel) {
	p := (*Router)(s).pool(ch.Scope.ID)
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for key := range p.remote {
		if key.publisher == ch.Publisher {
			p.dismiss(key)
		}
	}
}
