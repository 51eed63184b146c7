//go:build race

package main

// raceEnabled tells tests that everything native takes several times as long.
const raceEnabled = true
