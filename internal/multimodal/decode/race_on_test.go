//go:build race

package decode_test

// raceEnabled says whether the race detector is in the test program.
const raceEnabled = true
