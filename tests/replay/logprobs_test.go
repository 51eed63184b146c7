package replay_test

import "testing"

// TestLogprobs replays log probabilities in both of their forms.
func TestLogprobs(t *testing.T) {
	replayAnswers(t, "logprobs", func(c *answerCase) string {
		if c.Request["tools"] != nil {
			return "tool calls"
		}
		return ""
	})
}
