package reasonparse_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/prepost/reasonparse"
)

var (
	opened = reasonparse.Options{Prompt: reasonparse.Opens}
	on     = reasonparse.Options{Enabled: true}
	off    = reasonparse.Options{}
)

// TestFieldReports pins failures that users of such servers reported: every one at every cut.
func TestFieldReports(t *testing.T) {
	withTools := func(opts reasonparse.Options, tool string) reasonparse.Options {
		opts.ToolParser = tool
		return opts
	}
	guided := opened
	guided.Guided = true
	tests := []struct {
		report, parser     string
		opts               reasonparse.Options
		text               string
		reasoning, content string
	}{
		{"end of the thought and the call in one delta", "qwen3", withTools(opened, "hermes"),
			"Write.</think><tool_call>{\"name\":\"f\"}</tool_call>", "Write.", "<tool_call>{\"name\":\"f\"}</tool_call>"},
		{"end of the thought inside a delta", "qwen3", opened, "a</think>b", "a", "b"},
		{"literal end later is swallowed", "qwen3", opened, "a</think>The tag </think> ends it.", "a",
			"The tag </think> ends it."},
		{"literal end later is swallowed", "deepseek_r1", on, "<think>a</think>x </think> y </think> z", "a",
			"x </think> y </think> z"},
		{"two ends in a row", "qwen3", opened, "a</think>\n</think>\n\nb", "a", "\n\n\nb"},
		{"thought cut off by length is content", "deepseek_r1", on, "thinking and thinki", "thinking and thinki", ""},
		{"thought cut off in the marker", "qwen3", opened, "a</thi", "a</thi", ""},
		{"prompt opened the thought", "basic", opened, "a</think>b", "a", "b"},
		{"prompt opened it and the model repeats", "basic", opened, "<think>a</think>b", "a", "b"},
		{"thinking disabled", "deepseek_r1", off, "just b", "", "just b"},
		{"thinking disabled, thought anyway", "deepseek_r1", off, "<think>a</think>b", "a", "b"},
		{"json answer trapped in the thought", "qwen3", guided, `{"x": 1}`, "", `{"x": 1}`},
		{"json answer trapped in the thought", "mistral", guided, `[{"x": "[THINK]"}]`, "", `[{"x": "[THINK]"}]`},
		{"json answer after a thought", "mistral", guided, `[THINK]a[/THINK]{"x": "[THINK]"}`, "a",
			`{"x": "[THINK]"}`},
		{"characters of several bytes", "kimi", opened, "北京◁/think▷◁ü◁", "北京◁/think▷◁ü◁"[:6], "◁ü◁"},
		{"answers about markers", "qwen3", off, "Use `<think>` and `</think>`, or \"<think>\".", "",
			"Use `<think>` and `</think>`, or \"<think>\"."},
		{"file about markers in a call", "qwen3", withTools(off, "hermes"),
			`<tool_call>{"arguments":{"text":"a <think> b </think> c"}}</tool_call> <think>x</think>`, "x",
			`<tool_call>{"arguments":{"text":"a <think> b </think> c"}}</tool_call> `},
	}
	for _, tt := range tests {
		got := parse(t, tt.parser, tt.opts, tt.text)
		if got.Reasoning != tt.reasoning || got.Content != tt.content {
			t.Errorf("%s: %s %q:\n got  %q | %q\n want %q | %q", tt.report, tt.parser, tt.text, got.Reasoning, got.Content,
				tt.reasoning, tt.content)
		}
		checkSplits(t, tt.parser, tt.opts, tt.text)
	}
}

