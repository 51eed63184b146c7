package reply

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/portico-llm/portico/internal/fault"
)

// rawChunk is a chunk, or a whole answer, in the client's format as a worker writes it. Such workers do their own
// detokenising and parsing; what they send streams through untouched, and only unary answers are taken apart.
type rawChunk struct {
	ID                string          `json:"id"`      // empty: ours
	Created           *int64          `json:"created"` // Unix seconds; nil: ours
	Model             string          `json:"model"`   // empty: ours
	SystemFingerprint json.RawMessage `json:"system_fingerprint"`
	Choices           []rawChoice     `json:"choices"`
	Usage             json.RawMessage `json:"usage"` // as sent: it may hold more than we count
	NvExt             json.RawMessage `json:"nvext"` // likewise
}

// rawChoice is one choice of a chunk, in either endpoint's form: Text is a completion's, Delta a chat's.
type rawChoice struct {
	Index        int             `json:"index"` // by which fragments find each other
	Text         *string         `json:"text"`
	Delta        *rawDelta       `json:"delta"`
	Message      json.RawMessage `json:"message"`       // a whole answer
	FinishReason *string         `json:"finish_reason"` // nil or null: the choice goes on
	Logprobs     json.RawMessage `json:"logprobs"`      // an object of arrays
}

// rawDelta is what a chunk adds to a message. Pointers tell an empty string from nothing at all.
type rawDelta struct {
	Content          *string       `json:"content"`
	ReasoningContent *string       `json:"reasoning_content"`
	Refusal          *string       `json:"refusal"`
	ToolCalls        []rawToolCall `json:"tool_calls"`
}

// rawToolCall is a tool call, or a fragment of one.
type rawToolCall struct {
	Index    int    `json:"index"`
	ID       string `json:"id"` // in the first fragment only, like the name
	Type     string `json:"type"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"` // a piece of JSON text
	} `json:"function"`
}

