package worker

import (
	"fmt"
	"math"
	"strings"
)

// DecodeItem reads the body of one data frame of a token worker's answer into it. Slices of it are reused, so what an
// earlier item held is gone; strings and raw JSON values are new unless body is JSON, in which raw values alias it.
// Unknown fields are skipped at any nesting.
func DecodeItem(c Codec, body []byte, it *Item) error { return decodeItem(c, body, it, outputs) }

// DecodeRawItem is DecodeItem for workers that answer in the client's own format: the data becomes it.Raw, as JSON.
func DecodeRawItem(c Codec, body []byte, it *Item) error { return decodeItem(c, body, it, annotated) }

// DecodeBareItem is DecodeRawItem for endpoints whose items come without an envelope for annotations and errors: it.Raw is
// all of the item.
func DecodeBareItem(c Codec, body []byte, it *Item) error { return decodeItem(c, body, it, bare) }

// dress is what an item's data come in.
type dress uint8

const (
	outputs   dress = iota // engine outputs in an envelope
	annotated              // anything in an envelope
	bare                   // anything
)

// decodeItem reads the outer map of a data frame: the item and the end mark. A frame must have one of the two. After a
// failure what it holds is of no use.
func decodeItem(c Codec, body []byte, it *Item, in dress) error {
	it.Reset()
	// On the stack: a token costs no more than the memory of what it brings.
	r := reader{b: body, codec: c}
	said := false // the frame says anything at all
	for s := r.openMap(); r.entry(&s); {
		switch string(s.key) {
		case "data":
			switch {
			case r.null():
			case in == bare:
				said = true
				it.readData(&r, true)
			default:
				said = true
				it.readAnnotated(&r, in == annotated)
			}
		// true stands alone in its frame; beside data it is false.
		case "complete_final":
			it.Final = r.boolean()
			said = said || it.Final
		default:
			r.skip()
		}
	}
	if err := r.finish(); err != nil {
		return fmt.Errorf("decode worker item: %w", err)
	}
	if !said {
		return fmt.Errorf("decode worker item: %w: neither data nor end mark", errValue)
	}
	return nil
}

// readAnnotated reads the envelope that carries data, an annotation or an error.
func (it *Item) readAnnotated(r *reader, raw bool) {
	for s := r.openMap(); r.entry(&s); {
		switch string(s.key) {
		case "data":
			it.readData(r, raw)
		case "id":
			it.ID = r.text()
		case "event":
			it.Event = r.text()
		case "comment":
			it.Comment = r.appendStrs(it.Comment[:0])
		case "error":
			if !r.null() {
				it.Err = r.workerError()
			}
		default:
			r.skip()
		}
	}
	// Older workers put the message into the comment, and no error object beside it.
	if it.Err == nil && it.Event == "error" && r.err == nil {
		it.Err = &Error{Class: "Internal", Reason: "runtime.unclassified", Message: strings.Join(it.Comment, ", ")}
	}
}

// readData reads what the envelope carries. A null is no data, which annotations have.
func (it *Item) readData(r *reader, raw bool) {
	switch {
	case r.null():
		it.HasData = false
	case !raw:
		it.HasData = true
		it.Output.read(r)
	// Copied: the item's memory is reused, the body's may be, too.
	case r.codec == JSON:
		it.HasData = true
		it.Raw = append(it.Raw[:0], r.raw()...)
	default:
		it.HasData = true
		it.Raw = r.appendJSON(it.Raw[:0])
	}
}

// read reads an engine output. Its cases are ordered by how often they occur: this runs once for every token. An output
// without token ids is an error, not an empty output: the worker speaks of something else.
func (o *Output) read(r *reader) {
	seen := false
	for s := r.openMap(); r.entry(&s); {
		switch string(s.key) {
		case "token_ids":
			o.TokenIDs, seen = r.ids(o.TokenIDs), true
		case "finish_reason":
			o.readFinish(r)
		case "index":
			if !r.null() {
				o.Index = r.uint32()
			}
		case "text":
			if o.HasText = !r.null(); o.HasText {
				o.Text = string(r.str())
			}
		default:
			o.readRare(r, s.key)
		}
	}
	if !seen && r.err == nil {
		r.failf("no token_ids")
	}
}

// readRare reads the fields that few items have.
func (o *Output) readRare(r *reader, key []byte) {
	switch string(key) {
	case "stop_reason":
		o.StopReason = r.stopReason()
	case "log_probs":
		o.LogProbs = r.appendFloats(o.LogProbs[:0])
	case "top_logprobs":
		o.TopLogProbs = r.topLogProbs(o.TopLogProbs[:0])
	case "cum_log_probs":
		o.CumLogProb = r.optFloat()
	case "completion_usage":
		o.Usage = r.usage()
	case "disaggregated_params":
		o.DisaggregatedParams = r.raw()
	case "worker_trace_link":
		o.TraceLink = r.raw()
	case "engine_data":
		o.EngineData = r.raw()
	case "content_parts":
		o.ContentParts = r.raw()
	default:
		r.skip()
	}
}

