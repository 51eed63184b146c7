package reply

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/server/sse"
)

// ResponsesOptions say what a client of the Responses interface asked for. Of Options ID, which begins with resp_, is
// the response's; Usage and Notes mean nothing here.
type ResponsesOptions struct {
	Options

	Echo  []byte              // what is repeated of the request: members that each begin with a comma
	Tools map[string]CalledAs // functions that the client knows otherwise than the model
	Seal  bool                // thoughts come with a form to be sent back

	// Summary tells thoughts where a client that asked for their summary looks for it. Nothing is left out of them.
	Summary bool

	// Keep is given a response that has ended well, before the client learns of its end. It copies what it keeps. Nil:
	// nobody wants it.
	Keep func(Kept)
}

// CalledAs is what a client calls a function.
type CalledAs struct {
	Name      string
	Namespace string // the group it is in; empty: none
	Kind      CallKind
}

// CallKind is what a client takes the call of a function for.
type CallKind uint8

// The kinds of call. All but the first two are of OpenAI's own tools, and have no names.
const (
	CallFunction   CallKind = iota // of a function
	CallCustom                     // of a tool whose input is a text, which the model was asked for as the one argument
	CallLocalShell                 // a program to be run by the client
	CallShell                      // lines for the client's own shell
	CallPatch                      // a change of a file of the client's
)

// Responses writes an answer as a response: a list of items. Streamed, it tells of each item's growth; the body is the
// same list without the telling.
type Responses struct {
	base
	opts ResponsesOptions
	out  *sse.Writer // nil: folded

	seq   int        // number of the next event
	items []item     // in the order of the answer
	open  bool       // the last of them goes on
	blank []byte     // white space that begins a message only if something follows
	marks []byte     // log probabilities of tokens whose text is still to come
	cuts  []byte     // of a stream that is kept: see cut
	end   endOfReply // how the answer ended
}

// endOfReply is how a response ended.
type endOfReply struct {
	status string // in_progress, completed, incomplete or failed
	reason string // of an incomplete one
	err    *ResponseFailure
}

// ResponseFailure is what a client is told of a failure in the middle of a response.
type ResponseFailure struct {
	Code    string // of the response's error
	Message string // of both

	// As in the error of a failed request. Param and Cause may be empty.
	Kind, Param, Cause string
}

// item is one item of the output.
type item struct {
	kind   itemKind
	id     string
	text   []byte // of a message or a thought; of a call its arguments, in the end what action makes of them
	status string // in_progress, completed or incomplete

	logprobs []byte // of a message: JSON entries, separated by commas

	callID string // of a call
	as     CalledAs
}

// itemKind tells what an item is.
type itemKind uint8

// The kinds of item. Those of calls have the order of CallKind.
const (
	itemMessage itemKind = iota
	itemThought
	itemSummary // a thought, told as its summary
	itemCall
	itemCustom
	itemLocalShell
	itemShell
	itemPatch
)

// prefix is what ids of the kind begin with.
func (k itemKind) prefix() string {
	return [...]string{"msg_", "rs_", "rs_", "fc_", "ctc_", "lsh_", "sh_", "apc_"}[k]
}

// isCall tells items that a client acts upon from those that it reads.
func (k itemKind) isCall() bool { return k >= itemCall }

// isLate tells items that are told of when they are whole: until then they are JSON, and nothing of the client's.
func (k itemKind) isLate() bool { return k >= itemCustom }

var _ pipeline.Sink = (*Responses)(nil)

// NewResponses returns a response that is written to out as it comes, or gathered when out is nil.
func NewResponses(out *sse.Writer, opts ResponsesOptions) *Responses {
	opts.Chat = true // probabilities have the form of chat
	return &Responses{base: base{opts: opts.Options}, opts: opts, out: out, end: endOfReply{status: "in_progress"}}
}

// Start tells that the response has begun. Nothing is sent yet: until the first flush a failure can have a status.
func (r *Responses) Start(p *pipeline.Prepared) error {
	r.begin(p)
	if r.out == nil {
		return nil
	}
	r.out.Begin()
	for _, name := range [...]string{"response.created", "response.in_progress"} {
		r.event(name, r.appendWhole)
	}
	return nil
}

// Delta adds d. Its failure is the client's, who takes no more, or a worker's whose format can't be read. A worker's
// annotations are dropped: every event of this interface is one that it names.
func (r *Responses) Delta(d *pipeline.Delta) error {
	switch {
	case d.Raw != nil:
		if err := r.raw(d.Raw); err != nil {
			return err
		}
	case d.Event != "":
		return nil
	default:
		r.add(d)
	}
	if r.out != nil && len(r.out.Buffer()) > maxGathered {
		return r.out.Flush()
	}
	return nil
}

