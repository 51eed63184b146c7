package loadgen

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// Latency summarises a set of durations, in milliseconds. Quantiles are up to 1 % too large, mean and maximum are
// exact.
type Latency struct {
	Count uint64  `json:"count"`
	Mean  float64 `json:"mean"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P95   float64 `json:"p95"`
	P99   float64 `json:"p99"`
	Max   float64 `json:"max"`
}

// Report is the outcome of a run. Counts and times leave out the warm-up.
type Report struct {
	Requests  int            `json:"requests"` // completed, with or without success
	Succeeded int            `json:"succeeded"`
	Errors    map[string]int `json:"errors,omitempty"` // by kind
	Examples  []string       `json:"examples,omitempty"`

	Seconds        float64 `json:"seconds"` // from the first request to the end of the last
	RequestsPerSec float64 `json:"requests_per_sec"`
	TokensPerSec   float64 `json:"tokens_per_sec"`
	PromptTokens   float64 `json:"prompt_tokens"`     // mean, as the server counted
	OutputTokens   float64 `json:"completion_tokens"` // mean
	Words          int     `json:"words"`             // of every prompt

	TTFT Latency `json:"ttft_ms"` // to the first text
	ITL  Latency `json:"itl_ms"`  // between two texts
	E2E  Latency `json:"e2e_ms"`  // to the end of the answer

	Server *ServerReport `json:"server,omitempty"`
}

// ServerReport is what the server process, with its children, spent during the run.
type ServerReport struct {
	CPUSeconds      float64 `json:"cpu_seconds"`        // user and system
	CPUPerRequestMS float64 `json:"cpu_per_request_ms"` // of all requests, failed ones too
	CPUPerTokenUS   float64 `json:"cpu_per_token_us"`   // of the tokens that came out
	RSSBeforeMiB    float64 `json:"rss_before_mib"`
	RSSPeakMiB      float64 `json:"rss_peak_mib"`
	RSSAfterMiB     float64 `json:"rss_after_mib"`
	PeakThreads     int     `json:"peak_threads"`
}

// WriteText writes the report for people, in one write. Scripts had better read the JSON form.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "requests   %d in %.1f s (%.1f/s), %d succeeded; %.0f tokens in, %.0f out, %.0f tokens/s\n",
		r.Requests, r.Seconds, r.RequestsPerSec, r.Succeeded, r.PromptTokens, r.OutputTokens, r.TokensPerSec)
	for _, k := range slices.Sorted(maps.Keys(r.Errors)) {
		fmt.Fprintf(&b, "error      %-14s %d\n", k, r.Errors[k])
	}
	for _, e := range r.Examples {
		fmt.Fprintf(&b, "           %s\n", e)
	}
	fmt.Fprintf(&b, "%-10s %9s %9s %9s %9s %9s %9s\n", "ms", "mean", "p50", "p90", "p95", "p99", "max")
	for _, row := range []struct {
		name string
		l    Latency
	}{{"TTFT", r.TTFT}, {"ITL", r.ITL}, {"E2E", r.E2E}} {
		fmt.Fprintf(&b, "%-10s %9.2f %9.2f %9.2f %9.2f %9.2f %9.2f\n",
			row.name, row.l.Mean, row.l.P50, row.l.P90, row.l.P95, row.l.P99, row.l.Max)
	}
	if s := r.Server; s != nil {
		fmt.Fprintf(&b, "server     CPU %.2f s, %.3f ms a request, %.1f µs a token; RSS %.0f → %.0f (peak %.0f) MiB; %d threads\n",
			s.CPUSeconds, s.CPUPerRequestMS, s.CPUPerTokenUS, s.RSSBeforeMiB, s.RSSAfterMiB, s.RSSPeakMiB, s.PeakThreads)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
