// Command report turns the output of go test -json into what a person wants to see of a long run: one line per package,
// everything a failed test printed, and every skipped test with its reason, so that nothing is left out silently.
//
//	go test -json ./... | go run ./tests/report
//
// It exits with 1 when a test or a build failed, or when there was nothing to report.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// event is a line of go test -json; go doc cmd/test2json has the format.
type event struct {
	Action      string // run, output, pass, fail, skip and a few that say nothing new
	Package     string
	Test        string  // empty: the package itself
	Elapsed     float64 // seconds
	Output      string  // a line, or a part of one
	FailedBuild string
}

func main() {
	failed, err := report(os.Stdin, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
	}
	if failed || err != nil {
		os.Exit(1)
	}
}

// report copies what matters from in to out and tells whether anything failed. Lines come out as soon as their test or
// package has ended, so that a long run shows its progress; skipped tests come last. An error means that in could not
// be read, or that nothing was tested.
func report(in io.Reader, out io.Writer) (failed bool, err error) {
	output := make(map[string][]string) // of a test that hasn't ended, or of a package's own
	var skipped []string
	packages := 0
	lines := bufio.NewReader(in)
	for {
		// Lines may be long: a Scanner's limit would end the report.
		line, err := lines.ReadBytes('\n')
		if err == io.EOF && len(line) == 0 {
			break
		} else if err != nil && err != io.EOF {
			return failed, fmt.Errorf("read events: %w", err)
		}
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			fmt.Fprintf(out, "%s\n", strings.TrimRight(string(line), "\n")) // not of a test: the go command's own words
			continue
		}
		// Packages are tested side by side, so their events come mixed.
		key := e.Package + " " + e.Test
		switch e.Action {
		case "output":
			output[key] = append(output[key], e.Output)
		// Compilers are brief, and what they say is worth seeing whatever comes of it.
		case "build-output":
			fmt.Fprint(out, e.Output)
		case "build-fail":
			failed = true
		case "skip":
			if e.Test != "" {
				skipped = append(skipped, fmt.Sprintf("skipped: %s %s: %s", e.Package, e.Test, reason(output[key])))
			}
			delete(output, key)
		case "pass", "fail":
			// A failed package repeats no output of its tests: each has its own key.
			if e.Action == "fail" {
				failed = true
				fmt.Fprint(out, strings.Join(output[key], ""))
			}
			if e.Test == "" {
				packages++
				fmt.Fprintf(out, "%-5s %s %.1fs\n", e.Action, e.Package, e.Elapsed)
			}
			delete(output, key)
		}
	}
	for _, line := range skipped {
		fmt.Fprintln(out, line)
	}
	if packages == 0 && !failed {
		return true, errors.New("no package was tested")
	}
	return failed, nil
}

// reason is what a skipped test said, in one line.
func reason(output []string) string {
	var words []string
	for _, line := range output {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "===") && !strings.HasPrefix(line, "---") {
			words = append(words, line)
		}
	}
	return strings.Join(words, " ")
}
