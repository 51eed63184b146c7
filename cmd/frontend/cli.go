package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/portico-llm/portico/internal/config"
	"github.com/portico-llm/portico/internal/observe"
)

// Exit codes.
const (
	exitOK      = 0 // a clean stop
	exitFailure = 1 // something failed
	exitUsage   = 2 // a wrong command line, variable or file
)

// program is the command with what it does and where it prints. Tests put others in the place of what it does.
type program struct {
	serve func(ctx context.Context, cfg *config.Config, log *slog.Logger, stdout io.Writer) error // until ctx ends
	// render is the sub-command; it returns the exit code.
	render func(args []string, stdout, stderr io.Writer) int

	// parse and image are the other ones.
	parse func(args []string, stdin io.Reader, stdout, stderr io.Writer) int
	image func(args []string, stdout, stderr io.Writer) int

	stdin          io.Reader
	stdout, stderr io.Writer
}

// main runs the command and returns its exit code. It is a method, and not main itself, so that tests can run it with
// arguments, environment and output of their own.
func (p *program) main(args, environ []string) int {
	// The sub-commands have flags of their own and read no environment.
	if len(args) > 0 {
		switch args[0] {
		case "render":
			return p.render(args[1:], p.stdout, p.stderr)
		case "parse":
			return p.parse(args[1:], p.stdin, p.stdout, p.stderr)
		case "image":
			return p.image(args[1:], p.stdout, p.stderr)
		}
	}
	// Everything the outside says is read here, once; from here on it is plain fields.
	cfg, warnings, err := config.Load(args, environ, os.ReadFile)
	switch {
	// Help was asked for, so it is the output and not a complaint.
	case errors.Is(err, config.ErrHelp):
		writeHelp(p.stdout)
		return exitOK
	case errors.Is(err, config.ErrVersion):
		version, revision := observe.Version()
		fmt.Fprintf(p.stdout, "portico frontend %s (%s)\n", version, revision)
		return exitOK
	case err != nil:
		fmt.Fprintf(p.stderr, "frontend: the configuration is wrong:\n  %s\n(frontend --help lists all settings)\n",
			strings.ReplaceAll(err.Error(), "\n", "\n  "))
		return exitUsage
	}
	// Standard output is for the ready line; everything else goes to standard error.
	log := observe.NewLogger(p.stderr, observe.LogOptions{
		Level: cfg.Log.Levels.Default, Targets: cfg.Log.Levels.Targets, JSON: cfg.Log.Format == "json"})
	// Warnings come first in the log: they explain much of what may follow.
	for _, w := range warnings {
		log.Warn("configuration warning", "setting", w.Key, "note", w.Message)
	}
	// An environment is shared: workers' variables are no mistake, but a misspelt one should be findable.
	for _, name := range cfg.UnknownVariables(environ) {
		log.Debug("variable ignored: no such setting", "variable", name)
	}
	if err := p.start(cfg, log); err != nil {
		log.Error("stopped", "error", err)
		return exitFailure
	}
	return exitOK
}

// start serves until a signal says to stop. The first one drains; a second one ends the process at once.
func (p *program) start(cfg *config.Config, log *slog.Logger) error {
	// The dump comes first, so that it is there to look at when the start fails.
	if cfg.DumpTo != "" {
		if err := os.WriteFile(cfg.DumpTo, cfg.Redacted(), 0o644); err != nil {
			return fmt.Errorf("write the configuration: %w", err)
		}
	}
	raiseOpenFiles(cfg.OpenFiles, log)
	// The one context of the process that nothing is above of.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	// The default action comes back with the first signal.
	defer context.AfterFunc(ctx, stop)()
	return p.serve(ctx, cfg, log, p.stdout)
}

// fewOpenFiles is the limit below which a busy server is likely to run out: two a stream. It costs nothing to be told
// at the start; at the limit, connections are refused without a word.
const fewOpenFiles = 4096

// raiseOpenFiles raises the limit of open files to want, or to all that the system grants when want is 0. It changes
// the whole process, and is called once, before anything is opened.
func raiseOpenFiles(want uint64, log *slog.Logger) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		log.Warn("limit of open files unknown", "error", err)
		return
	}
	// Go's runtime has raised the soft limit to the hard one already. This is for a wanted number, and it says so in the log
	// when there is little.
	raised := limit
	switch {
	// All there is.
	case want == 0:
		raised.Cur = limit.Max
	case want > limit.Max: // privileged processes may raise both
		raised.Cur, raised.Max = want, want
	default:
		raised.Cur = want
	}
	// A refusal isn't fatal: the server works with what it has, for fewer clients.
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &raised); err != nil {
		log.Warn("limit of open files not raised", "wanted", raised.Cur, "limit", limit.Cur, "error", err)
		raised.Cur = limit.Cur
	}
	if raised.Cur < fewOpenFiles {
		log.Warn("few open files allowed: each stream needs two", "limit", raised.Cur)
	}
}
