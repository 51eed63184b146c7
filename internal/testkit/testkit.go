// Package testkit holds what tests of several packages share: the check that nothing is left running, comparison with
// golden files, a dispatcher that plays scripts, and a linter for event streams. Only tests import it.
package testkit

import (
	"flag"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

// update rewrites golden files in place of comparing with them: go test ./some/package -update.
var update = flag.Bool("update", false, "rewrite golden files")

// Updating reports whether golden files are to be written in place of being compared with.
func Updating() bool { return *update }

// NoLeaks fails the test when goroutines it started are still running after its clean-ups. Call it first: clean-ups run
// in reverse.
func NoLeaks(tb testing.TB) {
	tb.Helper()
	// What runs already belongs to the test binary or to parallel tests.
	before := goleak.IgnoreCurrent()
	tb.Cleanup(func() {
		if tb.Failed() {
			return // whatever was left behind, the first failure says more
		}
		if err := goleak.Find(before); err != nil {
			tb.Errorf("goroutines are still running: %v", err)
		}
	})
}

// Golden compares got with testdata/<name>, or writes it there with -update. What -update writes is reviewed like code.
func Golden(tb testing.TB, name string, got []byte) {
	tb.Helper()
	// Tests run in their package's folder.
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			tb.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil { //nolint:gosec // a file of the source tree
			tb.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		tb.Fatalf("%v (run with -update to write it)", err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		tb.Errorf("%s differs (-want +got):\n%s", path, diff)
	}
}

// Root returns the root of the source tree. It is found from this file's own path, which the compiler records: tests
// run in many folders.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..")
}

// Fixture returns the folder of a model that `make` fetches, such as qwen3. Without it the test is skipped, or fails
// when PORTICO_FIXTURES is require.
func Fixture(tb testing.TB, name string) string {
	tb.Helper()
	dir := filepath.Join(Root(), ".build", "fixtures", name)
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	const how = "the model files are not there; tests/fixtures/fetch.sh gets them"
	if os.Getenv("PORTICO_FIXTURES") == "require" {
		tb.Fatalf("%s: %s", dir, how)
	}
	tb.Skipf("%s: %s", dir, how)
	return ""
}
