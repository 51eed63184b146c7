package observe

import (
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"
)

// NewRegistry returns a registry that already tells about the Go runtime, the process and the build.
func NewRegistry() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	version, revision := Version()
	// The usual way to join a build to other series: a constant with labels.
	info := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        "portico_build_info",
		Help:        "Always 1; the labels say which build this is.",
		ConstLabels: prometheus.Labels{"version": version, "revision": revision},
	}, func() float64 { return 1 })
	began := time.Now()
	uptime := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "dynamo_component_uptime_seconds", Help: "Time since the process began (seconds)",
	}, func() float64 { return time.Since(began).Seconds() })
	registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), info, uptime)
	return registry
}

// Version returns the version and the source revision of the running program, as far as its build recorded them.
func Version() (version, revision string) {
	version, revision = "devel", "unknown"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return version, revision
	}
	// Only a build of a tagged module has a version.
	if v := info.Main.Version; v != "" && v != "(devel)" {
		version = v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			revision = s.Value
		}
	}
	return version, revision
}

// WithPrefix gives the metrics whose names begin with the prefix from another one, as DYN_METRICS_PREFIX asks.
// Everything else passes through as it is. The work is done when metrics are gathered, so that the code that counts
// knows nothing of it.
func WithPrefix(inner prometheus.Gatherer, from, to string) prometheus.Gatherer {
	// The default prefix costs nothing.
	if from == to {
		return inner
	}
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		families, err := inner.Gather()
		for _, f := range families {
			if rest, ok := strings.CutPrefix(f.GetName(), from+"_"); ok {
				name := to + "_" + rest
				f.Name = &name
			}
		}
		// The exposition wants families sorted by name, and the new names sort differently.
		slices.SortFunc(families, func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) })
		return families, err
	})
}
