// Package reasonparse takes the thoughts of a reasoning model out of its answer.
//
// It stands between the detokeniser and the tool parser: the text of a choice goes to a Parser, whose Reasoning pieces
// are the client's reasoning_content and whose Content pieces go on to the tool parser, with the markup of calls left
// as it is. A Parser keeps nothing back but what may still become a marker, and what it gives doesn't depend on how the
// text was cut. It never fails: what it can't read is text. Parsers are for one goroutine, everything else is safe for
// concurrent use.
//
// # Formats
//
// Two machines read all dialects. The block machine reads thoughts between two markers:
//
//	basic, qwen3, glm45, nemotron_deci,        <think> … </think>
//	deepseek_v4 (and its aliases), _v41
//	deepseek_r1, _v3, _v3_1, _v3_2, step3,     the same, and an answer begins inside the thought
//	kimi_k25, minimax_m2, nemotron_nano,       (gates below)
//	nemotron3, nemotron_v3
//	mistral                                    [THINK] … [/THINK], begins inside
//	kimi                                       ◁think▷ … ◁/think▷
//	kimi_k3                                    <|open|>think<|sep|> … <|close|>think<|sep|>, and wrappers of the answer
//	minimax_m3                                 <mm:think> … </mm:think>
//	gemma4                                     <|channel>thought\n … <channel|>
//	granite                                    Here is my thought process: … Here is my response: (or Here's)
//	minimax_append_think                       nothing is taken out, <think> is put in front if it is missing
//
// The channel machine reads answers that are sequences of messages with headers:
//
//	gpt_oss        <|start|>assistant<|channel|>analysis, commentary or final, to=…<|message|> … <|end|>, <|call|>
//	               or <|return|>
//	inkling        <|message_model|>name<|content_thinking|>, <|content_text|> or <|content_invoke_tool_json|> …
//	               <|end_message|>
//	muse_glimmer   <|start|>assistant to=self, user or a function<|message|> … <|eom|>
//
// Unknown names act as basic. The formats are those of the models' chat templates; the behaviour is that of the recorded
// answers in testdata, or better: testdata/differences.tsv lists every case in which it differs, and why.
//
// # Rules
//
//   - A thought that isn't closed is reasoning to the end, whether the model stopped or a length limit did.
//   - Later thoughts are reasoning too. An opening marker inside a thought is dropped.
//   - The first end closes the thought. A later one is dropped if something asks for it (a nested opening marker, a
//     call that interrupted the thought, a prompt that may have opened it) or if the answer hasn't begun; otherwise it
//     is a word of the answer. Channel markup is never a word.
//   - A marker between two equal quotes is a word: answers about `<think>` stay whole.
//   - A call inside an open thought ends it, if it is a call: the marker has to be followed by what a call begins
//     with. A thought that mentions the marker goes on. This needs to know the tool parser's name.
//   - Inside a call nothing is a marker, and neither is anything in a constrained answer once its JSON has begun.
//   - The beginning of a marker at the end of an answer is text.
//   - White space stays where the model wrote it.
//
// # Gates
//
// Whether an answer without an opening marker begins as a thought is decided by, in this order: a prompt that opens one
// (yes) or closes one (no); the dialect, which may not begin inside (no); the request:
//
//	                                          begins inside
//	any parser, enable_thinking or thinking   no
//	  false, or reasoning_effort none
//	deepseek_r1, _v3_2, step3, kimi_k25,      otherwise
//	  minimax_m2, nemotron_nano, nemotron3, _v3
//	deepseek_v3, deepseek_v3_1                with thinking (or enable_thinking) true
//	mistral                                   with a reasoning_effort
//	all others                                never by themselves
//
// Enabled applies the part of the table that is the request's. A thought that is marked as one is recognised whatever
// the request says.
//
// # Special tokens
//
// Where a tokenizer has a marker as a special token, the decoder must not skip special tokens: Markers lists them.
//
// # Counting tokens
//
// PushTokens takes a piece of text with the number of tokens that made it; ReasoningTokens says how many of those are
// the thought's, its markers included. Text is attributed byte by byte when it is decided, so text that was held back
// counts where it ends up. Of a piece that is partly reasoning that part of its tokens counts; tokens without text go
// with the text after them.
package reasonparse
