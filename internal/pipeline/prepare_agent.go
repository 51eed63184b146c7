package pipeline

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/portico-llm/portico/api/openai"
)

// Agent says which session of an agent a request belongs to. The worker is told; nothing here depends on it.
type Agent struct {
	Session string              // never empty
	Parent  string              // the session that has begun this one; empty: none
	Final   *bool               // whether this is the session's last request; nil: not said
	Headers map[string][]string // what the agent says of itself, by header in lower case
}

// What has made an agent ask, in the words of workers.
const (
	triggerUser  = "user_message"
	triggerTool  = "tool_result"
	triggerOther = "other"
)

// trigger tells it from who has written the last message.
func trigger(last openai.Role) string {
	switch last {
	case openai.RoleUser:
		return triggerUser
	case openai.RoleTool, openai.RoleFunction:
		return triggerTool
	}
	return triggerOther
}

// agentContext is what a worker is told of the agent; nil: nothing is known.
func agentContext(a *Agent, trigger string) json.RawMessage {
	if a == nil {
		return nil
	}
	var w, headers objectWriter
	w.text("session_id", a.Session)
	if a.Parent != "" {
		w.text("parent_session_id", a.Parent)
	}
	if a.Final != nil {
		w.boolean("session_final", *a.Final)
	}
	for _, name := range slices.Sorted(maps.Keys(a.Headers)) {
		headers.texts(name, a.Headers[name])
	}
	w.raw("agent_headers", headers.done())
	w.text("input_trigger", trigger)
	return w.done()
}
