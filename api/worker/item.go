package worker

import "encoding/json"

// Item is one item of a worker's answer: the Annotated envelope around an engine output, and the stream's own end mark.
type Item struct {
	HasData bool   // Output (or Raw) is set
	Output  Output // token workers
	Raw     []byte // DecodeRawItem only: the data as JSON, for workers that answer in the client's own format

	ID      string
	Event   string   // annotation name; "error" for errors
	Comment []string // JSON-encoded annotation values
	Err     *Error   // set when Event is "error" or an error object is present

	Final bool // complete_final: the stream is complete, nothing follows
}

// Output is one engine output: the new tokens of one choice and what is known of them.
type Output struct {
	TokenIDs     []uint32
	Index        uint32 // choice
	FinishReason FinishReason
	FinishError  string // with FinishError reason: the engine's message
	StopReason   StopReason

	HasText bool // the engine detokenised: Text is to be used as it is
	Text    string

	LogProbs    []float64      // one per token id; may hold NaN and infinities; empty when absent
	TopLogProbs [][]TopLogProb // per token id; empty when absent
	CumLogProb  *float64

	Usage               *Usage
	DisaggregatedParams json.RawMessage
	EngineData          json.RawMessage
	ContentParts        json.RawMessage
}

// TopLogProb is one alternative of a token position.
type TopLogProb struct {
	Rank     uint32
	TokenID  uint32
	HasToken bool // Token was given; otherwise it is TokenID decoded
	Token    string
	LogProb  float64
	Bytes    []byte // nil when absent
}

// Usage is a worker's own token count; its details are passed on to the client.
type Usage struct {
	PromptTokens     int
	CompletionTokens int
	TotalTokens      int
	CachedTokens     *int // prompt_tokens_details.cached_tokens
	ReasoningTokens  *int // completion_tokens_details.reasoning_tokens
}

// FinishReason is a worker's reason to end a choice. The empty value means that the choice goes on.
type FinishReason string

// The reasons on the wire. "abort" is read as FinishCancelled.
const (
	FinishNone          FinishReason = ""
	FinishEOS           FinishReason = "eos"
	FinishLength        FinishReason = "length"
	FinishStop          FinishReason = "stop"
	FinishCancelled     FinishReason = "cancelled"
	FinishContentFilter FinishReason = "content_filter"
	FinishError         FinishReason = "error" // Output.FinishError holds the message
)

// StopReason is what matched: a token id or a stop string, or neither.
type StopReason struct {
	Kind StopKind
	ID   uint32
	Text string
}

// StopKind tells which field of a StopReason counts.
type StopKind uint8

// The kinds of stop reason.
const (
	StopNone StopKind = iota
	StopToken
	StopString
)

// Reset empties the item for reuse and keeps its slices' memory.
func (it *Item) Reset() {
	o := &it.Output
	*it = Item{
		Raw:     it.Raw[:0],
		Comment: it.Comment[:0],
		Output:  Output{TokenIDs: o.TokenIDs[:0], LogProbs: o.LogProbs[:0], TopLogProbs: o.TopLogProbs[:0]},
	}
}
