package testkit_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/portico-llm/portico/internal/testkit"
)

// responsesStream is a whole stream with one message, number by number.
var responsesStream = []string{
	`response.created|"response":{"id":"resp_1","object":"response","status":"in_progress","output":[],"usage":null,"error":null}`,
	`response.in_progress|"response":{"id":"resp_1","object":"response","status":"in_progress","output":[],"usage":null,"error":null}`,
	`response.output_item.added|"output_index":0,"item":{"type":"message","id":"msg_1","status":"in_progress","content":[]}`,
	`response.content_part.added|"item_id":"msg_1","output_index":0,"content_index":0,"part":{"text":""}`,
	`response.output_text.delta|"item_id":"msg_1","output_index":0,"content_index":0,"delta":"He"`,
	`response.output_text.delta|"item_id":"msg_1","output_index":0,"content_index":0,"delta":"y"`,
	`response.output_text.done|"item_id":"msg_1","output_index":0,"content_index":0,"text":"Hey"`,
	`response.content_part.done|"item_id":"msg_1","output_index":0,"content_index":0,"part":{"text":"Hey"}`,
	`response.output_item.done|"output_index":0,"item":{"type":"message","id":"msg_1","status":"completed","content":[{"text":"Hey"}]}`,
	`response.completed|"response":{"id":"resp_1","object":"response","status":"completed",` +
		`"output":[{"type":"message","id":"msg_1","status":"completed","content":[{"text":"Hey"}]}],"usage":{},"error":null}`,
}

func written(events []string) []byte {
	var b strings.Builder
	for i, e := range events {
		name, rest, _ := strings.Cut(e, "|")
		fmt.Fprintf(&b, "event: %s\ndata: {\"type\":%q,\"sequence_number\":%d,%s}\n\n", name, name, i, rest)
	}
	return []byte(b.String() + "data: [DONE]\n\n")
}

// TestLintResponses takes one event out at a time, doubles it, or changes it: each is noticed.
func TestLintResponses(t *testing.T) {
	if err := testkit.LintResponses(written(responsesStream)); err != nil {
		t.Fatal(err)
	}
	for i := range responsesStream {
		without := append(append([]string(nil), responsesStream[:i]...), responsesStream[i+1:]...)
		if testkit.LintResponses(written(without)) == nil {
			t.Errorf("nothing is said of a stream without %q", responsesStream[i])
		}
		twice := append(append([]string(nil), responsesStream[:i+1]...), responsesStream[i:]...)
		if testkit.LintResponses(written(twice)) == nil {
			t.Errorf("nothing is said of a stream with two of %q", responsesStream[i])
		}
	}
	for _, c := range [][2]string{
		{`"sequence_number":4`, `"sequence_number":5`}, {`"item_id":"msg_1"`, `"item_id":"msg_2"`}, {`"delta":"y"`, `"delta":"Y"`},
		{`"content_index":0,"delta":"y"`, `"delta":"y"`}, {`"output_index":0,"item":{"type":"message","id":"msg_1","status":"in`,
			`"output_index":1,"item":{"type":"message","id":"msg_1","status":"in`}, {"event: response.completed", "event: message"},
		{`"usage":{}`, `"usage":null`}, {`"id":"resp_1"`, `"id":"resp_2"`}, {"data: [DONE]\n\n", ""},
	} {
		text := string(written(responsesStream))
		changed := strings.Replace(text, c[0], c[1], 1)
		if changed == text {
			t.Fatalf("nothing to change: %q", c[0])
		}
		if testkit.LintResponses([]byte(changed)) == nil {
			t.Errorf("nothing is said of %q in place of %q", c[1], c[0])
		}
	}
}
