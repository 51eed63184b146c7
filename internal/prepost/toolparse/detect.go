package toolparse

import "strings"

// signs are what tells a dialect by a chat template: texts that must all be in it. The first entry that fits counts, so
// that the more special stand before the more general.
var signs = []struct {
	name  string
	texts []string
}{
	{"deepseek_v41", []string{"｜DSML｜ calls"}},
	{"deepseek_v4", []string{"｜DSML｜", "tool_calls>"}},
	{"deepseek_v3_2", []string{"｜DSML｜"}},
	{"deepseek_v3", []string{deepseekSeparator, "```json"}},
	{"deepseek_v3_1", []string{deepseekSeparator}},
	{"kimi_k2", []string{"<|tool_calls_section_begin|>"}},
	{"kimi_k3", []string{"<|open|>", "<|close|>", "<|sep|>"}},
	{"minimax_m3", []string{"]<]minimax[>["}},
	{"minimax_m2", []string{"<minimax:tool_call>"}},
	{"muse_glimmer", []string{"<atem:"}},
	{"inkling", []string{"<|content_invoke_tool_json|>"}},
	{"harmony", []string{"<|channel|>", "<|constrain|>"}},
	{"harmony", []string{"<|channel|>", "<|call|>"}},
	{"gemma4", []string{"<|tool_call>", "call:"}},
	{"glm47", []string{"<arg_key>", "<arg_value>"}},
	{"qwen3_coder", []string{"<function=", "<parameter="}},
	{"mistral", []string{"[TOOL_CALLS]"}},
	{"phi4", []string{"functools["}},
	{"nemotron_deci", []string{"<TOOLCALL>"}},
	{"jamba", []string{"<tool_calls>", "</tool_calls>"}},
	{"hermes", []string{"<tool_call>", "</tool_call>"}},
	{"pythonic", []string{"[func_name1(params_name1="}},
	{"pythonic", []string{"func_name(param", "=", "python"}},
	{"llama3_json", []string{"<|python_tag|>"}},
	{"llama3_json", []string{"<|start_header_id|>", `{"name": function name, "parameters": dictionary`}},
}

// Aliases and names that share a dialect are left out: the first name of each stands for all.

// Detect returns the dialect that a chat template asks its model to write calls in. ok is false when it doesn't say.
func Detect(template string) (name string, ok bool) {
	for _, s := range signs {
		fits := true
		for _, text := range s.texts {
			fits = fits && strings.Contains(template, text)
		}
		if fits {
			return s.name, true
		}
	}
	return "", false
}
