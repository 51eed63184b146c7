package testkit_test

import (
	"strings"
	"testing"

	"github.com/portico-llm/portico/internal/testkit"
)

// chunk is a chat chunk with the given choice.
func chunk(choice string) string {
	return `data: {"id":"a","object":"chat.completion.chunk","created":1,"model":"m","choices":[` + choice + "]}\n\n"
}

const (
	done   = "data: [DONE]\n\n"
	usage  = `data: {"id":"a","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":{"total_tokens":1}}` + "\n\n"
	failed = `data: {"error":{"message":"x"}}` + "\n\n"
)

var (
	role   = chunk(`{"index":0,"delta":{"role":"assistant"},"finish_reason":null}`)
	text   = chunk(`{"index":0,"delta":{"content":"x"},"finish_reason":null}`)
	finish = chunk(`{"index":0,"delta":{},"finish_reason":"stop"}`)
)

// TestLint checks that every rule can be broken, and that a stream that breaks none passes.
func TestLint(t *testing.T) {
	tests := []struct {
		name, stream string
		opts         testkit.LintOptions
		want         string // part of the complaint; empty: none
	}{
		{"good", ": note\n\nevent: x\n: \"y\"\n\n" + role + text + finish + done, testkit.LintOptions{}, ""},
		{"good with usage", role + finish + usage + done, testkit.LintOptions{Usage: true}, ""},
		{"good failure", role + failed + done, testkit.LintOptions{}, ""},
		{"good with two choices", role + strings.ReplaceAll(role+finish, `"index":0`, `"index":1`) + finish + done,
			testkit.LintOptions{}, ""},
		{"no end mark", role + finish, testkit.LintOptions{}, "no end mark"},
		{"two end marks", role + finish + done + done, testkit.LintOptions{}, "follows the end mark"},
		{"something after the end", role + finish + done + text, testkit.LintOptions{}, "follows the end mark"},
		{"no role", text + finish + done, testkit.LintOptions{}, "0 roles"},
		{"two roles", role + role + finish + done, testkit.LintOptions{}, "2 roles"},
		{"no finish", role + text + done, testkit.LintOptions{}, "0 finish reasons"},
		{"goes on", role + finish + text + done, testkit.LintOptions{}, "goes on"},
		{"gap", strings.ReplaceAll(role+finish, `"index":0`, `"index":1`) + done, testkit.LintOptions{}, "no choice 0"},
		{"usage not asked for", role + finish + usage + done, testkit.LintOptions{}, "without choices"},
		{"usage missing", role + finish + done, testkit.LintOptions{Usage: true}, "0 usage chunks"},
		{"usage not at the end", role + usage + finish + done, testkit.LintOptions{Usage: true}, "follows the usage"},
		{"usage in chunks missing", role + finish + usage + done, testkit.LintOptions{Usage: true, ContinuousUsage: true},
			"usage in a chunk"},
		{"id changes", role + strings.Replace(finish, `"a"`, `"b"`, 1) + done, testkit.LintOptions{}, "has changed"},
		{"wrong object", strings.Replace(role, ".chunk", "", 1) + done, testkit.LintOptions{}, "object"},
		{"no JSON", role + "data: {\n\n" + done, testkit.LintOptions{}, "no JSON"},
		{"something after a failure", role + failed + text + done, testkit.LintOptions{}, "follows an error"},
		{"bytes between events", role + "hello\n\n" + finish + done, testkit.LintOptions{}, "no field"},
		{"cut", role + finish + "data: [DONE]\n", testkit.LintOptions{}, "inside an event"},
		{"no choices", `data: {"id":"a","object":"chat.completion.chunk","created":1,"model":"m"}` + "\n\n" + done,
			testkit.LintOptions{}, "no choices"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.opts.Chat = true
			err := testkit.Lint([]byte(tt.stream), tt.opts)
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("complained: %v", err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got %v, want a complaint about %q", err, tt.want)
			}
		})
	}
}
