package catalog

import (
	"slices"
	"sync/atomic"

	"github.com/portico-llm/portico/api/worker"
)

// Prefill is the pool of workers that read prompts for a decode set: the prefill workers of the same model in the same
// namespace, as they are at one moment. It is immutable but for Serves.
type Prefill struct {
	Endpoint worker.EndpointID // where they listen

	workers *atomic.Pointer[map[uint64]struct{}] // the group's
	configs map[uint64]*worker.RuntimeConfig
}

// Serves reports whether the instance is now one of the pool. Safe for concurrent use.
func (p *Prefill) Serves(instanceID uint64) bool {
	_, ok := (*p.workers.Load())[instanceID]
	return ok
}

// Config returns what the worker's engine reports of itself, or nil for a worker that the pool doesn't have. The caller
// must not change it.
func (p *Prefill) Config(instanceID uint64) *worker.RuntimeConfig { return p.configs[instanceID] }

// Prefill returns the workers that now read prompts for this set, or nil: then its own workers do, or nobody can, see
// NeedsPrefill. Safe for concurrent use.
func (s *Set) Prefill() *Prefill {
	if s.prefill == nil {
		return nil
	}
	return s.prefill.Load()
}

// NeedsPrefill reports whether the set's workers can't answer without prefill workers: each of the alternatives that
// their card lists has them.
func (s *Set) NeedsPrefill() bool {
	// Without alternatives they need nobody.
	return len(s.Card.Needs) > 0 && !slices.ContainsFunc(s.Card.Needs, func(types []string) bool {
		return !slices.Contains(types, prefill)
	})
}

// assist tells the groups of one model in one namespace that answer clients which prefill workers they have now: those
// that only decode, and those of older versions that don't say whether they do more, where some have the Prefill flag.
func assist(groups []*group) {
	// Of several, which only older workers may have, the first by name is taken.
	var pool *Prefill
	for _, g := range groups {
		if g.key.kind == prefill && g.live > 0 {
			pool = g.pool()
			break
		}
	}
	for _, g := range groups {
		if g.key.kind == decode || (g.key.kind == aggregated && g.legacy) {
			g.prefill.Store(pool)
		}
	}
}

// pool returns the group's live workers as others see them.
func (g *group) pool() *Prefill {
	p := &Prefill{Endpoint: g.key.endpoint, workers: g.workers, configs: make(map[uint64]*worker.RuntimeConfig, len(g.members))}
	for _, r := range g.members {
		p.configs[r.rec.InstanceID] = &r.rec.Card.RuntimeConfig
	}
	return p
}
