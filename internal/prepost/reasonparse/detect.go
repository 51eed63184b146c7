package reasonparse

import "strings"

// clue is text in a chat template that tells which family wrote it.
type clue struct {
	all  []string
	name string
}

// clues are tried in order: markers of one family only come first, then what tells users of <think> apart. Which of
// those it is hardly matters for the parsing, as the prompt says whether a thought is open; it does for the gates.
var clues = []clue{
	{[]string{"<|channel|>", "analysis"}, "gpt_oss"},
	{[]string{"<|content_thinking|>"}, "inkling"},
	{[]string{"<|open|>think"}, "kimi_k3"},
	{[]string{"<|open|>", "think", "<|sep|>"}, "kimi_k3"},
	{[]string{"to=self", "<|message|>"}, "muse_glimmer"},
	{[]string{"◁think▷"}, "kimi"},
	{[]string{"<mm:think>"}, "minimax_m3"},
	{[]string{"[THINK]"}, "mistral"},
	{[]string{"<|channel>"}, "gemma4"},
	{[]string{"Here is my thought process:"}, "granite"},
	{[]string{"</think>", "<minimax:tool_call>"}, "minimax_m2"},
	{[]string{"</think>", "<|tool_calls_section_begin|>"}, "kimi_k25"},
	{[]string{"</think>", "<｜DSML｜ "}, "deepseek_v41"},
	{[]string{"</think>", "｜DSML｜", "function_calls"}, "deepseek_v3_2"},
	{[]string{"</think>", "｜DSML｜"}, "deepseek_v4"},
	{[]string{"</think>", "<｜tool▁calls▁begin｜>", "thinking"}, "deepseek_v3_1"},
	{[]string{"</think>", "<｜Assistant｜>"}, "deepseek_r1"},
	{[]string{"</think>", "<TOOLCALL>", "/no_think"}, "nemotron_nano"},
	{[]string{"</think>", "<TOOLCALL>"}, "nemotron_deci"},
	{[]string{"</think>", "<arg_key>"}, "glm45"},
	{[]string{"</think>", "enable_thinking", "truncate_history_thinking"}, "nemotron_v3"},
	{[]string{"</think>", "enable_thinking"}, "qwen3"},
	{[]string{"</think>"}, "basic"},
	{[]string{"<think>"}, "basic"},
}

// Detect guesses the reasoning parser from a chat template, for models whose card doesn't name one. False when the
// template knows no thoughts.
func Detect(template string) (name string, ok bool) {
	for _, c := range clues {
		if containsAll(template, c.all) {
			return c.name, true
		}
	}
	return "", false
}

func containsAll(text string, parts []string) bool {
	for _, p := range parts {
		if !strings.Contains(text, p) {
			return false
		}
	}
	return true
}
