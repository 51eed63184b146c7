package reasonparse_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/prepost/reasonparse"
	"github.com/portico-llm/portico/internal/testkit"
)

// record is one recorded case.
type record struct {
	Name            string `json:"name"`
	ToolParser      string `json:"tool_parser"`
	ReasoningParser string `json:"reasoning_parser"`
	Version         string `json:"parser_version"`
	Request         struct {
		Tools      json.RawMessage `json:"tools"`
		ToolChoice json.RawMessage `json:"tool_choice"`
		Format     *struct {
			Type string `json:"type"`
		} `json:"response_format"`
		Effort string `json:"reasoning_effort"`
		Kwargs struct {
			EnableThinking *bool `json:"enable_thinking"`
			Thinking       *bool `json:"thinking"`
		} `json:"chat_template_kwargs"`
	} `json:"request"`
	Text   string    `json:"text"`
	Finish string    `json:"finish"`
	Pieces []*string `json:"pieces"`
	View   message   `json:"view"`
}

// message is what an answer is taken apart into.
type message struct {
	Content   string            `json:"content"`
	Reasoning string            `json:"reasoning_content"`
	ToolCalls []json.RawMessage `json:"tool_calls"`
}

func loadRecords(tb testing.TB) []record {
	tb.Helper()
	var records []record
	for r := range testkit.Records[record](tb, "testdata/reasoning.jsonl.gz") {
		records = append(records, *r)
	}
	return records
}

func (r *record) group() string { return r.Name[:strings.Index(r.Name, "/")] }

// openedTools are the models with tools whose template opens the thought.
var openedTools = []string{
	"p.qwen3_coder_qwen3", "p.deepseek_v3_r1", "p.deepseek_v3_1", "p.deepseek_v3_2", "p.deepseek_v4", "p.deepseek_v41",
	"p.glm47", "p.kimi_k25", "p.kimi_k3", "p.minimax_m2", "p.minimax_m3", "p.minimax_append", "p.nemotron_nano",
	"p.nemotron_v3", "p.step3",
}

// prompt is the end of the prompt as the recorded models' templates render it: most write <think>, whatever the parser
// is, and close it at once when told not to think.
func (r *record) prompt() string {
	open, end := "<think>", "</think>"
	switch {
	case strings.HasPrefix(r.ReasoningParser, "kimi_k3"), strings.HasPrefix(r.ReasoningParser, "minimax_m3"):
		starts, closes := reasonparse.Delimiters(r.ReasoningParser)
		open, end = starts[0], closes[0]
	case r.ReasoningParser == "gpt_oss":
		return "<|start|>assistant"
	}
	k := r.Request.Kwargs
	off := k.EnableThinking != nil && !*k.EnableThinking || r.Request.Effort == "none"
	opened := strings.HasPrefix(r.Name, "o.") || slices.Contains(openedTools, r.group())
	if off || opened && k.Thinking != nil && !*k.Thinking {
		return "<|im_start|>assistant\n" + open + "\n\n" + end + "\n\n"
	}
	if opened {
		return "<|im_start|>assistant\n" + open + "\n"
	}
	return "<|im_start|>assistant\n"
}

func (r *record) options() reasonparse.Options {
	q := r.Request
	choice := string(q.ToolChoice)
	opts := reasonparse.Options{
		Prompt: reasonparse.ReadPrompt(r.ReasoningParser, r.prompt()),
		Enabled: reasonparse.Enabled(r.ReasoningParser, reasonparse.Switches{
			EnableThinking: q.Kwargs.EnableThinking, Thinking: q.Kwargs.Thinking, ReasoningEffort: q.Effort,
		}),
		Guided: q.Format != nil || len(q.Tools) > 0 && choice != `"auto"` && choice != `"none"` && choice != "",
	}
	if len(q.Tools) > 0 && choice != `"none"` {
		opts.ToolParser = r.ToolParser
	}
	return opts
}

// parse takes an answer apart that arrives in the given pieces.
func parse(tb testing.TB, name string, opts reasonparse.Options, pieces ...string) message {
	tb.Helper()
	p, err := reasonparse.New(name, opts)
	if err != nil {
		tb.Fatal(err)
	}
	var m message
	emit := func(piece prepost.Piece) {
		switch piece.Kind {
		case prepost.Content:
			m.Content += piece.Text
		case prepost.Reasoning:
			m.Reasoning += piece.Text
		default:
			tb.Errorf("piece of kind %d", piece.Kind)
		}
	}
	for _, piece := range pieces {
		p.Push([]byte(piece), emit)
	}
	p.Finish(false, emit)
	return m
}

