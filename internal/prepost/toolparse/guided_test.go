package toolparse_test

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/internal/prepost/toolparse"
)

// guided is a line of guided.jsonl.
type guided struct {
	Name    string
	Request request
	Text    string
	Pieces  []string
	Finish  string
	Body    struct {
		Choices []struct {
			Message struct {
				Content string
				Calls   []struct {
					Function call `json:"function"`
				} `json:"tool_calls"`
			}
			Finish string `json:"finish_reason"`
		}
	}
}

// view is the recorded unary message.
func (g *guided) view() (message result, finish string) {
	for _, c := range g.Body.Choices {
		message.Content, finish = c.Message.Content, c.Finish
		for _, made := range c.Message.Calls {
			message.Calls = append(message.Calls, made.Function)
		}
	}
	return message, finish
}

// TestGuided: answers to required and named choices give the recorded message, or the one in differences.tsv.
func TestGuided(t *testing.T) {
	tools := declaredTools(t)
	different := differences(t)
	equal, better := 0, 0
	for _, g := range lines[guided](t, "guided.jsonl.gz") {
		parser := "hermes"
		if strings.Contains(g.Name, "/plain/") {
			parser = ""
		}
		got := parse(t, parser, g.Request.options(tools), g.Finish == "length", g.Text)
		if diff := cmp.Diff(got, parse(t, parser, g.Request.options(tools), g.Finish == "length", g.Pieces...)); diff != "" {
			t.Errorf("%s: token by token:\n%s", g.Name, diff)
		}
		view, finish := g.view()
		same := got.Content == view.Content && sameCalls(got.Calls, view.Calls) && got.finish(g.Finish) == finish
		want, listed := different[g.Name]
		delete(different, g.Name)
		switch {
		case !listed && same:
			equal++
		case !listed || same || got.describe() != want:
			t.Errorf("%s differs:\n text %q\n want %q %v %s\n got\t%s", g.Name, g.Text, view.Content, view.Calls, finish,
				got.describe())
		default:
			better++
		}
	}
	for key := range different {
		if strings.HasPrefix(key, "guided/") {
			t.Errorf("differences.tsv names %s, which isn't a case", key)
		}
	}
	t.Logf("%d cases as recorded, %d different", equal, better)
}

// TestGuidedSplits: guided answers, cut everywhere.
func TestGuidedSplits(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 4))
	for _, text := range []string{
		`{"city": "Par\"is}", "n": [1, {"a": null}]} tail`,
		`[{"name": "a", "parameters": {"x": "<tool_call>"}}, {"arguments": {"y": 1e3}, "name": "b"}] tail`,
		"[]", "[ ]", "[1, 2]", "", " \n", "I cannot.", `{"name": "a"}`, `[{"name": "a", "parameters": null}]`,
		`{"x": </tool_call>}`, `<tool_call>{"name": "a", "arguments": {}}</tool_call>`, `[a(b=1)]`,
	} {
		for _, parser := range []string{"", "hermes", "pythonic", "harmony", "kimi_k3", "qwen3_coder"} {
			for _, choice := range []toolparse.Choice{toolparse.Required, toolparse.Named} {
				checkSplits(t, r, sample{parser, text, toolparse.Options{Choice: choice, Function: "f"}}, false)
			}
		}
	}
}

// TestGuidedIsIncremental: the name comes before the arguments, and these as they are written.
func TestGuidedIsIncremental(t *testing.T) {
	got := pieces(t, "hermes", toolparse.Options{Choice: toolparse.Required},
		`[{"name": "f", "par`, `ameters": {"a": "one`, ` two`, `"}}]`)
	want := []string{"f()", `({"a": "one)`, "( two)", `("})`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	got = pieces(t, "", toolparse.Options{Choice: toolparse.Named, Function: "g"}, ` {"a"`, `: 1`, `}`)
	if diff := cmp.Diff([]string{"g()", `({"a")`, "(: )", "(1})"}, got); diff != "" {
		t.Error(diff)
	}
}

// TestGuidedArgumentsAreKept: guided arguments are passed on byte for byte.
func TestGuidedArgumentsAreKept(t *testing.T) {
	const arguments = "{\n  \"a\": 1e3,\t\"b\": \"\\u00e9\\/\"\n}"
	for _, parser := range []string{"", "hermes", "harmony", "deepseek_v3"} {
		got := parse(t, parser, toolparse.Options{Choice: toolparse.Named, Function: "f"}, false, arguments)
		if len(got.Calls) != 1 || got.Calls[0].Arguments != arguments || !json.Valid([]byte(got.Calls[0].Arguments)) {
			t.Errorf("%s: %+v", parser, got)
		}
	}
}
