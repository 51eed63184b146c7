package worker

import "encoding/json"

// Item is one item of a worker's answer: the Annotated envelope around an engine output, and the stream's own end mark.
// One Item is reused for a whole stream: what a consumer wants to keep it has to copy.
type Item struct {
	HasData bool   // Output (or Raw) is set
	Output  Output // token workers
	Raw     []byte // DecodeRawItem only: the data as JSON, for workers that answer in the client's own format

	ID      string   // of the item; workers rarely set it
	Event   string   // annotation name; "error" for errors
	Comment []string // JSON-encoded annotation values
	Err     *Error   // set when Event is "error" or an error object is present

	Final bool // complete_final: the stream is complete, nothing follows
}

// Output is one engine output: the new tokens of one choice and what is known of them.
type Output struct {
	TokenIDs     []uint32     // new since the last output of the choice; may be empty
	Index        uint32       // choice
	FinishReason FinishReason // empty: the choice goes on
	FinishError  string       // with FinishError reason: the engine's message
	StopReason   StopReason   // with FinishStop, when the worker tells

	HasText bool // the engine detokenised: Text is to be used as it is
	Text    string

	LogProbs    []float64      // one per token id; may hold NaN and infinities; empty when absent
	TopLogProbs [][]TopLogProb // per token id; empty when absent
	CumLogProb  *float64       // sum over the choice so far

	Usage               *Usage          // nil: the worker doesn't count
	DisaggregatedParams json.RawMessage // from a prefill worker, for the decode worker
	TraceLink           json.RawMessage // worker_trace_link: trace and span of the worker's part, for a next attempt
	EngineData          json.RawMessage // object of the engine's own
	ContentParts        json.RawMessage // parts that aren't text
}

// TopLogProb is one alternative of a token position.
type TopLogProb struct {
	Rank     uint32  // by likelihood; 0: not told
	TokenID  uint32  // of the alternative
	HasToken bool    // Token was given; otherwise it is TokenID decoded
	Token    string  // only with HasToken
	LogProb  float64 // natural logarithm; may be NaN or infinite
	Bytes    []byte  // nil when absent
}

// Usage is a worker's own token count; its details are passed on to the client.
type Usage struct {
	PromptTokens     int  // media included
	CompletionTokens int  // generated, by the worker's count
	TotalTokens      int  // the sum of the two
	CachedTokens     *int // prompt_tokens_details.cached_tokens
	ReasoningTokens  *int // completion_tokens_details.reasoning_tokens

	// Counts that few engines have; nil: nothing reported.
	PromptAudio         *int // prompt_tokens_details.audio_tokens
	CompletionAudio     *int // completion_tokens_details.audio_tokens
	AcceptedPredictions *int // completion_tokens_details.accepted_prediction_tokens
	RejectedPredictions *int // completion_tokens_details.rejected_prediction_tokens
}

// FinishReason is a worker's reason to end a choice. The empty value means that the choice goes on.
type FinishReason string

// The reasons on the wire. "abort" is read as FinishCancelled.
const (
	FinishNone          FinishReason = ""               // null on the wire
	FinishEOS           FinishReason = "eos"            // the model ended the answer
	FinishLength        FinishReason = "length"         // max_tokens or the context is used up
	FinishStop          FinishReason = "stop"           // a stop string or id matched
	FinishCancelled     FinishReason = "cancelled"      // the request was told to stop
	FinishContentFilter FinishReason = "content_filter" // the worker withholds the rest
	FinishError         FinishReason = "error"          // Output.FinishError holds the message
)

// StopReason is what matched: a token id or a stop string, or neither.
type StopReason struct {
	Kind StopKind // which of the next two counts
	ID   uint32   // with StopToken
	Text string   // with StopString
}

// StopKind tells which field of a StopReason counts.
type StopKind uint8

// The kinds of stop reason.
const (
	StopNone   StopKind = iota // neither
	StopToken                  // an id
	StopString                 // a text
)

// Reset empties the item for reuse and keeps its slices' memory. Strings, pointers and raw values of the last item are
// dropped: whoever kept them may go on with them, whoever kept a slice may not.
func (it *Item) Reset() {
	o := &it.Output
	*it = Item{
		Raw:     it.Raw[:0],
		Comment: it.Comment[:0],
		Output:  Output{TokenIDs: o.TokenIDs[:0], LogProbs: o.LogProbs[:0], TopLogProbs: o.TopLogProbs[:0]},
	}
}