// add adds an engine's output.
func (r *Responses) add(d *pipeline.Delta) {
	r.count(d)
	r.ext.add(d)
	r.mark(d)
	if len(d.Text) > 0 {
		r.piece(&prepost.Piece{Kind: prepost.Content, Text: string(d.Text)})
	}
	for i := range d.Pieces {
		r.piece(&d.Pieces[i])
	}
	if d.Finish != worker.FinishNone {
		r.finish(d.Finish)
	}
}

// mark notes log probabilities. Nobody knows which tokens made which piece: those of an output without any text of the
// message belong to thoughts and calls, and are dropped with them.
func (r *Responses) mark(d *pipeline.Delta) {
	r.logprobs.reset()
	r.addLogProbs(&r.logprobs, d, &r.choices[0])
	if r.logprobs.n == 0 {
		return
	}
	other, text := false, len(d.Text) > 0
	for i := range d.Pieces {
		text = text || d.Pieces[i].Kind == prepost.Content
		other = other || d.Pieces[i].Kind != prepost.Content
	}
	if other && !text {
		r.marks = r.marks[:0]
		return
	}
	if len(r.marks) > 0 {
		r.marks = append(r.marks, ',')
	}
	r.marks = append(r.marks, r.logprobs.content...)
}

// piece adds one piece of the answer.
func (r *Responses) piece(p *prepost.Piece) {
	switch p.Kind {
	case prepost.Content:
		r.content(p.Text)
	case prepost.Reasoning:
		r.blank = r.blank[:0]
		if p.Text == "" {
			return
		}
		if r.opts.Summary {
			r.grow(itemSummary, p.Text)
		} else {
			r.grow(itemThought, p.Text)
		}
	case prepost.ToolCall:
		r.blank = r.blank[:0]
		if p.Name != "" {
			r.openCall(p)
		}
		// Fragments belong to the call that began last.
		if p.Text != "" && r.open {
			r.grow(r.items[len(r.items)-1].kind, p.Text)
		}
	}
}

// content adds text. White space alone makes no message: models write it between thoughts and calls.
func (r *Responses) content(text string) {
	if !r.open || r.items[len(r.items)-1].kind != itemMessage {
		if strings.TrimLeft(text, " \t\r\n") == "" {
			r.blank = append(r.blank, text...)
			return
		}
		text = string(r.blank) + text
		r.blank = r.blank[:0]
	}
	r.grow(itemMessage, text)
}

// grow adds to the open item, and opens one when it is of another kind.
func (r *Responses) grow(kind itemKind, text string) {
	if !r.open || r.items[len(r.items)-1].kind != kind {
		r.close("completed")
		r.start(item{kind: kind})
	}
	it := &r.items[len(r.items)-1]
	it.text = append(it.text, text...)
	marks := r.marks
	if kind == itemMessage && len(marks) > 0 {
		if len(it.logprobs) > 0 {
			it.logprobs = append(it.logprobs, ',')
		}
		it.logprobs = append(it.logprobs, marks...)
		r.marks = r.marks[:0]
	}
	if r.out != nil {
		r.growth(it, text, marks)
		if !kind.isLate() {
			r.cut(len(text), len(marks))
		}
	}
}

// openCall begins a call.
func (r *Responses) openCall(p *prepost.Piece) {
	r.close("completed")
	it := item{kind: itemCall, callID: p.ID, as: CalledAs{Name: p.Name}}
	if as, ok := r.opts.Tools[p.Name]; ok {
		it.as = as
	}
	it.kind += itemKind(it.as.Kind)
	if it.callID == "" {
		it.callID = string(appendCallID(nil))
	}
	r.start(it)
}

// start begins an item.
func (r *Responses) start(it item) {
	// An item's id holds its response's, so that it is found again by the one alone.
	it.id = it.kind.prefix() + strings.TrimPrefix(r.opts.ID, "resp_") + fmt.Sprintf("%02x", len(r.items))
	it.status = "in_progress"
	r.items = append(r.items, it)
	r.open = true
	if r.out != nil {
		r.started(&r.items[len(r.items)-1])
	}
}

// close ends the open item, if there is one.
func (r *Responses) close(status string) {
	if !r.open {
		return
	}
	r.open = false
	it := &r.items[len(r.items)-1]
	it.status = status
	switch it.kind {
	case itemCustom:
		it.text = customInput(it.text)
	case itemLocalShell, itemShell, itemPatch:
		var ok bool
		if it.text, ok = it.kind.action(it.text); !ok {
			it.status = "incomplete" // clients run what is completed
		}
		if it.kind == itemPatch && it.status == "incomplete" {
			it.status = "in_progress" // the one other status that OpenAI has for it
		}
	}
	if r.out != nil {
		r.ended(it)
	}
}

