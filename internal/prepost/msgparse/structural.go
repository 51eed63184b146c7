package msgparse

import (
	"encoding/json"
	"slices"

	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/prepost/toolparse"
)

// The parts of xgrammar's structural tags that are used here. The order of members is of no meaning to engines.
type (
	structuralTag struct {
		Type   string `json:"type"`
		Format any    `json:"format"`
	}
	elementsFormat struct { // sequence: one after the other; or: one of them
		Type     string `json:"type"`
		Elements []any  `json:"elements"`
	}
	contentFormat struct { // optional: once or not at all; star: as often as you like
		Type    string `json:"type"`
		Content any    `json:"content"`
	}
	tagFormat struct {
		Type    string `json:"type"`
		Begin   string `json:"begin"`
		Content any    `json:"content"`
		End     string `json:"end"`
	}
	tagsFormat struct {
		Type           string      `json:"type"`
		Tags           []tagFormat `json:"tags"`
		Separator      string      `json:"separator"`
		AtLeastOne     bool        `json:"at_least_one"`
		StopAfterFirst bool        `json:"stop_after_first"`
	}
	triggeredFormat struct { // text in which a trigger begins one of the tags
		Type           string      `json:"type"`
		Triggers       []string    `json:"triggers"`
		Tags           []tagFormat `json:"tags"`
		Excludes       []string    `json:"excludes,omitempty"`
		AtLeastOne     bool        `json:"at_least_one"`
		StopAfterFirst bool        `json:"stop_after_first"`
	}
	textFormat struct {
		Type     string   `json:"type"`
		Excludes []string `json:"excludes"`
	}
	schemaFormat struct {
		Type   string          `json:"type"`
		Schema json.RawMessage `json:"json_schema"`
		Style  string          `json:"style"`

		AnyOrder bool `json:"any_order,omitempty"` // of an object's members
	}
	constFormat struct {
		Type  string `json:"type"`
		Value string `json:"value"`
	}
	regexFormat struct {
		Type    string `json:"type"`
		Pattern string `json:"pattern"`
	}
)

func sequence(elements ...any) elementsFormat { return elementsFormat{"sequence", elements} }
func either(elements ...any) elementsFormat   { return elementsFormat{"or", elements} }
func optional(content any) contentFormat      { return contentFormat{"optional", content} }
func star(content any) contentFormat          { return contentFormat{"star", content} }
func constant(text string) constFormat        { return constFormat{"const_string", text} }
func regex(pattern string) regexFormat        { return regexFormat{"regex", pattern} }

// anyText is text without the excluded strings.
func anyText(excludes ...string) textFormat {
	if excludes == nil {
		excludes = []string{} // null isn't a list
	}
	return textFormat{"any_text", excludes}
}

func tagged(begin string, content any, end string) tagFormat {
	return tagFormat{"tag", begin, content, end}
}

// several is calls in a row.
func several(tags []tagFormat, one bool) tagsFormat {
	return tagsFormat{Type: "tags_with_separator", Tags: tags, AtLeastOne: true, StopAfterFirst: one}
}

// mustCall reports whether an answer without a call is wrong.
func mustCall(q *prepost.AnswerRequest) bool {
	return q.Choice == prepost.MustCall || q.Choice == prepost.MustCallFunction
}

// wantsTag reports whether calls are to be held to the dialect's own form.
func wantsTag(q *prepost.AnswerRequest, d *toolparse.Dialect) bool {
	_, known := layoutOf(d.Name)
	switch {
	case !known && !d.StructuralTag || q.Choice == prepost.MustNotCall:
		return false
	case mustCall(q):
		return q.Tags.On || d.StructuralTag
	case !q.Tags.On:
		return false
	case q.JSON:
		return mayChoose(q) && !isKimiK3(d.Name)
	}
	return q.Tags.Always || q.OneCall || slices.ContainsFunc(q.Tools, func(f prepost.Function) bool { return f.Strict })
}

// mayChoose reports whether the answer is either calls or what the response format says.
func mayChoose(q *prepost.AnswerRequest) bool {
	return q.Tags.WithFormat && len(q.Format) > 0 && !mustCall(q)
}

// TagSupport says what can be wanted of a dialect's structural tags.
type TagSupport struct {
	Any        bool // there are some
	Exclude    bool // markers can be kept out of the text around calls
	AnyOrder   bool // arguments may come in any order
	WithFormat bool // the model may choose between calls and a response format
}