// readFinish reads a finish reason in any of its forms: a name, {"error":message}, "error: message", or "error" alone.
// Reasons nobody knows are an error: a choice that can't be said to have ended well must not look as if it had.
func (o *Output) readFinish(r *reader) {
	if r.peek() == kindMap {
		o.FinishReason = FinishError
		for s := r.openMap(); r.entry(&s); {
			if string(s.key) != "error" {
				r.failf("unknown finish reason %q", s.key)
				return
			}
			o.FinishError = r.text()
		}
		return
	}
	if r.null() {
		o.FinishReason = FinishNone
		return
	}
	// Compared as bytes: the names of reasons become constants and need no memory.
	name := r.str()
	switch string(name) {
	case "stop":
		o.FinishReason = FinishStop
	case "eos":
		o.FinishReason = FinishEOS
	case "length":
		o.FinishReason = FinishLength
	case "cancelled", "abort":
		o.FinishReason = FinishCancelled
	case "content_filter":
		o.FinishReason = FinishContentFilter
	case "error":
		o.FinishReason, o.FinishError = FinishError, "the engine ended with an error and gave no message"
	default:
		message, ok := strings.CutPrefix(string(name), "error:")
		if !ok {
			r.failf("unknown finish reason %q", name)
			return
		}
		o.FinishReason, o.FinishError = FinishError, strings.TrimSpace(message)
	}
}

// stopReason reads a token id or a string.
func (r *reader) stopReason() StopReason {
	switch r.peek() {
	case kindNull:
		r.null()
		return StopReason{}
	case kindString:
		return StopReason{Kind: StopString, Text: string(r.str())}
	}
	// Any other kind fails in uint32, with its place.
	return StopReason{Kind: StopToken, ID: r.uint32()}
}

// appendStrs appends an array of strings to dst; a null appends none.
func (r *reader) appendStrs(dst []string) []string {
	if r.null() {
		return dst
	}
	for s := r.openArray(); r.elem(&s); {
		dst = append(dst, string(r.str()))
	}
	return dst
}

// appendFloats appends an array of numbers to dst, NaN for each null; a null appends none.
func (r *reader) appendFloats(dst []float64) []float64 {
	if r.null() {
		return dst
	}
	for s := r.openArray(); r.elem(&s); {
		dst = append(dst, r.float())
	}
	return dst
}

// topLogProbs appends one list of alternatives for each token to dst; a null appends none. A token without alternatives
// has a null in its place.
func (r *reader) topLogProbs(dst [][]TopLogProb) [][]TopLogProb {
	if r.null() {
		return dst
	}
	for s := r.openArray(); r.elem(&s); {
		// New for each token: consumers keep alternatives beyond the item, unlike ids.
		var at []TopLogProb
		if !r.null() {
			for e := r.openArray(); r.elem(&e); {
				at = append(at, r.topLogProb())
			}
		}
		dst = append(dst, at)
	}
	return dst
}

// topLogProb reads one alternative. Its token may be absent: then it is to be decoded from the id.
func (r *reader) topLogProb() (p TopLogProb) {
	for s := r.openMap(); r.entry(&s); {
		switch string(s.key) {
		case "rank":
			if !r.null() {
				p.Rank = r.uint32()
			}
		case "token_id":
			p.TokenID = r.uint32()
		case "token":
			if p.HasToken = !r.null(); p.HasToken {
				p.Token = string(r.str())
			}
		case "logprob":
			p.LogProb = r.float()
		case "bytes":
			p.Bytes = r.byteList()
		default:
			r.skip()
		}
	}
	return p
}

// byteList reads bytes as an array of integers or packed.
func (r *reader) byteList() []byte {
	switch r.peek() {
	case kindNull:
		r.null()
		return nil
	case kindBytes:
		return append([]byte{}, r.bytes()...)
	}
	list := []byte{}
	for s := r.openArray(); r.elem(&s); {
		list = append(list, byte(r.uint(math.MaxUint8)))
	}
	return list
}

// usage reads a count of tokens, nil for null.
func (r *reader) usage() *Usage {
	if r.null() {
		return nil
	}
	u := &Usage{}
	for s := r.openMap(); r.entry(&s); {
		switch string(s.key) {
		case "prompt_tokens":
			u.PromptTokens = r.tokenCount()
		case "completion_tokens":
			u.CompletionTokens = r.tokenCount()
		case "total_tokens":
			u.TotalTokens = r.tokenCount()
		case "prompt_tokens_details":
			r.details(func(name string) **int {
				switch name {
				case "cached_tokens":
					return &u.CachedTokens
				case "audio_tokens":
					return &u.PromptAudio
				}
				return nil
			})
		case "completion_tokens_details":
			r.details(func(name string) **int {
				switch name {
				case "reasoning_tokens":
					return &u.ReasoningTokens
				case "audio_tokens":
					return &u.CompletionAudio
				case "accepted_prediction_tokens":
					return &u.AcceptedPredictions
				case "rejected_prediction_tokens":
					return &u.RejectedPredictions
				}
				return nil
			})
		default:
			r.skip()
		}
	}
	return u
}

// tokenCount reads a count; a null is zero.
func (r *reader) tokenCount() int {
	if r.null() {
		return 0
	}
	return int(r.uint32())
}

// details reads the counts of a map into the places that at names; nil: nobody wants it. Counts that are null or missing
// stay nil: nothing was reported, which isn't a report of 0.
func (r *reader) details(at func(name string) **int) {
	if r.null() {
		return
	}
	for s := r.openMap(); r.entry(&s); {
		place := at(string(s.key))
		switch {
		case place == nil:
			r.skip()
		case r.null():
			*place = nil
		default:
			*place = new(int(r.uint32()))
		}
	}
}