var channelCalls = regexp.MustCompile(`(?s)<\|start\|>assistant<\|channel\|>\w+ to=.*?(<\|call\|>|$)` +
	`|<\|channel\|>\w+ to=.*?(<\|call\|>|$)|<\|start\|>assistant to=\w+<\|message\|>.*?(<\|eom\|>|$)` +
	`|<\|message_model\|>\w*<\|content_invoke_tool_json\|>.*?(<\|end_message\|>|$)`)

// withoutCalls removes what the tool parser takes out of the content: calls, or with forced calls the JSON they are in.
func withoutCalls(r *record, content string) string {
	content = channelCalls.ReplaceAllString(content, "")
	for _, pair := range reasonparse.CallMarks(r.ToolParser) {
		for {
			before, call, ok := strings.Cut(content, pair[0])
			if !ok {
				break
			}
			rest := ""
			if pair[1] != "" {
				_, rest, _ = strings.Cut(call, pair[1])
			} else {
				rest = afterJSON(call)
			}
			content = before + rest
		}
	}
	if i := strings.Index(content, "["); i >= 0 && r.ToolParser == "pythonic" && len(r.View.ToolCalls) > 0 {
		content = content[:i]
	}
	return content
}

func afterJSON(text string) string {
	dec := json.NewDecoder(strings.NewReader(text))
	var v any
	if dec.Decode(&v) != nil {
		return ""
	}
	return text[dec.InputOffset():]
}

// split is the recorded message as far as the parsers here decide it.
func (r *record) split(got message) (have, want message) {
	want = message{Content: r.View.Content, Reasoning: r.View.Reasoning}
	have = message{Content: got.Content, Reasoning: got.Reasoning}
	if r.options().ToolParser != "" || strings.HasPrefix(r.ToolParser, "kimi_k3") {
		have.Content = withoutCalls(r, got.Content)
		if strings.TrimSpace(have.Content+want.Content) == "" {
			have.Content, want.Content = "", "" // white space around calls is the tool parser's
		}
	}
	if len(r.View.ToolCalls) > 0 && r.options().Guided {
		want.Content = "" // what the guided answer's own parser leaves out is its business
		have.Content = ""
	}
	return have, want
}

// difference is a line of differences.tsv.
type difference struct{ key, have, want, reason string }

func (d difference) line() string {
	return strings.Join([]string{d.key, d.have, d.want, d.reason}, "\t")
}

func show(m message) string {
	return strconv.QuoteToGraphic(m.Reasoning) + " | " + strconv.QuoteToGraphic(m.Content)
}

func readDifferences(tb testing.TB) map[string]difference {
	tb.Helper()
	data, err := os.ReadFile("testdata/differences.tsv")
	if err != nil && !testkit.Updating() {
		tb.Fatal(err)
	}
	known := map[string]difference{}
	for line := range strings.Lines(string(data)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) == 4 && !strings.HasPrefix(line, "#") {
			known[f[0]] = difference{f[0], f[1], f[2], f[3]}
		}
	}
	return known
}

// TestRecorded gives every recorded answer to the parser. Where the message isn't the recorded one, differences.tsv
// says which it is, and why.
func TestRecorded(t *testing.T) {
	known := readDifferences(t)
	var out bytes.Buffer
	fmt.Fprintf(&out, "# case@version\tours: reasoning | content\trecorded: reasoning | content\treason\n")
	equal, better := 0, 0
	for _, r := range loadRecords(t) {
		have, want := r.split(parse(t, r.ReasoningParser, r.options(), r.Text))
		key := r.Name + "@" + r.Version
		old, listed := known[key]
		delete(known, key)
		if have.Content == want.Content && have.Reasoning == want.Reasoning {
			equal++
			if listed && !testkit.Updating() {
				t.Errorf("%s: listed as a difference, but equal", key)
			}
			continue
		}
		better++
		d := difference{key, show(have), show(want), old.reason}
		if d.reason == "" {
			d.reason = "?"
		}
		fmt.Fprintln(&out, d.line())
		if d.reason == "?" && !testkit.Updating() {
			t.Errorf("%s: no reason given\n text %q\n ours %s\n want %s", key, r.Text, d.have, d.want)
		} else if d != old && !testkit.Updating() {
			t.Errorf("%s:\n text %q\n now  %s\n was  %s", key, r.Text, d.line(), old.line())
		}
	}
	if testkit.Updating() {
		if err := os.WriteFile("testdata/differences.tsv", out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	for key := range known {
		t.Errorf("%s: listed, but no such case", key)
	}
	t.Logf("%d cases equal, %d differ for a reason", equal, better)
}
