//go:build !race

package fieldreports_test

const raceEnabled = false
