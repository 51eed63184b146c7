package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/portico-llm/portico/internal/loadgen"
	"github.com/portico-llm/portico/tests/e2e/stack"
)

// kvBytesPerToken is given to the mocker because it can't compute it from every model's config.json. It has no part in
// what is measured.
const kvBytesPerToken = "114688"

// bench runs all rows of all planes, one at a time: nothing else shall run beside what is measured. For one goroutine.
type bench struct {
	*settings
	tools   *stack.Tools
	dir     string // for the logs of all processes
	results []result
}

// result is one row on one plane, with the reports of both sides in the order of the rounds.
type result struct {
	Plane     string            `json:"plane"`
	Row       string            `json:"row"`
	Reference []*loadgen.Report `json:"reference"` // one per round
	Subject   []*loadgen.Report `json:"subject"`
	row       row
}

// frontends are those of one stack: the reference, and the subject once per tokenizer backend. They are started by the
// first row that needs them and run to the stack's end, idle while the other side is measured.
type frontends struct {
	stack     *stack.Stack // whose Close ends them
	reference *stack.Frontend
	subjects  map[string]*stack.Frontend // by backend
}

// plane runs all rows over one request plane, in the models' order. Every model has a stack of its own, so that
// frontends hold one tokenizer.
func (b *bench) plane(ctx context.Context, plane string) error {
	// allRows returns a new slice each time, so this one may be cut down.
	rows := slices.DeleteFunc(b.allRows(), func(r row) bool { return !b.rows.MatchString(r.name) })
	printHeader(b, plane)
	for _, model := range []string{fastModel, pacedModel, openModel} {
		of := slices.DeleteFunc(slices.Clone(rows), func(r row) bool { return r.model != model })
		if len(of) == 0 {
			continue
		}
		if err := b.stackRows(ctx, plane, model, of); err != nil {
			return err
		}
	}
	return nil
}

// stackRows runs the rows of one model in a stack of its own, prints each as it is done and closes the stack. The first
// row that can't be measured ends it.
func (b *bench) stackRows(ctx context.Context, plane, model string, rows []row) error {
	dir := filepath.Join(b.dir, plane+"-"+model)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	// ZMQ is what the workers use for their events when nobody says otherwise.
	s, err := stack.New(b.tools, stack.Options{Dir: dir, Plane: plane, Backend: stack.BackendFile, ZMQEvents: true})
	if err != nil {
		return err
	}
	defer s.Close()
	// One worker for all frontends of the stack: both sides are answered by the same.
	if err := b.startWorker(s, model); err != nil {
		return err
	}
	f := &frontends{stack: s, subjects: map[string]*stack.Frontend{}}
	for _, r := range rows {
		res, err := b.row(ctx, f, r)
		if err != nil {
			return fmt.Errorf("row %q: %w", r.name, err)
		}
		res.Plane = plane
		b.results = append(b.results, *res)
		res.print(b)
	}
	// Memory is compared after the burst rows, which are all of this model's.
	if model == fastModel {
		return f.printMemory(b)
	}
	return nil
}

// startWorker starts the worker that serves a model: Dynamo's mocker at full speed, which has no pace worth mentioning
// of its own, or this project's simulated worker where the pace matters. It doesn't wait for the worker to register.
func (b *bench) startWorker(s *stack.Stack, model string) error {
	// Fifty tokens a second: about what a large model gives one stream.
	itl := 20 * time.Millisecond
	switch model {
	case fastModel:
		_, err := s.Mocker(b.model, fastModel, "--speedup-ratio", "1000000", "--kv-bytes-per-token", kvBytesPerToken)
		return err
	case openModel:
		itl = time.Second
	}
	_, err := s.Run("simworker", s.Env(), filepath.Join(b.root, "bin", "simworker"), "--model-path", b.model,
		"--model-name", model, "--engine", "random", "--itl", itl.String(), "--ttft", "10ms", "--log-level", "warn")
	return err
}

