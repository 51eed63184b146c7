package reply

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/pipeline"
)

// Fields are the extra response fields a client can ask for by name; they stand under nvext.
type Fields uint16

// The fields.
const (
	FieldWorkerID           Fields = 1 << iota // who answers
	FieldTiming                                // when the request came, and how long it took
	FieldTokenIDs                              // of the prompt, under a shorter name
	FieldStopReason                            // the stop string or id that ended a choice
	FieldDetailedFinish                        // the worker's own word, such as eos
	FieldCompletionTokenIDs                    // of this chunk, or of the whole answer
	FieldPromptTokenIDs                        // of the prompt
	FieldEngineData                            // the engine's object, whole
	FieldPromptLogprobs                        // one member of it
	FieldRoutedExperts                         // another
)

// fieldNames are the names clients use in nvext.extra_fields.
var fieldNames = map[string]Fields{
	"worker_id":              FieldWorkerID,
	"timing":                 FieldTiming,
	"token_ids":              FieldTokenIDs,
	"stop_reason":            FieldStopReason,
	"detailed_finish_reason": FieldDetailedFinish,
	"completion_token_ids":   FieldCompletionTokenIDs,
	"prompt_token_ids":       FieldPromptTokenIDs,
	"engine_data":            FieldEngineData,
	"prompt_logprobs":        FieldPromptLogprobs,
	"routed_experts":         FieldRoutedExperts,
}

// FieldsOf returns the fields of the given names. Unknown names are ignored: they are for other servers.
func FieldsOf(names []string) Fields {
	var f Fields
	for _, n := range names {
		f |= fieldNames[n]
	}
	return f
}

// nvext gathers the extra fields of a chunk, or of a whole answer. A client that asks for none, which is nearly every
// one, costs a comparison for each delta.
type nvext struct {
	fields   Fields    // asked for; 0: none
	received time.Time // when the request came in
	begunAt  time.Time // when its worker began; kept only when timing was asked for
	firstAt  time.Time // first token; zero: none yet
	tokens   []uint32  // prompt, of the first prompt of a batch

	// What the deltas since the last append said.
	worker     *worker.Instance // who sent the last of them
	prefill    *worker.Instance // who has read the prompt; nil: the same
	rank       *uint32          // of worker, and the next of prefill, where the router chose one
	preRank    *uint32
	completion []uint32            // their tokens
	stop       worker.StopReason   // set together with finish
	finish     worker.FinishReason // of the choice that ended last
	engine     json.RawMessage     // the last object an engine sent
}

// begin prepares for p's answer. The prompt's tokens are held for as long as the answer takes, but only when they were
// asked for.
func (x *nvext) begin(f Fields, received time.Time, p *pipeline.Prepared) {
	x.fields, x.received = f, received
	if f&FieldTiming != 0 {
		x.begunAt = time.Now()
	}
	if f&(FieldPromptTokenIDs|FieldTokenIDs) != 0 && len(p.Requests) > 0 {
		x.tokens = p.Requests[0].TokenIDs
	}
}

// add takes what d says. Values are copied: d lives no longer than the call.
func (x *nvext) add(d *pipeline.Delta) {
	if x.fields == 0 {
		return
	}
	if x.firstAt.IsZero() && d.Tokens > 0 {
		x.firstAt = time.Now()
	}
	// Instances are immutable and may be kept.
	x.worker, x.prefill, x.rank, x.preRank = d.Instance, d.Prefill, d.Rank, d.PrefillRank
	if x.fields&FieldCompletionTokenIDs != 0 {
		x.completion = append(x.completion, d.TokenIDs...)
	}
	if d.Finish != worker.FinishNone {
		x.finish, x.stop = d.Finish, d.StopReason
	}
	if len(d.EngineData) > 0 && x.fields&(FieldEngineData|FieldPromptLogprobs|FieldRoutedExperts) != 0 {
		x.engine = append(x.engine[:0], d.EngineData...)
	}
}

// append appends ,"nvext":{…} when there is anything to say, and forgets what belongs to this chunk only.
func (x *nvext) append(dst []byte) []byte {
	if x.fields == 0 {
		return dst
	}
	// Written first and taken back when it stays empty: what is there is known only afterwards.
	mark := len(dst)
	dst = append(dst, `,"nvext":{`...)
	empty := len(dst)
	dst = x.appendRouting(dst)
	dst = x.appendEngine(dst)
	if x.finish != worker.FinishNone {
		dst = x.appendFinish(dst)
	}
	x.completion, x.finish, x.engine = x.completion[:0], worker.FinishNone, x.engine[:0]
	if len(dst) == empty {
		return dst[:mark]
	}
	dst[len(dst)-1] = '}' // over the last field's comma
	return dst
}

