package openai

import (
	"encoding/json"
	"slices"
	"strings"
)

// ResponsesRequest is the body of POST /v1/responses and /v1/responses/input_tokens. Nil is absent.
type ResponsesRequest struct {
	Common

	Input        json.RawMessage `json:"input"`        // a string or an array of items; Items tells what is in it
	Instructions *string         `json:"instructions"` // ahead of everything in Input, and not carried on by PreviousID

	MaxOutputTokens *int64   `json:"max_output_tokens"` // wins over max_tokens
	TopLogprobs     *int64   `json:"top_logprobs"`      // alternatives for each token
	Include         []string `json:"include"`           // further members of items that the client wants

	Tools             json.RawMessage  `json:"tools"`               // array; ToolList tells what is in it
	ToolChoice        *ResponsesChoice `json:"tool_choice"`         // absent: auto
	ParallelToolCalls *bool            `json:"parallel_tool_calls"` // false: one call at most
	MaxToolCalls      *int64           `json:"max_tool_calls"`      // of tools that a server runs, of which there are none

	Text      *TextConfig `json:"text"`      // form of the answer
	Reasoning *Reasoning  `json:"reasoning"` // how much, and what is shown of it

	PreviousID   *string         `json:"previous_response_id"` // the conversation to go on with
	Store        *bool           `json:"store"`                // absent: as the server is set up
	Conversation json.RawMessage `json:"conversation"`         // refused: conversations are kept by their responses
	Background   *bool           `json:"background"`           // refused when true
	Prompt       json.RawMessage `json:"prompt"`               // refused: there are no stored prompts

	Truncation          *string         `json:"truncation"`            // auto or disabled; nothing is ever dropped here
	ChatTemplateArgs    json.RawMessage `json:"chat_template_args"`    // object; chat_template_kwargs is the same field
	ThinkingTokenBudget *int64          `json:"thinking_token_budget"` // tokens to reason with

	// Fields that mean nothing to a worker: their type is checked, and some are repeated in the answer.
	ServiceTier          *string         `json:"service_tier"`
	PromptCacheKey       *string         `json:"prompt_cache_key"`
	PromptCacheRetention *string         `json:"prompt_cache_retention"`
	SafetyIdentifier     *string         `json:"safety_identifier"`
	ClientMetadata       json.RawMessage `json:"client_metadata"`

	// What reading found out on the way.
	Items    []InputItem     `json:"-"` // of Input, in order
	ToolList []ResponsesTool `json:"-"` // of Tools, in order; those of a namespace each for itself
}

// Wants reports whether the client asked for a further member of the answer's items.
func (r *ResponsesRequest) Wants(what string) bool {
	return slices.Contains(r.Include, what)
}

// Reasoning says how much a model is to think, and how much of it is told.
type Reasoning struct {
	Effort          *string `json:"effort"`           // none switches it off
	Summary         *string `json:"summary"`          // given: thoughts are told as their summary, which they are whole
	GenerateSummary *string `json:"generate_summary"` // older name of summary

	Raw json.RawMessage `json:"-"` // the object as sent, to be repeated
}

// WantsSummary reports whether the client looks for thoughts in their summary. A nil Reasoning doesn't.
func (o *Reasoning) WantsSummary() bool {
	if o == nil {
		return false
	}
	for _, s := range []*string{o.Summary, o.GenerateSummary} {
		if s != nil && *s != "none" {
			return true
		}
	}
	return false
}

// TextConfig says what the text of an answer is to be like.
type TextConfig struct {
	Format    *TextFormat `json:"format"`    // absent: text
	Verbosity *string     `json:"verbosity"` // no effect
}

// TextFormat asks for an answer of a certain form. It is ResponseFormat without a level in between.
type TextFormat struct {
	Type        string          `json:"type"`        // text, json_object or json_schema
	Name        string          `json:"name"`        // of the schema
	Description *string         `json:"description"` // not passed on
	Schema      json.RawMessage `json:"schema"`      // JSON schema object
	Strict      *bool           `json:"strict"`      // no effect: the schema always holds
}

