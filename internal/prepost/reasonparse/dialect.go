package reasonparse

import "slices"

// dialect is how one family of models writes its thoughts. Families with begins and ends around a thought are read by
// the block machine, families whose answer is a sequence of messages with headers (channels is set) by the channel
// machine.
type dialect struct {
	open     []string // what begins a thought; the first is what a prompt ends with
	close    []string // what ends one
	drop     []string // wrappers that never show
	answer   []string // what begins the answer proper: ends a thought, never shows
	tokens   []string // what markers of several tokens are made of
	label    string   // stands between the opening marker and the thought
	force    bool     // an answer begins inside a thought although neither prompt nor answer says so
	gate     gate     // which request switches force depends on
	words    bool     // markers are words a person may write: outside a thought an unmatched end is text
	prepend  bool     // nothing is taken apart, the opening marker is put in front
	channels *channels
}

// gate tells what a request has to say for a forcing dialect to force.
type gate uint8

const (
	unlessOff    gate = iota // anything but an explicit no
	ifThinking               // thinking or enable_thinking is true
	ifEffort                 // reasoning_effort is set, and not to none
	ifEnableOnly             // enable_thinking is true
)

// The dialects. Sources: the markers of the models' chat templates and the recorded behaviour in testdata.
var (
	thinkTags = dialect{open: []string{"<think>"}, close: []string{"</think>"}, words: true}

	forcedTags = forced(thinkTags, unlessOff)
	v3Tags     = forced(thinkTags, ifThinking)

	mistralTags = forced(dialect{open: []string{"[THINK]"}, close: []string{"[/THINK]"}, words: true}, ifEffort)
	kimiTags    = dialect{open: []string{"◁think▷"}, close: []string{"◁/think▷"}, words: true}
	m3Tags      = dialect{open: []string{"<mm:think>"}, close: []string{"</mm:think>"}, words: true}
	gemmaTags   = dialect{
		open: []string{"<|channel>"}, close: []string{"<channel|>"}, label: "thought\n", gate: ifEnableOnly,
	}
	appendTags = dialect{open: []string{"<think>"}, close: []string{"</think>"}, prepend: true}

	kimiK3Tags = dialect{
		open:   []string{"<|open|>think<|sep|>"},
		close:  []string{"<|close|>think<|sep|>"},
		answer: []string{"<|open|>response<|sep|>"},
		drop:   []string{"<|close|>response<|sep|>", "<|close|>message<|sep|>", "<|end_of_msg|>"},
		tokens: []string{"<|open|>", "<|close|>", "<|sep|>"},
	}
	granitePhrases = dialect{
		open:  []string{"Here is my thought process:", "Here's my thought process:"},
		close: []string{"Here is my response:", "Here's my response:"},
		words: true,
	}

	harmonyChannels = dialect{
		open: []string{"<|channel|>analysis<|message|>"},
		channels: &channels{
			heads: []string{"<|start|>", "<|channel|>"}, inner: []string{"<|constrain|>"},
			bodies: []string{"<|message|>"}, ends: []string{"<|end|>", "<|return|>", "<|call|>"},
			join: "\n", dropBlank: true, lead: "<|start|>" + writer,
			classify: classifyHarmony, primed: primedTo, tidy: tidyHarmony,
		},
	}
	museChannels = dialect{
		open: []string{"<|start|>assistant to=self<|message|>", "to=self<|message|>"},
		channels: &channels{
			heads: []string{"<|start|>"}, bodies: []string{"<|message|>"}, ends: []string{"<|eom|>"},
			lead: "<|start|>" + writer, classify: classifyMuse, primed: primedTo,
		},
	}
	inklingChannels = dialect{
		open: []string{"<|content_thinking|>"},
		channels: &channels{
			heads: []string{"<|message_model|>"},
			bodies: []string{
				"<|content_thinking|>", "<|content_text|>", "<|content_image|>", "<|content_invoke_tool_json|>",
			},
			ends:     []string{"<|end_message|>", "<|content_model_end_sampling|>"},
			lead:     "<|message_model|>",
			classify: classifyInkling, primed: primedName,
		},
	}
)

func forced(d dialect, g gate) dialect {
	d.force, d.gate = true, g
	return d
}

// dialects maps every name to its dialect. Read only.
var dialects = map[string]*dialect{
	"basic": &thinkTags, "qwen3": &thinkTags, "glm45": &thinkTags, "nemotron_deci": &thinkTags,
	"deepseek_v4": &thinkTags, "deepseek-v4": &thinkTags, "deepseekv4": &thinkTags, "deepseek_v41": &thinkTags,

	"deepseek_r1": &forcedTags, "deepseek_v3_2": &forcedTags, "step3": &forcedTags, "kimi_k25": &forcedTags,
	"minimax_m2": &forcedTags, "nemotron_nano": &forcedTags, "nemotron3": &forcedTags, "nemotron_v3": &forcedTags,
	"deepseek_v3": &v3Tags, "deepseek_v3_1": &v3Tags,

	"mistral": &mistralTags, "kimi": &kimiTags, "granite": &granitePhrases,
	"minimax_m3": &m3Tags, "minimax-m3": &m3Tags, "minimax_append_think": &appendTags,
	"kimi_k3": &kimiK3Tags, "kimi-k3": &kimiK3Tags, "gemma4": &gemmaTags, "gemma-4": &gemmaTags,

	"gpt_oss": &harmonyChannels, "inkling": &inklingChannels,
	"muse_glimmer": &museChannels, "muse": &museChannels,
}

// lookup returns the dialect of a name. Names nobody knows mean plain tags: that is how the server this one replaces
// takes them, and what most models write.
func lookup(name string) *dialect {
	if d := dialects[name]; d != nil {
		return d
	}
	return &thinkTags
}

// Names returns the names of all reasoning parsers, sorted.
func Names() []string {
	names := make([]string, 0, len(dialects))
	for n := range dialects {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// Markers returns the texts the named parser looks for. Where a model's tokenizer has one of them as a special token,
// the answer must be decoded with special tokens, or the thought can't be found.
func Markers(name string) []string {
	d := lookup(name)
	if c := d.channels; c != nil {
		return slices.Concat(c.heads, c.inner, c.bodies, c.ends)
	}
	if d.prepend {
		return nil
	}
	return slices.Concat(d.open, d.close, d.drop, d.answer)
}

// Tokens returns what markers are made of that are more than one token, for tokenizers that have those as special ones:
// as with Markers, the answer must then be decoded with them.
func Tokens(name string) []string { return slices.Clone(lookup(name).tokens) }

// End returns what ends a thought of the named parser: its first way of doing so.
func End(name string) string {
	d := lookup(name)
	if d.channels != nil {
		return d.channels.ends[0]
	}
	return d.close[0]
}
