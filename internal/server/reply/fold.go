package reply

import (
	"encoding/json"
	"strconv"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/pipeline"
)

// Fold gathers an answer into one body. It is the same journey as a stream's, with a longer wait at its end: nothing
// is known of an answer here that a stream wouldn't show.
type Fold struct {
	base            // options, choices, usage
	folded []folded // by the client's index

	promptLogprobs []json.RawMessage // of each prompt; empty: not asked for, or the worker gave none
	raw            rawFold           // of a worker that speaks the client's format
}

// folded is one whole choice.
type folded struct {
	seen     bool                // the worker has mentioned it
	text     []byte              // UTF-8; of a parsed answer the content alone
	message  message             // of a parsed answer: what isn't content
	logprobs logprobs            // of the whole choice, encoded as they came
	finish   worker.FinishReason // empty: the answer broke off
}

var _ pipeline.Sink = (*Fold)(nil)

// NewFold returns an empty Fold.
func NewFold(opts Options) *Fold { return &Fold{base: base{opts: opts}} }

// Start prepares for p's answer.
func (f *Fold) Start(p *pipeline.Prepared) error {
	f.begin(p)
	// Deltas come for these choices only: the pipeline refuses an index beyond them.
	f.folded = make([]folded, len(f.choices))
	f.promptLogprobs = make([]json.RawMessage, len(f.prompt))
	return nil
}

// Delta adds d. Annotations are for streams only.
func (f *Fold) Delta(d *pipeline.Delta) error {
	if d.Raw != nil {
		f.rawAnswer = true
		f.countRaw(d.Raw)
		return f.raw.add(d.Raw)
	}
	if d.Event != "" {
		return nil
	}
	index := f.index(d)
	c := &f.folded[index]
	c.seen = true
	f.count(d)
	f.ext.add(d)
	if (f.opts.PromptLogProbs || f.echoed != nil) && len(d.EngineData) > 0 {
		f.keepPrompt(d)
	}
	c.text = c.message.add(append(c.text, d.Text...), d.Pieces)
	f.addLogProbs(&c.logprobs, d, &f.choices[index])
	if d.Finish != worker.FinishNone {
		c.finish = d.Finish
	}
	return nil
}

// Flush does nothing: the body leaves as a whole.
func (f *Fold) Flush() error { return nil }

// AppendBody appends the body of the answer. It is called once, after the pipeline has run without failure. Only the
// answer of a worker that speaks the client's format can fail here, and dst is then of no use.
func (f *Fold) AppendBody(dst []byte) ([]byte, error) {
	if f.rawAnswer {
		return f.raw.appendBody(dst, &f.opts)
	}
	// The keys stand in the order Dynamo writes them; OpenAI's clients don't mind.
	dst = appendString(append(dst, `{"id":`...), f.opts.ID)
	dst = append(dst, `,"choices":[`...)
	first := true
	for i := range f.folded {
		c := &f.folded[i]
		if !c.seen { // the worker made fewer choices than it was asked for
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		if f.opts.Chat {
			dst = f.chatChoice(dst, c, i)
		} else {
			dst = f.completionChoice(dst, c, i)
		}
	}
	dst = append(dst, `],"created":`...)
	dst = strconv.AppendInt(dst, f.opts.Created.Unix(), 10)
	dst = appendString(append(dst, `,"model":`...), f.opts.Model)
	if !f.opts.Chat {
		dst = append(dst, `,"system_fingerprint":null`...)
	}
	dst = append(append(append(dst, `,"object":"`...), f.opts.object(false)...), `","usage":`...)
	dst = f.appendUsage(dst)
	prompt, _ := f.ext.engineParts()
	if len(prompt) == 0 && f.opts.Chat {
		prompt = f.promptLogprobs[0]
	}
	if len(prompt) > 0 { // clients of vLLM look for it here
		dst = append(append(dst, `,"prompt_logprobs":`...), prompt...)
	}
	dst = f.ext.append(dst)
	return append(dst, '}'), nil
}

// chatChoice appends one choice with its whole message.
func (f *Fold) chatChoice(dst []byte, c *folded, index int) []byte {
	dst = append(dst, `{"index":`...)
	dst = strconv.AppendInt(dst, int64(index), 10)
	dst = append(dst, `,"message":{"content":`...)
	if len(c.text) == 0 { // clients take an empty answer for none: a string would be shown as a message
		dst = append(dst, "null"...)
	} else {
		dst = appendString(dst, c.text)
	}
	dst = append(dst, `,"refusal":null,"role":"assistant"`...)
	dst = append(c.message.append(dst, f.opts.reasoningField()), `},"finish_reason":`...)
	f.choices[index].calls = len(c.message.calls)
	dst = append(dst, f.choices[index].finishReason(c.finish)...)
	dst = f.appendLogProbs(append(dst, `,"logprobs":`...), &c.logprobs)
	return append(dst, '}')
}

// completionChoice appends one choice with its whole text, which is a string even when it is empty.
func (f *Fold) completionChoice(dst []byte, c *folded, index int) []byte {
	dst = appendEscaped(append(dst, `{"text":"`...), f.prefix(index))
	dst = append(appendEscaped(dst, c.text), `","index":`...)
	dst = strconv.AppendInt(dst, int64(index), 10)
	marks := &c.logprobs
	if f.echoed != nil {
		marks = f.echoLogProbs(index/f.perPrompt, f.promptLogprobs[index/f.perPrompt])
		marks.extend(&c.logprobs)
	}
	dst = f.appendLogProbs(append(dst, `,"logprobs":`...), marks)
	dst = append(append(dst, `,"finish_reason":`...), finishReason(c.finish)...)
	// Here is where clients of vLLM look for them; for chats they stand beside the choices.
	if lp := f.promptLogprobs[index/f.perPrompt]; len(lp) > 0 && f.opts.PromptLogProbs {
		dst = append(append(dst, `,"prompt_logprobs":`...), lp...)
	}
	return append(dst, '}')
}
