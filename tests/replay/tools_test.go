package replay_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/portico-llm/portico/internal/prepost/toolparse"
	"github.com/portico-llm/portico/internal/testkit"
)

// TestTools sends the recorded answers of models with a tool parser through the server, streamed and whole: the client
// gets the recorded message, or the better one that the parser's own differences list.
func TestTools(t *testing.T) {
	tools := json.RawMessage(parserFile(t, "toolparse/testdata/tools_schema.json"))
	better := parserDifferences(t, "toolparse/testdata/differences.tsv")
	listed := readAllowed(t, "tools_differences.txt")
	var ours bytes.Buffer
	for _, c := range readParsed(t, "../../../internal/prepost/toolparse/testdata/tools.jsonl.gz") {
		if c.ReasoningParser != "" {
			continue // with the reasoning parsers' cases
		}
		key := c.Name
		if c.Version != "auto" {
			key += " " + c.Version
		}
		t.Run(key, func(t *testing.T) {
			want := c.recorded()
			// Without tools the server runs the parser for some dialects only.
			dialect, _ := toolparse.Lookup(c.ToolParser)
			if d := better[key]; d != nil && (dialect.Always || c.Request["tools"] != nil) {
				want = c.described(t, d[1])
			}
			judge(t, listed, &ours, key, &c, c.both(t, tools, "user: hi\nassistant:"), want)
		})
	}
	if !t.Failed() {
		listed.stale(t)
		testkit.Golden(t, "tools_ours.golden", ours.Bytes())
	}
}

// described is a message as the parser's differences write it.
func (c *parsedCase) described(t *testing.T, text string) parsedMessage {
	t.Helper()
	var d struct {
		Content string
		Calls   []string
		Cut     bool
	}
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	m := parsedMessage{Content: d.Content, Finish: c.Finish}
	for _, call := range d.Calls {
		i := strings.IndexAny(call, "{[\"")
		if i < 0 {
			i = len(call)
		}
		m.Calls = append(m.Calls, parsedCall{Name: call[:i], Arguments: call[i:]})
	}
	switch {
	case d.Cut:
		m.Finish = "length"
	case c.Finish == "stop" && len(m.Calls) > 0:
		m.Finish = "tool_calls"
	}
	return m
}

// TestGuided sends recorded answers to requests that must call through the server, with both parsers, with a tool parser
// alone and with none.
func TestGuided(t *testing.T) {
	tools := json.RawMessage(parserFile(t, "toolparse/testdata/tools_schema.json"))
	better := parserDifferences(t, "toolparse/testdata/differences.tsv")
	for _, line := range readGzip(t, "../../../internal/prepost/toolparse/testdata/guided.jsonl.gz") {
		var c parsedCase
		var body struct{ Body json.RawMessage }
		if err := json.Unmarshal(line, &c); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(line, &body); err != nil {
			t.Fatal(err)
		}
		switch c.Request["model"] {
		case "p.hermes_qwen3":
			c.ToolParser, c.ReasoningParser = "hermes", "qwen3"
		case "t.hermes":
			c.ToolParser = "hermes"
		}
		t.Run(c.Name, func(t *testing.T) {
			want := wholeMessage(t, body.Body)
			if d := better[c.Name]; d != nil {
				want = c.described(t, d[1])
			}
			if got := c.both(t, tools, "user: hi\nassistant:"); !got.same(&want) {
				t.Errorf("of the text %q\n recorded %+v\n got      %+v", c.Text, want, got)
			}
		})
	}
}
