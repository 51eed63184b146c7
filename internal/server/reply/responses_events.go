package reply

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/prepost"
)

// event appends one event. Its number follows that of the one before it; rest appends the response to it.
func (r *Responses) event(name string, response func([]byte) []byte) {
	b := r.beginEvent(r.out.Buffer(), name)
	b = response(append(b, `,"response":`...))
	r.out.SetBuffer(append(b, "}\n\n"...))
}

// beginEvent appends what every event begins with.
func (r *Responses) beginEvent(b []byte, name string) []byte {
	b = append(append(append(b, "event: "...), name...), "\ndata: {\"type\":\""...)
	b = append(append(b, name...), `","sequence_number":`...)
	b = strconv.AppendInt(b, int64(r.seq), 10)
	r.seq++
	return b
}

// beginItemEvent appends what every event of an item's growth begins with. Messages and thoughts have one part, which
// such events name too.
func (r *Responses) beginItemEvent(b []byte, name string, it *item) []byte {
	b = r.beginEvent(b, name)
	b = appendString(append(b, `,"item_id":`...), it.id)
	b = strconv.AppendInt(append(b, `,"output_index":`...), int64(len(r.items)-1), 10)
	switch it.kind {
	case itemMessage, itemThought:
		b = append(b, `,"content_index":0`...)
	case itemSummary:
		b = append(b, `,"summary_index":0`...)
	}
	return b
}

// itemEvent appends an event with the last item as it is now.
func (r *Responses) itemEvent(b []byte, name string, it *item) []byte {
	b = strconv.AppendInt(append(r.beginEvent(b, name), `,"output_index":`...), int64(len(r.items)-1), 10)
	return append(r.appendItem(append(b, `,"item":`...), it), "}\n\n"...)
}

// growthEvent is the name of the events of an item's text, up to their last part.
func (k itemKind) growthEvent() string {
	return [...]string{"response.output_text", "response.reasoning_text", "response.reasoning_summary_text",
		"response.function_call_arguments", "response.custom_tool_call_input", "", "",
		"response.apply_patch_call_operation_diff"}[k]
}

// partEvent is the name of the events of an item's one part, up to their last part.
func (k itemKind) partEvent() string {
	if k == itemSummary {
		return "response.reasoning_summary_part"
	}
	return "response.content_part"
}

// started tells of a new item, and of its part where it has one. A change of a file begins when it is whole.
func (r *Responses) started(it *item) {
	if it.kind == itemPatch {
		return
	}
	b := r.itemEvent(r.out.Buffer(), "response.output_item.added", it)
	if !it.kind.isCall() {
		b = r.appendPartEvent(b, it, ".added", nil, nil)
	}
	r.out.SetBuffer(b)
}

// appendPartEvent appends the event of an item's one part as it is at its beginning or end.
func (r *Responses) appendPartEvent(b []byte, it *item, which string, text, logprobs []byte) []byte {
	b = append(r.beginItemEvent(b, it.kind.partEvent()+which, it), `,"part":`...)
	if it.kind == itemMessage {
		b = appendTextPart(b, text, logprobs)
	} else {
		b = appendThoughtPart(b, it.kind, text)
	}
	return append(b, "}\n\n"...)
}

// growth tells of more text.
func (r *Responses) growth(it *item, text string, logprobs []byte) {
	if it.kind.isLate() {
		return
	}
	r.out.SetBuffer(r.appendGrowth(r.out.Buffer(), it, text, logprobs))
}

// appendGrowth appends the event for more text of an item.
func (r *Responses) appendGrowth(b []byte, it *item, text string, logprobs []byte) []byte {
	b = r.beginItemEvent(b, it.kind.growthEvent()+".delta", it)
	b = appendString(append(b, `,"delta":`...), text)
	if it.kind == itemMessage {
		b = append(append(append(b, `,"logprobs":[`...), logprobs...), ']')
	}
	return append(b, "}\n\n"...)
}

// ended tells that an item is whole, or as whole as it will be.
func (r *Responses) ended(it *item) {
	b := r.out.Buffer()
	switch it.kind {
	case itemLocalShell: // which has no events of its own
	case itemShell:
		b = r.appendCommands(b, it)
	case itemPatch:
		b = r.appendPatch(b, it)
	default:
		b = r.appendEnd(b, it)
	}
	r.out.SetBuffer(r.itemEvent(b, "response.output_item.done", it))
}

