package main

import (
	"log/slog"
	"sync"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/dispatch"
	"github.com/portico-llm/portico/internal/router/kvroute"
	"github.com/portico-llm/portico/internal/router/policy"
)

// routes says how the workers of each endpoint are chosen: as --router-mode has it, unless the card of a model there
// wants it otherwise. Safe for concurrent use.
type routes struct {
	ratio float64         // of the device-aware policy
	kv    *kvroute.Router // has its own view of which endpoints are in its mode
	log   *slog.Logger

	mu    sync.Mutex
	noted map[string]struct{} // guarded by mu: what the log has been told of
}

// policy returns the policy of a mode.
func (r *routes) policy(mode string) (router.Policy, error) {
	if mode == kvroute.Mode {
		// What can't be chosen by caches, for want of tokens or of a card, is chosen by load.
		return policy.New(policy.LeastLoad)
	}
	if mode == policy.DeviceAware {
		return policy.NewDeviceAware(r.ratio), nil
	}
	return policy.New(mode)
}

// of is dispatch.Options.Route. The first card that asks for a mode decides, adapters' cards excepted: they share their
// base model's workers. A mode that isn't known here is left to the frontend's own setting, with a warning.
func (r *routes) of(id worker.EndpointID, snap *router.Snapshot) dispatch.Route {
	if r.kv != nil {
		if chooser := r.kv.Route(id, snap); chooser != nil {
			return dispatch.Route{Chooser: chooser}
		}
	}
	for _, m := range snap.Models {
		// Nearly all cards ask for nothing.
		if len(m.Card.RouterConfig) == 0 || m.Suffix != "" || m.ID() != id {
			continue
		}
		cfg, err := m.Card.Router()
		if err == nil && cfg.Mode == "" {
			continue
		}
		var choose router.Policy
		if err == nil {
			choose, err = r.policy(cfg.ModeName())
		}
		if err != nil {
			r.warn(id.String(), "model", m.Card.DisplayName, "endpoint", id.String(), "error", err)
			return dispatch.Route{}
		}
		return dispatch.Route{Policy: choose}
	}
	return dispatch.Route{}
}

// warn tells the log, once for each endpoint.
func (r *routes) warn(key string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.noted[key]; known {
		return
	}
	if r.noted == nil {
		r.noted = map[string]struct{}{}
	}
	r.noted[key] = struct{}{}
	r.log.Warn("router_config of a model's card can't be used", args...)
}
