package testkit_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/portico-llm/portico/internal/testkit"
)

// messagesStream is a whole stream of Anthropic's events, without their frame.
var messagesStream = []string{
	`{"type":"message_start","message":{"id":"msg_1","role":"assistant","content":[],"usage":{"input_tokens":3}}}`,
	`{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":""}}`,
	`{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"Hm."}}`,
	`{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"s"}}`,
	`{"type":"content_block_stop","index":0}`,
	`{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"c","name":"f","input":{}}}`,
	`{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{}"}}`,
	`{"type":"content_block_stop","index":1}`,
	`{"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":2}}`,
	`{"type":"message_stop"}`,
}

func framed(all []string) []byte {
	var b strings.Builder
	for _, data := range all {
		name, _, _ := strings.Cut(data[len(`{"type":"`):], `"`)
		fmt.Fprintf(&b, "event: %s\ndata: %s\n\n", name, data)
	}
	return []byte(b.String())
}

// TestLintMessages takes one event out at a time, doubles it, or changes it: each is noticed. A block may do without a
// piece, or have more of them.
func TestLintMessages(t *testing.T) {
	if err := testkit.LintMessages(framed(messagesStream)); err != nil {
		t.Fatal(err)
	}
	for i, e := range messagesStream {
		piece := strings.Contains(e, "thinking_delta") || strings.Contains(e, "input_json_delta")
		without := slices.Delete(slices.Clone(messagesStream), i, i+1)
		if testkit.LintMessages(framed(without)) == nil && !piece {
			t.Errorf("nothing is said of a stream without %s", e)
		}
		twice := slices.Insert(slices.Clone(messagesStream), i, e)
		if testkit.LintMessages(framed(twice)) == nil && !piece {
			t.Errorf("nothing is said of a stream with two of %s", e)
		}
	}
	for _, c := range [][2]string{
		{`"index":1,"content_block"`, `"index":2,"content_block"`}, {`"index":0,"delta":{"type":"thinking`, `"index":1,"delta":{"type":"thinking`},
		{"input_json_delta", "text_delta"}, {`,"usage":{"input_tokens":3}`, ""}, {`"stop_reason":"tool_use"`, `"stop_reason":null`},
		{`"usage":{"output_tokens":2}`, `"usage":{}`}, {`"name":"f"`, `"name":""`}, {"event: message_stop", "event: done"},
		{`"role":"assistant"`, `"role":"user"`},
	} {
		text := string(framed(messagesStream))
		changed := strings.Replace(text, c[0], c[1], 1)
		if changed == text {
			t.Fatalf("nothing to change: %q", c[0])
		}
		if testkit.LintMessages([]byte(changed)) == nil {
			t.Errorf("nothing is said of %q in place of %q", c[1], c[0])
		}
	}
	failed := append(slices.Clone(messagesStream[:3]), `{"type":"error","error":{"type":"api_error","message":"m"}}`)
	if err := testkit.LintMessages(framed(failed)); err != nil {
		t.Errorf("a stream that breaks off: %v", err)
	}
}
