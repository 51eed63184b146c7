// Command loadgen puts load on an OpenAI-compatible server and reports latencies, failures, and what the server
// process spent. See package loadgen for what is measured and how.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/portico-llm/portico/internal/loadgen"
)

// main ends early on an interrupt, with the report of what has been measured up to then.
func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// os.Exit runs no deferred calls, so stop is called by hand.
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run returns the exit code: 0, 1 when requests failed or nothing could be measured, 2 for wrong usage. The report goes
// to stdout, everything else to stderr, so that the output can be piped. It blocks until the run is over or ctx has
// ended.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, out, err := parse(args, stderr)
	// Asking for help is no mistake; the flag set has printed it.
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(stderr, "loadgen:", err)
		return 2
	}
	// An interrupt is no error: it ends the run, which reports what it has.
	report, err := loadgen.Run(ctx, o)
	if err != nil {
		// The package's errors begin with its name already.
		fmt.Fprintln(stderr, err)
		return 1
	}
	if err := out.write(report, stdout); err != nil {
		fmt.Fprintln(stderr, "loadgen:", err)
		return 1
	}
	// A script must see that requests failed without reading the report.
	if report.Succeeded < report.Requests || report.Requests == 0 {
		return 1
	}
	return 0
}

// output says where the report goes. Text goes to standard output unless JSON takes its place there.
type output struct {
	json string // file for the JSON report; - is standard output, in place of the text
}

// write writes the report where the command line wants it. The text comes first: a file that can't be written loses
// nothing that a person waits for.
func (o output) write(r *loadgen.Report, stdout io.Writer) error {
	if o.json != "-" {
		if err := r.WriteText(stdout); err != nil {
			return fmt.Errorf("write report: %w", err)
		}
	}
	if o.json == "" {
		return nil
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode report: %w", err)
	}
	b = append(b, '\n')
	if o.json == "-" {
		_, err = stdout.Write(b)
		return err
	}
	return os.WriteFile(o.json, b, 0o644)
}

// parse reads the command line. Defaults that depend on other options are the package's: for those zero is passed on,
// and the help text says what it stands for. Usage and mistakes are printed to stderr by the flag set. Whether the
// values make sense is checked by the package.
func parse(args []string, stderr io.Writer) (loadgen.Options, output, error) {
	var o loadgen.Options
	var out output
	// A flag set that returns its errors leaves the exit code to run.
	f := flag.NewFlagSet("loadgen", flag.ContinueOnError)
	f.SetOutput(stderr)
	// The server and the shape of the requests.
	f.StringVar(&o.URL, "url", "http://127.0.0.1:8000", "base URL of the server")
	f.StringVar(&o.Model, "model", "", "model name (needed)")
	f.IntVar(&o.PromptTokens, "prompt-tokens", 109, "prompt length in tokens, as the server counts")
	f.Float64Var(&o.TokensPer, "tokens-per-word", 0, "tokens of a generated word; 0 asks the server first")
	f.IntVar(&o.Overhead, "template-tokens", 0, "tokens the chat template adds, with --tokens-per-word")
	f.IntVar(&o.MaxTokens, "max-tokens", 64, "tokens of every answer")
	f.BoolVar(&o.IgnoreEOS, "ignore-eos", false, "ask the worker to go on past its end token")
	f.BoolVar(&o.NoUsage, "no-usage", false, "don't ask for usage, nor check token counts")
	// The load.
	f.IntVar(&o.Connections, "connections", 16, "requests at a time; with --rate, at most this many")
	f.Float64Var(&o.Rate, "rate", 0, "open loop: requests per second; 0 is the closed loop")
	f.StringVar((*string)(&o.Arrival), "arrival", "poisson", "open loop: poisson or constant")
	f.BoolVar(&o.KeepAlive, "keep-alive", false, "reuse connections")
	f.DurationVar(&o.Ramp, "ramp", 0, "closed loop: spread the first requests over this time")
	// How long, and what else to watch.
	f.IntVar(&o.Requests, "requests", 0, "end after this many requests")
	f.DurationVar(&o.Duration, "duration", 0, "end after this time; without either limit 10s")
	f.IntVar(&o.Warmup, "warmup", 0, "requests before the measured ones")
	f.DurationVar(&o.Timeout, "timeout", 0, "of one request; 0 is 60s")
	f.Uint64Var(&o.Seed, "seed", 0, "prompts and arrivals; 0 is fresh every time")
	f.IntVar(&o.ServerPID, "server-pid", 0, "process whose CPU and memory to measure, with its children")
	f.StringVar(&out.json, "json", "", "file for a JSON report; - for standard output instead of the text")
	if err := f.Parse(args); err != nil {
		return o, out, err
	}
	// A flag without its dashes would otherwise be dropped without a word.
	if f.NArg() > 0 {
		return o, out, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	return o, out, nil
}
