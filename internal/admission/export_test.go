package admission

import "github.com/prometheus/client_golang/prometheus"

// Collector returns the gate's metrics of its models.
func (g *Gate) Collector() prometheus.Collector { return collector{g} }