// customInput is the text in the one argument of a custom tool's function; what isn't that is the text itself.
func customInput(arguments []byte) []byte {
	var in struct {
		Input *string `json:"input"`
	}
	if json.Unmarshal(arguments, &in) != nil || in.Input == nil {
		return arguments
	}
	return []byte(*in.Input)
}

// finish ends the answer. What a limit cut off is told as incomplete, the item that it cut included.
func (r *Responses) finish(reason worker.FinishReason) {
	switch reason {
	case worker.FinishLength:
		r.end = endOfReply{status: "incomplete", reason: "max_output_tokens"}
	case worker.FinishContentFilter:
		r.end = endOfReply{status: "incomplete", reason: "content_filter"}
	default:
		r.end = endOfReply{status: "completed"}
	}
	r.close(r.end.status)
}

// complete settles what is still open when the worker has said all.
func (r *Responses) complete() {
	if r.end.status == "in_progress" { // a worker of the client's format that gave no reason
		r.finish(worker.FinishStop)
	}
	if len(r.items) > 0 {
		return
	}
	// An answer of nothing is a message that says nothing: clients look for one.
	r.start(item{kind: itemMessage})
	if len(r.blank) > 0 {
		r.grow(itemMessage, string(r.blank))
	}
	r.close(r.end.status)
}

// Flush sends what was gathered; see Stream.Flush.
func (r *Responses) Flush() error {
	switch {
	case r.out == nil:
		return nil
	case r.end.status != "in_progress":
		return r.out.Flush()
	}
	return r.out.FlushAndHold()
}

// AppendBody appends the whole response. It never fails.
func (r *Responses) AppendBody(dst []byte) ([]byte, error) {
	r.complete()
	from := len(dst)
	dst = r.appendWhole(dst)
	r.keep(dst[from:])
	return dst, nil
}

// keep hands the response to whoever keeps it.
func (r *Responses) keep(body []byte) {
	if r.opts.Keep != nil {
		r.opts.Keep(Kept{Body: body, Output: r.appendOutput(nil), Cuts: r.cuts})
	}
}

// appendWhole appends the response as it is now. Its output is told at the end only: until then the events tell it.
func (r *Responses) appendWhole(b []byte) []byte {
	created := strconv.FormatInt(r.opts.Created.Unix(), 10)
	over := r.end.status != "in_progress"
	b = appendString(append(b, `{"id":`...), r.opts.ID)
	b = append(append(b, `,"object":"response","created_at":`...), created...)
	b = append(b, `,"completed_at":`...)
	if r.end.status == "completed" {
		b = strconv.AppendInt(b, max(r.opts.now().Unix(), r.opts.Created.Unix()), 10)
	} else {
		b = append(b, "null"...)
	}
	b = appendString(append(b, `,"status":`...), r.end.status)
	b = append(b, `,"error":`...)
	if f := r.end.err; f != nil {
		b = appendString(append(b, `{"code":`...), f.Code)
		b = append(appendString(append(b, `,"message":`...), f.Message), '}')
	} else {
		b = append(b, "null"...)
	}
	b = append(b, `,"incomplete_details":`...)
	if r.end.reason != "" {
		b = append(appendString(append(b, `{"reason":`...), r.end.reason), '}')
	} else {
		b = append(b, "null"...)
	}
	b = appendString(append(b, `,"model":`...), r.opts.Model)
	b = append(b, `,"output":`...)
	if over {
		b = r.appendOutput(b)
	} else {
		b = append(b, "[]"...)
	}
	b = append(append(b, r.opts.Echo...), `,"usage":`...)
	if !over {
		return append(b, "null}"...)
	}
	return append(r.ext.append(r.appendResponseUsage(b)), '}')
}

// appendOutput appends the items as an array.
func (r *Responses) appendOutput(b []byte) []byte {
	b = append(b, '[')
	for i := range r.items {
		if i > 0 {
			b = append(b, ',')
		}
		b = r.appendItem(b, &r.items[i])
	}
	return append(b, ']')
}

// appendResponseUsage appends the usage under this interface's names.
func (r *Responses) appendResponseUsage(b []byte) []byte {
	u := r.Usage()
	value := func(n *int) int64 {
		if n == nil {
			return 0
		}
		return int64(*n)
	}
	b = strconv.AppendInt(append(b, `{"input_tokens":`...), int64(u.PromptTokens), 10)
	b = strconv.AppendInt(append(b, `,"input_tokens_details":{"cached_tokens":`...), value(u.CachedTokens), 10)
	// Engines don't tell what they write to their caches; OpenAI's types require the number.
	b = strconv.AppendInt(append(b, `,"cache_write_tokens":0},"output_tokens":`...), int64(u.CompletionTokens), 10)
	b = strconv.AppendInt(append(b, `,"output_tokens_details":{"reasoning_tokens":`...), value(u.ReasoningTokens), 10)
	return append(strconv.AppendInt(append(b, `},"total_tokens":`...), int64(u.TotalTokens), 10), '}')
}

