package toolparse

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Dialect is what the other parts of the server need to know of a parser.
type Dialect struct {
	Name string

	// Markers are the texts that delimit calls; Tokens are what they are made of in dialects that put several tokens
	// together, and what may stand within calls. Where the model's tokenizer has either as special tokens, they have to
	// be decoded.
	Markers []string
	Tokens  []string

	// SkipSpecialFalse says that workers are told skip_special_tokens: false, with and without tools.
	SkipSpecialFalse bool

	// VisibleStops are stop tokens whose text the parser wants to see while tools are in effect: the end of a call,
	// which the model's generation config lists among its stops.
	VisibleStops []string

	// StructuralTag says that forced calls are held to the dialect's own form, by a structural tag, instead of plain
	// JSON; Always that the parser has to run for requests without tools too, since the dialect wraps every answer.
	StructuralTag bool
	Always        bool
}

// dialect is how a parser reads.
type dialect struct {
	Dialect

	markers []marker
	ends    []string // what ends arguments that are malformed or cut off: the whole markers as a rule
	whole   []string // the markers that are whole words, not beginnings
	first   byteSet  // the bytes markers and unmarked calls begin with

	start     state                               // where a message begins
	bare      func(*Parser, []byte, bool) verdict // recognises calls without markers
	bareState state
	bareArray bool
	anywhere  bool   // calls without markers may follow text; otherwise a message begins with them
	named     bool   // name[ARGS]{…} may follow the marker
	compact   bool   // arguments lose the white space between their tokens
	brackets  string // brackets that may be too many behind a call
	tags      *tags
}

// Names returns the names of all parsers, sorted.
func Names() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(table())), func(name string) bool { return name == "" })
}

// Lookup returns what a parser needs of a request.
func Lookup(name string) (Dialect, bool) {
	d := lookup(name)
	if d == nil || name == "" {
		return Dialect{}, false
	}
	return d.Dialect, true
}

// lookup returns a dialect, or nil. The one without a name has no markers: all text is content.
func lookup(name string) *dialect { return table()[name] }

// table holds the dialects by their names. It is never changed.
var table = sync.OnceValue(func() map[string]*dialect {
	all := map[string]*dialect{"": {}}
	add := func(d dialect, names ...string) {
		for _, m := range d.markers {
			d.first[m.text[0]] = true
			text := strings.TrimSpace(m.text)
			if !slices.Contains(d.Markers, text) {
				d.Markers = append(d.Markers, text)
			}
			if m.look == nil && !slices.Contains(d.whole, text) {
				d.whole = append(d.whole, text)
			}
		}
		if d.ends == nil {
			d.ends = d.whole
		}
		if d.bare != nil {
			d.first['['] = true
			d.first['{'] = d.bareState == inBody
		}
		for _, name := range names {
			d := d
			d.Name = name
			all[name] = &d
		}
	}
	addJSON(add)
	addHeaders(add)
	addTags(add)
	addSpecialTags(add)
	return all
})

// adder adds a dialect under its names.
type adder func(d dialect, names ...string)

// take makes markers that are only taken out.
func take(r role, texts ...string) []marker {
	all := make([]marker, len(texts))
	for i, text := range texts {
		all[i] = marker{text: text, role: r}
	}
	return all
}

// wrapped is a dialect whose calls are JSON between two markers.
func wrapped(open, shut string) dialect {
	d := dialect{
		markers:  []marker{{text: open, next: inBody}},
		brackets: "}]",
	}
	if shut != "" {
		d.markers = append(d.markers, take(shuts, shut)...)
	}
	return d
}

// addJSON adds the dialects whose calls are JSON objects with a name and arguments. They differ in their markers alone:
// objects, arrays and rows of either are read in all of them.
func addJSON(add adder) {
	// Where the markers were left out, a bare object at the beginning counts.
	hermes := wrapped("<tool_call>", "</tool_call>")
	hermes.bare, hermes.bareState = bareObject, inBody
	add(hermes, "hermes", "qwen25")

	add(wrapped("<TOOLCALL>", "</TOOLCALL>"), "nemotron_deci")
	add(wrapped("<tool_calls>", "</tool_calls>"), "jamba")

	// Bare objects count anywhere, since models leave the marker out more often than not; what ends a turn is taken out with special tokens decoded.
	llama := wrapped("<|python_tag|>", "")
	llama.markers = append(llama.markers, take(shuts, "<|eom_id|>", "<|eot_id|>")...)
	llama.bare, llama.bareState, llama.anywhere = bareObject, inBody, true
	add(llama, "llama3_json")

	// What a worker gets that doesn't know its model's dialect: the two forms of Nemotron and Llama.
	either := wrapped("<TOOLCALL>", "</TOOLCALL>")
	either.markers = append(either.markers, marker{text: "<|python_tag|>", next: inBody})
	either.bare, either.bareState = bareObject, inBody
	add(either, "default")

	// Before version 11 of its tokenizer Mistral writes an array, since then a name for each marker.
	mistral := wrapped("[TOOL_CALLS]", "[/TOOL_CALLS]")
	mistral.named, mistral.Tokens = true, []string{callID, callArguments}
	mistral.bare, mistral.bareState, mistral.bareArray = bareObject, inBody, true
	add(mistral, "mistral")

	add(dialect{
		markers:  []marker{{text: "functools", next: inBody, look: functools}},
		ends:     []string{"functools["},
		brackets: "}]",
	}, "phi4")

	// The prompt ends behind <|message_model|>, so that an answer may begin with a function's name.
	add(dialect{
		Dialect: Dialect{SkipSpecialFalse: true, Always: true},
		markers: append([]marker{
			{text: "<|content_invoke_tool_json|>", next: inBody},
			{text: "<|message_model|>", next: inInkling},
			{text: "<|content_thinking|>", next: inAside},
			{text: "<|content_text|>"},
		}, take(shuts, "<|end_message|>", "<|content_model_end_sampling|>")...),
		start:    inInkling,
		brackets: "}]",
	}, "inkling")
}

