package server

import (
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/portico-llm/portico/internal/pipeline"
)

// agentHeaders are the headers in which agents say who is asking, in canonical form. Beside them count all that begin
// with one of agentPrefixes.
var (
	agentHeaders  = []string{"Session-Id", "Thread-Id", "X-Openai-Subagent", "X-Parent-Session-Id", "X-Session-Id"}
	agentPrefixes = []string{"X-Claude-Code-", "X-Codex-"}
)

// maxAgentHeaders bounds how many of them a worker is told of, as Dynamo bounds it.
const maxAgentHeaders = 64

// agent reads which session a request belongs to; nil: to none. Dynamo's own headers go before those of Claude Code,
// Codex and OpenCode, each with the parent in its own words.
func agent(h http.Header) *pipeline.Agent {
	a := &pipeline.Agent{}
	switch {
	case text(h, "X-Dynamo-Session-Id") != "":
		a.Session, a.Parent = text(h, "X-Dynamo-Session-Id"), text(h, "X-Dynamo-Parent-Session-Id")
	case text(h, "X-Claude-Code-Session-Id") != "":
		a.Session, a.Parent = claudeSession(h)
	case text(h, "Thread-Id") != "":
		a.Session, a.Parent = text(h, "Thread-Id"), text(h, "X-Codex-Parent-Thread-Id")
	case text(h, "X-Session-Id") != "":
		a.Session, a.Parent = text(h, "X-Session-Id"), text(h, "X-Parent-Session-Id")
	default:
		return nil
	}
	if a.Parent == a.Session {
		a.Parent = ""
	}
	switch strings.ToLower(text(h, "X-Dynamo-Session-Final")) {
	case "true", "1", "yes", "on":
		a.Final = new(true)
	case "false", "0", "no", "off":
		a.Final = new(false)
	}
	a.Headers = nativeHeaders(h)
	return a
}

// claudeSession tells Claude Code's agents apart: a subagent is a session of its own, below the agent that has called it.
func claudeSession(h http.Header) (session, parent string) {
	root, own := text(h, "X-Claude-Code-Session-Id"), text(h, "X-Claude-Code-Agent-Id")
	if own == "" {
		return root, ""
	}
	if parent = text(h, "X-Claude-Code-Parent-Agent-Id"); parent == "" {
		parent = root
	}
	return own, parent
}

// nativeHeaders returns what agents say of themselves, by name in lower case. Values that aren't plain text are left
// out.
func nativeHeaders(h http.Header) map[string][]string {
	var out map[string][]string
	for _, name := range slices.Sorted(maps.Keys(h)) {
		if !isAgents(name) {
			continue
		}
		var values []string
		for _, v := range h[name] {
			if isPlain(v) {
				values = append(values, strings.TrimSpace(v))
			}
		}
		if len(values) == 0 {
			continue
		}
		if out == nil {
			out = make(map[string][]string)
		}
		if out[strings.ToLower(name)] = values; len(out) == maxAgentHeaders {
			break
		}
	}
	return out
}

// isAgents reports whether a header is one of those that agents send.
func isAgents(name string) bool {
	if slices.Contains(agentHeaders, name) {
		return true
	}
	return slices.ContainsFunc(agentPrefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// text returns the first value of a header, without white space around it; empty also when it isn't plain text.
func text(h http.Header, name string) string {
	if v := h[name]; len(v) > 0 && isPlain(v[0]) {
		return strings.TrimSpace(v[0])
	}
	return ""
}

// isPlain reports whether a header's value is printable ASCII, tabs included.
func isPlain(v string) bool {
	for i := range len(v) {
		if c := v[i]; c >= 0x7f || c < 0x20 && c != '\t' {
			return false
		}
	}
	return true
}
