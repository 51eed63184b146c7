package pipeline

import "github.com/portico-llm/portico/api/worker"

// parse puts pieces in the place of the delta's text. Stop strings have been applied to it; with the choice's end comes
// what the parsers have held back.
func (l *leg) parse(c *legChoice) {
	d := &l.delta
	l.pieces = l.pieces[:0]
	if len(d.Text) > 0 || d.Tokens > 0 {
		c.parser.Push(d.Text, d.Tokens, l.gather)
	}
	if d.Finish != worker.FinishNone {
		c.parser.Finish(d.Finish == worker.FinishLength, l.gather)
		// Half a call isn't to be taken for a whole one, whatever ended it: to clients, length says that much.
		if c.parser.Cut() && d.Finish != worker.FinishContentFilter {
			d.Finish = worker.FinishLength
		}
	}
	total := c.parser.ReasoningTokens()
	d.Text, d.Pieces, d.Reasoning = nil, l.pieces, total-c.reasoning
	c.reasoning = total
}
