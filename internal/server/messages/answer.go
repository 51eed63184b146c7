package messages

import (
	"slices"
	"strconv"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/server/reply"
)

// Options say what the client asked for.
type Options struct {
	ID    string   // of the message, with its prefix
	Model string   // as the client named it
	Stops []string // the client's stop sequences: only these are told
}

// signature stands where Anthropic seals a thought. Clients hand it back with the thought and drop thoughts that have
// none; nobody here looks at it.
const signature = "erased"

// answer is what Stream and Fold share: it counts tokens, and makes blocks of deltas.
type answer struct {
	opts   Options
	blocks blocks
	finish worker.FinishReason // empty while the answer goes on
	stop   worker.StopReason   // what stopped it

	input, output int  // tokens; the worker's own count of the prompt replaces ours
	cached        int  // of input; 0 when nobody tells
	told          bool // the worker told how many were cached
}

// prepare notes what is known of p's answer ahead of it.
func (a *answer) prepare(p *pipeline.Prepared) {
	if len(p.Requests) > 0 {
		a.input = len(p.Requests[0].TokenIDs)
	}
}

// add adds a delta. A failure is a *fault.Error: a worker whose chunk can't be read.
func (a *answer) add(d *pipeline.Delta) error {
	if d.Raw != nil {
		return a.addRaw(d.Raw)
	}
	if d.Event != "" { // a worker's annotation: Anthropic's clients know none
		return nil
	}
	a.output += d.Tokens
	a.usage(d.Usage)
	for i := range d.Pieces {
		a.blocks.push(&d.Pieces[i])
	}
	if len(d.Text) > 0 {
		a.blocks.push(&prepost.Piece{Kind: prepost.Content, Text: string(d.Text)})
	}
	if d.Finish != worker.FinishNone {
		a.finish, a.stop = d.Finish, d.StopReason
	}
	return nil
}

// usage takes over what the worker knows better than we do. Reports are running totals.
func (a *answer) usage(u *worker.Usage) {
	if u == nil {
		return
	}
	if u.PromptTokens > 0 {
		a.input = u.PromptTokens
	}
	if u.CachedTokens != nil {
		a.cached, a.told = *u.CachedTokens, true
	}
}

// Usage returns the tokens counted so far.
func (a *answer) Usage() worker.Usage {
	u := worker.Usage{PromptTokens: a.input, CompletionTokens: a.output, TotalTokens: a.input + a.output}
	if a.told {
		u.CachedTokens = &a.cached
	}
	return u
}

// appendUsage appends the usage object. With Anthropic input_tokens are those that were not in the cache.
func (a *answer) appendUsage(dst []byte, output int) []byte {
	dst = append(dst, `{"input_tokens":`...)
	dst = strconv.AppendInt(dst, int64(max(a.input-a.cached, 0)), 10)
	dst = append(dst, `,"output_tokens":`...)
	dst = strconv.AppendInt(dst, int64(output), 10)
	dst = append(dst, `,"cache_creation_input_tokens":0,"cache_read_input_tokens":`...)
	return append(strconv.AppendInt(dst, int64(a.cached), 10), '}')
}

// appendStop appends "stop_reason":…,"stop_sequence":….
func (a *answer) appendStop(dst []byte) []byte {
	sequence := a.sequence()
	reason := "end_turn"
	switch {
	case a.finish == worker.FinishLength:
		reason = "max_tokens" // also after whole calls: the answer was cut all the same
	case a.finish == worker.FinishContentFilter:
		reason = "refusal"
	case a.blocks.calls > 0:
		reason = "tool_use" // the client is to go on, whatever stopped the model
	case sequence != "":
		reason = "stop_sequence"
	}
	dst = append(append(append(dst, `"stop_reason":"`...), reason...), `","stop_sequence":`...)
	if reason != "stop_sequence" {
		return append(dst, "null"...)
	}
	return reply.AppendString(dst, sequence)
}

// sequence is the stop sequence of the client's that ended the answer; empty: none did.
func (a *answer) sequence() string {
	if a.stop.Kind == worker.StopString && slices.Contains(a.opts.Stops, a.stop.Text) {
		return a.stop.Text
	}
	return ""
}

// appendHead appends the members that a message begins with, up to its content.
func (a *answer) appendHead(dst []byte) []byte {
	dst = reply.AppendString(append(dst, `{"id":`...), a.opts.ID)
	return append(dst, `,"type":"message","role":"assistant","content":[`...)
}

// appendCallHead appends the id and the name of a call. An id that the model wrote is the client's too: templates of
// such models look for it in the history.
func appendCallHead(dst []byte, p *prepost.Piece) []byte {
	if p.ID != "" {
		dst = reply.AppendString(append(dst, `"id":`...), p.ID)
	} else {
		dst = append(reply.AppendID(append(dst, `"id":"toolu_`...)), '"')
	}
	return reply.AppendString(append(dst, `,"name":`...), p.Name)
}
