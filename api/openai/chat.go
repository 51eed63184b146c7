package openai

import "encoding/json"

// ChatRequest is the body of POST /v1/chat/completions. Nil is absent.
type ChatRequest struct {
	Common

	Messages json.RawMessage `json:"messages"` // array, as the client sent it; Conversation tells what is in it

	MaxCompletionTokens *int64 `json:"max_completion_tokens"` // wins over max_tokens
	Logprobs            *bool  `json:"logprobs"`              // of the answer's tokens
	TopLogprobs         *int64 `json:"top_logprobs"`          // alternatives for each; only with Logprobs

	// Tools is an array, as the client sent it; ToolList tells what is in it.
	Tools             json.RawMessage `json:"tools"`
	ToolChoice        *ToolChoice     `json:"tool_choice"`         // absent: auto
	ParallelToolCalls *bool           `json:"parallel_tool_calls"` // false: one call at most
	ResponseFormat    *ResponseFormat `json:"response_format"`     // absent: text
	Functions         json.RawMessage `json:"functions"`           // deprecated by OpenAI and refused
	FunctionCall      json.RawMessage `json:"function_call"`       // likewise

	ReasoningEffort     *string         `json:"reasoning_effort"`       // none switches reasoning off
	Thinking            *Thinking       `json:"thinking"`               // as Anthropic's clients write it
	ThinkingTokenBudget *int64          `json:"thinking_token_budget"`  // tokens to reason with
	ChatTemplateArgs    json.RawMessage `json:"chat_template_args"`     // object; chat_template_kwargs is the same field
	ChatTemplate        *string         `json:"chat_template"`          // refused: templates come with the model
	Documents           json.RawMessage `json:"documents"`              // array of objects, for the template
	AddGenerationPrompt *bool           `json:"add_generation_prompt"`  // absent is true
	ContinueFinal       *bool           `json:"continue_final_message"` // the answer goes on where the last message ends
	MMProcessorKwargs   json.RawMessage `json:"mm_processor_kwargs"`    // object, for the worker
	MediaIOKwargs       json.RawMessage `json:"media_io_kwargs"`        // object, for whoever decodes media

	// Fields of OpenAI's that mean nothing to a worker: their type is checked, then they are left alone.
	Audio                json.RawMessage `json:"audio"`
	Modalities           []string        `json:"modalities"`
	Prediction           json.RawMessage `json:"prediction"`
	PromptCacheKey       *string         `json:"prompt_cache_key"`
	PromptCacheRetention *string         `json:"prompt_cache_retention"`
	SafetyIdentifier     *string         `json:"safety_identifier"`
	ServiceTier          *string         `json:"service_tier"`
	Store                *bool           `json:"store"`
	Verbosity            *string         `json:"verbosity"`
	WebSearchOptions     json.RawMessage `json:"web_search_options"`

	// What reading found out on the way; the bytes above stay what templates and workers get.
	Conversation Conversation `json:"-"` // of Messages
	ToolList     []Tool       `json:"-"` // of Tools, in order
}

// TokenLimit returns the client's limit on tokens to generate; nil is none. The newer field wins.
func (r *ChatRequest) TokenLimit() *int64 {
	if r.MaxCompletionTokens != nil {
		return r.MaxCompletionTokens
	}
	return r.MaxTokens
}

// Thinking switches a model's reasoning on or off. Clients may send true or false in its place.
type Thinking struct {
	Type string `json:"type"` // enabled, disabled or adaptive
}

// Tool is what the server needs to know of one tool.
type Tool struct {
	Type       string          `json:"type"`       // function; empty is the same
	Name       string          `json:"name"`       // as the model calls it
	Parameters json.RawMessage `json:"parameters"` // JSON schema; empty: none
	Strict     *bool           `json:"strict"`     // the schema allows nothing it doesn't name
}

// ToolChoice says whether the model may, must or must not call tools. Absent, the model may.
type ToolChoice struct {
	Mode string // none, auto, required, or function: the one named
	Name string // of the function; empty in the other modes
}

// ResponseFormat asks for an answer of a certain form.
type ResponseFormat struct {
	Type       string      `json:"type"`        // text, json_object or json_schema
	JSONSchema *JSONSchema `json:"json_schema"` // only with json_schema
}

// JSONSchema is the form a json_schema answer takes.
type JSONSchema struct {
	Name        string          `json:"name"`        // of the schema, for the model
	Description *string         `json:"description"` // not passed on
	Schema      json.RawMessage `json:"schema"`      // JSON schema object
	Strict      *bool           `json:"strict"`      // no effect: the schema always holds
}

// Conversation is what the server needs to know of the messages without looking into them again.
type Conversation struct {
	Messages int     // how many there are
	LastRole Role    // of the last message
	Media    []Media // content parts that are not text, in order
}

// Role says who a message is from.
type Role string

// The roles a message may have.
const (
	RoleDeveloper Role = "developer" // OpenAI's newer name of system
	RoleSystem    Role = "system"    // instructions
	RoleUser      Role = "user"      // whom the model answers
	RoleAssistant Role = "assistant" // the model's own turns
	RoleTool      Role = "tool"      // the result of a call
	RoleFunction  Role = "function"  // the same, before tools replaced functions
)

// Media is one content part that is not text.
type Media struct {
	Message, Part int    // indices in the request
	Kind          string // type of the part: image_url, video_url, audio_url, input_audio or file
	URL           string // of the *_url kinds; input_audio: a data URL of its bytes; file: empty
}