// TestChannels covers what the recorded cases of channel dialects don't.
func TestChannels(t *testing.T) {
	tools := reasonparse.Options{ToolParser: "harmony"}
	tests := []struct {
		name, parser       string
		opts               reasonparse.Options
		text               string
		reasoning, content string
	}{
		{"recipient with the role", "gpt_oss", tools,
			"<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}<|call|>", "",
			"<|start|>assistant<|channel|>commentary to=functions.f json<|message|>{}<|call|>"},
		{"recipient in a header that the prompt began", "gpt_oss", tools,
			" to=functions.f<|channel|>commentary<|constrain|>json<|message|>{}<|call|>", "",
			"<|start|>assistant<|channel|>commentary to=functions.f<|constrain|>json<|message|>{}<|call|>"},
		{"call in the analysis channel", "gpt_oss", tools,
			"<|channel|>analysis to=functions.f code<|message|>{}<|call|>", "",
			"<|channel|>analysis to=functions.f code<|message|>{}<|call|>"},
		{"call without tools", "gpt_oss", off, "<|channel|>commentary to=functions.f<|message|>{}<|call|>A", "", "A"},
		{"recipient user", "gpt_oss", tools, "<|channel|>final to=user<|message|>A<|return|>", "", "A"},
		{"prompt opened the analysis", "gpt_oss", opened,
			"a<|end|><|start|>assistant<|channel|>final<|message|>b", "a", "b"},
		{"no markup, and a word like a header's", "gpt_oss", tools, "to be or", "", "to be or"},
		{"role without a channel", "gpt_oss", off, "<|channel|>analysis<|message|>a<|end|><|start|>assistant Hello!", "a",
			" Hello!"},
		{"header cut off", "gpt_oss", off, "<|channel|>final<|message|>b<|end|><|start|>assista", "", "b"},
		{"header too long", "gpt_oss", off, "<|start|>" + strings.Repeat("x", 300), "", strings.Repeat("x", 300)},
		{"channel too long inside a message", "gpt_oss", off,
			"<|channel|>final<|message|>The <|channel|>" + strings.Repeat("x", 300), "",
			"The <|channel|>" + strings.Repeat("x", 300)},
		{"headers in an argument", "gpt_oss", tools,
			"<|channel|>commentary to=functions.f<|message|>{\"x\":\"<|start|>!\"}<|call|>", "",
			"<|channel|>commentary to=functions.f<|message|>{\"x\":\"<|start|>!\"}<|call|>"},
		{"name in a header that the prompt began", "inkling", reasonparse.Options{ToolParser: "inkling"},
			"f<|content_invoke_tool_json|>{}<|end_message|>", "",
			"<|message_model|>f<|content_invoke_tool_json|>{}<|end_message|>"},
		{"name alone", "inkling", off, "Yes", "", "Yes"},
		{"images are nobody's", "inkling", off, "<|content_image|>xyz<|end_message|>A", "", "A"},
		{"header that the prompt began", "muse_glimmer", off,
			" to=self<|message|>a<|eom|><|start|>assistant<|message|>b", "a", "b"},
		{"no markup", "muse_glimmer", off, " too many", "", " too many"},
	}
	for _, tt := range tests {
		got := parse(t, tt.parser, tt.opts, tt.text)
		if got.Reasoning != tt.reasoning || got.Content != tt.content {
			t.Errorf("%s: %q:\n got  %q | %q\n want %q | %q", tt.name, tt.text, got.Reasoning,
				got.Content, tt.reasoning, tt.content)
		}
		checkSplits(t, tt.parser, tt.opts, tt.text)
	}
}

// TestStreams shows that text comes out as soon as it is certain.
func TestStreams(t *testing.T) {
	p, err := reasonparse.New("qwen3", reasonparse.Options{Prompt: reasonparse.Opens, ToolParser: "hermes"})
	if err != nil {
		t.Fatal(err)
	}
	var out string
	emit := func(piece prepost.Piece) {
		kind := "C"
		if piece.Kind == prepost.Reasoning {
			kind = "R"
		}
		out += kind + piece.Text + "|"
	}
	steps := []struct{ in, out string }{
		{"Let me", "RLet me|"}, {" a <", "R a |"}, {" b", "R< b|"}, {"</thi", ""}, {"nk>Fine", "CFine|"}, {".", "C.|"},
		{" <tool_call>", "C |"}, {"\n", ""}, {"{\"a", "C<tool_call>|C\n{\"a|"}, {"<think>", "C<think>|"},
	}
	for _, s := range steps {
		out = ""
		p.Push([]byte(s.in), emit)
		if out != s.out {
			t.Errorf("after %q: got %q, want %q", s.in, out, s.out)
		}
	}
}

