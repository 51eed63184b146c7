package replay_test

import "testing"

// TestStops replays what became of stop strings, stop tokens, special tokens, broken characters, finish reasons, choices
// and usage.
func TestStops(t *testing.T) {
	replayAnswers(t, "stops", 295)
}
