package main

import (
	"fmt"
	"time"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/config"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/affinity"
	"github.com/portico-llm/portico/internal/router/dispatch"
)

// sessions says which endpoints bind sessions to workers, and for how long. Safe for concurrent use.
type sessions struct {
	ttl      time.Duration // 0: sessions aren't bound, unless a card wants it
	mode     affinity.Mode
	replicas *affinity.Replicas
}

// newSessions reads the settings.
func newSessions(l *config.Loads, replicas *affinity.Replicas) (*sessions, error) {
	mode, err := affinity.ParseMode(l.AffinityMode)
	if err != nil {
		return nil, fmt.Errorf("router-session-affinity-mode: %w", err)
	}
	s := &sessions{mode: mode, replicas: replicas}
	if l.AffinityTTL != nil {
		s.ttl = ttl(*l.AffinityTTL)
	}
	return s, nil
}

// ttl turns seconds into a duration; anything that isn't positive binds nothing.
func ttl(seconds float64) time.Duration {
	const longest = 30 * 24 * time.Hour
	if !(seconds > 0) { // written so that NaN doesn't pass
		return 0
	}
	return time.Duration(min(seconds, longest.Seconds()) * float64(time.Second))
}

// with adds an endpoint's sessions to how its instances are chosen.
func (s *sessions) with(route routeFunc) routeFunc {
	return func(id worker.EndpointID, snap *router.Snapshot) dispatch.Route {
		r := route(id, snap)
		r.Sessions = s.of(id, snap)
		return r
	}
}

// routeFunc is dispatch.Options.Route.
type routeFunc = func(worker.EndpointID, *router.Snapshot) dispatch.Route

// of returns the sessions of an endpoint, nil when they aren't bound there: where no model is served there are none. An
// endpoint keeps its sessions for as long as it has workers.
func (s *sessions) of(id worker.EndpointID, snap *router.Snapshot) dispatch.Sessions {
	keep := time.Duration(0)
	for _, m := range snap.Models {
		if m.Suffix != "" || m.ID() != id {
			continue
		}
		keep = max(keep, s.ttl)
		if len(m.Card.RouterConfig) == 0 {
			continue
		}
		if cfg, err := m.Card.Router(); err == nil && cfg.AffinityTTL != nil {
			keep = ttl(*cfg.AffinityTTL)
			break
		}
	}
	s.replicas.Retain(func(at worker.EndpointID) bool {
		return len(snap.Instances[at]) > 0 && (at != id || keep > 0)
	})
	if keep == 0 {
		return nil
	}
	return s.replicas.Table(id, keep, s.mode)
}
