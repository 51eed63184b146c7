package replay_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/prepost/msgparse"
	"github.com/portico-llm/portico/internal/server/validate"
	"github.com/portico-llm/portico/internal/testkit"
)

// mappingCase is one recorded request and what became of it.
type mappingCase struct {
	Name         string            `json:"name"`
	Path         string            `json:"path"`
	Model        string            `json:"model"`
	Headers      map[string]string `json:"headers"`
	Request      json.RawMessage   `json:"request"`
	Status       int               `json:"status"`
	Preprocessed map[string]any    `json:"preprocessed"`
	PromptText   string            `json:"prompt_text"`
}

// TestMapping replays every recorded request: the same requests are refused, the others reach a worker as the same
// prompt and the same request, but for the listed differences.
func TestMapping(t *testing.T) {
	differ := readDifferences(t, "testdata/mapping_differences.txt")
	tools := mappingTools(t)
	models := openMappingModels(t)
	for _, c := range readMapping(t) {
		t.Run(c.Name, func(t *testing.T) {
			got := runMapping(t, &c, tools, models)
			if reason := differ.match(c.Name, got != ""); reason != "" {
				if got == "" && models.loaded() {
					t.Errorf("listed as a difference (%s), but it is none", reason)
				}
				return
			}
			if got != "" {
				t.Error(got)
			}
		})
	}
	if models.loaded() {
		differ.unused(t)
	}
}

// runMapping returns how the outcome of a case differs from the recorded one; empty: not at all.
func runMapping(t *testing.T, c *mappingCase, tools []json.RawMessage, models *mappingModels) string {
	t.Helper()
	body := c.body(t, tools)
	set := models.set(c)
	prepared, err := prepareCase(t, set, c, body)
	if err != nil {
		f, ok := errors.AsType[*fault.Error](err)
		if !ok {
			t.Fatalf("not a fault: %v", err)
		}
		if status := mappingStatus(f.Kind); status != c.Status {
			return fmt.Sprintf("refused with %d (%v), want %d", status, err, c.Status)
		}
		return ""
	}
	if c.Status != 200 {
		return fmt.Sprintf("accepted, want %d", c.Status)
	}
	if len(prepared.Requests) != 1 {
		return fmt.Sprintf("%d requests, want 1", len(prepared.Requests))
	}
	return c.diff(t, prepared.Requests[0], models.lastPrompt(set))
}

func prepareCase(t *testing.T, set *catalog.Set, c *mappingCase, body []byte) (*pipeline.Prepared, error) {
	t.Helper()
	p := pipeline.New(pipeline.Options{Answers: msgparse.Plan})
	meta := pipeline.Meta{RequestID: "7b6f0b0e-1111-4222-8333-444455556666"}
	if v, ok := c.Headers["x-dynamo-request-priority"]; ok {
		n := int32(mappingInt(t, v))
		meta.Priority = &n
	}
	if v, ok := c.Headers["x-dynamo-request-strict-priority"]; ok {
		n := uint32(mappingInt(t, v))
		meta.StrictPriority = &n
	}
	for name, session := range c.Headers {
		switch name {
		case "x-dynamo-session-id":
			meta.Agent = &pipeline.Agent{Session: session}
		case "x-claude-code-session-id":
			meta.Agent = &pipeline.Agent{Session: session, Headers: map[string][]string{name: {session}}}
		}
	}
	strict := openai.DecodeOptions{Strict: true}
	if c.Path == "/v1/completions" {
		req, err := openai.DecodeCompletion(body, strict)
		if err == nil {
			err = validate.Completion(req, validate.Options{})
		}
		if err != nil {
			return nil, err
		}
		return p.PrepareCompletion(t.Context(), set, meta, req)
	}
	req, err := openai.DecodeChat(body, strict)
	if err == nil {
		err = validate.Chat(req, validate.Options{})
	}
	if err != nil {
		return nil, err
	}
	return p.PrepareChat(t.Context(), set, meta, req)
}