func TestReasoningTokens(t *testing.T) {
	type item struct {
		text   string
		tokens int
	}
	tests := []struct {
		name  string
		items []item
		want  int
	}{
		{"token by token", []item{{"<think>", 1}, {"a", 1}, {" b", 1}, {"</think>", 1}, {"c", 1}, {"", 1}}, 4},
		{"one item", []item{{"<think>abcdefg</think>0123456789", 16}}, 11},
		{"held back", []item{{"<think>a </th", 3}, {"ink>b", 2}, {"c", 1}}, 5},
		{"character in halves", []item{{"<think>", 1}, {"", 1}, {"é", 1}, {"</think>", 1}, {"", 1}, {"é", 1}}, 4},
		{"cut off", []item{{"<think>", 1}, {"a", 1}, {"", 1}}, 3},
		{"none", []item{{"a", 1}, {"b <", 2}}, 0},
	}
	for _, tt := range tests {
		p, err := reasonparse.New("qwen3", off)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range tt.items {
			p.PushTokens([]byte(i.text), i.tokens, func(prepost.Piece) {})
		}
		p.Finish(false, func(prepost.Piece) {})
		if got := p.ReasoningTokens(); got != tt.want {
			t.Errorf("%s: %d tokens, want %d", tt.name, got, tt.want)
		}
	}
}

func TestReadPrompt(t *testing.T) {
	tests := []struct {
		parser, tail string
		want         reasonparse.Prompt
	}{
		{"qwen3", "<|im_start|>assistant\n", reasonparse.Unmarked},
		{"qwen3", "<|im_start|>assistant\n<think>\n", reasonparse.Opens},
		{"qwen3", "<|im_start|>assistant\n<think>\n\n</think>\n\n", reasonparse.Closes},
		{"qwen3", "say <think> twice<|im_end|>\n<|im_start|>assistant\n", reasonparse.Unmarked},
		{"deepseek_v3_1", "<｜Assistant｜></think>", reasonparse.Closes},
		{"nobody", "<think>", reasonparse.Opens},
		{"kimi_k3", "<|open|>think<|sep|>", reasonparse.Opens},
		{"kimi_k3", "<|open|>response<|sep|>", reasonparse.Closes},
		{"gemma4", "<|turn>model\n<|channel>thought\n", reasonparse.Opens},
		{"gemma4", "<|channel>thought\n<channel|>", reasonparse.Closes},
		{"gpt_oss", "<|start|>assistant", reasonparse.Unmarked},
		{"gpt_oss", "<|start|>assistant<|channel|>analysis<|message|>", reasonparse.Opens},
		{"mistral", "<think>", reasonparse.Unmarked},
		{"granite", "Here is my thought process:", reasonparse.Opens},
		{"qwen3", "", reasonparse.Unmarked},
	}
	for _, tt := range tests {
		if got := reasonparse.ReadPrompt(tt.parser, tt.tail); got != tt.want {
			t.Errorf("%s %q: %d, want %d", tt.parser, tt.tail, got, tt.want)
		}
	}
}

func TestReadTurn(t *testing.T) {
	tests := []struct {
		parser, turn string
		want         reasonparse.Prompt
	}{
		{"qwen3", "", reasonparse.Unmarked},
		{"qwen3", "The answer", reasonparse.Unmarked},
		{"qwen3", "<think>\nLet me", reasonparse.Opens},
		{"qwen3", "<think>\n", reasonparse.Opens},
		{"qwen3", "<think>\nLet me</think>The answer", reasonparse.Closes},
		{"gpt_oss", "<|channel|>analysis<|message|>Let me", reasonparse.Opens},
		{"gpt_oss", "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>The",
			reasonparse.Closes},
	}
	for _, tt := range tests {
		if got := reasonparse.ReadTurn(tt.parser, tt.turn); got != tt.want {
			t.Errorf("%s %q: %d, want %d", tt.parser, tt.turn, got, tt.want)
		}
	}
}

