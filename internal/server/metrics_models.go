package server

import (
	"maps"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// farewell is how long a model's series stay after it has gone, so that its last requests are still scraped.
const farewell = 2 * time.Minute

// gatherer is inner, without the series of models that went a while ago. Names of models come and go without end where
// adapters do, and each has a few hundred series.
func (s *Server) gatherer(inner prometheus.Gatherer) prometheus.Gatherer {
	if inner == nil {
		return nil
	}
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		s.prune(time.Now())
		return inner.Gather()
	})
}

// prune forgets the models that have been gone for long enough, here and in the pipeline.
func (s *Server) prune(now time.Time) {
	known := map[string]bool{unknownModel: true}
	for _, m := range s.opts.Catalog.Models() {
		known[m.ID] = true
	}
	s.metrics.retain(known, now)
	left := *s.metrics.models.Load()
	s.opts.Pipeline.Retain(func(model string) bool { return known[model] || left[model] != nil })
}

// retain deletes the series of models that aren't known, once they have been gone for farewell and have no requests.
func (m *metrics) retain(known map[string]bool, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := *m.models.Load()
	var next map[string]*modelMetrics
	for name, h := range old {
		switch {
		case known[name] || h.running.Load() > 0:
			h.gone = time.Time{}
		case h.gone.IsZero():
			h.gone = now
		case now.Sub(h.gone) >= farewell:
			if next == nil {
				next = maps.Clone(old)
			}
			delete(next, name)
		}
	}
	if next == nil {
		return
	}
	// First out of the map: who looks the name up from now on makes its series anew.
	m.models.Store(&next)
	for name := range old {
		if next[name] == nil {
			for _, v := range m.byModel {
				v.DeletePartialMatch(prometheus.Labels{"model": name})
			}
		}
	}
}
