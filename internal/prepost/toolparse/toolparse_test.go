package toolparse_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/prepost/toolparse"
)

// pieces returns what a parser emits, one string per piece: content as it is, name(text) for calls.
func pieces(t *testing.T, name string, o toolparse.Options, texts ...string) []string {
	t.Helper()
	p, err := toolparse.New(name, o)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	emit := func(p prepost.Piece) {
		if p.Kind == prepost.ToolCall {
			all = append(all, p.Name+"("+p.Text+")")
			return
		}
		all = append(all, p.Text)
	}
	for _, text := range texts {
		p.Push([]byte(text), emit)
	}
	p.Finish(false, emit)
	return all
}

// TestIncremental: a call's name comes as soon as it is known, and its arguments as they are written.
func TestIncremental(t *testing.T) {
	tools := []toolparse.Tool{{Name: "f", Parameters: json.RawMessage(`{"properties":{"s":{"type":"string"},
		"n":{"type":"integer"}}}`)}}
	for _, test := range []struct {
		parser string
		texts  []string
		want   []string
	}{
		{"hermes",
			[]string{"Hi ", "<tool", "_call>\n{\"name\": \"f\"", `, "arguments": {"s": "on`, `e", "n"`, ": 1}}\n</tool_", "call>"},
			[]string{"Hi ", "f()", `({"s": "on)`, `(e", "n")`, "(: 1})"}},
		{"qwen3_coder",
			[]string{"<tool_call>\n<function=f>\n<parameter=s>\non", "e\ntw", "o\n</para", "meter>\n<parameter=n>\n12", "\n</parameter>\n</function>\n"},
			[]string{"f()", `({"s":"on)`, `(e\ntw)`, `(o)`, `(")`, `(,"n":12)`, `(})`}},
		{"deepseek_v3_1",
			[]string{"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>", `{"s": `, `"x`, `y"}`, "<｜tool▁call▁end｜>"},
			[]string{"f()", `({"s":)`, `("x)`, `(y"})`}},
		{"pythonic",
			[]string{"[f(", "s='o", "ne', n=", "3), ", "g()]"},
			[]string{"f()", `({"s":"o)`, `(ne")`, `(,"n":3)`, "(})", "g()", "({})"}},
		{"gemma4",
			[]string{"<|tool_call>call:f{s:", `<|"|>a`, `b<|"|>,n`, ":1}<tool_call|>"},
			[]string{"f()", `({"s":)`, `("a)`, `(b")`, `(,"n":1})`}},
	} {
		if diff := cmp.Diff(test.want, pieces(t, test.parser, toolparse.Options{Tools: tools}, test.texts...)); diff != "" {
			t.Errorf("%s:\n%s", test.parser, diff)
		}
	}
}

