package replay_test

import "testing"

// TestErrors replays a worker's errors: by class, with texts meant for clients, and with a status inside a message.
func TestErrors(t *testing.T) {
	replayAnswers(t, "errors", 145)
}
