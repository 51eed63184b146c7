package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
)

// newFlagSet returns an empty set of flags of a sub-command. The package would print its usage with every mistake; a
// line that says what is wrong does more.
func newFlagSet(name string) *flag.FlagSet {
	set := flag.NewFlagSet(name, flag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.Usage = func() {}
	return set
}

// parseFlagSet reads the flags, which are all that a sub-command takes unless it wants arguments too. Help was asked
// for when the error is flag.ErrHelp, and has been printed to stdout: the usage, and the flags below it.
func parseFlagSet(set *flag.FlagSet, args []string, wantArgs bool, usage string, stdout io.Writer) error {
	if err := set.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprint(stdout, usage)
			set.SetOutput(stdout)
			set.PrintDefaults()
		}
		return fmt.Errorf("%w", err)
	}
	if set.NArg() > 0 && !wantArgs {
		return fmt.Errorf("unexpected argument %q", set.Arg(0))
	}
	return nil
}

// flagsExit is the exit code after a failure of parseFlagSet, which is told unless help was asked for.
func flagsExit(name string, err error, stderr io.Writer) int {
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	fmt.Fprintf(stderr, "frontend %s: %v\n", name, err)
	return exitUsage
}

// jsonOutput writes values as JSON. Prompts and markup are full of angle brackets, which nobody wants to read as escapes.
func jsonOutput(w io.Writer) *json.Encoder {
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	return out
}

// readInput reads a whole file, or standard input for "-".
func readInput(name string) ([]byte, error) {
	// Read to its end: a request is no stream.
	if name == "-" {
		data, err := io.ReadAll(os.Stdin)
		if err != nil {
			return nil, fmt.Errorf("standard input: %w", err)
		}
		return data, nil
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("input: %w", err)
	}
	return data, nil
}
