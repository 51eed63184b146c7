package responses

import (
	"slices"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/internal/server/reply"
)

// offered is a tool that the model can call.
type offered struct {
	name string // as the model knows it
	tool *openai.ResponsesTool
}

// modelName is what a function of a namespace is called by the model, to whom all functions are in one list.
func modelName(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "__" + name
}

// offer chooses the tools that the model is told of. Those that only a server could run are left out: clients send them
// with every request, wanted or not. Of two tools with one name the first is the one.
func offer(req *openai.ResponsesRequest, turn *Turn) []offered {
	var out []offered
	seen := map[string]bool{}
	for i := range req.ToolList {
		t := &req.ToolList[i]
		if t.Type != "function" && t.Type != "custom" && t.Type != localShell {
			turn.Left.Tools++
			continue
		}
		own := t.Name
		if t.Type == localShell { // which has no other name
			own = localShell
		}
		name := modelName(t.Namespace, own)
		if c := req.ToolChoice; seen[name] || (c != nil && c.Allowed != nil && !slices.Contains(c.Allowed, own)) {
			continue
		}
		seen[name] = true
		if t.Type != "function" || t.Namespace != "" {
			if turn.Tools == nil {
				turn.Tools = map[string]reply.CalledAs{}
			}
			turn.Tools[name] = reply.CalledAs{Name: t.Name, Namespace: t.Namespace, Custom: t.Type == "custom", Shell: t.Type == localShell}
		}
		out = append(out, offered{name, t})
	}
	return out
}

// localShell is the tool whose calls are commands for the client's own shell: the one of OpenAI's built-in tools that a
// client runs, and so the one that a model can be told of here.
const localShell = "local_shell"

// shellInput is the schema of the function that stands for it.
const shellInput = `{"type":"object","properties":{` +
	`"command":{"type":"array","items":{"type":"string"},"description":"The program and its arguments"},` +
	`"env":{"type":"object","additionalProperties":{"type":"string"},"description":"Further environment variables"},` +
	`"working_directory":{"type":"string","description":"The folder to run in"},` +
	`"timeout_ms":{"type":"integer","description":"The longest time it may take, in milliseconds"}},` +
	`"required":["command"],"additionalProperties":false}`

// customInput is the schema of the function that stands for a custom tool, whose input is a text and no JSON.
const customInput = `{"type":"object","properties":{"input":{"type":"string","description":"The whole input of the tool"}},` +
	`"required":["input"],"additionalProperties":false}`

// appendTools appends tools and tool_choice as chat has them.
func appendTools(b []byte, req *openai.ResponsesRequest, tools []offered) []byte {
	if len(tools) == 0 {
		return b
	}
	b = append(b, `,"tools":[`...)
	for i := range tools {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendTool(b, &tools[i])
	}
	b = append(b, ']')
	c := req.ToolChoice
	if c == nil {
		return b
	}
	if c.Mode != "function" {
		return appendString(append(b, `,"tool_choice":`...), c.Mode)
	}
	name := c.Name
	for i := range tools { // the named tool may stand in a namespace
		if tools[i].tool.Name == c.Name {
			name = tools[i].name
			break
		}
	}
	b = appendString(append(b, `,"tool_choice":{"type":"function","function":{"name":`...), name)
	return append(b, "}}"...)
}

// appendTool appends one tool as chat has it.
func appendTool(b []byte, o *offered) []byte {
	t := o.tool
	b = appendString(append(b, `{"type":"function","function":{"name":`...), o.name)
	if text := description(t); text != "" {
		b = appendString(append(b, `,"description":`...), text)
	}
	switch {
	case t.Type == "custom":
		b = append(append(b, `,"parameters":`...), customInput...)
	case t.Type == localShell:
		b = append(append(b, `,"parameters":`...), shellInput...)
	case t.Parameters != nil:
		b = append(append(b, `,"parameters":`...), t.Parameters...)
	}
	if t.Strict != nil && t.Type == "function" {
		b = append(b, `,"strict":`...)
		b = appendBool(b, *t.Strict)
	}
	return append(b, "}}"...)
}

// description is what the model is told of a tool. A grammar is told too: nothing else holds the model to it.
func description(t *openai.ResponsesTool) string {
	text := ""
	if t.Type == localShell {
		text = "Runs a command in the user's shell and returns its output"
	}
	if t.Description != nil {
		text = *t.Description
	}
	if f := t.Format; t.Type == "custom" && f != nil && f.Type == "grammar" && f.Definition != "" {
		text += "\n\nThe input must match this " + f.Syntax + " grammar:\n" + f.Definition
	}
	return text
}

// appendBool appends true or false.
func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, "true"...)
	}
	return append(b, "false"...)
}