// body puts the prompt's marker and the tools into the recorded request.
func (c *mappingCase) body(t *testing.T, tools []json.RawMessage) []byte {
	t.Helper()
	marker := "SCRIPT:m1x1;"
	if found := regexp.MustCompile(`SCRIPT:\w+;`).FindString(c.PromptText); found != "" {
		marker = found
	}
	body := strings.ReplaceAll(string(c.Request), "@", marker)
	return regexp.MustCompile(`"TOOLS\[:(\d)\]"`).ReplaceAllFunc([]byte(body), func(ref []byte) []byte {
		list, err := json.Marshal(tools[:ref[8]-'0'])
		if err != nil {
			t.Fatal(err)
		}
		return list
	})
}

// diff compares a request with the recorded one.
func (c *mappingCase) diff(t *testing.T, q *worker.Request, prompt string) string {
	t.Helper()
	encoded, err := q.Append(nil, worker.JSON)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]any{}
	if err := json.Unmarshal(encoded, &got); err != nil {
		t.Fatalf("%v in %s", err, encoded)
	}
	delete(got, "mdc_sum")
	want := c.Preprocessed
	if _, short := want["token_ids"].(string); short { // "185 ids"
		got["token_ids"] = strconv.Itoa(len(q.TokenIDs)) + " ids"
	}
	var out strings.Builder
	out.WriteString(cmp.Diff(want, got))
	if end, cut := strings.CutPrefix(c.PromptText, "…"); cut {
		if !strings.HasSuffix(prompt, end) {
			fmt.Fprintf(&out, "prompt %q\ndoes not end with %q\n", prompt, end)
		}
	} else if prompt != c.PromptText {
		out.WriteString("prompt: " + cmp.Diff(c.PromptText, prompt))
	}
	return out.String()
}

func mappingStatus(k fault.Kind) int {
	switch k {
	case fault.BadRequest:
		return 400
	case fault.NotImplemented:
		return 501
	}
	return 500
}

func readMapping(t *testing.T) []mappingCase {
	t.Helper()
	var cases []mappingCase
	for c := range testkit.Records[mappingCase](t, "testdata/mapping.jsonl.gz") {
		cases = append(cases, *c)
	}
	if len(cases) < 500 {
		t.Fatalf("only %d cases", len(cases))
	}
	return cases
}

func mappingTools(t *testing.T) []json.RawMessage {
	t.Helper()
	raw, err := os.ReadFile("testdata/mapping_tools.json")
	if err != nil {
		t.Fatal(err)
	}
	var tools []json.RawMessage
	if err := json.Unmarshal(raw, &tools); err != nil {
		t.Fatal(err)
	}
	for i, tool := range tools {
		var b bytes.Buffer
		if err := json.Compact(&b, tool); err != nil {
			t.Fatal(err)
		}
		tools[i] = b.Bytes()
	}
	return tools
}

// differences are patterns of cases that differ on purpose, with reasons.
type differences struct {
	lines []differenceLine
}

type differenceLine struct {
	pattern, reason string
	cases           int
}

// readDifferences reads lines of a pattern (as path.Match has it), white space and a reason.
func readDifferences(t *testing.T, name string) *differences {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d := &differences{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		pattern, reason, ok := strings.Cut(line, " ")
		if !ok {
			t.Fatalf("%s: no reason in %q", name, line)
		}
		d.lines = append(d.lines, differenceLine{pattern: pattern, reason: strings.TrimSpace(reason)})
	}
	return d
}

// match returns the reason for a case to differ. A pattern with a star may cover cases that don't.
func (d *differences) match(name string, differs bool) string {
	for i := range d.lines {
		line := &d.lines[i]
		if ok, err := path.Match(line.pattern, name); err != nil || !ok {
			continue
		}
		if !differs && strings.Contains(line.pattern, "*") {
			continue
		}
		line.cases++
		return line.reason
	}
	return ""
}

func (d *differences) unused(t *testing.T) {
	for _, line := range d.lines {
		if line.cases == 0 {
			t.Errorf("difference %s matches no case that differs", line.pattern)
		}
	}
}

func mappingInt(t *testing.T, s string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
