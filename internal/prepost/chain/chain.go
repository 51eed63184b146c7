// Package chain takes one engine output at a time and makes of it the text a client may see: token ids through the
// detokeniser, stop ids and stop strings applied, unfinished characters and possible stop strings held back.
//
// A Choice belongs to one goroutine and serves one choice of one request.
package chain

import (
	"slices"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/prepost/stopjail"
)

// Options describe a choice.
type Options struct {
	Decoder     prepost.Decoder        // for this choice alone
	Stop        *worker.StopConditions // as sent to the worker; not changed
	IncludeStop bool                   // stop strings stay in the answer (include_stop_str_in_output)
	NoStopTrim  bool                   // stop ids and stop strings stay in the answer
}

// Choice is the state of one choice of an answer.
type Choice struct {
	opts      Options        // never changed
	jail      *stopjail.Jail // nil: no stop strings
	minTokens int            // until then nothing stops the choice here
	generated int            // tokens consumed, the stopping one included
	done      bool           // a local trigger ended the choice
	scratch   []byte         // decoded text on its way into the jail
}

// Result is what one engine output adds.
type Result struct {
	Text       []byte              // dst, grown by the text released
	Tokens     int                 // how many of the output's token ids were consumed; what follows them is dropped
	Finish     worker.FinishReason // empty while the choice goes on
	StopReason worker.StopReason   // what stopped it, where the client is to know
	Stopped    bool                // a local trigger ended the choice: the worker need not go on
}

// New returns a choice that has produced nothing yet.
func New(o Options) *Choice {
	c := &Choice{opts: o}
	if len(o.Stop.Stop) > 0 {
		// Two ways to treat a match: cut it off, or let it out and end behind it.
		if o.IncludeStop || o.NoStopTrim {
			c.jail = stopjail.New(nil, o.Stop.Stop)
		} else {
			c.jail = stopjail.New(o.Stop.Stop, nil)
		}
	}
	if o.Stop.MinTokens != nil {
		c.minTokens = int(*o.Stop.MinTokens)
	}
	return c
}

// Step consumes one output and appends the text it releases to dst. Outputs after a local trigger are dropped; after
// the engine's own finish they are still taken, since engines send trailing items.
func (c *Choice) Step(dst []byte, out *worker.Output) (Result, error) {
	if c.done {
		return Result{Text: dst}, nil
	}
	r := Result{Text: dst, Finish: out.FinishReason, StopReason: out.StopReason}
	if out.HasText {
		return c.engineText(r, out)
	}
	for i, id := range out.TokenIDs {
		r.Tokens = i + 1
		if err := c.token(&r, id); err != nil {
			return r, err
		}
		if c.done {
			if out.FinishReason == worker.FinishError {
				r.Finish = out.FinishReason
			}
			return r, nil
		}
	}
	if r.Finish == worker.FinishNone {
		return r, nil
	}
	return c.finish(r)
}

// engineText passes on text that the engine detokenised; stop strings were the engine's to find.
func (c *Choice) engineText(r Result, out *worker.Output) (Result, error) {
	r.Tokens = len(out.TokenIDs)
	c.generated += r.Tokens
	var err error
	if r.Finish != worker.FinishNone {
		if r.Text, err = c.End(r.Text); err != nil {
			return r, err
		}
	}
	r.Text = append(r.Text, out.Text...)
	return r, nil
}

// token consumes one id.
func (c *Choice) token(r *Result, id prepost.TokenID) error {
	belowMin := c.generated < c.minTokens
	c.generated++
	s := c.opts.Stop
	user := slices.Contains(s.StopTokenIDs, id)
	// Lists hold a handful of ids, so they are searched as they are.
	hidden := user || slices.Contains(s.StopTokenIDsHidden, id)
	visible := slices.Contains(s.StopTokenIDsVisible, id)

	if !belowMin && hidden && !visible && !c.opts.NoStopTrim {
		c.stopAt(r, id, user)
		return c.tail(r) // the id's own text is not part of the answer
	}
	if c.jail == nil { // the common case writes straight into dst
		var err error
		if r.Text, err = c.opts.Decoder.Push(r.Text, id); err != nil {
			return err
		}
	} else if err := c.search(r, id, belowMin); err != nil || c.done {
		return err
	}
	if !belowMin && (visible || hidden) {
		c.stopAt(r, id, user || visible)
		return c.tail(r)
	}
	return nil
}

// search decodes id and looks for stop strings in what becomes text.
func (c *Choice) search(r *Result, id prepost.TokenID, belowMin bool) error {
	text, err := c.opts.Decoder.Push(c.scratch[:0], id)
	c.scratch = text
	if err != nil || len(text) == 0 {
		return err
	}
	if belowMin {
		r.Text = c.jail.Pass(r.Text, text)
		return nil
	}
	c.push(r, text)
	return nil
}

// push gives text to the jail and ends the choice when it finds a stop string. What stands behind it is dropped.
func (c *Choice) push(r *Result, text []byte) {
	var hit *stopjail.Hit
	if r.Text, hit = c.jail.Push(r.Text, text); hit != nil {
		c.done = true
		r.Stopped, r.Finish = true, worker.FinishStop
		r.StopReason = worker.StopReason{Kind: worker.StopString, Text: hit.Stop}
	}
}

// stopAt ends the choice at a stop id; only ids that the client named are told to it.
func (c *Choice) stopAt(r *Result, id prepost.TokenID, tell bool) {
	c.done = true
	r.Stopped, r.Finish, r.StopReason = true, worker.FinishStop, worker.StopReason{}
	if tell {
		r.StopReason = worker.StopReason{Kind: worker.StopToken, ID: id}
	}
}

// tail releases the decoder's rest, still searching it, and what the jail holds.
func (c *Choice) tail(r *Result) error {
	text, err := c.opts.Decoder.Flush(c.scratch[:0])
	c.scratch = text
	if err != nil {
		return err
	}
	if c.jail == nil {
		r.Text = append(r.Text, text...)
		return nil
	}
	// A stop string in the tail changes the reason, and the jail has then let out what it may.
	before := r.StopReason
	if len(text) > 0 {
		c.push(r, text)
	}
	if r.StopReason == before {
		r.Text = c.jail.Flush(r.Text)
	}
	return nil
}

// finish ends the choice as the engine says. A stop string in the decoder's tail takes precedence, except over an
// engine's error.
func (c *Choice) finish(r Result) (Result, error) {
	reason := r.Finish
	err := c.tail(&r)
	if reason == worker.FinishError {
		r.Finish = reason
	}
	return r, err
}

// End releases everything that is held, unsearched: the stream ended without a finish reason. After a local trigger
// there is nothing to release. An error is the decoder's.
func (c *Choice) End(dst []byte) ([]byte, error) {
	if c.done {
		return dst, nil
	}
	text, err := c.opts.Decoder.Flush(c.scratch[:0])
	c.scratch = text
	if err != nil {
		return dst, err
	}
	if c.jail == nil {
		return append(dst, text...), nil
	}
	return c.jail.Pass(dst, text), nil
}