// TestArguments: what values become.
func TestArguments(t *testing.T) {
	tools := []toolparse.Tool{{Name: "f", Parameters: json.RawMessage(`{
		"$defs": {"point": {"type": "object"}},
		"properties": {
			"s": {"type": "string"}, "i": {"type": "integer"}, "x": {"type": "number"}, "b": {"type": "boolean"},
			"o": {"type": "object"}, "a": {"type": "array"}, "any": {}, "opt": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
			"list": {"type": ["string", "null"]}, "e": {"enum": ["1", "2"]}, "p": {"$ref": "#/$defs/point"}}}`)}}
	coder := func(name, value string) string {
		return "<function=f>\n<parameter=" + name + ">\n" + value + "\n</parameter>\n</function>"
	}
	for _, test := range []struct{ name, parser, text, want string }{
		{"string", "qwen3_coder", coder("s", "  a\n\n\tb &amp; <i>\"\\ "), `{"s":"  a\n\n\tb &amp; <i>\"\\ "}`},
		{"JSON in the tags", "qwen3_coder", "<tool_call>\n<function=f>\n{\"s\": \"</function>\"}\n</function>\n</tool_call>", `{"s": "</function>"}`},
		{"string of digits", "qwen3_coder", coder("s", "5"), `{"s":"5"}`},
		{"integer", "qwen3_coder", coder("i", " 5 "), `{"i":5}`},
		{"no integer", "qwen3_coder", coder("i", "five"), `{"i":"five"}`},
		{"leading zero", "qwen3_coder", coder("i", "007"), `{"i":"007"}`},
		{"number", "qwen3_coder", coder("x", "-1.5e3"), `{"x":-1.5e3}`},
		{"boolean", "qwen3_coder", coder("b", "True"), `{"b":true}`},
		{"object", "qwen3_coder", coder("o", `{"a": [1, {}]}`), `{"o":{"a":[1,{}]}}`},
		{"Python dict", "qwen3_coder", coder("o", `{'a': None, 'b': (1, 2,)}`), `{"o":{"a":null,"b":[1,2]}}`},
		{"no object", "qwen3_coder", coder("o", `{a}`), `{"o":"{a}"}`},
		{"array", "qwen3_coder", coder("a", "[ ]"), `{"a":[]}`},
		{"untyped", "qwen3_coder", coder("any", "7"), `{"any":"7"}`},
		{"undeclared", "qwen3_coder", coder("zzz", "7"), `{"zzz":"7"}`},
		{"null", "qwen3_coder", coder("opt", "null"), `{"opt":null}`},
		{"optional", "qwen3_coder", coder("opt", "3"), `{"opt":3}`},
		{"list of types", "qwen3_coder", coder("list", "None"), `{"list":null}`},
		{"enum", "qwen3_coder", coder("e", "1"), `{"e":"1"}`},
		{"reference", "qwen3_coder", coder("p", `{"x":1}`), `{"p":{"x":1}}`},
		{"two newlines", "qwen3_coder", coder("s", "\n\n"), `{"s":"\n\n"}`},
		{"empty", "qwen3_coder", coder("s", ""), `{"s":""}`},
		{"own tags in a value", "qwen3_coder", coder("s", "x </parameter> y <parameter=q> </function> z </tool_call>"),
			`{"s":"x </parameter> y <parameter=q> </function> z </tool_call>"}`},
		{"a call in a value", "qwen3_coder", coder("s", "<tool_call>\n<function=g>\n</function>\n</tool_call>\nx"),
			`{"s":"<tool_call>\n<function=g>\n</function>\n</tool_call>\nx"}`},
		{"raw control characters", "hermes", "<tool_call>{\"name\":\"f\",\"arguments\":{\"s\":\"a\nb\tc\"}}</tool_call>", `{"s":"a\nb\tc"}`},
		{"escapes that JSON lacks", "hermes", `<tool_call>{"name":"f","arguments":{"s":"\d+\.\u12"}}</tool_call>`, `{"s":"\\d+\\.\\u12"}`},
		{"arguments first", "hermes", `<tool_call>{"arguments":{"s":"a"},"name":"f"}</tool_call>`, `{"s":"a"}`},
		{"null arguments", "hermes", `<tool_call>{"name":"f","arguments":null}</tool_call>`, `{}`},
		{"arguments as a string", "hermes", `<tool_call>{"name":"f","arguments":"{\"s\":\"\\u00e9\\n\ud83d\ude00\"}"}</tool_call>`,
			"{\"s\":\"\\u00e9\\n😀\"}"},
		{"OpenAI's form", "hermes", `<tool_call>{"type":"function","function":{"name":"f","arguments":{"s":"a"}}}</tool_call>`, `{"s":"a"}`},
		{"a bracket missing", "hermes", `<tool_call>{"name":"f","arguments":{"s":"a"}</tool_call>`, `{"s":"a"}`},
		{"a bracket too many", "hermes", `<tool_call>{"name":"f","arguments":{"s":"a"}}}</tool_call>`, `{"s":"a"}`},
		{"Python literals", "pythonic", `[f(s="""a"b""", i=-1_000, x=.5, b=False, any=None, o={'k': [(), (1,)]}, a=['\x41\'', "\\d"])]`,
			`{"s":"a\"b","i":-1000,"x":0.5,"b":false,"any":null,"o":{"k":[[],[1]]},"a":["A'","\\d"]}`},
		{"gemma literals", "gemma4", `<|tool_call>call:f{s:<|"|>a"\b<|"|>,i:-1,b:true,any:word,o:{k:[1,<|"|>x<|"|>]},a:[]}<tool_call|>`,
			`{"s":"a\"\\b","i":-1,"b":true,"any":"word","o":{"k":[1,"x"]},"a":[]}`},
		{"said to be a string", "deepseek_v3_2", `<｜DSML｜invoke name="f"><｜DSML｜parameter name="i" string="true">5</｜DSML｜parameter></｜DSML｜invoke>`, `{"i":"5"}`},
		{"said to be JSON", "deepseek_v3_2", `<｜DSML｜invoke name="f"><｜DSML｜parameter name="s" string="false">"5"</｜DSML｜parameter></｜DSML｜invoke>`, `{"s":"5"}`},
		{"not said", "deepseek_v3_2", `<｜DSML｜invoke name="f"><｜DSML｜parameter name="i">5</｜DSML｜parameter></｜DSML｜invoke>`, `{"i":5}`},
		{"trailing space", "deepseek_v3_2", "<｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"s\" string=\"true\"> a \n</｜DSML｜parameter></｜DSML｜invoke>", `{"s":" a \n"}`},
		{"nested tags", "minimax_m3", strings.ReplaceAll(`@<tool_call>@<invoke name="f">@<o>@<a>1@</a>@<b>@<c>x@</c>@<c>y@</c>@</b>@</o>@</invoke>@</tool_call>`, "@", "]<]minimax[>["),
			`{"o":{"a":"1","b":{"c":["x","y"]}}}`},
	} {
		got := parse(t, test.parser, toolparse.Options{Tools: tools}, false, test.text)
		want := []call{{Name: "f", Arguments: test.want}}
		if diff := cmp.Diff(want, got.Calls); diff != "" {
			t.Errorf("%s:\n%s", test.name, diff)
		}
		if got.Content != "" {
			t.Errorf("%s leaves the content %q", test.name, got.Content)
		}
		if !json.Valid([]byte(test.want)) {
			t.Errorf("%s: %s isn't JSON", test.name, test.want)
		}
	}
}

