package anthropic

import "github.com/go-json-experiment/json/jsontext"

// Request is the body of POST /v1/messages and of POST /v1/messages/count_tokens. Nil and empty are absent.
type Request struct {
	Model    string    `json:"model"`    // required
	Messages []Message `json:"messages"` // required; the last one is answered, or continued when it is the assistant's
	System   Content   `json:"system"`   // text blocks only

	MaxTokens     *int64   `json:"max_tokens"`     // required, but for counting
	StopSequences []string `json:"stop_sequences"` // none of them is part of the answer
	Stream        bool     `json:"stream"`         // answer with events

	Temperature *float64 `json:"temperature"` // 0 takes the likeliest token
	TopP        *float64 `json:"top_p"`       // probability mass to draw from
	TopK        *int64   `json:"top_k"`       // likeliest tokens to draw from; 0: all

	Tools      []Tool      `json:"tools"`       // the client's own
	ToolChoice *ToolChoice `json:"tool_choice"` // absent: the model decides
	Thinking   *Thinking   `json:"thinking"`    // absent: as the model is used to

	OutputConfig *OutputConfig `json:"output_config"` // the form of the answer, and how much to think
	OutputFormat *Format       `json:"output_format"` // the older place of the form
	Metadata     *Metadata     `json:"metadata"`      // about who asks; not passed on

	MCPServers []jsontext.Value `json:"mcp_servers"` // refused unless empty: nobody here calls them

	// Extensions that go with the request as in the other endpoints.
	NvExt              jsontext.Value `json:"nvext"`                // object
	ChatTemplateKwargs jsontext.Value `json:"chat_template_kwargs"` // object: further variables of the template
}

// Message is one turn of the conversation.
type Message struct {
	Role    string  `json:"role"` // user, assistant or system
	Content Content `json:"content"`
}

// Content is a text or a list of blocks.
type Content struct {
	Text   string  // of a plain string
	Blocks []Block // of an array
	Plain  bool    // a string was given
	Given  bool    // anything was given
}

// Block is one content block. Which fields count depends on the type.
type Block struct {
	Type string `json:"type"` // one of the Block constants

	Text *string `json:"text"` // text

	Source  *Source `json:"source"`  // image, document
	Title   string  `json:"title"`   // document, search_result
	Context string  `json:"context"` // document: what the client says about it

	ID    string         `json:"id"`    // tool_use: what its result refers to
	Name  string         `json:"name"`  // tool_use: of the tool
	Input jsontext.Value `json:"input"` // tool_use: object of arguments

	ToolName string `json:"tool_name"` // tool_reference: of a tool that a search has found

	ToolUseID string  `json:"tool_use_id"` // tool_result: the ID of its call
	Content   Content `json:"content"`     // tool_result, search_result
	IsError   bool    `json:"is_error"`    // tool_result: the call failed

	Thinking *string `json:"thinking"` // thinking: the thought; its signature is not looked at
}

// The types of block that requests may hold.
const (
	BlockText             = "text"
	BlockImage            = "image"
	BlockDocument         = "document" // of text: other documents are refused
	BlockSearchResult     = "search_result"
	BlockToolReference    = "tool_reference"
	BlockToolUse          = "tool_use"
	BlockToolResult       = "tool_result"
	BlockThinking         = "thinking"
	BlockRedactedThinking = "redacted_thinking" // sealed by Anthropic, so that nobody else can show it to a model
)

// Source is where an image or a document is. That of a search result is a string, its URL.
type Source struct {
	Type      string  `json:"type"`       // base64, url, text or content
	MediaType string  `json:"media_type"` // base64: as in a data URL
	Data      string  `json:"data"`       // base64: the bytes; text: the document itself
	URL       string  `json:"url"`        // url
	Content   Content `json:"content"`    // content: text blocks
}

// Tool is a tool of the client's.
type Tool struct {
	Type        string         `json:"type"` // custom or absent; Anthropic's own tools are refused
	Name        string         `json:"name"` // required
	Description string         `json:"description"`
	InputSchema jsontext.Value `json:"input_schema"` // JSON schema object
	Strict      *bool          `json:"strict"`       // the schema allows nothing it doesn't name
}

// ToolChoice says whether the model may, must or must not use tools.
type ToolChoice struct {
	Type            string `json:"type"`                      // auto, any, tool or none
	Name            string `json:"name"`                      // of the tool, with type tool
	DisableParallel *bool  `json:"disable_parallel_tool_use"` // true: one use at most
}

// Thinking switches the model's reasoning.
type Thinking struct {
	Type         string `json:"type"`          // enabled, disabled or adaptive
	BudgetTokens *int64 `json:"budget_tokens"` // with enabled: how many tokens to think for, at most
}

// OutputConfig says what the answer is to be like.
type OutputConfig struct {
	Format *Format `json:"format"`
	Effort *string `json:"effort"` // low, medium, high, xhigh or max
}

// Format holds the answer to a form.
type Format struct {
	Type   string         `json:"type"`   // json_schema
	Schema jsontext.Value `json:"schema"` // JSON schema object
}

// Metadata is about who asks.
type Metadata struct {
	UserID *string `json:"user_id"` // opaque
}
