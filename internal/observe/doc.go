// Package observe sets up what the program says about itself: the log on standard error, traces over OTLP and the
// registry behind /metrics. It decides how things are said, not what: spans, log lines and metrics are declared next
// to the code they are about.
//
// The package holds no state, with one exception that OpenTelemetry leaves no way around: StartTracing sends the
// library's own errors to the program's log, for the whole process. What it returns is safe for concurrent use.
package observe