func TestEnabled(t *testing.T) {
	yes, no := true, false
	tests := []struct {
		switches reasonparse.Switches
		on       []string // of deepseek_r1, deepseek_v3, mistral, gemma4
	}{
		{reasonparse.Switches{}, []string{"deepseek_r1"}},
		{reasonparse.Switches{EnableThinking: &no}, nil},
		{reasonparse.Switches{Thinking: &no}, nil},
		{reasonparse.Switches{ReasoningEffort: "none"}, nil},
		{reasonparse.Switches{ReasoningEffort: "high"}, []string{"deepseek_r1", "mistral"}},
		{reasonparse.Switches{ReasoningEffort: "high", EnableThinking: &no}, nil},
		{reasonparse.Switches{Thinking: &yes}, []string{"deepseek_r1", "deepseek_v3"}},
		{reasonparse.Switches{EnableThinking: &yes}, []string{"deepseek_r1", "deepseek_v3", "gemma4"}},
	}
	for _, tt := range tests {
		var got []string
		for _, name := range []string{"deepseek_r1", "deepseek_v3", "mistral", "gemma4"} {
			if reasonparse.Enabled(name, tt.switches) {
				got = append(got, name)
			}
		}
		if !slices.Equal(got, tt.on) {
			t.Errorf("%+v: %v, want %v", tt.switches, got, tt.on)
		}
	}
}

func TestDetect(t *testing.T) {
	tests := []struct{ template, want string }{
		{"{{ messages }}", ""},
		{"{%- if enable_thinking is defined %}<think>\n\n</think>", "qwen3"},
		{"<|start|>assistant<|channel|>analysis<|message|>", "gpt_oss"},
		{"<think></think><minimax:tool_call>", "minimax_m2"},
		{"<think></think><|tool_calls_section_begin|>", "kimi_k25"},
		{"[THINK]{{ x }}[/THINK]", "mistral"},
		{"<|turn>model\n<|channel>thought\n<channel|>", "gemma4"},
		{"{% if thinking %}<think>{% else %}</think>{% endif %}<｜tool▁calls▁begin｜>", "deepseek_v3_1"},
		{"<｜Assistant｜>{{ content.split('</think>')[-1] }}", "deepseek_r1"},
		{"<think></think><arg_key>", "glm45"},
		{"x</think>", "basic"},
	}
	for _, tt := range tests {
		got, ok := reasonparse.Detect(tt.template)
		if got != tt.want || ok != (tt.want != "") {
			t.Errorf("%q: %q %v, want %q", tt.template, got, ok, tt.want)
		}
	}
	for _, name := range reasonparse.Names() {
		if _, err := reasonparse.New(name, on); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := reasonparse.Markers("nobody"); !slices.Equal(got, []string{"<think>", "</think>"}) {
		t.Errorf("markers of an unknown parser: %q", got)
	}
	if _, err := reasonparse.New("", on); err == nil {
		t.Error("a parser without a name")
	}
}

// TestMarkersAreDistinct: no marker of a parser begins with another, which the scanner relies on.
func TestMarkersAreDistinct(t *testing.T) {
	for _, name := range reasonparse.Names() {
		for _, tool := range toolParsers {
			all := reasonparse.Scanned(name, tool)
			slices.Sort(all)
			for i := 1; i < len(all); i++ {
				if strings.HasPrefix(all[i], all[i-1]) {
					t.Errorf("%s with %s: %q begins with %q", name, tool, all[i], all[i-1])
				}
			}
		}
	}
}
