//go:build !invariants

package executor

// invariants turns on checks that cost time or end the process.
const invariants = false

// violated ignores what a build with invariants reports.
func violated(string) {}