// TestIDs: the ids that a dialect carries are passed on with the name; others are left to the server.
func TestIDs(t *testing.T) {
	for _, test := range []struct{ parser, text, want string }{
		{"kimi_k2", "<|tool_call_begin|>functions.f:3<|tool_call_argument_begin|>{}<|tool_call_end|>", "functions.f:3"},
		{"mistral", "[TOOL_CALLS]f[CALL_ID]abc123def[ARGS]{}", "abc123def"},
		{"mistral", `[TOOL_CALLS][{"id": "abc123def", "name": "f", "arguments": {}}]`, "abc123def"},
		{"hermes", `<tool_call>{"name": "f", "arguments": {}}</tool_call>`, ""},
	} {
		got := parse(t, test.parser, toolparse.Options{}, false, test.text)
		if len(got.Calls) != 1 || got.Calls[0].ID != test.want || got.Calls[0].Name != "f" {
			t.Errorf("%s: %+v, want the id %q", test.parser, got.Calls, test.want)
		}
	}
}

// TestCutByLimit: a length limit never makes a call whole, and leaves no half of a marker.
func TestCutByLimit(t *testing.T) {
	for _, test := range []struct {
		parser, text string
		want         result
	}{
		{"hermes", "Sure <tool_c", result{Content: "Sure ", Segments: "Sure "}},
		{"hermes", "a <", result{Content: "a <", Segments: "a <"}},
		{"hermes", `<tool_call>{"na`, result{}},
		{"hermes", `<tool_call>{"name": "f"`, result{Segments: "|", Calls: []call{{Name: "f"}}, Cut: true}},
		{"hermes", `<tool_call>{"name": "f", "arguments": {"a": "b`, result{Segments: "|", Calls: []call{{Name: "f", Arguments: `{"a": "b`}}, Cut: true}},
		{"hermes", `<tool_call>{"name": "f", "arguments": {}`, result{Segments: "|", Calls: []call{{Name: "f", Arguments: `{}`}}}},
		{"qwen3_coder", "<tool_call>\n<function=f", result{}},
		{"qwen3_coder", "<function=f>\n<parameter=a>\nx</para", result{Segments: "|", Calls: []call{{Name: "f", Arguments: `{"a":"x`}}, Cut: true}},
		{"kimi_k2", "<|tool_call_begin|>functions.f", result{}},
		{"harmony", "<|channel|>commentary to=functions.f", result{}},
	} {
		if diff := cmp.Diff(test.want, parse(t, test.parser, toolparse.Options{}, true, test.text)); diff != "" {
			t.Errorf("%s: %q:\n%s", test.parser, test.text, diff)
		}
	}
}

// TestMalformedIsCounted: calls whose arguments aren't JSON are passed on and counted.
func TestMalformedIsCounted(t *testing.T) {
	p, err := toolparse.New("kimi_k2", toolparse.Options{})
	if err != nil {
		t.Fatal(err)
	}
	a := assembler{t: t}
	p.Push([]byte("<|tool_call_begin|>f:0<|tool_call_argument_begin|>{\"a\": nope, [x}]}<|tool_call_end|>"+
		"<|tool_call_begin|>g:1<|tool_call_argument_begin|>{}<|tool_call_end|>"), a.add)
	p.Finish(false, a.add)
	want := []call{{"f", `{"a":nope, [x}]}`, "f:0"}, {"g", "{}", "g:1"}}
	if diff := cmp.Diff(want, a.Calls); diff != "" {
		t.Error(diff)
	}
	if p.Malformed() != 1 || p.Cut() {
		t.Errorf("Malformed() %d, Cut() %v", p.Malformed(), p.Cut())
	}
}

// TestThoughts: dialects that mark the model's thoughts give them as reasoning.
func TestThoughts(t *testing.T) {
	for _, test := range []struct{ parser, text string }{
		{"harmony", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>"},
		{"inkling", "<|content_thinking|>Hm.<|end_message|><|message_model|><|content_text|>Yes.<|end_message|>"},
		{"muse", " to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>Yes.<|eot|>"},
	} {
		got := parse(t, test.parser, toolparse.Options{}, false, test.text)
		if got.Reasoning != "Hm." || got.Content != "Yes." {
			t.Errorf("%s: %+v", test.parser, got)
		}
	}
}
