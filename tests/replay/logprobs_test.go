package replay_test

import "testing"

// TestLogprobs replays log probabilities in both of their forms.
func TestLogprobs(t *testing.T) {
	replayAnswers(t, "logprobs", 51)
}