// functools is the look of Phi's marker, which is a word: only with a call behind it is it a marker.
func functools(_ *Parser, b []byte, final bool) (int, verdict) {
	rest := bytes.TrimLeft(b[len("functools"):], " \t\r\n")
	if len(rest) == 0 {
		return 0, unless(final)
	}
	object := bytes.TrimLeft(rest, "[ \t\r\n")
	if rest[0] != '[' {
		return 0, no
	}
	if len(object) == 0 {
		return 0, unless(final)
	}
	if object[0] != '{' {
		return 0, no
	}
	_, v := scanHead(object, final)
	if v == ended {
		return 0, more
	}
	return len("functools"), v
}

// addHeaders adds the dialects where a call's name stands before its arguments. Each has a state of its own that reads
// what is between the marker and the arguments.
func addHeaders(add adder) {
	// Brackets and parentheses are the only markers, so that a list is read with care: see pythonList.
	add(dialect{
		markers:   take(opens, "<|python_tag|>"),
		bare:      pythonList,
		bareState: inPython,
		anywhere:  true,
		ends:      []string{")]"},
		brackets:  "])",
		compact:   true,
	}, "pythonic")

	// Both layouts are read under both names, since they can't be confused.
	add(dialect{
		markers: append([]marker{
			{text: "<｜tool▁calls▁begin｜>"},
			{text: "<｜tool▁call▁begin｜>", next: inDeepseek},
			{text: deepseekSeparator},
		}, take(shuts, "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "<｜end▁of▁sentence｜>")...),
		brackets: "}`",
		compact:  true,
	}, "deepseek_v3", "deepseek_v3_1")

	add(dialect{
		Dialect: Dialect{SkipSpecialFalse: true, StructuralTag: true},
		markers: append([]marker{
			{text: "<|tool_calls_section_begin|>"},
			{text: "<|tool_call_section_begin|>"},
			{text: "<|tool_call_begin|>", next: inKimi},
			{text: kimiSeparator},
		}, take(shuts, "<|tool_call_end|>", "<|tool_calls_section_end|>", "<|tool_call_section_end|>")...),
		brackets: "}",
		compact:  true,
	}, "kimi_k2", "kimi_k25")

	// The token that ends a call is one of the model's stop tokens. Arguments that are whole don't need it.
	add(dialect{
		Dialect: Dialect{SkipSpecialFalse: true, VisibleStops: []string{"<|call|>"}, Always: true},
		markers: append([]marker{
			{text: "<|start|>", next: inHarmony},
			{text: "<|channel|>", next: inHarmony},
			{text: message},
			{text: "<|constrain|>"},
		}, take(shuts, "<|call|>", "<|end|>", "<|return|>")...),
		brackets: "}",
		compact:  true,
	}, "harmony")

	add(dialect{
		Dialect: Dialect{SkipSpecialFalse: true, Tokens: []string{gemmaQuote}},
		markers: append([]marker{
			{text: "<|tool_call>", next: inGemma},
		}, take(shuts, "<tool_call|>", "<|tool_response>", "<tool_response|>")...),
		brackets: "}",
	}, "gemma4", "gemma-4")
}

// addTags adds the dialects with a tag for each parameter. Their opening marker is a tag with a name in it, so that it
// has a look; the markers around are only taken out.
func addTags(add adder) {
	// The wrapper leads to JSON, should there be some; a function's tag is found with and without it.
	add(dialect{
		markers: append([]marker{
			{text: "<function=", next: inElement, look: callTag},
			{text: "<tool_call>", next: inBody},
		}, take(shuts, "</function>", "</tool_call>")...),
		brackets: "}]",
		tags: &tags{
			call: "<function=", end: ">", callEnd: "</function>",
			parameter: "<parameter=", close: "</parameter>", lines: true,
		},
	}, "qwen3_coder", "nemotron_nano", "qwen3")

	add(dialect{
		markers: append([]marker{
			{text: "<invoke ", next: inElement, look: callTag},
			{text: "<minimax:tool_call>"},
		}, take(shuts, "</invoke>", "</minimax:tool_call>")...),
		tags: &tags{
			call: "<invoke ", callName: "name", end: ">", callEnd: "</invoke>",
			parameter: "<parameter ", key: "name", close: "</parameter>",
		},
	}, "minimax_m2")

	// The same marker opens a call when a name follows, and is taken out when not.
	add(dialect{
		Dialect: Dialect{Tokens: []string{glmKey, "</arg_key>", glmValue, "</arg_value>"}},
		markers: append([]marker{
			{text: glmOpen, next: inElement, look: argTag},
			{text: glmOpen},
		}, take(shuts, glmClose)...),
		tags: &tags{call: glmOpen, callEnd: glmClose, parameter: glmKey, close: "</arg_value>"},
	}, "glm47", "glm45")

	add(dsml("<｜DSML｜", "function_calls"), "deepseek_v3_2")
	add(dsml("<｜DSML｜", "tool_calls"), "deepseek_v4", "deepseek-v4", "deepseekv4")
	v41 := dsml("<｜DSML｜ ", "calls")
	v41.SkipSpecialFalse = true
	add(v41, "deepseek_v41")
}

// addSpecialTags adds those whose tags are made of special tokens, or stand in messages of their own.
func addSpecialTags(add adder) {
	const mark = "]<]minimax[>["
	add(dialect{
		Dialect: Dialect{SkipSpecialFalse: true, Tokens: []string{mark}},
		markers: append([]marker{
			{text: mark + "<invoke ", next: inElement, look: callTag},
			{text: mark + "<tool_call>"},
		}, take(shuts, mark+"</invoke>", mark+"</tool_call>")...),
		tags: &tags{
			call: mark + "<invoke ", callName: "name", end: ">", callEnd: mark + "</invoke>", nested: mark,
		},
	}, "minimax_m3", "minimax-m3", "minimax_m3_nom", "minimax-m3-nom")

	// Every answer is wrapped, with or without tools.
	add(dialect{
		Dialect: Dialect{SkipSpecialFalse: true, StructuralTag: true, Always: true,
			Tokens: []string{"<|open|>", "<|close|>", "<|sep|>"}},
		markers: append([]marker{
			{text: "<|open|>call ", next: inElement, look: callTag},
			{text: "<|open|>tools<|sep|>"},
			{text: "<|open|>response<|sep|>"},
			{text: "<|open|>message<|sep|>"},
		}, take(shuts, "<|close|>json<|sep|>", "<|close|>call<|sep|>", "<|close|>tools<|sep|>",
			"<|close|>response<|sep|>", "<|close|>message<|sep|>", "<|end_of_msg|>")...),
		compact: true,
		tags: &tags{
			call: "<|open|>call ", callName: "tool", end: "<|sep|>", callEnd: "<|close|>call<|sep|>",
			parameter: "<|open|>argument ", key: "key", close: "<|close|>argument<|sep|>", whole: "<|open|>json ",
		},
	}, "kimi_k3", "kimi-k3")

	// A message to a function has the call in it; the prompt may end within the first message's header.
	add(dialect{
		Dialect: Dialect{SkipSpecialFalse: true, Always: true},
		markers: append([]marker{
			{text: "<atem:invoke ", next: inElement, look: callTag},
			{text: "<|start|>", next: inMuse},
			{text: message},
			{text: "<atem:function_calls>"},
		}, take(shuts, "</atem:invoke>", "</atem:function_calls>", "<|eom|>", "<|eot|>")...),
		start: inMuse,
		tags: &tags{
			call: "<atem:invoke ", callName: "name", end: ">", callEnd: "</atem:invoke>",
			parameter: "<atem:parameter ", key: "name", close: "</atem:parameter>", open: true,
		},
	}, "muse", "muse_glimmer")
}

// dsml is DeepSeek's markup; its tags begin with open.
func dsml(open, block string) dialect {
	shut := "</" + open[1:]
	return dialect{
		Dialect: Dialect{Tokens: []string{"｜DSML｜"}},
		markers: append([]marker{
			{text: open + "invoke ", next: inElement, look: callTag},
			{text: "\n\n" + open + block + ">"}, // the template puts an empty line before a block
			{text: open + block + ">"},
		}, take(shuts, shut+"invoke>", shut+block+">", "<｜end▁of▁sentence｜>")...),
		tags: &tags{
			call: open + "invoke ", callName: "name", end: ">", callEnd: shut + "invoke>",
			parameter: open + "parameter ", key: "name", close: shut + "parameter>",
		},
	}
}