// rawUsage is the worker's usage object, as far as we count it.
type rawUsage struct {
	Choices []json.RawMessage `json:"choices"` // only whether there are any
	Usage   *struct {
		PromptTokens     int `json:"prompt_tokens"`
		CompletionTokens int `json:"completion_tokens"`
		PromptDetails    *struct {
			CachedTokens *int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
}

// countRaw takes the worker's own count over. It reports whether the chunk holds nothing but a usage.
func (b *base) countRaw(raw []byte) (usageOnly bool) {
	var c rawUsage
	// What can't be read is passed on uncounted: the client may understand it.
	if json.Unmarshal(raw, &c) != nil || c.Usage == nil {
		return false
	}
	// Counts in a stream are running totals, so the last one holds. One worker answers the whole request, batch or not.
	b.prompt[0], b.completion = c.Usage.PromptTokens, c.Usage.CompletionTokens
	if d := c.Usage.PromptDetails; d != nil && d.CachedTokens != nil {
		b.cached = count{*d.CachedTokens, true}
	}
	return len(c.Choices) == 0
}

// rawFold gathers the chunks of a worker that speaks the client's format into one body.
type rawFold struct {
	whole   json.RawMessage // the worker sent a whole answer: it is passed on as it is
	first   *rawChunk       // gives the answer its id, model and creation time
	usage   json.RawMessage // the last one sent
	nvext   json.RawMessage // likewise
	choices []*rawWhole     // ordered by index
}

// rawWhole is one whole choice.
type rawWhole struct {
	index                    int                          // the client's
	text, reasoning, refusal []byte                       // pieces joined
	hasRefusal               bool                         // a refusal may be the empty string
	calls                    []*rawWholeCall              // in order of appearance
	finish                   string                       // the worker's word; empty: none came
	logprobs                 map[string][]json.RawMessage // elements of each array, by its name
}

// rawWholeCall is one whole tool call.
type rawWholeCall struct {
	rawToolCall        // the first fragment
	arguments   []byte // of all fragments, joined
}

// errRawChunk is the failure of a worker that speaks some other format. Because makes copies of it.
var errRawChunk = fault.New(fault.BadGateway, "The worker's answer could not be read")

// add takes one chunk.
func (f *rawFold) add(raw []byte) error {
	c := new(rawChunk)
	if err := json.Unmarshal(raw, c); err != nil {
		return errRawChunk.Because(fmt.Errorf("chunk: %w", err))
	}
	if f.first == nil {
		f.first = c
	}
	if len(c.Usage) > 0 && string(c.Usage) != "null" {
		f.usage = c.Usage
	}
	if len(c.NvExt) > 0 {
		f.nvext = c.NvExt
	}
	for i := range c.Choices {
		// A worker that wasn't asked for a stream may answer in one piece.
		if len(c.Choices[i].Message) > 0 {
			// raw is the delta's and gone after the call.
			f.whole = slices.Clone(raw)
			return nil
		}
		f.choice(c.Choices[i].Index).add(&c.Choices[i])
	}
	return nil
}

// choice finds the choice of an index, or makes it. Choices are few, so a search does.
func (f *rawFold) choice(index int) *rawWhole {
	for _, c := range f.choices {
		if c.index == index {
			return c
		}
	}
	c := &rawWhole{index: index}
	f.choices = append(f.choices, c)
	slices.SortFunc(f.choices, func(a, b *rawWhole) int { return a.index - b.index })
	return c
}

// add joins one chunk's piece of the choice to what is there.
func (w *rawWhole) add(c *rawChoice) {
	if c.Text != nil {
		w.text = append(w.text, *c.Text...)
	}
	if c.FinishReason != nil {
		w.finish = *c.FinishReason
	}
	w.addLogprobs(c.Logprobs)
	d := c.Delta
	if d == nil {
		return
	}
	if d.Content != nil {
		w.text = append(w.text, *d.Content...)
	}
	if d.ReasoningContent != nil {
		w.reasoning = append(w.reasoning, *d.ReasoningContent...)
	}
	if d.Refusal != nil {
		w.refusal, w.hasRefusal = append(w.refusal, *d.Refusal...), true
	}
	for i := range d.ToolCalls {
		w.addCall(&d.ToolCalls[i])
	}
}

// addCall joins the fragments of one tool call: id and name come once, the arguments in pieces.
func (w *rawWhole) addCall(f *rawToolCall) {
	for _, c := range w.calls {
		if c.Index == f.Index {
			c.Function.Name += f.Function.Name
			c.arguments = append(c.arguments, f.Function.Arguments...)
			return
		}
	}
	w.calls = append(w.calls, &rawWholeCall{*f, []byte(f.Function.Arguments)})
}

// addLogprobs joins the arrays of both forms of log probabilities, whatever they are called.
func (w *rawWhole) addLogprobs(raw json.RawMessage) {
	var arrays map[string][]json.RawMessage
	if len(raw) == 0 || json.Unmarshal(raw, &arrays) != nil {
		return
	}
	if w.logprobs == nil && arrays != nil {
		w.logprobs = make(map[string][]json.RawMessage)
	}
	for k, v := range arrays {
		w.logprobs[k] = append(w.logprobs[k], v...)
	}
}

// appendBody appends the body. What the worker left out is filled in from the request.
func (f *rawFold) appendBody(dst []byte, o *Options) ([]byte, error) {
	if f.whole != nil {
		return append(dst, f.whole...), nil
	}
	// Only a worker that sent something has a raw answer, so there is a first chunk.
	id, model, created := f.first.ID, f.first.Model, o.Created.Unix()
	if id == "" {
		id = o.ID
	}
	if model == "" {
		model = o.Model
	}
	if f.first.Created != nil {
		created = *f.first.Created
	}
	dst = appendString(append(dst, `{"id":`...), id)
	dst = append(dst, `,"choices":[`...)
	for i, c := range f.choices {
		if i > 0 {
			dst = append(dst, ',')
		}
		var err error
		if dst, err = c.append(dst, o.Chat); err != nil {
			return dst, err
		}
	}
	dst = append(dst, `],"created":`...)
	dst = strconv.AppendInt(dst, created, 10)
	dst = appendString(append(dst, `,"model":`...), model)
	if len(f.first.SystemFingerprint) > 0 {
		dst = append(append(dst, `,"system_fingerprint":`...), f.first.SystemFingerprint...)
	}
	dst = append(append(append(dst, `,"object":"`...), o.object(false)...), '"')
	if len(f.usage) > 0 {
		dst = append(append(dst, `,"usage":`...), f.usage...)
	}
	if len(f.nvext) > 0 {
		dst = append(append(dst, `,"nvext":`...), f.nvext...)
	}
	return append(dst, '}'), nil
}

// append appends one choice in the form of the endpoint.
func (w *rawWhole) append(dst []byte, chat bool) ([]byte, error) {
	dst = append(dst, `{"index":`...)
	dst = strconv.AppendInt(dst, int64(w.index), 10)
	if chat {
		dst = w.appendMessage(append(dst, `,"message":`...))
	} else {
		dst = appendString(append(dst, `,"text":`...), w.text)
	}
	dst = append(dst, `,"finish_reason":`...)
	if w.finish == "" {
		dst = append(dst, "null"...)
	} else {
		dst = appendString(dst, w.finish)
	}
	dst = append(dst, `,"logprobs":`...)
	if w.logprobs == nil {
		return append(dst, "null}"...), nil
	}
	lp, err := json.Marshal(w.logprobs)
	if err != nil {
		return dst, fmt.Errorf("log probabilities: %w", err)
	}
	return append(append(dst, lp...), '}'), nil
}

// appendMessage appends a chat choice's message. Content is null when there is none, as OpenAI writes it beside calls.
func (w *rawWhole) appendMessage(dst []byte) []byte {
	dst = append(dst, `{"content":`...)
	if len(w.text) == 0 {
		dst = append(dst, "null"...)
	} else {
		dst = appendString(dst, w.text)
	}
	dst = append(dst, `,"refusal":`...)
	if w.hasRefusal {
		dst = appendString(dst, w.refusal)
	} else {
		dst = append(dst, "null"...)
	}
	dst = append(dst, `,"role":"assistant"`...)
	if len(w.reasoning) > 0 {
		dst = appendString(append(dst, `,"reasoning_content":`...), w.reasoning)
	}
	if len(w.calls) > 0 {
		for i, c := range w.calls { // in one body, calls carry no index
			if i == 0 {
				dst = append(dst, `,"tool_calls":[`...)
			} else {
				dst = append(dst, ',')
			}
			dst = appendString(append(dst, `{"id":`...), c.ID)
			dst = append(dst, `,"type":"function","function":{"name":`...)
			dst = appendString(dst, c.Function.Name)
			dst = append(appendString(append(dst, `,"arguments":`...), c.arguments), "}}"...)
		}
		dst = append(dst, ']')
	}
	return append(dst, '}')
}