// start starts a frontend and waits for the model, a minute at most. The reference has no choice of tokenizer backends:
// its own is what goals are set against.
func (b *bench) start(s *stack.Stack, kind, backend, model string) (*stack.Frontend, error) {
	var env []string
	if backend != "" && kind == stack.Portico {
		env = append(env, "PORTICO_TOKENIZER_BACKEND="+backend)
	}
	f, err := s.StartFrontend(kind, env...)
	if err != nil {
		return nil, err
	}
	if err := f.WaitModel(model, true, time.Minute); err != nil {
		return nil, fmt.Errorf("%s doesn't serve %s: %w\n%s", kind, model, err, s.Ended())
	}
	return f, nil
}

// row runs one row: both sides in turns, the order changing from round to round. Turns are what makes a comparison on a
// busy machine fair: whatever slows it down meets both sides.
func (b *bench) row(ctx context.Context, f *frontends, r row) (*result, error) {
	res := &result{Row: r.name, row: r}
	if r.fresh {
		return res, b.freshRow(ctx, f.stack, r, res)
	}
	var err error
	// Frontends are started when a row first needs them, so that a run of a few rows starts no others.
	if f.reference == nil {
		if f.reference, err = b.start(f.stack, b.reference, "", r.model); err != nil {
			return nil, err
		}
	}
	if f.subjects[r.backend] == nil {
		if f.subjects[r.backend], err = b.start(f.stack, b.subject, r.backend, r.model); err != nil {
			return nil, err
		}
	}
	// Both run all the time: idle, the other side costs next to nothing.
	sides := []side{{f.reference, &res.Reference}, {f.subjects[r.backend], &res.Subject}}
	for round := range b.rounds {
		if round%2 == 1 {
			slices.Reverse(sides) // neither side always comes second, after the machine has warmed up
		}
		for _, s := range sides {
			if err := s.load(ctx, r); err != nil {
				return nil, err
			}
		}
	}
	return res, nil
}

// freshRow runs a row once with frontends of its own, whatever the number of rounds: their memory doesn't shrink back
// to what it was for a second one.
func (b *bench) freshRow(ctx context.Context, s *stack.Stack, r row, res *result) error {
	for _, side := range []struct {
		kind    string
		reports *[]*loadgen.Report
	}{{b.reference, &res.Reference}, {b.subject, &res.Subject}} {
		if err := b.freshSide(ctx, s, r, side.kind, side.reports); err != nil {
			return err
		}
	}
	return nil
}

// freshSide runs a row on a frontend that is started for it and ended afterwards. The other side's isn't running then.
func (b *bench) freshSide(ctx context.Context, s *stack.Stack, r row, kind string, reports *[]*loadgen.Report) error {
	f, err := b.start(s, kind, r.backend, r.model)
	if err != nil {
		return err
	}
	defer f.Stop(10 * time.Second)
	// A little traffic first: what is built on first use is not the streams' memory.
	warm := row{model: r.model, load: loadgen.Options{PromptTokens: 109, MaxTokens: 1, Connections: 16, Requests: 200}}
	var ignored []*loadgen.Report
	if err := (side{f, &ignored}).load(ctx, warm); err != nil {
		return err
	}
	// The peak of the memory is read while the streams are open.
	return side{f, reports}.load(ctx, r)
}

// side is one frontend and where its reports go.
type side struct {
	frontend *stack.Frontend
	reports  *[]*loadgen.Report
}

// load puts the row's load on the side's frontend and adds the report. Failed requests are part of it, and no error.
func (s side) load(ctx context.Context, r row) error {
	// A copy: the row's load is the same for both sides.
	o := r.load
	o.URL, o.Model, o.ServerPID = s.frontend.URL, r.model, s.frontend.PID()
	// A worker that was lost under the load before gets time to come back.
	if err := s.frontend.WaitModel(r.model, true, time.Minute); err != nil {
		return err
	}
	// The same pause for everyone: what the run before left to do shall not be counted here.
	select {
	case <-time.After(500 * time.Millisecond):
	case <-ctx.Done():
		return ctx.Err()
	}
	report, err := loadgen.Run(ctx, o)
	if err != nil {
		return fmt.Errorf("%s: %w", s.frontend.Kind, err)
	}
	// Half a run is no result.
	if ctx.Err() != nil {
		return ctx.Err()
	}
	*s.reports = append(*s.reports, report)
	return nil
}