// ResponsesTool is one tool. Functions, custom tools and those of OpenAI's own that clients run can be offered to a model;
// the others are for servers that run tools themselves.
type ResponsesTool struct {
	Type        string          `json:"type"`        // function, custom, namespace or the name of a hosted tool
	Name        string          `json:"name"`        // as the client calls it
	Namespace   string          `json:"namespace"`   // the group it came in; empty: none
	Description *string         `json:"description"` // for the model
	Parameters  json.RawMessage `json:"parameters"`  // JSON schema; empty: none
	Strict      *bool           `json:"strict"`      // the schema allows nothing it doesn't name
	Format      *ToolFormat     `json:"format"`      // what a custom tool's input looks like; nil: any text
	Where       string          `json:"environment"` // the type of a shell's environment; empty: local

	Index int `json:"-"` // in the request's tools
}

// Called is what a tool_choice calls the tool by. It reports false for a tool that no client runs, and that a model isn't
// told of.
func (t *ResponsesTool) Called() (name string, ok bool) {
	switch t.Type {
	case "function", "custom":
		return t.Name, true
	case ToolLocalShell, ToolPatch:
		return t.Type, true
	case ToolShell: // in a container it would be the server's
		return t.Type, t.Where == "" || t.Where == "local"
	}
	return "", false
}

// ToolFormat is the form of a custom tool's input.
type ToolFormat struct {
	Type       string `json:"type"`       // text or grammar
	Syntax     string `json:"syntax"`     // of the grammar: lark or regex
	Definition string `json:"definition"` // the grammar
}

// ResponsesChoice says whether the model may, must or must not call tools.
type ResponsesChoice struct {
	Mode    string          // none, auto, required, or function: the one named
	Name    string          // of the tool; empty in the other modes
	Allowed []string        // names of the only tools on offer; nil: all
	Raw     json.RawMessage // as sent, to be repeated
}

// InputItem is one item of a conversation: a message, a call, its result, or a thought. Which fields are set depends on
// the type.
type InputItem struct {
	Type string          // message, function_call and so on; never empty
	ID   string          // as the client or an earlier answer gave it; may be empty
	Raw  json.RawMessage // the item as it stands in the request

	Role  Role        // of a message
	Parts []InputPart // of a message, a call's result or a thought
	Plain bool        // the content was one string: Parts holds just that

	CallID    string          // of a call and of its result
	Name      string          // of a call's function
	Namespace string          // of a call's function; empty: none
	Arguments string          // of a call: JSON for functions, any text for custom tools
	Action    json.RawMessage // of a call of one of OpenAI's own tools: what to do, an object
	Status    string          // of a call and of its result; may be empty

	Encrypted string // of a thought: what the server gave to be sent back
}

// InputPart is one part of an item's content.
type InputPart struct {
	Kind   string          // text, refusal, image_url, video_url, audio_url or input_audio
	Text   string          // of the first two
	URL    string          // of the *_url kinds
	Detail string          // of images; may be empty
	Raw    json.RawMessage // input_audio: the object of that name
}

// The kinds of item that mean something to a model. Others are passed over.
const (
	ItemMessage       = "message"
	ItemCall          = "function_call"
	ItemOutput        = "function_call_output"
	ItemCustomCall    = "custom_tool_call"
	ItemCustomOutput  = "custom_tool_call_output"
	ItemReasoning     = "reasoning"
	ItemReference     = "item_reference"
	PartText          = "text"
	PartRefusal       = "refusal"
	PartInputAudio    = "input_audio"
	maxReadNamespaces = 64 // tools that hold tools, in one request
)

// OpenAI's own tools that a client runs, by type, which is their only name, and the items of their calls.
const (
	ToolLocalShell       = "local_shell" // a program
	ToolShell            = "shell"       // lines for a shell
	ToolPatch            = "apply_patch" // a change of a file
	ItemLocalShellCall   = ToolLocalShell + callSuffix
	ItemShellCall        = ToolShell + callSuffix
	ItemPatchCall        = ToolPatch + callSuffix
	ItemLocalShellOutput = ItemLocalShellCall + outputSuffix
	ItemShellOutput      = ItemShellCall + outputSuffix
	ItemPatchOutput      = ItemPatchCall + outputSuffix
	callSuffix           = "_call"
	outputSuffix         = "_output"
)

// Own is the tool that an item is a call of, where it is one of OpenAI's own that clients run; otherwise it is empty.
func (m *InputItem) Own() string {
	switch m.Type {
	case ItemLocalShellCall, ItemShellCall, ItemPatchCall:
		return strings.TrimSuffix(m.Type, callSuffix)
	}
	return ""
}