// TagsOf returns what the named tool parser's tags can do.
func TagsOf(tools string) TagSupport {
	d, _ := toolparse.Lookup(tools)
	l, known := layoutOf(tools)
	if !known && !d.StructuralTag {
		return TagSupport{}
	}
	k3 := isKimiK3(tools)
	return TagSupport{Any: true, Exclude: len(l.markers) > 0, AnyOrder: !k3, WithFormat: !k3}
}

// callTag is the structural tag that holds calls to the form of the named dialect, behind a thought in which the answer
// begins. Nil: a schema isn't JSON, which is the engine's to complain about.
func callTag(dialect string, q *prepost.AnswerRequest, t *thought) json.RawMessage {
	var format any
	layout, known := layoutOf(dialect)
	layout.exclude(q.Tags.Exclude)
	switch {
	case isKimiK3(dialect): // says itself where its thoughts end
		format, t = kimiK3Format(q), nil
	case mayChoose(q):
		format = either(callsOnly(&layout, known, q), schemaFormat{Type: "json_schema", Schema: q.Format, Style: "json"})
	case !known:
		format = kimiK2Format(q)
	case layout.alone && q.Choice == prepost.MustCallFunction:
		tags := layout.tags(q)
		if len(tags) == 0 {
			return nil
		}
		format = tags[0]
	default:
		format = layout.format(q)
	}
	// Where calls are a choice, a tag lets most of what the model writes pass, a thought too, but for what it excludes.
	if t != nil && (mustCall(q) || q.JSON || len(layout.excludes) > 0 || q.Tags.Exclude != nil) {
		format = sequence(tagged("", anyText(layout.thought...), t.end), format)
	}
	tag, err := json.Marshal(structuralTag{"structural_tag", format})
	if err != nil {
		return nil
	}
	return tag
}

// callsOnly is calls without text around them.
func callsOnly(l *layout, known bool, q *prepost.AnswerRequest) any {
	if known {
		return l.calls(q)
	}
	return kimiK2Section(q)
}

// callable are the functions that may be called.
func callable(q *prepost.AnswerRequest) []prepost.Function {
	if q.Choice != prepost.MustCallFunction {
		return q.Tools
	}
	return slices.DeleteFunc(slices.Clone(q.Tools), func(f prepost.Function) bool { return f.Name != q.Function })
}

// argumentSchema is what a function's arguments are held to; true is anything.
func argumentSchema(q *prepost.AnswerRequest, f *prepost.Function) json.RawMessage {
	if len(f.Parameters) == 0 || f.Loose && !q.Tags.Strict {
		return json.RawMessage("true")
	}
	return f.Parameters
}

// argumentFormat is a function's arguments in the given style.
func argumentFormat(q *prepost.AnswerRequest, f *prepost.Function, style string) schemaFormat {
	return schemaFormat{"json_schema", argumentSchema(q, f), style, q.Tags.AnyOrder}
}

// layout is how a dialect writes calls, as far as a structural tag needs it. The trigger begins the text of every call.
type layout struct {
	trigger              string
	before, behind, end  string   // around the function's name, and what ends the call
	style                string   // of the arguments, by xgrammar's names
	blockBegin, blockEnd string   // around all calls
	alone                bool     // of a named function there is the call, and nothing else
	separator            string   // between calls that nothing is around
	markers              []string // of calls, the first one begins them; empty: nothing is kept out of the text
	excludes, thought    []string // what is kept out of the text, and of a thought in front of it
}

// thoughtTags are the markers of thoughts in dialects whose markers can be kept out of the text.
var thoughtTags = []string{"<think>", "</think>"}

// exclude settles what is kept out of text and thoughts.
func (l *layout) exclude(want *bool) {
	switch {
	case want == nil:
	case !*want:
		l.excludes, l.thought = nil, nil
	case len(l.markers) > 0:
		l.excludes, l.thought = slices.Concat(thoughtTags, l.markers[1:]), l.markers
	}
}