// appendItem appends an item as it is now.
func (r *Responses) appendItem(b []byte, it *item) []byte {
	switch it.kind {
	case itemThought, itemSummary:
		b = r.appendThought(b, it)
	case itemCall:
		b = appendString(append(b, `{"type":"function_call","arguments":`...), it.shown())
		b = r.appendCall(b, it)
	case itemCustom:
		b = appendString(append(b, `{"type":"custom_tool_call","input":`...), it.shown())
		b = r.appendCall(b, it)
	case itemLocalShell:
		b = append(append(b, `{"type":"local_shell_call","action":`...), it.told()...)
		b = appendString(append(b, `,"call_id":`...), it.callID)
	case itemShell:
		b = append(append(b, `{"type":"shell_call","action":`...), it.told()...)
		b = appendString(append(b, `,"environment":{"type":"local"},"call_id":`...), it.callID)
	case itemPatch:
		b = append(b, `{"type":"apply_patch_call","operation":`...)
		if it.status == "completed" {
			b = append(b, it.text...)
		} else {
			b = appendBegun(b, it.text)
		}
		b = appendString(append(b, `,"call_id":`...), it.callID)
	default:
		b = append(b, `{"type":"message","content":[`...)
		if it.status != "in_progress" {
			b = appendTextPart(b, it.text, it.logprobs)
		}
		b = append(b, `],"role":"assistant"`...)
	}
	b = appendString(append(b, `,"id":`...), it.id)
	return append(appendString(append(b, `,"status":`...), it.status), '}')
}

// appendThought appends what is peculiar to thoughts.
func (r *Responses) appendThought(b []byte, it *item) []byte {
	b = append(b, `{"type":"reasoning","summary":[`...)
	if it.kind == itemThought {
		b = append(b, `],"content":[`...)
	}
	if it.status != "in_progress" {
		b = appendThoughtPart(b, it.kind, it.text)
	}
	b = append(b, ']')
	switch {
	case !r.opts.Seal:
		return b
	case it.status == "in_progress":
		return append(b, `,"encrypted_content":null`...)
	}
	return appendString(append(b, `,"encrypted_content":`...), sealThought(it.text))
}

// shown is as much of a call's arguments as its item holds: nothing, until they are whole.
func (it *item) shown() []byte {
	if it.status == "in_progress" {
		return nil
	}
	return it.text
}

// told is as much of what a shell is to run as its item holds: nothing, until it is whole.
func (it *item) told() []byte {
	if it.status == "in_progress" {
		return it.kind.noAction()
	}
	return it.text
}

// appendCall appends what functions and custom tools share.
func (r *Responses) appendCall(b []byte, it *item) []byte {
	b = appendString(append(b, `,"call_id":`...), it.callID)
	b = appendString(append(b, `,"name":`...), it.as.Name)
	if it.as.Namespace != "" {
		b = appendString(append(b, `,"namespace":`...), it.as.Namespace)
	}
	return b
}

// appendTextPart appends the one part of a message.
func appendTextPart(b, text, logprobs []byte) []byte {
	b = append(append(append(b, `{"type":"output_text","annotations":[],"logprobs":[`...), logprobs...), `],"text":`...)
	return append(appendString(b, text), '}')
}

// appendThoughtPart appends the one part of a thought.
func appendThoughtPart(b []byte, kind itemKind, text []byte) []byte {
	name := "reasoning_text"
	if kind == itemSummary {
		name = "summary_text"
	}
	b = appendString(append(b, `{"type":`...), name)
	return append(appendString(append(b, `,"text":`...), text), '}')
}

// sealed begins what a client keeps of a thought to send it back. Thoughts are told anyway, so that nothing is secret:
// the form only tells ours from another server's.
const sealed = "portico-thought-1:"

// sealThought is the form of a thought that a client keeps.
func sealThought(text []byte) string { return sealed + base64.StdEncoding.EncodeToString(text) }

// OpenThought is the thought in such a form; of any other it is empty.
func OpenThought(s string) string {
	code, ok := strings.CutPrefix(s, sealed)
	if !ok {
		return ""
	}
	text, err := base64.StdEncoding.DecodeString(code)
	if err != nil {
		return ""
	}
	return string(text)
}