// appendRouting appends who answers and with which tokens. Fields end with a comma.
func (x *nvext) appendRouting(dst []byte) []byte {
	if x.fields&FieldWorkerID != 0 && x.worker != nil {
		// One worker does both parts unless serving is disaggregated.
		prefill, rank := x.prefill, x.preRank
		if prefill == nil {
			prefill, rank = x.worker, x.rank
		}
		dst = strconv.AppendUint(append(dst, `"worker_id":{"prefill_worker_id":`...), prefill.InstanceID, 10)
		dst = appendRank(dst, `,"prefill_dp_rank":`, rank)
		dst = strconv.AppendUint(append(dst, `,"decode_worker_id":`...), x.worker.InstanceID, 10)
		dst = appendRank(dst, `,"decode_dp_rank":`, x.rank)
		dst = append(dst, "},"...)
	}
	if x.fields&FieldCompletionTokenIDs != 0 && len(x.completion) > 0 {
		dst = append(worker.AppendJSONNumbers(append(dst, `"completion_token_ids":`...), x.completion), ',')
	}
	return dst
}

// appendRank appends a data-parallel rank under a key, if the router has chosen one.
func appendRank(dst []byte, key string, rank *uint32) []byte {
	if rank == nil {
		return dst
	}
	return strconv.AppendUint(append(dst, key...), uint64(*rank), 10)
}

// appendEngine appends what the engine said beside its tokens.
func (x *nvext) appendEngine(dst []byte) []byte {
	if len(x.engine) == 0 {
		return dst
	}
	if x.fields&FieldEngineData != 0 {
		dst = append(append(append(dst, `"engine_data":`...), x.engine...), ',')
	}
	prompt, experts := x.engineParts()
	if len(prompt) > 0 {
		dst = append(append(append(dst, `"prompt_logprobs":`...), prompt...), ',')
	}
	if len(experts) > 0 {
		dst = append(append(append(dst, `"routed_experts":`...), experts...), ',')
	}
	return dst
}

// engineParts finds what the client asked for by name inside the engine's data.
func (x *nvext) engineParts() (promptLogprobs, routedExperts json.RawMessage) {
	if x.fields&(FieldPromptLogprobs|FieldRoutedExperts) == 0 || len(x.engine) == 0 {
		return nil, nil
	}
	var parts struct {
		PromptLogprobs json.RawMessage `json:"prompt_logprobs"`
		RoutedExperts  json.RawMessage `json:"routed_experts"`
	}
	// What isn't an object has no members; engine_data passes it on all the same.
	if json.Unmarshal(x.engine, &parts) != nil {
		return nil, nil
	}
	if x.fields&FieldPromptLogprobs != 0 {
		promptLogprobs = parts.PromptLogprobs
	}
	if x.fields&FieldRoutedExperts != 0 {
		routedExperts = parts.RoutedExperts
	}
	return promptLogprobs, routedExperts
}

// appendFinish appends what is known at the end of a choice.
func (x *nvext) appendFinish(dst []byte) []byte {
	if x.fields&FieldTokenIDs != 0 {
		dst = append(worker.AppendJSONNumbers(append(dst, `"token_ids":`...), x.tokens), ',')
	}
	if x.fields&FieldPromptTokenIDs != 0 {
		dst = append(worker.AppendJSONNumbers(append(dst, `"prompt_token_ids":`...), x.tokens), ',')
	}
	if x.fields&FieldDetailedFinish != 0 {
		dst = append(appendString(append(dst, `"detailed_finish_reason":`...), string(x.finish)), ',')
	}
	if x.fields&FieldStopReason != 0 && x.stop.Kind != worker.StopNone {
		dst = append(dst, `"stop_reason":`...)
		// As vLLM writes it: a number for a token, a string for a text.
		if x.stop.Kind == worker.StopToken {
			dst = strconv.AppendUint(dst, uint64(x.stop.ID), 10)
		} else {
			dst = appendString(dst, x.stop.Text)
		}
		dst = append(dst, ',')
	}
	if x.fields&FieldTiming != 0 {
		// Unix milliseconds, then durations in milliseconds.
		dst = append(dst, `"timing":{"request_received_ms":`...)
		dst = strconv.AppendInt(dst, x.received.UnixMilli(), 10)
		if !x.firstAt.IsZero() {
			// The time to the first token, cut where the worker began.
			dst = appendMilliseconds(append(dst, `,"prefill_wait_time_ms":`...), x.begunAt.Sub(x.received))
			dst = appendMilliseconds(append(dst, `,"prefill_time_ms":`...), x.firstAt.Sub(x.begunAt))
			dst = appendMilliseconds(append(dst, `,"ttft_ms":`...), x.firstAt.Sub(x.received))
		}
		dst = appendMilliseconds(append(dst, `,"total_time_ms":`...), time.Since(x.received))
		dst = append(dst, "},"...)
	}
	return dst
}

// appendMilliseconds appends d with three digits behind the point: microseconds are as fine as clocks are true.
func appendMilliseconds(dst []byte, d time.Duration) []byte {
	return strconv.AppendFloat(dst, float64(d.Microseconds())/1000, 'f', 3, 64)
}
