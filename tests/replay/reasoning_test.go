package replay_test

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/portico-llm/portico/internal/testkit"
)

// thinkingPrompts are the models with tools whose template opens the thought.
var thinkingPrompts = []string{
	"p.qwen3_coder_qwen3", "p.deepseek_v3_r1", "p.deepseek_v3_1", "p.deepseek_v3_2", "p.deepseek_v4", "p.deepseek_v41",
	"p.glm47", "p.kimi_k25", "p.kimi_k3", "p.minimax_m2", "p.minimax_m3", "p.minimax_append", "p.nemotron_nano",
	"p.nemotron_v3", "p.step3",
}

// prompt is the prompt's end as the recorded models' templates render it: most write <think>, whatever the parser, and
// close it at once when told not to think.
func (c *parsedCase) prompt() string {
	opening, closing := "<think>", "</think>"
	switch name := strings.ReplaceAll(c.ReasoningParser, "-", "_"); name {
	case "kimi_k3":
		opening, closing = "<|open|>think<|sep|>", "<|close|>think<|sep|>"
	case "minimax_m3":
		opening, closing = "<mm:think>", "</mm:think>"
	case "gpt_oss":
		return "<|start|>assistant"
	}
	kwargs, _ := c.Request["chat_template_kwargs"].(map[string]any)
	group, _, _ := strings.Cut(c.Name, "/")
	opened := strings.HasPrefix(group, "o.") || slices.Contains(thinkingPrompts, group)
	off := kwargs["enable_thinking"] == false || c.Request["reasoning_effort"] == "none"
	switch {
	case off, opened && kwargs["thinking"] == false:
		return "<|im_start|>assistant\n" + opening + "\n\n" + closing + "\n\n"
	case opened:
		return "<|im_start|>assistant\n" + opening + "\n"
	}
	return "<|im_start|>assistant\n"
}

// TestReasoning sends the recorded answers of models with a reasoning parser, and of those with both parsers, through
// the server. Where the reasoning parser's own differences list a case, thoughts and content are the listed ones.
func TestReasoning(t *testing.T) {
	tools := json.RawMessage(parserFile(t, "toolparse/testdata/tools_schema.json"))
	better := parserDifferences(t, "reasonparse/testdata/differences.tsv")
	listed := readAllowed(t, "reasoning_differences.txt")
	var ours bytes.Buffer
	for _, c := range readParsed(t, "../../../internal/prepost/reasonparse/testdata/reasoning.jsonl.gz") {
		key := c.Name + "@" + c.Version
		t.Run(key, func(t *testing.T) {
			want, got := c.recorded(), c.both(t, tools, c.prompt())
			if d := better[key]; d != nil {
				want.Reasoning, want.Content = unlist(t, d[1])
				if c.ToolParser != "" { // the list knows nothing of what the tool parser leaves
					want.Content, want.Calls, want.Finish = got.Content, got.Calls, got.Finish
				}
			}
			judge(t, listed, &ours, key, &c, got, want)
		})
	}
	if !t.Failed() {
		listed.stale(t)
		testkit.Golden(t, "reasoning_ours.golden", ours.Bytes())
	}
}

// unlist reads a message as the parser's differences write it: "thought" | "content".
func unlist(t *testing.T, text string) (reasoning, content string) {
	t.Helper()
	first, err := strconv.QuotedPrefix(text)
	if err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	second := strings.TrimPrefix(text[len(first):], " | ")
	if reasoning, err = strconv.Unquote(first); err == nil {
		content, err = strconv.Unquote(second)
	}
	if err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return reasoning, content
}
