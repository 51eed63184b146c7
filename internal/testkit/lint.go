package testkit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// Event is one event of a stream.
type Event struct {
	Name     string   // of the event field; empty: none
	Comments []string // in order, without the colon and one space
	Data     string   // empty: none
}

// Events splits a stream into its events. Anything that is not one is an error. The events before the error are
// returned with it.
func Events(body []byte) ([]Event, error) {
	var out []Event
	for len(body) > 0 {
		// Portico's own streams end every line with a line feed; other line ends of the format would be a change.
		block, rest, ok := bytes.Cut(body, []byte("\n\n"))
		if !ok {
			return out, fmt.Errorf("the stream ends inside an event: %q", block)
		}
		body = rest
		var e Event
		for line := range strings.SplitSeq(string(block), "\n") {
			switch {
			case strings.HasPrefix(line, "data: ") && e.Data == "":
				e.Data = line[len("data: "):]
			case strings.HasPrefix(line, "event: ") && e.Name == "":
				e.Name = line[len("event: "):]
			case strings.HasPrefix(line, ":"):
				e.Comments = append(e.Comments, strings.TrimPrefix(line[1:], " "))
			default:
				return out, fmt.Errorf("a line is no field of an event: %q", line)
			}
		}
		out = append(out, e)
	}
	return out, nil
}

// Chunk is one chunk of either kind of stream, as far as the rules reach. Pointers tell a missing key from an empty
// value.
type Chunk struct {
	ID      string      `json:"id"` // the same in all chunks, like Object, Model and Created
	Object  string      `json:"object"`
	Model   string      `json:"model"`
	Created int64       `json:"created"` // Unix seconds
	Choices *[]struct { // nil: the key is missing
		Index        int             `json:"index"`
		Delta        *map[string]any `json:"delta"`
		Text         *string         `json:"text"`
		FinishReason *string         `json:"finish_reason"`
	} `json:"choices"`
	Usage json.RawMessage `json:"usage"` // null and missing are the same
	Error json.RawMessage `json:"error"` // an error event; nothing may follow it
}

// LintOptions say what the client asked for. The zero value is a plain stream of completions.
type LintOptions struct {
	Chat            bool // otherwise completions
	Usage           bool // include_usage
	ContinuousUsage bool // usage in every chunk
	Choices         int  // how many may come; 0: any number
	Unfinished      bool // the reader left, or was left: there is no end to check
}

// Lint checks that a stream keeps OpenAI's rules: ids that don't change, one role and one finish reason for each
// choice, indices without gaps, nothing of a choice after its end, usage where and only where it was asked for, at most
// one error, and [DONE] once, at the end.
func Lint(body []byte, opts LintOptions) error {
	events, err := Events(body)
	if err != nil {
		return err
	}
	l := linter{opts: opts, choices: map[int]*lintChoice{}}
	for i, e := range events {
		if e.Data == "" {
			continue // comments and annotations
		}
		if l.done {
			return fmt.Errorf("event %d follows the end mark: %q", i, e.Data)
		}
		if e.Data == "[DONE]" {
			l.done = true
			continue
		}
		if err := l.chunk(e.Data); err != nil {
			return fmt.Errorf("event %d: %w: %q", i, err, e.Data)
		}
	}
	if opts.Unfinished {
		return nil
	}
	return l.end()
}

// linter is what Lint remembers of the chunks so far.
type linter struct {
	opts    LintOptions
	first   *Chunk              // the one that all others are compared with
	choices map[int]*lintChoice // by index
	usage   int                 // chunks with nothing but usage
	failed  bool                // an error event came
	done    bool                // the end mark came
}

// lintChoice counts how often a choice has had a role and a finish reason: once is right for each.
type lintChoice struct{ role, finish int }

// chunk checks one chunk against those before it.
func (l *linter) chunk(data string) error {
	var c Chunk
	if err := json.Unmarshal([]byte(data), &c); err != nil {
		return fmt.Errorf("no JSON: %w", err)
	}
	if l.failed {
		return fmt.Errorf("something follows an error")
	}
	// The only chunk that needs none of a chunk's fields.
	if c.Error != nil {
		l.failed = true
		return nil
	}
	// With include_usage that chunk is the last.
	if l.usage > 0 {
		return fmt.Errorf("something follows the usage")
	}
	if err := l.same(&c); err != nil {
		return err
	}
	hasUsage := len(c.Usage) > 0 && string(c.Usage) != "null"
	// OpenAI's last chunk with include_usage: no choices, only the usage.
	if len(*c.Choices) == 0 {
		l.usage++
		if !l.opts.Usage || !hasUsage {
			return fmt.Errorf("a chunk without choices")
		}
		return nil
	}
	if hasUsage != l.opts.ContinuousUsage {
		return fmt.Errorf("usage in a chunk: %t", hasUsage)
	}
	for i := range *c.Choices {
		if err := l.choice(&c, i); err != nil {
			return err
		}
	}
	return nil
}

// same checks what all chunks share.
func (l *linter) same(c *Chunk) error {
	want := "text_completion"
	if l.opts.Chat {
		want = "chat.completion.chunk"
	}
	switch {
	case c.Object != want:
		return fmt.Errorf("object is %q", c.Object)
	case c.Choices == nil:
		return fmt.Errorf("no choices")
	case c.ID == "" || c.Model == "" || c.Created == 0:
		return fmt.Errorf("id, model or created is missing")
	}
	if l.first == nil {
		l.first = c
	}
	if c.ID != l.first.ID || c.Model != l.first.Model || c.Created != l.first.Created {
		return fmt.Errorf("id, model or created has changed")
	}
	return nil
}

// choice checks the i-th choice of a chunk.
func (l *linter) choice(c *Chunk, i int) error {
	ch := (*c.Choices)[i]
	st := l.choices[ch.Index]
	if st == nil {
		st = &lintChoice{}
		l.choices[ch.Index] = st
	}
	if l.opts.Choices > 0 && (ch.Index < 0 || ch.Index >= l.opts.Choices) {
		return fmt.Errorf("choice %d of %d", ch.Index, l.opts.Choices)
	}
	if st.finish > 0 {
		return fmt.Errorf("choice %d goes on after its finish reason", ch.Index)
	}
	if ch.FinishReason != nil {
		st.finish++
	}
	if !l.opts.Chat {
		if ch.Text == nil {
			return fmt.Errorf("choice %d has no text", ch.Index)
		}
		return nil
	}
	if ch.Delta == nil {
		return fmt.Errorf("choice %d has no delta", ch.Index)
	}
	if _, ok := (*ch.Delta)["role"]; ok {
		st.role++
	}
	// 0 is a first chunk without a role, 2 a later one that repeats it.
	if st.role != 1 {
		return fmt.Errorf("choice %d has had %d roles", ch.Index, st.role)
	}
	return nil
}

// end checks what only the whole stream shows.
func (l *linter) end() error {
	if !l.done {
		return fmt.Errorf("no end mark")
	}
	if l.failed {
		return nil // whatever was open stays open
	}
	if l.opts.Usage != (l.usage == 1) {
		return fmt.Errorf("%d usage chunks", l.usage)
	}
	if l.opts.Choices > 0 && len(l.choices) == 0 {
		return fmt.Errorf("no choice")
	}
	// As many choices as there are indices from 0 on: a gap is a choice that never came.
	for i := range len(l.choices) {
		st := l.choices[i]
		if st == nil {
			return fmt.Errorf("there is no choice %d among %d", i, len(l.choices))
		}
		if st.finish != 1 {
			return fmt.Errorf("choice %d has %d finish reasons", i, st.finish)
		}
	}
	return nil
}
