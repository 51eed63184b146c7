package reply

import (
	"encoding/json"
	"strconv"
)

// noAction is the action of a command that nobody knows yet, or that can't be read.
const noAction = `{"type":"exec","command":[],"env":{}}`

// shellAction makes the action of a command out of the arguments that a model wrote. It reports false for arguments that
// name no command: a client runs what it is told, so that nothing is guessed but a shell for a command in one string.
func shellAction(arguments []byte) ([]byte, bool) {
	var in struct {
		Command json.RawMessage   `json:"command"`
		Env     map[string]string `json:"env"`
		Timeout *int64            `json:"timeout_ms"`
		Folder  *string           `json:"working_directory"`
		User    *string           `json:"user"`
	}
	if json.Unmarshal(arguments, &in) != nil {
		return []byte(noAction), false
	}
	var command []string
	var line string
	if json.Unmarshal(in.Command, &line) == nil && line != "" {
		command = []string{"sh", "-c", line}
	} else if json.Unmarshal(in.Command, &command) != nil || len(command) == 0 {
		return []byte(noAction), false
	}
	b := []byte(`{"type":"exec","command":[`)
	for i, word := range command {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, word)
	}
	b = append(b, `],"env":`...)
	if env, err := json.Marshal(in.Env); err == nil && in.Env != nil {
		b = append(b, env...)
	} else {
		b = append(b, "{}"...)
	}
	if in.Timeout != nil {
		b = strconv.AppendInt(append(b, `,"timeout_ms":`...), *in.Timeout, 10)
	}
	if in.Folder != nil {
		b = appendString(append(b, `,"working_directory":`...), *in.Folder)
	}
	if in.User != nil {
		b = appendString(append(b, `,"user":`...), *in.User)
	}
	return append(b, '}'), true
}
