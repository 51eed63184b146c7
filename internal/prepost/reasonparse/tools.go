package reasonparse

// callMarks returns the markers with which the answers of a tool parser begin a call. They matter here for two
// reasons: a call may come while the thought is still open, and inside a call nothing is a reasoning marker (an agent
// that writes a file about "<think>" must get its text whole). Dialects whose calls have no opening marker of their
// own (bare JSON, Python lists) have none, and those whose calls are messages of a channel dialect are known to the
// channel machine.
func callMarks(toolParser string) []mark {
	json := followed("{", "[")
	switch toolParser {
	case "hermes", "qwen25", "qwen3":
		return []mark{call("<tool_call>", json, "</tool_call>")}
	case "nemotron_deci":
		return []mark{call("<TOOLCALL>", json, "</TOOLCALL>")}
	case "default":
		return []mark{call("<TOOLCALL>", json, "</TOOLCALL>"), call("<|python_tag|>", json, "")}
	case "jamba":
		return []mark{call("<tool_calls>", json, "</tool_calls>")}
	case "llama3_json":
		return []mark{call("<|python_tag|>", json, "")}
	case "mistral":
		return []mark{call("[TOOL_CALLS]", either(json, named("[ARGS]", "[CALL_ID]", "{")), "")}
	case "phi4":
		return []mark{call("functools", json, "")}
	case "qwen3_coder", "nemotron_nano":
		return []mark{
			call("<tool_call>", followed("<function=", "{"), "</tool_call>"),
			call("<function=", named(">"), "</function>"),
		}
	case "glm47", "glm45":
		return []mark{call("<tool_call>", named("<arg_key>", "</tool_call>"), "</tool_call>")}
	case "minimax_m2":
		return []mark{call("<minimax:tool_call>", followed("<invoke"), "</minimax:tool_call>")}
	case "minimax_m3", "minimax-m3", "minimax_m3_nom", "minimax-m3-nom":
		return []mark{call("]<]minimax[>[<tool_call>", followed("]<]minimax[>[<invoke"), "]<]minimax[>[</tool_call>")}
	case "gemma4", "gemma-4":
		return []mark{call("<|tool_call>", followed("call:"), "<tool_call|>")}
	}
	return sectionMarks(toolParser)
}

// sectionMarks returns the markers of the dialects that put their calls into a section.
func sectionMarks(toolParser string) []mark {
	dsml := func(block, space string) []mark {
		invoke := "<｜DSML｜" + space + "invoke name="
		return []mark{
			call("<｜DSML｜"+space+block+">", followed(invoke), "</｜DSML｜"+space+block+">"),
			call(invoke, nil, "</｜DSML｜"+space+"invoke>"),
		}
	}
	switch toolParser {
	case "deepseek_v3", "deepseek_v3_1":
		return []mark{
			call("<｜tool▁calls▁begin｜>", followed("<｜tool▁call▁begin｜>"), "<｜tool▁calls▁end｜>"),
			call("<｜tool▁call▁begin｜>", nil, "<｜tool▁call▁end｜>"),
		}
	case "deepseek_v3_2":
		return dsml("function_calls", "")
	case "deepseek_v4", "deepseek-v4", "deepseekv4":
		return dsml("tool_calls", "")
	case "deepseek_v41":
		return dsml("calls", " ")
	case "kimi_k2", "kimi_k25":
		one := followed("<|tool_call_begin|>")
		return []mark{
			call("<|tool_calls_section_begin|>", one, "<|tool_calls_section_end|>"),
			call("<|tool_call_section_begin|>", one, "<|tool_call_section_end|>"),
			call("<|tool_call_begin|>", named(":", "<|tool_call_argument_begin|>"), "<|tool_call_end|>"),
		}
	case "kimi_k3", "kimi-k3":
		return []mark{call("<|open|>tools<|sep|>", followed("<|open|>call"), "<|close|>tools<|sep|>")}
	}
	return nil
}

func call(text string, s shape, end string) mark {
	return mark{text: text, act: calls, shape: s, end: end}
}
