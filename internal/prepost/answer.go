package prepost

import "encoding/json"

// AnswerRequest is what has to be known of a chat request to take its answer apart. The strings and slices belong to
// the request: a plan keeps none but Tools.
type AnswerRequest struct {
	ToolParser, ReasoningParser string // names; empty: none

	Tools    []Function // declared by the request
	Choice   CallChoice // tool_choice
	Function string     // the function of MustCallFunction
	OneCall  bool       // parallel_tool_calls is false

	JSON bool // the answer is held to JSON: by response_format, a guided schema, or because a call is a must

	// Prompt is the end of the rendered prompt; a few hundred bytes are enough. With Continues it ends in the middle of
	// an assistant's message, and Prompt is as much of that message as is there.
	Prompt    string
	Continues bool

	// The client's switches, as far as they were given.
	EnableThinking, Thinking *bool
	ReasoningEffort          string

	Tags   CallTags        // the worker's wish
	Format json.RawMessage // the schema of the response format; empty: none

	// Special tells whether a text is a special token of the model, which decoders skip unless told otherwise.
	Special func(text string) bool
}

// Function is a tool as the request declares it.
type Function struct {
	Name       string
	Parameters json.RawMessage // JSON schema; empty: none given
	Strict     bool            // the schema allows nothing it doesn't name, and holds
	Loose      bool            // the schema needn't hold: strict was given, and false
}

// CallTags says which calls a worker wants held to the model's own form by a structural tag, where the parser has one.
// The zero value leaves it to the parser: some have no other way of forcing a call.
type CallTags struct {
	On     bool // calls that must be made, and whenever a tool is strict or only one call is allowed
	Always bool // with On: whenever there are tools
	Strict bool // the schemas of loose functions hold, too

	WithFormat bool     // with On: an answer with a response format is that, or calls
	Exclude    *bool    // keep markers out of the text around calls; nil: as the dialect wants
	AnyOrder   bool     // arguments may come in another order than the schema's
	Boundary   Boundary // who lets a thought that the prompt has opened pass
	Gate       bool     // with BoundaryAuto: the engine does, if it is told RequireReasoning
}

// Boundary says who lets the rest of an open thought pass before calls are held to their form.
type Boundary uint8

// The boundaries.
const (
	BoundaryAuto   Boundary = iota // the tag
	BoundaryTag                    // the tag, and the engine is told to wait for nothing
	BoundaryEngine                 // the engine, by itself
	BoundaryTold                   // the engine, and it is told RequireReasoning for every tag
)

// CallChoice says whether the model may, must or must not call functions.
type CallChoice uint8

// The choices.
const (
	MayCall          CallChoice = iota // the model decides
	MustNotCall                        // tool_choice none
	MustCall                           // tool_choice required
	MustCallFunction                   // tool_choice names one
)

// AnswerPlan says how the answer to one request is taken apart, and what that needs of the decoder and the worker.
type AnswerPlan struct {
	New       func() AnswerParser // one for each choice; nil: the text is the client's as it is
	Reasoning bool                // thoughts are told apart, and their tokens counted

	// Markup are the special tokens that the markup is made of: they have to be decoded, and no others, which would be
	// part of the content.
	Markup []string

	// For the worker.
	WorkerKeepsSpecial bool            // it is told skip_special_tokens false, unless the client says otherwise
	VisibleStops       []string        // tokens that end the answer and are part of it
	RequireReasoning   bool            // the constraint of the answer begins behind the thought
	ThoughtIsOpen      bool            // the prompt has opened a thought, and the worker is to be told
	StructuralTag      json.RawMessage // holds calls to the dialect's own form, in place of the JSON schema of forced ones
	WithoutThought     bool            // there is no room for a thought: the template is told to switch it off
	ModeSwitch         bool            // with WithoutThought: by thinking_mode, too
	DefaultThinking    bool            // thinking is on unless switched off, and the worker is to be told
}

// AnswerParser takes one choice's answer apart. For one goroutine; emit isn't kept.
type AnswerParser interface {
	// Push is given the text of so many tokens, in which stop strings have been applied.
	Push(text []byte, tokens int, emit func(Piece))
	// Finish passes on what was held back. truncated tells that a length limit ended the answer.
	Finish(truncated bool, emit func(Piece))
	// Cut reports, after Finish, that the answer ended within a call, whose arguments are incomplete.
	Cut() bool
	// ReasoningTokens is how many of the tokens so far were spent on thoughts.
	ReasoningTokens() int
}
