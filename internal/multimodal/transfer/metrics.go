package transfer

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// results are how a transfer may end.
var results = [...]string{"read", "unread", "untold", "unlinked"}

// Indexes of results. What was unlinked may have been read or not: nobody says.
const (
	read = iota
	unread
	untold
	unlinked
)

// metrics tell how transfers end.
type metrics struct {
	// By way and result, found beforehand: releasing is quicker than looking a label up.
	batches  map[string]*[len(results)]prometheus.Counter
	refused  prometheus.Counter
	failures prometheus.Counter
	seconds  prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) *metrics {
	batches := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "portico_media_transfers_total", Help: "Transfers that have ended, by way and result.",
	}, []string{"way", "result"})
	m := &metrics{
		batches: map[string]*[len(results)]prometheus.Counter{},
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "portico_media_transfers_refused_total", Help: "Transfers there was no room for: the images went by URL.",
		}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "portico_media_release_failures_total", Help: "Pieces of transfer memory whose release failed.",
		}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "portico_media_release_seconds", Help: "Time to release the memory of one transfer.",
			Buckets: []float64{.000001, .000005, .00002, .0001, .0005, .002, .01, .05},
		}),
	}
	for _, way := range []string{"nixl", "shm"} {
		m.batches[way] = &[len(results)]prometheus.Counter{}
		for i, result := range results {
			m.batches[way][i] = batches.WithLabelValues(way, result)
		}
	}
	if reg != nil {
		reg.MustRegister(batches, m.refused, m.failures, m.seconds)
	}
	return m
}

// closed counts one batch, of whose images some were not read and some could not be released.
func (m *metrics) closed(b *Batch, late, failed int, took time.Duration) {
	result := read
	switch {
	case b.tells.Load() == 0:
		result = untold
	case late > 0:
		result = unread
	case b.segments != nil:
		result = unlinked
	}
	m.batches[b.Way()][result].Inc()
	if failed > 0 {
		m.failures.Add(float64(failed))
	}
	m.seconds.Observe(took.Seconds())
}
