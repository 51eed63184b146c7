package reply

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/portico-llm/portico/internal/server/sse"
)

// Kept is a response that has ended, in the form in which it is kept.
type Kept struct {
	Body   []byte // as its client got it
	Output []byte // its items as a JSON array
	Cuts   []byte // where its stream was cut into pieces; nil: it was not streamed
}

// cut notes the next piece of an item as it is told: how long its text is, and its log probabilities. A kept stream
// takes two bytes or so for each, where its events take hundreds.
func (r *Responses) cut(text, logprobs int) {
	if r.opts.Keep != nil {
		r.cuts = binary.AppendUvarint(binary.AppendUvarint(r.cuts, uint64(text)), uint64(logprobs))
	}
}

// Replay tells a response that was kept as a stream: the events that its own stream had, with the same numbers, so that
// a client whose connection broke goes on after the last number it has seen. Those up to number after are left out; -1
// leaves out none. Of a response that was never streamed each item comes in one piece. A failure is that of the client,
// who takes no more, or of a body that this package has not written; then nothing was sent.
func Replay(out *sse.Writer, kept *Kept, after int) error {
	first, last, items, err := takeApart(kept.Body)
	if err != nil {
		return err
	}
	p := replay{Responses: NewResponses(out, ResponsesOptions{}), after: after, cuts: kept.Cuts}
	for _, name := range [...]string{"response.created", "response.in_progress"} {
		p.tell(func() { p.event(name, func(b []byte) []byte { return append(b, first...) }) })
	}
	for i := range items {
		p.item(&items[i])
		if p.err != nil {
			return p.err
		}
	}
	p.tell(func() { p.event("response."+last, func(b []byte) []byte { return append(b, kept.Body...) }) })
	return out.Finish()
}

// replay is a stream that is told again.
type replay struct {
	*Responses
	after int    // the last number that is left out
	cuts  []byte // of the items that are still to come
	err   error  // of the client
}

// tell has events written, and takes those back that are left out.
func (p *replay) tell(events func()) {
	from, begin := p.seq, len(p.out.Buffer())
	events()
	b := p.out.Buffer()
	rest := b[begin:]
	for n := min(p.seq, p.after+1) - from; n > 0; n-- { // nothing in an event looks like its end
		_, rest, _ = bytes.Cut(rest, []byte("\n\n"))
	}
	p.out.SetBuffer(append(b[:begin], rest...))
	if p.err == nil && len(p.out.Buffer()) > maxGathered {
		p.err = p.out.Flush()
	}
}

// item tells of one item: that it begins, each of its pieces, and that it ends.
func (p *replay) item(it *keptItem) {
	p.opts.Seal = it.sealed
	text, logprobs := it.text, it.logprobs
	it.text, it.logprobs = nil, nil
	status := it.status
	it.status = "in_progress"
	p.items = append(p.items, it.item)
	now := &p.items[len(p.items)-1]
	p.tell(func() { p.started(now) })
	if !now.kind.isLate() {
		for _, piece := range p.pieces(text, logprobs) {
			p.tell(func() { p.growth(now, string(piece.text), piece.logprobs) })
		}
	}
	now.text, now.logprobs, now.status = text, logprobs, status
	p.tell(func() { p.ended(now) })
}

// piece is one piece of an item.
type piece struct{ text, logprobs []byte }

// pieces cuts an item as its stream was cut, or not at all when that doesn't fit it.
func (p *replay) pieces(text, logprobs []byte) []piece {
	if len(text) == 0 {
		return nil
	}
	var out []piece
	rest, marks := text, logprobs
	for cuts := p.cuts; len(rest) > 0; {
		n, used := binary.Uvarint(cuts)
		m, more := binary.Uvarint(cuts[max(used, 0):])
		if used <= 0 || more <= 0 || n == 0 || n > uint64(len(rest)) || m > uint64(len(marks)) ||
			n < uint64(len(rest)) && !utf8.RuneStart(rest[n]) {
			p.cuts = nil // nor do the others
			return []piece{{text, logprobs}}
		}
		out = append(out, piece{rest[:n], marks[:m]})
		rest, marks, cuts = rest[n:], bytes.TrimPrefix(marks[m:], []byte(",")), cuts[used+more:]
		p.cuts = cuts
	}
	return out
}