// appendEnd appends the events of the end of an item's text.
func (r *Responses) appendEnd(b []byte, it *item) []byte {
	if it.kind == itemCustom && len(it.text) > 0 {
		b = r.appendGrowth(b, it, string(it.text), nil)
	}
	b = r.beginItemEvent(b, it.kind.growthEvent()+".done", it)
	switch it.kind {
	case itemMessage:
		b = appendString(append(b, `,"text":`...), it.text)
		b = append(append(append(b, `,"logprobs":[`...), it.logprobs...), "]}\n\n"...)
		b = r.appendPartEvent(b, it, ".done", it.text, it.logprobs)
	case itemThought, itemSummary:
		b = append(appendString(append(b, `,"text":`...), it.text), "}\n\n"...)
		b = r.appendPartEvent(b, it, ".done", it.text, nil)
	case itemCall:
		b = appendString(append(b, `,"name":`...), it.as.Name)
		b = append(appendString(append(b, `,"arguments":`...), it.text), "}\n\n"...)
	case itemCustom:
		b = append(appendString(append(b, `,"input":`...), it.text), "}\n\n"...)
	}
	return b
}

// Finish ends the stream with the whole response and the end mark.
func (r *Responses) Finish() error {
	r.complete()
	b := append(r.beginEvent(r.out.Buffer(), "response."+r.end.status), `,"response":`...)
	from := len(b)
	b = r.appendWhole(b)
	// The client may ask for it as soon as it has the last event.
	r.keep(b[from:])
	r.out.SetBuffer(append(b, "}\n\n"...))
	return r.out.Finish()
}

// Fail ends the stream with a failed response, an error event for clients that look for one, and the end mark. A call
// that was going on never gets a last event: there are clients that run every call that does.
func (r *Responses) Fail(f ResponseFailure) error {
	if r.open {
		last := len(r.items) - 1
		switch it := &r.items[last]; {
		case !it.kind.isCall():
			r.close("incomplete")
		case it.kind == itemPatch: // nothing was told of it
			r.items = r.items[:last]
		default:
			it.status = "incomplete"
			if it.kind == itemLocalShell || it.kind == itemShell {
				it.text = it.kind.noAction()
			}
		}
		r.open = false
	}
	r.end = endOfReply{status: "failed", err: &f}
	r.event("response.failed", r.appendWhole)
	b := f.append(append(r.beginEvent(r.out.Buffer(), "error"), ','))
	b = appendString(append(b, `,"error":{"type":`...), f.Kind)
	b = f.append(append(b, ','))
	r.out.SetBuffer(append(b, "}}\n\n"...))
	return r.out.Finish()
}

// append appends the members that the event and the error in it share: OpenAI documents them in the one place, and
// clients look for them in the other.
func (f *ResponseFailure) append(b []byte) []byte {
	orNull := func(b []byte, s string) []byte {
		if s == "" {
			return append(b, "null"...)
		}
		return appendString(b, s)
	}
	b = orNull(append(b, `"code":`...), f.Cause)
	b = appendString(append(b, `,"message":`...), f.Message)
	return orNull(append(b, `,"param":`...), f.Param)
}

// raw takes a chunk of a worker that speaks chat's format: it is taken apart, since this one is another.
func (r *Responses) raw(raw []byte) error {
	r.countRaw(raw)
	var c rawChunk
	if err := json.Unmarshal(raw, &c); err != nil {
		return errRawChunk.Because(fmt.Errorf("chunk: %w", err))
	}
	for i := range c.Choices {
		ch := &c.Choices[i]
		if ch.Index != 0 { // one was asked for
			continue
		}
		d := ch.Delta
		if len(ch.Message) > 0 { // a whole answer
			d = new(rawDelta)
			if err := json.Unmarshal(ch.Message, d); err != nil {
				return errRawChunk.Because(fmt.Errorf("message: %w", err))
			}
		}
		if d != nil {
			r.rawDelta(d)
		}
		if ch.FinishReason != nil && r.end.status == "in_progress" {
			r.finish(rawFinish(*ch.FinishReason))
		}
	}
	return nil
}

// rawDelta adds what a chunk adds to a message, in the order in which models write it.
func (r *Responses) rawDelta(d *rawDelta) {
	for _, t := range [...]struct {
		kind prepost.PieceKind
		text *string
	}{{prepost.Reasoning, d.ReasoningContent}, {prepost.Content, d.Content}, {prepost.Content, d.Refusal}} {
		if t.text != nil && *t.text != "" {
			r.piece(&prepost.Piece{Kind: t.kind, Text: *t.text})
		}
	}
	for i := range d.ToolCalls {
		c := &d.ToolCalls[i]
		r.piece(&prepost.Piece{Kind: prepost.ToolCall, ID: c.ID, Name: c.Function.Name, Text: c.Function.Arguments})
	}
}

// rawFinish is the worker's reason for OpenAI's word.
func rawFinish(word string) worker.FinishReason {
	switch word {
	case "length":
		return worker.FinishLength
	case "content_filter":
		return worker.FinishContentFilter
	}
	return worker.FinishStop
}
