// Package pipeline is one request's journey: it prepares what a worker takes (render, tokenise, map), dispatches it,
// and turns the worker's items into deltas of text that the server writes. It owns the request's context and spans and
// sees only the parent packages prepost and router, never an implementation.
package pipeline

import (
	"encoding/json"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/admission"
	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/multimodal"
	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/router/constraint"
)

// Meta is what is known of a request beside its body.
type Meta struct {
	RequestID   string            // UUID; response ids are made from it
	Traceparent string            // of the span the worker is to continue; empty: none
	Tracestate  string            // goes with Traceparent
	XRequestID  string            // the client's x-request-id; empty: none
	Metadata    map[string]string // headers meant for the worker, without their prefix

	// Routing hints from headers; they give way to the body's nvext.
	BackendInstanceID, PrefillWorkerID *uint64
	DPRank, PrefillDPRank              *uint32
	Priority                           *int32
	StrictPriority                     *uint32
	CacheSalt                          string
	Session                            string // what related requests have in common; empty: nothing
	SessionFinal                       bool   // no other request follows
	Agent                              *Agent // who is asking, for workers that want to know; nil: unknown
}

// Prepared is a request ready to be sent: one worker request for each prompt.
type Prepared struct {
	Set      *catalog.Set      // what serves the model; held until the request ends
	Model    string            // as the client named it
	Meta     Meta              // as given to Prepare
	Chat     bool              // false: a completion
	Choices  int               // n: choices for each prompt
	Requests []*worker.Request // one for each prompt of a batch; one for chat; nil for Text workers
	Pin      *uint64           // the instance the client insists on
	Prompt   string            // rendered chat prompt, kept only when an annotation asks for it
	Raw      json.RawMessage   // Text workers: the request to forward
	Echo     []string          // completions that are to begin with their prompt: the text of each; nil: none are

	// Images are what Run is to bring within the worker's reach; empty: the worker fetches its media itself.
	Images []multimodal.Source

	media    *loadedMedia // what became of them, while Run runs
	bulkiest string       // JSON path of the largest data URL; empty: none is large

	// Answer says how the answer is taken apart; nil: it isn't.
	Answer *prepost.AnswerPlan

	keepSpecial bool     // with Answer: the client wants to see special tokens
	markup      []uint32 // with Answer: the special tokens that are decoded if it doesn't

	wants   constraint.Constraints // of its worker
	place   *admission.Place       // nil: nothing is counted
	unwatch func() bool            // set together with place
}

// Parsed reports whether the answer comes in pieces.
func (r *Prepared) Parsed() bool { return r.Answer != nil && r.Answer.New != nil }

// Delta is what one engine output adds to one choice. It is valid only during the call that passes it.
type Delta struct {
	Prompt int    // index into Prepared.Requests
	Choice int    // of this prompt: 0 … Choices-1; the client's index is Prompt*Choices + Choice
	Text   []byte // whole UTF-8; may be empty, and always is when the answer comes in pieces
	Tokens int    // tokens this delta accounts for, in usage

	Pieces    []prepost.Piece // of answers that are taken apart, in order
	Reasoning int             // how many tokens, of this and earlier deltas, have turned out to be reasoning

	TokenIDs    []uint32              // the tokens consumed
	LogProbs    []float64             // for TokenIDs; empty: none
	TopLogProbs [][]worker.TopLogProb // for TokenIDs; empty: none

	Finish     worker.FinishReason // empty while the choice goes on
	StopReason worker.StopReason   // what stopped the choice, with Finish stop; may be empty
	Usage      *worker.Usage       // the worker's own count, when it gives one
	EngineData json.RawMessage     // passed to nvext.engine_data when asked for

	Raw     []byte   // Text workers: one chunk in the client's format, as JSON
	Event   string   // an annotation of the worker's: name
	Comment []string // and its JSON values

	Instance *worker.Instance // the worker that answers this prompt
	Rank     *uint32          // the data-parallel rank there, where the router has chosen one
	Prefill  *worker.Instance // the one that has read it; nil: the same

	PrefillRank *uint32 // the rank there, likewise
}

// Sink receives a request's deltas, all from one goroutine at a time. An error it returns ends the request: the worker
// is told to stop.
type Sink interface {
	// Start is called once, when a worker has begun to answer and before any delta. Failures before it become a status.
	Start(p *Prepared) error
	// Delta takes one delta. It must copy what it keeps.
	Delta(d *Delta) error
	// Flush tells that nothing more has been received yet: what was gathered is to go out now. Run doesn't flush at the
	// end: its caller knows what is still to be added.
	Flush() error
}
