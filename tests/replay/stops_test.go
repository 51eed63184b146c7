package replay_test

import (
	"strings"
	"testing"
)

// TestStops replays what became of stop strings, stop tokens, broken characters, finish reasons, choices and usage.
func TestStops(t *testing.T) {
	replayAnswers(t, "stops", func(c *answerCase) string {
		switch {
		case strings.HasPrefix(c.Name, "special/s."):
			return "tokenizer with added special tokens"
		}
		return ""
	})
}
