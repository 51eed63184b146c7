package reply

import (
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/prepost"
)

// Options say what the client asked for.
type Options struct {
	ID      string    // of the response, with its prefix
	Model   string    // as the client named it
	Created time.Time // of the response; written in seconds
	Chat    bool      // chat.completion, otherwise text_completion

	Usage           bool // streams: a chunk with the usage at the end
	ContinuousUsage bool // streams: and in every chunk

	LogProbs    bool // of the tokens of the answer
	TopLogProbs int  // alternatives at each position, at most
	TokensAsIDs bool // token_id:N in place of a token's text
	SkipSpecial bool // special tokens have no text

	PromptLogProbs bool // of the prompt, in one body, where the worker gives them

	ReasoningField string // where thoughts go; empty: reasoning_content

	Fields    Fields           // extra fields in nvext
	Received  time.Time        // when the request came in, for the timing field
	Now       func() time.Time // for the end of a response; nil: time.Now
	Notes     Notes            // annotations, in streams
	RequestID string           // for the annotation of that name
}

// Notes are annotations of the request that a client may ask for. They precede the first chunk.
type Notes struct {
	RequestID, Prompt, TokenIDs bool
}

// now is the time.
func (o *Options) now() time.Time {
	if o.Now == nil {
		return time.Now()
	}
	return o.Now()
}

// choice is what is remembered of one choice between deltas.
type choice struct {
	begun  bool // has been in a chunk
	offset int  // completions: characters before the next token, for text_offset
	calls  int  // tool calls that have begun

	unfinished int // completions: bytes that the last character counted in offset still lacks
	reasoning  int // tokens by the worker's last report

	// The same of counts that few engines have. Those of a prompt are in its first choice.
	accepted, rejected, audio, promptAudio int
}

// base is what Stream and Fold share.
type base struct {
	opts      Options           // never changed
	perPrompt int               // choices of each prompt; the index a client sees counts through all prompts
	choices   []choice          // by the client's index
	tokenizer prepost.Tokenizer // for the texts of log probabilities; nil: none
	logprobs  logprobs          // of the current chunk
	ext       nvext             // extra fields

	prompt     []int // prompt tokens, for each prompt; the worker's own count replaces ours
	hits       []int // cached tokens by the worker's last report, for each prompt
	completion int   // tokens of the answer, over all choices
	cached     count // tokens of the prompt that a worker had cached
	reasoning  count // tokens of the answer spent on reasoning, by the worker's count
	thought    count // the same by our own

	accepted, rejected, audio, promptAudio count // as the worker counts them

	echo      []string   // what the choices of each prompt begin with; nil: nothing
	echoed    [][]uint32 // likewise, as tokens, where their log probabilities are told
	rawAnswer bool       // the worker speaks the client's format
	parsed    bool       // the answer comes in pieces
}

// count is a sum that may be absent.
type count struct {
	n   int  // the sum
	set bool // somebody reported a number, if only 0
}

// replace counts a worker's report in place of last, the one before it: reports are running totals. Nil reports nothing.
func (c *count) replace(last, n *int) {
	if n != nil {
		c.n, c.set = c.n+*n-*last, true
		*last = *n
	}
}

// begin prepares for p's answer. Nothing of p but what is copied here is kept.
func (b *base) begin(p *pipeline.Prepared) {
	b.perPrompt = max(p.Choices, 1)
	// A request for a worker that takes text has no requests of its own, and one place that its counts go to.
	b.choices = make([]choice, b.perPrompt*max(len(p.Requests), 1))
	b.prompt = make([]int, max(len(p.Requests), 1))
	b.hits = make([]int, len(b.prompt))
	for i, q := range p.Requests {
		b.prompt[i] = len(q.TokenIDs)
	}
	if p.Set != nil { // the tokenizer stays alive as long as somebody holds it
		b.tokenizer = p.Set.Tokenizer
	}
	b.echo = p.Echo
	if b.echo != nil && b.opts.LogProbs {
		for _, q := range p.Requests {
			b.echoed = append(b.echoed, q.TokenIDs)
		}
	}
	for i := range b.choices { // text_offset counts the prompt in
		b.choices[i].offset = utf8.RuneCountInString(b.prefix(i))
	}
	b.parsed = p.Parsed()
	b.thought.set = b.parsed && p.Answer.Reasoning
	b.ext.begin(b.opts.Fields, b.opts.Received, p)
}

