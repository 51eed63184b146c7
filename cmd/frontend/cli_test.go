package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/portico-llm/portico/internal/config"
)

// outcome is what a command did.
type outcome struct {
	code           int
	stdout, stderr string
}

func runProgram(serve func(context.Context, *config.Config, *slog.Logger, io.Writer) error, args, environ []string) outcome {
	var stdout, stderr strings.Builder
	p := program{serve: serve, stdout: &stdout, stderr: &stderr,
		render: func(args []string, stdout, _ io.Writer) int { fmt.Fprintf(stdout, "render %q", args); return 7 },
		image:  func(args []string, stdout, _ io.Writer) int { fmt.Fprintf(stdout, "image %q", args); return 6 }}
	code := p.main(args, environ)
	return outcome{code, stdout.String(), stderr.String()}
}

// TestHelpOfSubcommands: help that was asked for is the output, so that it can be paged and searched.
func TestHelpOfSubcommands(t *testing.T) {
	for name, run := range map[string]func(stdout, stderr io.Writer) int{
		"render": func(stdout, stderr io.Writer) int { return runRender([]string{"--help"}, stdout, stderr) },
		"parse": func(stdout, stderr io.Writer) int {
			return runParse([]string{"-h"}, strings.NewReader(""), stdout, stderr)
		},
		"image": func(stdout, stderr io.Writer) int { return runImage([]string{"--help"}, stdout, stderr) },
	} {
		var stdout, stderr strings.Builder
		if code := run(&stdout, &stderr); code != exitOK || stderr.Len() > 0 ||
			!strings.Contains(stdout.String(), "frontend "+name+" ") || !strings.Contains(stdout.String(), "-model-path") {
			t.Errorf("%s: exit code %d\nstdout: %s\nstderr: %s", name, code, stdout.String(), stderr.String())
		}
	}
}

func TestExitCodes(t *testing.T) {
	tests := []struct {
		name   string
		args   []string
		serve  error
		code   int
		stdout string
		stderr string
	}{
		{"clean stop", nil, nil, exitOK, "served 8000\n", ""},
		{"failure", nil, errors.New("no port"), exitFailure, "served 8000\n", `level=ERROR msg=stopped error="no port"`},
		{"wrong flags", []string{"--http-port", "x", "--sttrict"}, nil, exitUsage, "",
			"--sttrict: unknown flag; did you mean --strict?\n  --http-port: \"x\": allowed is a whole number"},
		{"help", []string{"--help"}, nil, exitOK, "--router-kv-events", ""},
		{"version", []string{"--version"}, nil, exitOK, "portico frontend ", ""},
		{"render", []string{"render", "--help"}, nil, 7, `render ["--help"]`, ""},
		{"image", []string{"image", "a.png"}, nil, 6, `image ["a.png"]`, ""},
		{"warning", []string{"--enforce-disagg"}, nil, exitOK, "served 8000\n",
			`msg="configuration warning" setting=--enforce-disagg note="has no effect: Dynamo ignores it too"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			serve := func(_ context.Context, cfg *config.Config, _ *slog.Logger, stdout io.Writer) error {
				fmt.Fprintf(stdout, "served %d\n", cfg.HTTP.Port)
				return tt.serve
			}
			got := runProgram(serve, tt.args, nil)
			if got.code != tt.code || !strings.Contains(got.stdout, tt.stdout) || !strings.Contains(got.stderr, tt.stderr) {
				t.Errorf("exit code %d, want %d\nstdout: %s\nstderr: %s", got.code, tt.code, got.stdout, got.stderr)
			}
		})
	}
}

func TestSignalEndsTheContext(t *testing.T) {
	serve := func(ctx context.Context, _ *config.Config, _ *slog.Logger, _ io.Writer) error {
		if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	}
	if got := runProgram(serve, nil, nil); got.code != exitOK {
		t.Errorf("exit code %d\n%s", got.code, got.stderr)
	}
}

func TestDumpedConfiguration(t *testing.T) {
	name := filepath.Join(t.TempDir(), "dump.yaml")
	serve := func(context.Context, *config.Config, *slog.Logger, io.Writer) error { return nil }
	got := runProgram(serve, []string{"--dump-config-to", name, "--nats-auth-token", "hunter2"}, []string{"DYN_HTTP_PORT=9"})
	data, err := os.ReadFile(name)
	if err != nil || got.code != exitOK {
		t.Fatal(err, got)
	}
	if text := string(data); !strings.Contains(text, "http-port: 9 # DYN_HTTP_PORT\n") || strings.Contains(text, "hunter2") {
		t.Errorf("dump:\n%s", text)
	}
	got = runProgram(serve, []string{"--dump-config-to", filepath.Join(name, "no-folder")}, nil)
	if got.code != exitFailure {
		t.Errorf("exit code %d", got.code)
	}
}

func TestOpenFilesAreRaised(t *testing.T) {
	var before, after syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before) }()
	var lines strings.Builder
	log := slog.New(slog.NewTextHandler(&lines, nil))
	raiseOpenFiles(256, log)
	if !strings.Contains(lines.String(), "few open files allowed") {
		t.Errorf("no warning: %s", lines.String())
	}
	raiseOpenFiles(0, log)
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &after); err != nil || after.Cur != before.Max {
		t.Errorf("limit %d of %d: %v", after.Cur, before.Max, err)
	}
}
