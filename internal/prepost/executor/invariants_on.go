//go:build invariants

package executor

// invariants turns on checks that cost time or end the process.
const invariants = true

// violated ends the process: going on would corrupt native memory.
func violated(what string) { panic(what) }