// prefix is what the choice begins with: its prompt, when that is to be repeated.
func (b *base) prefix(index int) string {
	if b.echo == nil {
		return ""
	}
	return b.echo[index/b.perPrompt]
}

// index is the client's index of d's choice.
func (b *base) index(d *pipeline.Delta) int { return d.Prompt*b.perPrompt + d.Choice }

// count accounts for d in the usage.
func (b *base) count(d *pipeline.Delta) {
	b.completion += d.Tokens
	b.thought.n += d.Reasoning
	u := d.Usage
	if u == nil {
		return
	}
	// The worker knows what it read, image tokens for instance; what it wrote we have counted ourselves, up to where the
	// answer was cut.
	if u.PromptTokens > 0 {
		b.prompt[d.Prompt] = u.PromptTokens
	}
	b.cached.replace(&b.hits[d.Prompt], u.CachedTokens)
	c := &b.choices[b.index(d)]
	b.reasoning.replace(&c.reasoning, u.ReasoningTokens)
	b.accepted.replace(&c.accepted, u.AcceptedPredictions)
	b.rejected.replace(&c.rejected, u.RejectedPredictions)
	b.audio.replace(&c.audio, u.CompletionAudio)
	b.promptAudio.replace(&b.choices[d.Prompt*b.perPrompt].promptAudio, u.PromptAudio)
}

// Usage returns the tokens counted so far.
func (b *base) Usage() worker.Usage {
	u := worker.Usage{CompletionTokens: b.completion}
	for _, n := range b.prompt {
		u.PromptTokens += n
	}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	if b.cached.set {
		u.CachedTokens = &b.cached.n
	}
	if r := b.reasoned(); r.set {
		u.ReasoningTokens = &r.n
	}
	return u
}

// reasoned is how many tokens went into reasoning. A worker that counts them knows better.
func (b *base) reasoned() count {
	if b.reasoning.set {
		return b.reasoning
	}
	return b.thought
}

// appendUsage appends the usage object.
func (b *base) appendUsage(dst []byte) []byte {
	prompt := 0
	for _, n := range b.prompt {
		prompt += n
	}
	dst = append(dst, `{"prompt_tokens":`...)
	dst = strconv.AppendInt(dst, int64(prompt), 10)
	dst = append(dst, `,"completion_tokens":`...)
	dst = strconv.AppendInt(dst, int64(b.completion), 10)
	dst = append(dst, `,"total_tokens":`...)
	dst = strconv.AppendInt(dst, int64(prompt+b.completion), 10)
	dst = appendDetails(dst, "prompt_tokens_details",
		detail{"cached_tokens", b.cached}, detail{"audio_tokens", b.promptAudio})
	dst = appendDetails(dst, "completion_tokens_details",
		detail{"reasoning_tokens", b.reasoned()}, detail{"audio_tokens", b.audio},
		detail{"accepted_prediction_tokens", b.accepted}, detail{"rejected_prediction_tokens", b.rejected})
	return append(dst, '}')
}

// detail is a count by its name.
type detail struct {
	name string
	count
}

// appendDetails appends a member with the counts that are there, if there are any.
func appendDetails(dst []byte, name string, list ...detail) []byte {
	begun := false
	for _, d := range list {
		switch {
		case !d.set:
			continue
		case begun:
			dst = append(dst, ',')
		default:
			dst = append(append(append(dst, `,"`...), name...), `":{`...)
		}
		begun = true
		dst = append(append(append(dst, '"'), d.name...), `":`...)
		dst = strconv.AppendInt(dst, int64(d.n), 10)
	}
	if begun {
		dst = append(dst, '}')
	}
	return dst
}

// finishReason is OpenAI's word for a worker's reason, as JSON.
func finishReason(r worker.FinishReason) string {
	// OpenAI knows three words; what else a worker says is told in nvext.detailed_finish_reason.
	switch r {
	case worker.FinishNone:
		return "null"
	case worker.FinishLength:
		return `"length"`
	case worker.FinishContentFilter:
		return `"content_filter"`
	}
	return `"stop"` // eos, stop, cancelled
}

// object is the name of the answer's type.
func (o *Options) object(chunk bool) string {
	switch {
	case !o.Chat:
		return "text_completion"
	case chunk:
		return "chat.completion.chunk"
	}
	return "chat.completion"
}
