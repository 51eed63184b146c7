// Command router compares mode kv of Dynamo's frontend and of this one: both run all the time over the same four workers,
// and take turns with prompts that share beginnings. It prints how much of the prompts the workers had cached, and the
// time to the first token. Then it looks how evenly four frontends spread prompts that share nothing over five workers.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/portico-llm/portico/tests/e2e/stack"
)

// settings are the flags.
type settings struct {
	rounds, requests, connections, groups int
	speedup                               string
	events                                string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "router:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	var s settings
	flag.IntVar(&s.rounds, "rounds", 3, "rounds of both sides")
	flag.IntVar(&s.requests, "requests", 240, "requests in a round")
	flag.IntVar(&s.connections, "connections", 16, "requests at a time")
	flag.IntVar(&s.groups, "groups", 12, "different beginnings of prompts in a round")
	flag.StringVar(&s.speedup, "speedup", "5", "speed of the workers, against a real one's")
	flag.StringVar(&s.events, "events", "zmq", "event plane of the workers: zmq or nats")
	within := flag.Duration("within", 4*time.Minute, "give up after that")
	flag.Parse()
	ctx, stop := context.WithTimeout(ctx, *within)
	defer stop()
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	if !stack.Installed(root) {
		return errors.New("the peers are not installed: make peers does that")
	}
	tools, err := stack.FindTools(root, false)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "bench-router-")
	if err != nil {
		return err
	}
	if err := errors.Join(compare(ctx, tools, &s, filepath.Join(dir, "compare")), spread(ctx, tools, &s, filepath.Join(dir, "spread"))); err != nil {
		return fmt.Errorf("%w (logs in %s)", err, dir)
	}
	return os.RemoveAll(dir)
}

// modelName is what the workers serve.
const modelName = "mock"

// start starts the servers of a stack and n workers.
func start(tools *stack.Tools, s *settings, dir string, n int) (*stack.Stack, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	st, err := stack.New(tools, stack.Options{Dir: dir, Plane: stack.PlaneTCP, Backend: stack.BackendFile, ZMQEvents: s.events == "zmq"})
	if err != nil {
		return nil, err
	}
	for range n {
		if _, err := st.Mocker(tools.Model(), modelName, "--speedup-ratio", s.speedup, "--kv-bytes-per-token", "131072", "--block-size", "16"); err != nil {
			st.Close()
			return nil, err
		}
	}
	return st, nil
}

// frontend starts a frontend in mode kv and waits until it serves the model and has had time to hear of all workers.
func frontend(st *stack.Stack, kind string) (*stack.Frontend, error) {
	env := []string{"DYN_ROUTER_MODE=kv"}
	if st.NATS != nil {
		env = append(env, "NATS_SERVER="+st.NATS.URL(), "DYN_EVENT_PLANE=nats")
	}
	f, err := st.StartFrontend(kind, env...)
	if err != nil {
		return nil, err
	}
	if err := f.WaitModel(modelName, true, time.Minute); err != nil {
		return nil, err
	}
	return f, nil
}

// compare lets both kinds take turns.
func compare(ctx context.Context, tools *stack.Tools, s *settings, dir string) error {
	st, err := start(tools, s, dir, 4)
	if err != nil {
		return err
	}
	defer st.Close()
	kinds := []string{stack.Dynamo, stack.Portico}
	sides := map[string]*stack.Frontend{}
	for _, kind := range kinds {
		if sides[kind], err = frontend(st, kind); err != nil {
			return err
		}
	}
	if err := sleep(ctx, 3*time.Second); err != nil { // all four workers have been found
		return err
	}
	fmt.Printf("four workers, %d requests a round of %d beginnings, %d at a time, events over %s\n",
		s.requests, s.groups, s.connections, s.events)
	fmt.Printf("%-28s %12s %12s\n", "", "dynamo", "portico")
	all := map[string][]outcome{}
	for round := range s.rounds {
		for _, kind := range kinds {
			// What a side may find cached is its own round's: prompts begin with words that no other has.
			o, err := load(ctx, sides[kind], s, fmt.Sprintf("%s %d", kind, round))
			if err != nil {
				return fmt.Errorf("%s: %w\n%s", kind, err, st.Ended())
			}
			all[kind] = append(all[kind], o)
		}
		slices.Reverse(kinds) // neither side always comes second
	}
	for _, m := range []struct {
		name  string
		value func(o *outcome) float64
	}{
		{"cached share of prompts, %", func(o *outcome) float64 { return 100 * float64(o.cached) / float64(o.prompt) }},
		{"first token p50, ms", func(o *outcome) float64 { return o.percentile(50) }},
		{"first token p99, ms", func(o *outcome) float64 { return o.percentile(99) }},
		{"requests/s", func(o *outcome) float64 { return float64(len(o.first)) / o.took.Seconds() }},
		{"failed", func(o *outcome) float64 { return float64(o.failed) }},
	} {
		fmt.Printf("%-28s", m.name)
		for _, kind := range []string{stack.Dynamo, stack.Portico} {
			var values []float64
			for i := range all[kind] {
				values = append(values, m.value(&all[kind][i]))
			}
			slices.Sort(values)
			fmt.Printf(" %12.4g", values[len(values)/2])
		}
		fmt.Println()
	}
	return nil
}

// spread has four frontends send prompts that share nothing to five workers, all at once.
func spread(ctx context.Context, tools *stack.Tools, s *settings, dir string) error {
	const workers, frontends, prompts = 5, 4, 512
	st, err := start(tools, s, dir, workers)
	if err != nil {
		return err
	}
	defer st.Close()
	var list []*stack.Frontend
	for range frontends {
		f, err := frontend(st, stack.Portico)
		if err != nil {
			return err
		}
		list = append(list, f)
	}
	if err := sleep(ctx, 3*time.Second); err != nil {
		return err
	}
	counts, err := scatter(ctx, list, prompts)
	if err != nil {
		return err
	}
	most := 0
	for _, n := range counts {
		most = max(most, n)
	}
	fmt.Printf("%d prompts at once, %d frontends, %d workers: most at one worker is %.2f of the mean (at most 1.3)\n",
		prompts, frontends, len(counts), float64(most)*workers/prompts)
	return nil
}

// sleep waits, or returns why it didn't.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
