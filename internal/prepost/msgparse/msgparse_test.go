package msgparse_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/prepost/msgparse"
)

var tools = []prepost.Function{{Name: "f", Parameters: json.RawMessage(`{"type":"object"}`)}}

// special makes the given texts special tokens.
func special(texts ...string) func(string) bool {
	return func(text string) bool { return slices.Contains(texts, text) }
}

// TestPlan compares what a request needs, and whether its answer is taken apart at all.
func TestPlan(t *testing.T) {
	yes, no := true, false
	type plan struct {
		Parsed, Reasoning, WorkerKeepsSpecial, RequireReasoning, ThoughtIsOpen, DefaultThinking bool
		Stops, Markup                                                                           []string
		Tag                                                                                     bool
	}
	tests := []struct {
		name string
		q    prepost.AnswerRequest
		want *plan
	}{
		{"nothing to do", prepost.AnswerRequest{Tools: tools}, nil},
		{"no tools", prepost.AnswerRequest{ToolParser: "hermes"}, nil},
		{"unknown tool parser", prepost.AnswerRequest{ToolParser: "x", Tools: tools}, nil},
		{"tools", prepost.AnswerRequest{ToolParser: "hermes", Tools: tools}, &plan{Parsed: true}},
		{"tool_choice none", prepost.AnswerRequest{ToolParser: "hermes", Tools: tools, Choice: prepost.MustNotCall}, &plan{Parsed: true}},
		{"forced without a parser", prepost.AnswerRequest{Tools: tools, Choice: prepost.MustCall}, &plan{Parsed: true}},
		{"ordinary markers", prepost.AnswerRequest{ToolParser: "kimi_k2"}, &plan{WorkerKeepsSpecial: true}},
		{"special markers", prepost.AnswerRequest{ToolParser: "kimi_k2", Special: special("<|tool_call_begin|>")},
			&plan{Parsed: true, Markup: []string{"<|tool_call_begin|>"}, WorkerKeepsSpecial: true}},
		{"every answer wrapped", prepost.AnswerRequest{ToolParser: "harmony"}, &plan{Parsed: true, WorkerKeepsSpecial: true}},
		{"visible stop", prepost.AnswerRequest{ToolParser: "harmony", Tools: tools, Special: special("<|call|>")},
			&plan{Parsed: true, Markup: []string{"<|call|>"}, WorkerKeepsSpecial: true, Stops: []string{"<|call|>"}}},
		{"structural tag", prepost.AnswerRequest{ToolParser: "kimi_k2", Tools: tools, Choice: prepost.MustCall, JSON: true},
			&plan{Parsed: true, WorkerKeepsSpecial: true, Tag: true}},
		{"reasoning", prepost.AnswerRequest{ReasoningParser: "qwen3"}, &plan{Parsed: true, Reasoning: true}},
		{"special think tokens", prepost.AnswerRequest{ReasoningParser: "qwen3", Special: special("<think>")},
			&plan{Parsed: true, Reasoning: true, Markup: []string{"<think>"}}},
		{"special tokens of both", prepost.AnswerRequest{ToolParser: "mistral", ReasoningParser: "mistral", Tools: tools,
			Special: special("[THINK]", "[/THINK]", "[TOOL_CALLS]", "[ARGS]", "</s>", "[INST]")},
			&plan{Parsed: true, Reasoning: true, WorkerKeepsSpecial: true,
				Markup: []string{"[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"}}},
		{"constraint", prepost.AnswerRequest{ReasoningParser: "qwen3", JSON: true},
			&plan{Parsed: true, Reasoning: true, RequireReasoning: true}},
		{"constraint without a thought", prepost.AnswerRequest{ReasoningParser: "qwen3", JSON: true, EnableThinking: &no},
			&plan{Parsed: true, Reasoning: true}},
		{"constraint of a gated parser", prepost.AnswerRequest{ReasoningParser: "deepseek_v3_1", JSON: true, Thinking: &yes},
			&plan{Parsed: true, Reasoning: true, RequireReasoning: true}},
		{"opened prompt", prepost.AnswerRequest{ReasoningParser: "deepseek_v41", Prompt: "…<think>\n"},
			&plan{Parsed: true, Reasoning: true, ThoughtIsOpen: true}},
		{"unknown reasoning parser acts as basic", prepost.AnswerRequest{ReasoningParser: "x"}, &plan{Parsed: true, Reasoning: true}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.q.Special == nil {
				tt.q.Special = special()
			}
			var got *plan
			if p := msgparse.Plan(&tt.q); p != nil {
				got = &plan{p.New != nil, p.Reasoning, p.WorkerKeepsSpecial, p.RequireReasoning,
					p.ThoughtIsOpen, p.DefaultThinking, p.VisibleStops, p.Markup, len(p.StructuralTag) > 0}
				if len(p.StructuralTag) > 0 && !json.Valid(p.StructuralTag) {
					t.Errorf("no JSON: %s", p.StructuralTag)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("- want, + got:\n%s", diff)
			}
		})
	}
}

