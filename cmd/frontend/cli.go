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
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

// program is the command with what it does and where it prints.
type program struct {
	serve  func(ctx context.Context, cfg *config.Config, log *slog.Logger, stdout io.Writer) error
	render func(args []string, stdout, stderr io.Writer) int

	stdout, stderr io.Writer
}

// main runs the command and returns its exit code.
func (p *program) main(args, environ []string) int {
	if len(args) > 0 && args[0] == "render" {
		return p.render(args[1:], p.stdout, p.stderr)
	}
	// Everything the outside says is read here, once; from here on it is plain fields.
	cfg, warnings, err := config.Load(args, environ, os.ReadFile)
	switch {
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
	log := observe.NewLogger(p.stderr, observe.LogOptions{
		Level: cfg.Log.Levels.Default, Targets: cfg.Log.Levels.Targets, JSON: cfg.Log.Format == "json"})
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
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	// The default action comes back with the first signal.
	defer context.AfterFunc(ctx, stop)()
	return p.serve(ctx, cfg, log, p.stdout)
}

// fewOpenFiles is the limit below which a busy server is likely to run out: two a stream.
const fewOpenFiles = 4096

// raiseOpenFiles raises the limit of open files to want, or to all that the system grants when want is 0.
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
