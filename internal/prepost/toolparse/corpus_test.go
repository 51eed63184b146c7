package toolparse_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/prepost/toolparse"
	"github.com/portico-llm/portico/internal/testkit"
)

// call and result are a message as a client would have put it together.
type call struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
	ID        string `json:"-"`
}

type result struct {
	Content   string
	Segments  string // the content, with a bar where a call began
	Reasoning string
	Calls     []call
	Cut       bool
}

// assembler puts the pieces together as clients do, and checks what they rely on.
type assembler struct {
	t *testing.T
	result
}

func (a *assembler) add(p prepost.Piece) {
	switch p.Kind {
	case prepost.Content:
		a.Content += p.Text
		a.Segments += p.Text
	case prepost.Reasoning:
		a.Reasoning += p.Text
	case prepost.ToolCall:
		switch {
		case p.Call == len(a.Calls):
			if p.Name == "" {
				a.t.Errorf("call %d begins without its name", p.Call)
			}
			a.Segments += "|"
			a.Calls = append(a.Calls, call{Name: p.Name, ID: p.ID})
		case p.Call != len(a.Calls)-1:
			a.t.Errorf("a piece of call %d behind call %d", p.Call, len(a.Calls)-1)
			return
		case p.Name != "":
			a.t.Errorf("call %d has its name twice", p.Call)
		}
		a.Calls[p.Call].Arguments += p.Text
	}
}

// parse feeds the pieces of a message to a new parser.
func parse(t *testing.T, name string, o toolparse.Options, truncated bool, pieces ...string) result {
	t.Helper()
	p, err := toolparse.New(name, o)
	if err != nil {
		t.Fatal(err)
	}
	a := assembler{t: t}
	for _, piece := range pieces {
		p.Push([]byte(piece), a.add)
	}
	p.Finish(truncated, a.add)
	a.Cut = p.Cut()
	if p.Calls() != len(a.Calls) {
		t.Errorf("Calls() is %d, there are %d", p.Calls(), len(a.Calls))
	}
	return a.result
}

// request is the part of a recorded request that matters here.
type request struct {
	Tools    json.RawMessage `json:"tools"`
	Choice   json.RawMessage `json:"tool_choice"`
	Parallel *bool           `json:"parallel_tool_calls"`
}

func declaredTools(t *testing.T) []toolparse.Tool {
	t.Helper()
	data, err := os.ReadFile("testdata/tools_schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var list []struct {
		Function struct {
			Name       string
			Parameters json.RawMessage
		}
	}
	if err := json.Unmarshal(data, &list); err != nil {
		t.Fatal(err)
	}
	var tools []toolparse.Tool
	for _, f := range list {
		tools = append(tools, toolparse.Tool{Name: f.Function.Name, Parameters: f.Function.Parameters})
	}
	return tools
}

// options turns a request into what the server would give the parser.
func (r request) options(tools []toolparse.Tool) toolparse.Options {
	o := toolparse.Options{Tools: tools, Single: r.Parallel != nil && !*r.Parallel}
	var named struct {
		Function struct{ Name string }
	}
	switch choice := string(r.Choice); {
	case len(r.Tools) == 0:
		o.Tools, o.Choice = nil, toolparse.None
	case choice == `"none"`:
		o.Choice = toolparse.None
	case choice == `"required"`:
		o.Choice = toolparse.Required
	case json.Unmarshal(r.Choice, &named) == nil && named.Function.Name != "":
		o.Choice, o.Function = toolparse.Named, named.Function.Name
	}
	return o
}

// recorded is a line of tools.jsonl.
type recorded struct {
	Name    string
	Parser  string  `json:"tool_parser"`
	Other   *string `json:"reasoning_parser"`
	Version string  `json:"parser_version"`
	Request request
	Text    string
	Finish  string
	Pieces  []*string
	View    struct {
		Content string
		Calls   []call `json:"tool_calls"`
		Finish  string `json:"finish_reason"`
	}
	Differs map[string]json.RawMessage
}

// lines reads a compressed file of JSON lines.
func lines[T any](t testing.TB, name string) []T {
	t.Helper()
	var all []T
	for row := range testkit.Records[T](t, filepath.Join("testdata", name)) {
		all = append(all, *row)
	}
	return all
}

// sameArguments compares arguments as JSON, or as text where they aren't any.
func sameArguments(a, b string) bool {
	var x, y any
	if json.Unmarshal([]byte(a), &x) != nil || json.Unmarshal([]byte(b), &y) != nil {
		return a == b
	}
	return reflect.DeepEqual(x, y)
}

func sameCalls(a, b []call) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Name != b[i].Name || !sameArguments(a[i].Arguments, b[i].Arguments) {
			return false
		}
	}
	return true
}

// differences reads the file of cases that are meant to differ: case, what comes out instead, reason.
func differences(t *testing.T) map[string]string {
	t.Helper()
	data, err := os.ReadFile("testdata/differences.tsv")
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]string)
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimRight(line, "\n"); line == "" || line[0] == '#' {
			continue
		}
		fields := strings.Split(line, "\t")
		if len(fields) != 3 || fields[2] == "" {
			t.Fatalf("differences.tsv: not three fields: %q", line)
		}
		all[fields[0]] = fields[1]
	}
	return all
}

// finish is the finish_reason of the message when its engine's was the given one.
func (r result) finish(engine string) string {
	switch {
	case r.Cut:
		return "length"
	case engine == "stop" && len(r.Calls) > 0:
		return "tool_calls"
	}
	return engine
}

// describe writes a message on one line, as differences.tsv has it.
func (r result) describe() string {
	var out struct {
		Content string   `json:"content,omitempty"`
		Calls   []string `json:"calls,omitempty"`
		Cut     bool     `json:"cut,omitempty"`
	}
	out.Content, out.Cut = r.Content, r.Cut
	for _, c := range r.Calls {
		out.Calls = append(out.Calls, c.Name+c.Arguments)
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if e.Encode(out) != nil {
		return "?"
	}
	return strings.TrimSpace(b.String())
}

// TestRecorded: the message of every recorded answer is the recorded one, or the one that differences.tsv has for it.
func TestRecorded(t *testing.T) {
	tools := declaredTools(t)
	different := differences(t)
	equal, better := 0, 0
	for _, r := range lines[recorded](t, "tools.jsonl.gz") {
		if r.Other != nil {
			continue
		}
		key := r.Name
		if r.Version != "auto" {
			key += " " + r.Version
		}
		got := parse(t, r.Parser, r.Request.options(tools), r.Finish == "length", r.Text)
		same := got.Content == r.View.Content && sameCalls(got.Calls, r.View.Calls) &&
			got.finish(r.Finish) == r.View.Finish
		want, listed := different[key]
		delete(different, key)
		switch {
		case !listed && same:
			equal++
		case !listed:
			t.Errorf("%s differs:\n text %q\n want %q %v\n got\t%s", key, r.Text, r.View.Content, r.View.Calls, got.describe())
		case same:
			t.Errorf("%s doesn't differ any more", key)
		case got.describe() != want:
			t.Errorf("%s:\n text %q\n want %s\n got  %s", key, r.Text, want, got.describe())
		default:
			better++
		}
	}
	for key := range different {
		if !strings.HasPrefix(key, "guided/") {
			t.Errorf("differences.tsv names %s, which isn't a case", key)
		}
	}
	t.Logf("%d cases as recorded, %d different", equal, better)
}