// message feeds text to a new parser and writes down the pieces: r, c or the call's number, and the text.
func message(q prepost.AnswerRequest, truncated bool, texts ...string) (out string, cut bool, reasoning int) {
	q.Special = special()
	p := msgparse.Plan(&q).New()
	var kinds, text []string
	add := func(piece prepost.Piece) {
		kind := map[prepost.PieceKind]string{prepost.Content: "c", prepost.Reasoning: "r"}[piece.Kind]
		if piece.Kind == prepost.ToolCall {
			kind = fmt.Sprintf("%d", piece.Call)
		}
		if n := len(kinds); n == 0 || kinds[n-1] != kind {
			kinds, text = append(kinds, kind), append(text, "")
		}
		text[len(text)-1] += piece.Name + piece.Text
	}
	for _, s := range texts {
		p.Push([]byte(s), 1, add)
	}
	p.Finish(truncated, add)
	for i := range kinds {
		out += kinds[i] + "(" + text[i] + ")"
	}
	return out, p.Cut(), p.ReasoningTokens()
}

// TestParser: text goes through both parsers, however it is cut.
func TestParser(t *testing.T) {
	both := prepost.AnswerRequest{ToolParser: "hermes", ReasoningParser: "qwen3", Tools: tools}
	const call = `<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>`
	tests := []struct {
		name, text, want string
		q                prepost.AnswerRequest
		cut              bool
	}{
		{"thought, text, calls", "<think>Hm.</think>Well. " + call + call, `r(Hm.)c(Well. )0(f{"a": 1})1(f{"a": 1})`, both, false},
		{"a call in an open thought", "<think>Hm. " + call, `r(Hm. )0(f{"a": 1})`, both, false},
		{"two thoughts around a call", "<think>A.</think>" + call + "<think>B.</think>", `r(A.)0(f{"a": 1})r(B.)`, both, false},
		{"half a call", `<think>A.</think><tool_call>{"name": "f", "arguments": {"a"`, `r(A.)0(f{"a")`, both, true},
		{"no thoughts", "<think>A.</think>" + call, `c(<think>A.</think>)0(f{"a": 1})`,
			prepost.AnswerRequest{ToolParser: "hermes", Tools: tools}, false},
		{"no tools", "<think>A.</think>" + call, "r(A.)c(" + call + ")", prepost.AnswerRequest{ReasoningParser: "qwen3"}, false},
		{"tools that must not be used", "Hi " + call, "c(Hi )",
			prepost.AnswerRequest{ToolParser: "hermes", Tools: tools, Choice: prepost.MustNotCall}, false},
		{"named", `<think>A.</think>{"a": 1}`, `r(A.)0(f{"a": 1})`,
			prepost.AnswerRequest{ReasoningParser: "qwen3", Tools: tools, Choice: prepost.MustCallFunction, Function: "f", JSON: true}, false},
		{"an unmarked thought", `A.</think>{"a": 1}`, `r(A.)0(f{"a": 1})`,
			prepost.AnswerRequest{ReasoningParser: "qwen3", Tools: tools, Choice: prepost.MustCallFunction, Function: "f", JSON: true}, false},
		{"an unmarked message", `A.<|eom|>[{"name": "f", "parameters": {}}]`, `r(A.)0(f{})`,
			prepost.AnswerRequest{ToolParser: "muse_glimmer", ReasoningParser: "muse_glimmer", Tools: tools, Choice: prepost.MustCall, JSON: true}, false},
		{"no thought, no call", `I won't.`, `c(I won't.)`,
			prepost.AnswerRequest{ReasoningParser: "qwen3", Tools: tools, Choice: prepost.MustCall, JSON: true}, false},
		{"text in front of a native call", "Well. " + call, `c(Well. )0(f{"a": 1})`,
			prepost.AnswerRequest{ToolParser: "hermes", ReasoningParser: "qwen3", Tools: tools, Choice: prepost.MustCall, JSON: true}, false},
		{"an end within the arguments", `{"a": "</think>"}`, `0(f{"a": "</think>"})`,
			prepost.AnswerRequest{ReasoningParser: "qwen3", Tools: tools, Choice: prepost.MustCallFunction, Function: "f", JSON: true}, false},
		{"an end in text that may end", `A.</think>B.`, `c(A.B.)`,
			prepost.AnswerRequest{ReasoningParser: "qwen3", Tools: tools, JSON: true}, false},
		{"one call", call + call, `0(f{"a": 1})`, prepost.AnswerRequest{ToolParser: "hermes", Tools: tools, OneCall: true}, false},
		{"inkling's text", "<|message_model|><|content_thinking|>A.<|end_message|><|message_model|><|content_text|>B.<|end_message|>",
			"r(A.)c(B.)", prepost.AnswerRequest{ToolParser: "inkling", ReasoningParser: "inkling", Tools: tools}, false},
		{"a call leaves the thought no content", `<think>A.</think>[{"name": "f", "parameters": {}}]`, "r(A.)0(f{})",
			prepost.AnswerRequest{ToolParser: "minimax_m2", ReasoningParser: "minimax_append_think", Tools: tools,
				Choice: prepost.MustCall, JSON: true}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, pieces := range [][]string{{tt.text}, strings.Split(tt.text, "")} {
				if got, cut, _ := message(tt.q, false, pieces...); got != tt.want || cut != tt.cut {
					t.Errorf("%s, cut %v\nwant %s, cut %v", got, cut, tt.want, tt.cut)
				}
			}
		})
	}
}