// layoutOf returns the layout of a dialect. The texts are those of the models' templates.
func layoutOf(dialect string) (layout, bool) {
	switch dialect {
	case "hermes", "qwen25":
		return layout{trigger: "<tool_call>", before: "<tool_call>\n" + `{"name": "`, behind: `", "arguments": `,
			end: "}\n</tool_call>", style: "json", separator: "\n", markers: []string{"<tool_call>", "</tool_call>"}}, true
	case "qwen3_coder", "nemotron_nano":
		return layout{trigger: "<tool_call>\n<function=", before: "<tool_call>\n<function=", behind: ">\n",
			end: "\n</function>\n</tool_call>", style: "qwen_xml", separator: "\n",
			markers: []string{"<tool_call>", "<function="}}, true
	case "glm47":
		// Its markers are single tokens, which must not turn up in the text around the calls.
		markers := []string{"<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"}
		return layout{trigger: "<tool_call>", before: "<tool_call>", end: "</tool_call>", style: "glm_xml", alone: true,
			markers: markers, excludes: slices.Concat(thoughtTags, markers[1:]), thought: slices.Concat(thoughtTags, markers),
		}, true
	case "inkling":
		const marker = "<|content_invoke_tool_json|>"
		return layout{trigger: marker, before: marker + `{"name": "`, behind: `", "args": `,
			end: "}<|end_message|>", style: "json"}, true
	case "deepseek_v3_2":
		return dsmlLayout("function_calls"), true
	case "deepseek_v4", "deepseek-v4", "deepseekv4":
		return dsmlLayout("tool_calls"), true
	}
	return layout{}, false
}

// dsmlLayout is the layout of DeepSeek's markup.
func dsmlLayout(block string) layout {
	return layout{
		trigger: "<｜DSML｜" + block + ">", blockBegin: "<｜DSML｜" + block + ">\n", blockEnd: "</｜DSML｜" + block + ">",
		before: `<｜DSML｜invoke name="`, behind: `">` + "\n", end: "</｜DSML｜invoke>\n", style: "deepseek_xml",
		markers: []string{"<｜DSML｜" + block + ">", "<｜DSML｜invoke name="},
	}
}

// tags are the calls that may be made.
func (l *layout) tags(q *prepost.AnswerRequest) []tagFormat {
	var tags []tagFormat
	for _, f := range callable(q) {
		tags = append(tags, tagged(l.before+f.Name+l.behind,
			argumentFormat(q, &f, l.style), l.end))
	}
	return tags
}

// calls is calls, and nothing around them.
func (l *layout) calls(q *prepost.AnswerRequest) any {
	calls := several(l.tags(q), q.OneCall)
	if l.blockBegin == "" {
		calls.Separator = l.separator
		return calls
	}
	return tagged("\n\n"+l.blockBegin, calls, l.blockEnd)
}

// format is text with calls in it.
func (l *layout) format(q *prepost.AnswerRequest) any {
	tags := l.tags(q)
	if l.blockBegin != "" {
		tags = []tagFormat{tagged(l.blockBegin, several(tags, q.OneCall), l.blockEnd)}
	}
	return triggeredFormat{Type: "triggered_tags", Triggers: []string{l.trigger}, Tags: tags, Excludes: l.excludes,
		AtLeastOne: mustCall(q), StopAfterFirst: q.OneCall}
}

// What is around all calls of Kimi K2.
const k2Begin, k2End = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"

// kimiK2Format is calls in Kimi K2's own form: its engines have no other way of forcing a call, since the model doesn't
// write calls as JSON.
func kimiK2Format(q *prepost.AnswerRequest) any {
	if mustCall(q) {
		tags := kimiK2Tags(q)
		var calls any = several(tags, q.OneCall)
		if q.Choice == prepost.MustCallFunction && len(tags) > 0 {
			calls = tags[0]
		}
		return sequence(constant(k2Begin), calls, constant(k2End))
	}
	return triggeredFormat{Type: "triggered_tags", Triggers: []string{k2Begin}, Tags: []tagFormat{kimiK2Section(q)},
		StopAfterFirst: q.OneCall}
}

// kimiK2Section is calls with what is around them.
func kimiK2Section(q *prepost.AnswerRequest) tagFormat {
	return tagged(k2Begin, several(kimiK2Tags(q), q.OneCall), k2End)
}

// kimiK2Tags are the calls that may be made.
func kimiK2Tags(q *prepost.AnswerRequest) []tagFormat {
	var tags []tagFormat
	for _, f := range callable(q) {
		tags = append(tags, tagged("<|tool_call_begin|>functions."+f.Name+":", sequence(
			regex(`\d+`), constant("<|tool_call_argument_begin|>"), argumentFormat(q, &f, "json")), "<|tool_call_end|>"))
	}
	return tags
}