// keptItem is an item as it is read back.
type keptItem struct {
	item
	sealed bool // a thought with the form to be sent back
}

// takeApart reads a response back: what its first events say of it, how it ended, and its items.
func takeApart(body []byte) (first []byte, status string, items []keptItem, err error) {
	// As it was while it went on: nothing that its end has brought.
	blank := map[string]string{"completed_at": "null", "status": `"in_progress"`, "error": "null",
		"incomplete_details": "null", "output": "[]", "usage": "null"}
	dec := jsontext.NewDecoder(bytes.NewReader(body), jsontext.AllowDuplicateNames(true))
	if _, err := dec.ReadToken(); err != nil {
		return nil, "", nil, fmt.Errorf("read a kept response: %w", err)
	}
	first = []byte{'{'}
	for dec.PeekKind() == '"' {
		token, err := dec.ReadToken()
		if err != nil {
			return nil, "", nil, fmt.Errorf("read a kept response: %w", err)
		}
		name := token.String()
		value, err := dec.ReadValue()
		if err != nil {
			return nil, "", nil, fmt.Errorf("read a kept response: %w", err)
		}
		switch name {
		case "status":
			err = json.Unmarshal(value, &status)
		case "output":
			items, err = readItems(value)
		}
		if err != nil {
			return nil, "", nil, fmt.Errorf("read %s of a kept response: %w", name, err)
		}
		if len(first) > 1 {
			first = append(first, ',')
		}
		first = append(appendString(first, name), ':')
		if b, ok := blank[name]; ok {
			first = append(first, b...)
		} else {
			first = append(first, value...)
		}
		if name == "usage" { // extensions follow, which come at the end
			break
		}
	}
	return append(first, '}'), status, items, nil
}

// readItems reads the items of an output.
func readItems(output []byte) ([]keptItem, error) {
	type part struct {
		Text     string            `json:"text"`
		Logprobs []json.RawMessage `json:"logprobs"`
	}
	var read []struct {
		Type      string          `json:"type"`
		ID        string          `json:"id"`
		Status    string          `json:"status"`
		Content   []part          `json:"content"`
		Summary   []part          `json:"summary"`
		Encrypted *string         `json:"encrypted_content"`
		CallID    string          `json:"call_id"`
		Name      string          `json:"name"`
		Namespace string          `json:"namespace"`
		Arguments string          `json:"arguments"`
		Input     string          `json:"input"`
		Action    json.RawMessage `json:"action"`
		Operation json.RawMessage `json:"operation"`
	}
	if err := json.Unmarshal(output, &read); err != nil {
		return nil, err
	}
	items := make([]keptItem, len(read))
	for i := range read {
		v, it := &read[i], &items[i]
		it.id, it.status, it.callID, it.sealed = v.ID, v.Status, v.CallID, v.Encrypted != nil
		it.as = CalledAs{Name: v.Name, Namespace: v.Namespace}
		switch v.Type {
		case "message":
			it.kind = itemMessage
		case "reasoning":
			if it.kind = itemThought; len(v.Content) == 0 {
				it.kind = itemSummary
			}
		case "function_call":
			it.kind, it.text = itemCall, []byte(v.Arguments)
		case "custom_tool_call":
			it.kind, it.text = itemCustom, []byte(v.Input)
		case "local_shell_call":
			it.kind, it.text = itemLocalShell, v.Action
		case "shell_call":
			it.kind, it.text = itemShell, v.Action
		case "apply_patch_call":
			it.kind, it.text = itemPatch, v.Operation
		default:
			return nil, fmt.Errorf("an item of type %q", v.Type)
		}
		for _, p := range slices.Concat(v.Content, v.Summary) {
			it.text = append(it.text, p.Text...)
			for _, l := range p.Logprobs {
				if len(it.logprobs) > 0 {
					it.logprobs = append(it.logprobs, ',')
				}
				it.logprobs = append(it.logprobs, l...)
			}
		}
	}
	return items, nil
}
