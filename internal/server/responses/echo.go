package responses

import (
	"bytes"
	"encoding/json"
	"strconv"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/internal/server/reply"
)

// echo is what an answer repeats of its request, as members that each begin with a comma, and as one line: it becomes
// part of an event, which ends with its line.
func echo(req *openai.ResponsesRequest, tools []offered, store bool) []byte {
	members := append(appendEcho([]byte(`{"a":0`), req, tools, store), '}')
	var line bytes.Buffer
	if err := json.Compact(&line, members); err != nil {
		return nil // never: each part was read as JSON, or is written here
	}
	b := line.Bytes()[len(`{"a":0`) : line.Len()-1]
	// There are event-stream readers that split lines at these, too. They stand in strings only.
	for _, c := range [...][2]string{{"\u0085", `\u0085`}, {"\u2028", `\u2028`}, {"\u2029", `\u2029`}} {
		b = bytes.ReplaceAll(b, []byte(c[0]), []byte(c[1]))
	}
	return b
}

// appendEcho appends the members of echo. What a client left out is told with the value that holds then.
func appendEcho(b []byte, req *openai.ResponsesRequest, tools []offered, store bool) []byte {
	b = append(b, `,"background":false,"billing":null,"conversation":null,"prompt":null,"instructions":`...)
	b = appendText(b, req.Instructions)
	b = appendInt(append(b, `,"max_output_tokens":`...), req.MaxOutputTokens, "null")
	b = appendInt(append(b, `,"max_tool_calls":`...), req.MaxToolCalls, "null")
	b = appendRaw(append(b, `,"metadata":`...), req.Metadata, "{}")
	b = append(b, `,"parallel_tool_calls":`...)
	b = appendBool(b, req.ParallelToolCalls == nil || *req.ParallelToolCalls)
	b = appendText(append(b, `,"previous_response_id":`...), req.PreviousID)
	b = appendText(append(b, `,"prompt_cache_key":`...), req.PromptCacheKey)
	b = appendText(append(b, `,"prompt_cache_retention":`...), req.PromptCacheRetention)
	b = append(b, `,"reasoning":`...)
	if req.Reasoning == nil {
		b = append(b, "null"...)
	} else {
		b = append(b, req.Reasoning.Raw...)
	}
	b = appendText(append(b, `,"safety_identifier":`...), req.SafetyIdentifier)
	b = append(b, `,"service_tier":`...)
	if req.ServiceTier == nil {
		b = append(b, `"auto"`...)
	} else {
		b = appendString(b, *req.ServiceTier)
	}
	b = appendBool(append(b, `,"store":`...), store)
	b = appendTextConfig(append(b, `,"text":`...), req.Text)
	b = append(b, `,"tool_choice":`...)
	if req.ToolChoice == nil {
		b = append(b, `"auto"`...)
	} else {
		b = append(b, req.ToolChoice.Raw...)
	}
	b = appendEchoTools(append(b, `,"tools":`...), tools)
	b = append(b, `,"truncation":`...)
	if req.Truncation == nil {
		b = append(b, `"disabled"`...)
	} else {
		b = appendString(b, *req.Truncation)
	}
	return appendEchoSampling(b, req)
}

// appendEchoSampling appends how tokens were drawn.
func appendEchoSampling(b []byte, req *openai.ResponsesRequest) []byte {
	b = appendFloat(append(b, `,"temperature":`...), req.Temperature, "1.0")
	b = appendFloat(append(b, `,"top_p":`...), req.TopP, "1.0")
	b = appendInt(append(b, `,"top_logprobs":`...), req.TopLogprobs, "0")
	b = appendFloat(append(b, `,"presence_penalty":`...), req.PresencePenalty, "0.0")
	b = appendFloat(append(b, `,"frequency_penalty":`...), req.FrequencyPenalty, "0.0")
	if req.User != nil {
		b = appendString(append(b, `,"user":`...), *req.User)
	}
	return b
}

// appendTextConfig appends the form of the text.
func appendTextConfig(b []byte, c *openai.TextConfig) []byte {
	b = append(b, `{"format":`...)
	switch {
	case c == nil || c.Format == nil:
		b = append(b, `{"type":"text"}`...)
	case c.Format.Type != "json_schema":
		b = append(appendString(append(b, `{"type":`...), c.Format.Type), '}')
	default:
		b = appendSchemaFormat(b, c.Format)
	}
	if c != nil && c.Verbosity != nil {
		b = appendString(append(b, `,"verbosity":`...), *c.Verbosity)
	}
	return append(b, '}')
}

// appendSchemaFormat appends a format with a schema, with each of its members.
func appendSchemaFormat(b []byte, f *openai.TextFormat) []byte {
	b = appendString(append(b, `{"type":"json_schema","name":`...), f.Name)
	b = appendText(append(b, `,"description":`...), f.Description)
	b = append(append(b, `,"schema":`...), f.Schema...)
	b = appendBool(append(b, `,"strict":`...), f.Strict != nil && *f.Strict)
	return append(b, '}')
}

// appendEchoTools appends the tools that the model was offered, in the form of this interface.
func appendEchoTools(b []byte, tools []offered) []byte {
	b = append(b, '[')
	for i := range tools {
		if i > 0 {
			b = append(b, ',')
		}
		t := tools[i].tool
		b = appendString(append(b, `{"type":`...), t.Type)
		if tools[i].kind >= reply.CallLocalShell {
			b = append(b, '}')
			continue
		}
		b = appendString(append(b, `,"name":`...), t.Name)
		if t.Namespace != "" {
			b = appendString(append(b, `,"namespace":`...), t.Namespace)
		}
		b = appendText(append(b, `,"description":`...), t.Description)
		if t.Type == "custom" {
			b = append(appendFormat(b, t.Format), '}')
			continue
		}
		b = appendRaw(append(b, `,"parameters":`...), t.Parameters, "null")
		b = append(b, `,"strict":`...)
		if t.Strict == nil {
			b = append(b, "null"...)
		} else {
			b = appendBool(b, *t.Strict)
		}
		b = append(b, '}')
	}
	return append(b, ']')
}

// appendFormat appends the form of a custom tool's input.
func appendFormat(b []byte, f *openai.ToolFormat) []byte {
	if f == nil {
		return append(b, `,"format":{"type":"text"}`...)
	}
	b = appendString(append(b, `,"format":{"type":`...), f.Type)
	if f.Definition != "" {
		b = appendString(append(b, `,"syntax":`...), f.Syntax)
		b = appendString(append(b, `,"definition":`...), f.Definition)
	}
	return append(b, '}')
}

// appendText appends a string, or null.
func appendText(b []byte, s *string) []byte {
	if s == nil {
		return append(b, "null"...)
	}
	return appendString(b, *s)
}

// appendRaw appends JSON, or what stands for its absence.
func appendRaw(b, raw []byte, absent string) []byte {
	if raw == nil {
		return append(b, absent...)
	}
	return append(b, raw...)
}

// appendInt appends a number, or what stands for its absence.
func appendInt(b []byte, v *int64, absent string) []byte {
	if v == nil {
		return append(b, absent...)
	}
	return strconv.AppendInt(b, *v, 10)
}

// appendFloat is the same for numbers with a fraction.
func appendFloat(b []byte, v *float64, absent string) []byte {
	if v == nil {
		return append(b, absent...)
	}
	return strconv.AppendFloat(b, *v, 'g', -1, 64)
}
