package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/portico-llm/portico/internal/loadgen"
)

// line is the format of the table's lines: row, side, and the columns of printHeader.
const line = "%-48s %-9s %9s %9s %15s %9s %9s %8s %7s\n"

// printHeader begins the table of a plane. CPU is milliseconds of the frontend for each request; TTFT, ITL and E2E are
// milliseconds, too.
func printHeader(b *bench, plane string) {
	fmt.Printf("\n%s plane\n", strings.ToUpper(plane))
	fmt.Printf(line, "", "", "CPU ms", "req/s", "TTFT p50/p99", "ITL p99", "E2E p50", "RSS MiB", "failed")
}

// print writes both sides of a row, then the ratios of the subject to the reference: below 1 is better, but for req/s.
// Every figure is the median of the rounds. Goals are judged by the ratio of the medians.
func (r *result) print(b *bench) {
	names := []string{b.reference, b.subject}
	// The harness is being checked against itself.
	if names[0] == names[1] {
		names[1] += "'"
	}
	for i, reports := range [][]*loadgen.Report{r.Reference, r.Subject} {
		// The row's name stands once, above both sides.
		title := ""
		if i == 0 {
			title = r.Row
		}
		m := medians(reports)
		fmt.Printf(line, title, names[i], f3(m.cpu), f0(m.rate), f1(m.ttft50)+" / "+f1(m.ttft99), f1(m.itl99), f1(m.e2e50), f0(m.rss), f0(m.failed))
	}
	ref, sub := medians(r.Reference), medians(r.Subject)
	// The ratios' line has no side and no title; below it comes what there is to say.
	verdict := ""
	// CPU time is what goals are set for; the rest is there to be seen.
	if r.row.goal > 0 {
		verdict = fmt.Sprintf("goal %.2f: %s", r.row.goal, met(sub.cpu <= r.row.goal*ref.cpu))
	}
	fmt.Printf(line, "", "ratio", f2(sub.cpu/ref.cpu), f2(sub.rate/ref.rate), f2(sub.ttft50/ref.ttft50)+" / "+f2(sub.ttft99/ref.ttft99),
		f2(sub.itl99/ref.itl99), f2(sub.e2e50/ref.e2e50), f2(sub.rss/ref.rss), "")
	// CPU time could be bought with latency; this says when it was.
	if sub.ttft50 > ref.ttft50 || sub.ttft99 > ref.ttft99 {
		verdict += "  TTFT is above the reference's"
	}
	// From the resident size: what the kernel holds for sockets isn't in it.
	if r.row.perStream > 0 {
		fmt.Printf("%48s memory of a stream: %.0f and %.0f KiB; goal %.0f: %s\n", "",
			ref.perStream, sub.perStream, r.row.perStream, met(sub.perStream <= r.row.perStream))
	}
	if verdict != "" {
		fmt.Printf("%48s %s\n", "", verdict)
	}
	r.printErrors(names)
}

// printErrors says what failed: a row with failures measures something else. Each run has its own lines, with the first
// few texts.
func (r *result) printErrors(names []string) {
	for i, reports := range [][]*loadgen.Report{r.Reference, r.Subject} {
		for _, p := range reports {
			for kind, n := range p.Errors {
				fmt.Printf("%48s %s: %d × %s, such as %.120q\n", "", names[i], n, kind, p.Examples)
			}
		}
	}
}

// printMemory writes what the frontends hold after all their load. It reads the processes as they are now: idle, with
// whatever their run-times have not given back.
func (f *frontends) printMemory(b *bench) error {
	if f.reference == nil {
		return nil
	}
	ref, err := loadgen.Resident(f.reference.PID())
	if err != nil {
		return err
	}
	const mib = 1 << 20
	// A tokenizer backend is a process of its own here, so each has its own size.
	for backend, s := range f.subjects {
		rss, err := loadgen.Resident(s.PID())
		if err != nil {
			return err
		}
		title := "resident after all load"
		if backend != "" {
			title += ", " + backend + " backend"
		}
		fmt.Printf("%-48s %s %d MiB, %s %d MiB; goal %d: %s\n", title, b.reference, ref/mib, b.subject, rss/mib, rssGoal, met(rss <= rssGoal*mib))
	}
	return nil
}

// figures are the medians of several runs.
type figures struct {
	// CPU in ms a request, requests a second, latencies in ms, MiB, failed requests of a run, KiB a stream at the peak.
	cpu, rate, ttft50, ttft99, itl99, e2e50, rss, failed, perStream float64
}

// medians takes the figures apart, each to its own median: one slow run then spoils none.
func medians(reports []*loadgen.Report) figures {
	of := func(f func(*loadgen.Report) float64) float64 {
		v := make([]float64, len(reports))
		for i, r := range reports {
			v[i] = f(r)
		}
		slices.Sort(v)
		// Without rounds there is nothing to show, which zero says.
		if len(v) == 0 {
			return 0
		}
		// The middle one, or the mean of the two in the middle.
		return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
	}
	return figures{
		cpu:    of(func(r *loadgen.Report) float64 { return r.Server.CPUPerRequestMS }),
		rate:   of(func(r *loadgen.Report) float64 { return r.RequestsPerSec }),
		ttft50: of(func(r *loadgen.Report) float64 { return r.TTFT.P50 }),
		ttft99: of(func(r *loadgen.Report) float64 { return r.TTFT.P99 }),
		itl99:  of(func(r *loadgen.Report) float64 { return r.ITL.P99 }),
		e2e50:  of(func(r *loadgen.Report) float64 { return r.E2E.P50 }),
		rss:    of(func(r *loadgen.Report) float64 { return r.Server.RSSAfterMiB }),
		failed: of(func(r *loadgen.Report) float64 { return float64(r.Requests - r.Succeeded) }),
		// From before the row to its peak. The warm-up has already paid for what is built on first use.
		perStream: of(func(r *loadgen.Report) float64 {
			return (r.Server.RSSPeakMiB - r.Server.RSSBeforeMiB) * 1024 / float64(max(r.Requests, 1))
		}),
	}
}

// met names the outcome of a goal. The miss is in capitals, to be found in a long table.
func met(ok bool) string {
	if ok {
		return "met"
	}
	return "MISSED"
}

// Numbers with so many digits behind the point.
func f0(v float64) string { return fmt.Sprintf("%.0f", v) }
func f1(v float64) string { return fmt.Sprintf("%.1f", v) }
func f2(v float64) string { return fmt.Sprintf("%.2f", v) }
func f3(v float64) string { return fmt.Sprintf("%.3f", v) }