// TestReasoningTokens: the thought's tokens are counted, its markers included.
func TestReasoningTokens(t *testing.T) {
	q := prepost.AnswerRequest{ToolParser: "hermes", ReasoningParser: "qwen3", Tools: tools}
	if _, _, n := message(q, false, "<think>", "A", ".", "</think>", "B", "."); n != 4 {
		t.Errorf("%d tokens of reasoning, want 4", n)
	}
	q.ReasoningParser = ""
	if _, _, n := message(q, false, "<think>", "A"); n != 0 {
		t.Errorf("%d tokens of reasoning without a reasoning parser", n)
	}
}

// TestMistralIDs: Mistral's templates refuse ids of any other form.
func TestMistralIDs(t *testing.T) {
	p := msgparse.Plan(&prepost.AnswerRequest{ToolParser: "mistral", Tools: tools, Special: special()}).New()
	var ids []string
	add := func(piece prepost.Piece) {
		if piece.Name != "" {
			ids = append(ids, piece.ID)
		}
	}
	p.Push([]byte(`[TOOL_CALLS][{"name": "f", "arguments": {}}, {"name": "f", "arguments": {}}]`), 1, add)
	p.Finish(false, add)
	if len(ids) != 2 || ids[0] == ids[1] || len(ids[0]) != 9 || strings.Trim(ids[0],
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789") != "" {
		t.Errorf("ids %q", ids)
	}
}

func TestCheckAndDetect(t *testing.T) {
	for _, tt := range []struct {
		tools, reasoning string
		ok               bool
	}{{"", "", true}, {"hermes", "qwen3", true}, {"x", "", false}, {"", "x", false}} {
		if err := msgparse.Check(tt.tools, tt.reasoning); (err == nil) != tt.ok {
			t.Errorf("Check(%q, %q): %v", tt.tools, tt.reasoning, err)
		}
	}
	tool, reasoning := msgparse.Detect("", "<tool_call>{{ call }}</tool_call>{% if enable_thinking %}<think></think>")
	if tool != "hermes" || reasoning != "qwen3" {
		t.Errorf("detected %q and %q", tool, reasoning)
	}
	if tool, reasoning = msgparse.Detect("", "{{ messages }}"); tool != "" || reasoning != "" {
		t.Errorf("detected %q and %q in nothing", tool, reasoning)
	}
}
