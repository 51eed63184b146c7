// Package toolparse takes tool calls out of a model's text. Each model family writes its calls in a dialect of its own;
// a Parser reads one of them, piece by piece, and passes on content, and for each call first its name and then its
// arguments as fragments of JSON. It knows nothing of tokens, requests or HTTP.
//
//	p, err := toolparse.New("hermes", toolparse.Options{Tools: tools})
//	p.Push(text, emit) // for each piece of text
//	p.Finish(truncated, emit)
//
// Names lists the dialects, Lookup tells what one needs of the request, Detect recognises one by a chat template. A
// Parser is for one goroutine and one choice of one answer; all else is safe for concurrent use.
//
// # What is promised
//
//   - What comes out, concatenated, doesn't depend on how the text was cut.
//   - Markers never reach the content, alone or in halves: a marker without a call, an opening one as well as a closing
//     one, is taken out. Text that only might become a marker is content when the message ends before it did, unless a
//     length limit ended it. Words that are markers only in front of a call ("functools", a bare "[" or "{") are text
//     everywhere else.
//   - Text between markers that isn't a call comes back whole as content, without the markers.
//   - A call has begun once its name is known, and can't be taken back. If its arguments turn out malformed, they are
//     passed on whole, as the model wrote them, for the client to refuse (Malformed counts them); text and calls around
//     it survive. If the text ends within it, it stays unfinished and Cut says so: nothing is made up. If only closing
//     brackets, tags or markers around whole arguments are missing, the call is whole.
//   - A marker within a string or a parameter is part of it when the string goes on and is closed in a way that
//     continues the call; only that far is text held back.
//   - White space alone before, between and behind calls isn't content.
//   - Arguments in JSON are kept byte for byte, but for the white space between tokens in the dialects where compact is
//     set, raw control characters in strings, which become escapes, and escapes JSON lacks, whose backslash is doubled.
//     Arguments that come as a string of JSON are that JSON. Missing arguments are {}.
//   - Text between the parameters of a call in tags is dropped: the call has begun, so that it can't be content. JSON in
//     their place is the call's arguments.
//   - Parameters in tags are typed by the dialect's own attribute or by the tool's schema. Strings, and what no type
//     fits, are kept as they are: not trimmed, not unescaped. Where no type is known they are strings.
//   - Functions the request doesn't declare are passed on too; only calls without any marker have to be declared.
//   - With the choice None, calls are taken out as well, and calls without markers are text. With Required and Named an
//     answer may also be guided JSON: an array of calls, or the named function's arguments alone; in these, markers are
//     text.
//
// # What is left to the caller
//
// A call's ID is empty where the dialect has none, or repeats one: the caller makes one up. The finish_reason is length
// when the engine says so or Cut does, tool_calls if there were calls, and else the engine's. Pieces of kind Reasoning
// come from dialects that mark thoughts, if no reasoning parser has taken them out before.
//
// # The dialects
//
// Formats are those of the models' chat templates and of the parsers of NVIDIA Dynamo 1.6.1 (Apache-2.0), which has
// these names; … stands for repetition, V for a value, J for arguments in JSON. testdata/differences.tsv lists where
// results differ from Dynamo's, and why.
//
// Calls as JSON objects {"name": N, "arguments": J}; also with parameters or args as the key, in OpenAI's nested form,
// in arrays, or several in a row:
//
//	hermes, qwen25   <tool_call>OBJECT</tool_call>; also a bare object (Qwen 2.5, Qwen 3, Hermes, Granite 4)
//	nemotron_deci    <TOOLCALL>[OBJECT, …]</TOOLCALL>
//	jamba            <tool_calls>[OBJECT, …]</tool_calls>
//	llama3_json      <|python_tag|>OBJECT; …  also bare
//	default          <TOOLCALL>…</TOOLCALL>, <|python_tag|>OBJECT or bare
//	mistral          [TOOL_CALLS][OBJECT, …] with an optional [/TOOL_CALLS], also bare;
//	                 [TOOL_CALLS]N[CALL_ID]ID[ARGS]J, where [CALL_ID]ID and [ARGS] may be missing
//	phi4             functools[OBJECT, …]
//	inkling          <|message_model|>N<|content_invoke_tool_json|>OBJECT<|end_message|>; text behind <|content_text|>,
//	                 thoughts behind <|content_thinking|>
//
// Calls with the name before the arguments:
//
//	deepseek_v3      <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>N, newline, J in a ```json fence,
//	                 <｜tool▁call▁end｜>…<｜tool▁calls▁end｜>; fence and outer markers optional
//	deepseek_v3_1    …<｜tool▁call▁begin｜>N<｜tool▁sep｜>J<｜tool▁call▁end｜>…; either layout is read under both names
//	kimi_k2, kimi_k25
//	                 <|tool_calls_section_begin|><|tool_call_begin|>functions.N:0<|tool_call_argument_begin|>J
//	                 <|tool_call_end|>…<|tool_calls_section_end|>; functions.N:0 is the call's id
//	harmony          <|start|>assistant<|channel|>commentary to=functions.N <|constrain|>json<|message|>J<|call|>, the
//	                 recipient in either header; the channel analysis holds thoughts, final and commentary text
//	gemma4, gemma-4  <|tool_call>call:N{key:V,…}<tool_call|>, bare keys, strings between <|"|>
//	pythonic         [N(key=V, …), …], Python literals, keyword arguments only (Llama 4, Llama 3.2)
//
// Calls with a tag for each parameter:
//
//	qwen3_coder, nemotron_nano, qwen3
//	                 <tool_call> <function=N> <parameter=K>, newline, V, newline, </parameter>… </function> </tool_call>;
//	                 the wrapper is optional, and may hold a JSON object instead
//	minimax_m2       <minimax:tool_call><invoke name="N"><parameter name="K">V</parameter>…</invoke></minimax:tool_call>
//	minimax_m3, minimax-m3, minimax_m3_nom, minimax-m3-nom
//	                 tags as in m2 but <K>V</K> for parameters, each tag behind ]<]minimax[>[; objects are made of tags
//	glm47, glm45     <tool_call>N<arg_key>K</arg_key><arg_value>V</arg_value>…</tool_call>, with or without newlines
//	deepseek_v3_2    <｜DSML｜function_calls><｜DSML｜invoke name="N"><｜DSML｜parameter name="K" string="true">V
//	                 </｜DSML｜parameter>…</｜DSML｜invoke></｜DSML｜function_calls>; string="false" says that V is JSON
//	deepseek_v4, deepseek-v4, deepseekv4
//	                 the same with tool_calls instead of function_calls
//	deepseek_v41     the same with a space behind each ｜DSML｜, and calls
//	kimi_k3, kimi-k3 <|open|>tools<|sep|><|open|>call tool="N" index="1"<|sep|><|open|>argument key="K" type="T"<|sep|>V
//	                 <|close|>argument<|sep|>…<|close|>call<|sep|><|close|>tools<|sep|>, or all arguments as J in json
//	                 instead of argument; response and message wrap the text
//	muse, muse_glimmer
//	                 <|start|>assistant to=N<|message|><atem:function_calls><atem:invoke name="N"><atem:parameter
//	                 name="K">V</atem:parameter>…</atem:invoke></atem:function_calls><|eom|>; to=self holds thoughts
package toolparse
