// Command bench compares this project's frontend with Dynamo's: both run at the same time in front of the same worker,
// take the same load in turns, and are measured by CPU time, latency and memory.
//
//	go run ./tests/bench              # every row, over both planes; twenty minutes
//	go run ./tests/bench -short       # one short run of each, over TCP; three minutes
//	go run ./tests/bench -rows burst  # rows whose name matches
//
// bin/frontend, bin/simworker and the Python peers must be there: `make bench` sees to that.
//
// Two machines' figures can't be compared, nor can two rows: trust the ratios within a row. Worker, load generator and
// frontend share the machine, so a request rate says how much all of them cost together.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/portico-llm/portico/tests/e2e/stack"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		// The flag set has printed its help already.
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "bench:", err)
		}
		stop()
		os.Exit(1)
	}
}

// settings are the command line, complete once parse and findModel are through.
type settings struct {
	root      string         // of the repository, absolute
	short     bool           // few and short runs, to see that everything works
	rounds    int            // runs of every row and side
	duration  time.Duration  // of a run
	planes    []string       // in the order they are measured
	reference string         // what is compared with
	subject   string         // what is measured
	model     string         // folder
	rows      *regexp.Regexp // names of rows to run; the empty one matches all
	out       string         // file for JSON
	keep      bool           // logs, too, when all went well
}

// parse reads the command line and fills in what -short and the defaults decide. Options that are given stand above
// -short.
func parse(args []string) (*settings, error) {
	s := &settings{}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.StringVar(&s.root, "root", ".", "folder of the repository")
	f.BoolVar(&s.short, "short", false, "one round of short runs over the TCP plane")
	f.IntVar(&s.rounds, "rounds", 0, "runs of every row and frontend; 0 is 3, or 1 with -short")
	f.DurationVar(&s.duration, "duration", 0, "of one run; 0 is 8s, or 3s with -short")
	planes := f.String("planes", "", "request planes; empty is tcp,nats, or tcp with -short")
	f.StringVar(&s.reference, "reference", stack.Dynamo, "frontend to compare with")
	f.StringVar(&s.subject, "subject", stack.Portico, "frontend to measure; dynamo checks the harness against itself")
	f.StringVar(&s.model, "model", "", "model folder; empty is qwen3, fetched once, or else the small model of this repository")
	rows := f.String("rows", "", "regular expression that names of rows must match")
	f.StringVar(&s.out, "json", "", "file for all reports as JSON")
	f.BoolVar(&s.keep, "keep", false, "keep the logs of all processes")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	var err error
	if s.rows, err = regexp.Compile(*rows); err != nil {
		return nil, fmt.Errorf("-rows: %w", err)
	}
	if s.rounds == 0 {
		s.rounds = 3
		if s.short {
			s.rounds = 1
		}
	}
	if s.duration == 0 {
		s.duration = 8 * time.Second
		if s.short {
			s.duration = 3 * time.Second
		}
	}
	switch {
	case *planes != "":
		s.planes = strings.Split(*planes, ",")
	case s.short:
		s.planes = []string{stack.PlaneTCP}
	default:
		s.planes = []string{stack.PlaneTCP, stack.PlaneNATS}
	}
	s.root, err = filepath.Abs(s.root)
	return s, err
}

// run measures plane after plane; a plane that fails ends everything, and its logs stay. Tables are printed as they
// come, the JSON file is written at the end. Goals that are missed are no error: that is for the reader to judge.
func run(ctx context.Context, args []string) error {
	s, err := parse(args)
	if err != nil {
		return err
	}
	tools, err := stack.FindTools(s.root, false)
	if err != nil {
		return err
	}
	if s.model == "" {
		s.model = s.findModel(tools)
	}
	// Logs are what is left when a program doesn't start, so their place is printed first.
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return err
	}
	fmt.Printf("model %s, %d rounds of %s; logs in %s\n", filepath.Base(s.model), s.rounds, s.duration, dir)
	b := &bench{settings: s, tools: tools, dir: dir}
	for _, plane := range s.planes {
		if err := b.plane(ctx, plane); err != nil {
			return fmt.Errorf("%s plane: %w (logs in %s)", plane, err, dir)
		}
	}
	if s.out != "" {
		j, err := json.MarshalIndent(b.results, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(s.out, append(j, '\n'), 0o644); err != nil {
			return err
		}
	}
	// A run that went well leaves nothing behind.
	if !s.keep {
		return os.RemoveAll(dir)
	}
	return nil
}

// findModel returns the folder of the model whose tokenizer the goals are set for. Without a network it falls back to
// the small model of the repository, and says so.
func (s *settings) findModel(tools *stack.Tools) string {
	qwen := filepath.Join(s.root, ".build", "fixtures", "qwen3")
	if _, err := os.Stat(filepath.Join(qwen, "tokenizer.json")); err == nil {
		return qwen
	}
	fetch := exec.Command(filepath.Join(s.root, "tests", "fixtures", "fetch.sh"), "qwen3")
	// Standard output is the table's.
	fetch.Stdout, fetch.Stderr = os.Stderr, os.Stderr
	if err := fetch.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench: qwen3 could not be fetched; memory goals are set for its tokenizer:", err)
		return tools.Model()
	}
	return qwen
}
