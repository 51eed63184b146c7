package pipeline

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// migrationMetrics count requests that went on at another worker, under the names operators already chart.
type migrationMetrics struct {
	total    *prometheus.CounterVec   // by model, kind of move, outcome
	duration *prometheus.HistogramVec // likewise
	tooLong  *prometheus.CounterVec   // by model
}

// The kinds of move, and how they end.
const (
	newRequest     = "new_request"     // the worker was lost before it began to answer
	ongoingRequest = "ongoing_request" // while it did

	moveSucceeded = "success" // another worker has begun
	moveFailed    = "failure"
	moveCancelled = "cancelled" // the client left meanwhile
)

// newMigrationMetrics makes the metrics and registers them; nil registers none.
func newMigrationMetrics(reg prometheus.Registerer) *migrationMetrics {
	labels := []string{"model", "migration_type", "outcome"}
	m := &migrationMetrics{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "dynamo_frontend", Name: "model_migration_total",
			Help: "Requests sent to another worker because theirs was lost",
		}, labels),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "dynamo_frontend", Name: "model_migration_duration_seconds",
			Help:    "Time from noticing that a worker was lost until another had begun, or none could (seconds)",
			Buckets: []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30},
		}, labels),
		tooLong: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "dynamo_frontend", Name: "model_migration_max_seq_len_exceeded_total",
			Help: "Requests that became too long to go on at another worker",
		}, []string{"model"}),
	}
	if reg != nil {
		reg.MustRegister(m.total, m.duration, m.tooLong)
	}
	return m
}

// ongoing counts one move of a request whose answer had begun.
func (m *migrationMetrics) ongoing(model, outcome string, took time.Duration) {
	m.total.WithLabelValues(model, ongoingRequest, outcome).Inc()
	m.duration.WithLabelValues(model, ongoingRequest, outcome).Observe(took.Seconds())
}

// fresh counts the moves within one Dispatch: each instance tried in vain but the last led to the next one, which
// failed too; the last led to whatever came out.
func (m *migrationMetrics) fresh(model string, refused int, outcome string) {
	if outcome == moveFailed { // none came after the last
		refused--
	} else if refused > 0 {
		m.total.WithLabelValues(model, newRequest, outcome).Inc()
		refused--
	}
	if refused > 0 {
		m.total.WithLabelValues(model, newRequest, moveFailed).Add(float64(refused))
	}
}

// outcomeOf tells how a Dispatch ended.
func outcomeOf(ctx context.Context, err error) string {
	switch {
	case err == nil:
		return moveSucceeded
	case ctx.Err() != nil:
		return moveCancelled
	}
	return moveFailed
}
