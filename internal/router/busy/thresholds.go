package busy

import (
	"slices"

	"github.com/portico-llm/portico/api/worker"
)

// ModelThresholds are the thresholds of one model.
type ModelThresholds struct {
	Model string `json:"model"`
	worker.LoadThresholds
}

// Thresholds returns the thresholds of all models that are served, in the order of their names.
func (m *Monitor) Thresholds() []ModelThresholds {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := []ModelThresholds{}
	for _, f := range *m.fleets.Load() {
		// One model may be served at several endpoints.
		i, found := slices.BinarySearchFunc(out, f.model, func(t ModelThresholds, model string) int {
			switch {
			case t.Model < model:
				return -1
			case t.Model > model:
				return 1
			}
			return 0
		})
		if !found {
			out = slices.Insert(out, i, ModelThresholds{f.model, m.thresholdsLocked(f)})
		}
	}
	return out
}

// ThresholdsOf returns the thresholds of a model; ok is false when nobody serves it.
func (m *Monitor) ThresholdsOf(model string) (t worker.LoadThresholds, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, f := range *m.fleets.Load() {
		if f.model == model {
			return m.thresholdsLocked(f), true
		}
	}
	return t, false
}

// SetThresholds changes those thresholds of a model that t has, at once, and returns what holds then. It fails when t
// makes no sense, and ok is false when nobody serves the model. What was set is forgotten when the model goes.
func (m *Monitor) SetThresholds(model string, t worker.LoadThresholds) (now worker.LoadThresholds, ok bool, err error) {
	if err := Check(t); err != nil {
		return now, true, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.knowsLocked(model) {
		return now, false, nil
	}
	m.set[model] = m.set[model].Over(t)
	for _, f := range *m.fleets.Load() {
		if f.model == model {
			m.applyLocked(f)
			now = m.thresholdsLocked(f)
		}
	}
	m.opts.Log.Info("thresholds of a model were set", "model", model, "thresholds", now)
	return now, true, nil
}

// knowsLocked reports whether somebody serves a model.
func (m *Monitor) knowsLocked(model string) bool {
	for _, f := range *m.fleets.Load() {
		if f.model == model {
			return true
		}
	}
	return false
}
