package pipeline

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// vec is a metric with labels.
type vec interface {
	DeletePartialMatch(labels prometheus.Labels) int
}

// modelSeries are the metrics that have a series for each model, and the names they have them for.
type modelSeries struct {
	vecs  []vec
	names sync.Map // of models
}

// note says that a model has series.
func (s *modelSeries) note(model string) {
	if _, known := s.names.Load(model); !known {
		s.names.Store(model, nil)
	}
}

// Retain deletes the series of models for which keep is false, and what the gate knows of them. It is called now and
// then, from any goroutine; requests of such a model begin its series anew.
func (p *Pipeline) Retain(keep func(model string) bool) {
	if p.gate != nil {
		p.gate.Retain(keep)
	}
	for k := range p.series.names.Range {
		if name := k.(string); !keep(name) {
			p.series.names.Delete(k)
			for _, v := range p.series.vecs {
				v.DeletePartialMatch(prometheus.Labels{"model": name})
			}
		}
	}
}
