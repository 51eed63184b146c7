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
	kind reply.CallKind
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
		own, ok := t.Called()
		if !ok {
			turn.Left.Tools++
			continue
		}
		kind := kindOf(t)
		name := modelName(t.Namespace, own)
		if c := req.ToolChoice; seen[name] || (c != nil && c.Allowed != nil && !slices.Contains(c.Allowed, own)) {
			continue
		}
		seen[name] = true
		if kind != reply.CallFunction || t.Namespace != "" {
			if turn.Tools == nil {
				turn.Tools = map[string]reply.CalledAs{}
			}
			turn.Tools[name] = reply.CalledAs{Name: t.Name, Namespace: t.Namespace, Kind: kind}
		}
		out = append(out, offered{name, t, kind})
	}
	return out
}

// kindOf is what the calls of a tool are to its client.
func kindOf(t *openai.ResponsesTool) reply.CallKind {
	switch t.Type {
	case "custom":
		return reply.CallCustom
	case openai.ToolLocalShell:
		return reply.CallLocalShell
	case openai.ToolShell:
		return reply.CallShell
	case openai.ToolPatch:
		return reply.CallPatch
	}
	return reply.CallFunction
}

// programInput is the schema of the function that stands for local_shell.
const programInput = `{"type":"object","properties":{` +
	`"command":{"type":"array","items":{"type":"string"},"description":"The program and its arguments"},` +
	`"env":{"type":"object","additionalProperties":{"type":"string"},"description":"Further environment variables"},` +
	`"working_directory":{"type":"string","description":"The folder to run in"},` +
	`"timeout_ms":{"type":"integer","description":"The longest time it may take, in milliseconds"}},` +
	`"required":["command"],"additionalProperties":false}`

// commandsInput is the schema of the function that stands for shell.
const commandsInput = `{"type":"object","properties":{` +
	`"commands":{"type":"array","items":{"type":"string"},"description":"Command lines, run one after the other"},` +
	`"timeout_ms":{"type":"integer","description":"The longest time they may take, in milliseconds"},` +
	`"max_output_length":{"type":"integer","description":"How many characters of the output to return"}},` +
	`"required":["commands"],"additionalProperties":false}`

// patchInput is the schema of the function that stands for apply_patch.
const patchInput = `{"type":"object","properties":{` +
	`"type":{"type":"string","enum":["create_file","update_file","delete_file"]},` +
	`"path":{"type":"string","description":"The file, relative to the workspace"},` +
	`"diff":{"type":"string","description":"What changes; not for delete_file"}},` +
	`"required":["type","path"],"additionalProperties":false}`

// patchText tells a model of apply_patch. The form is the one that OpenAI's models write, and its clients apply.
const patchText = "Creates, updates or deletes a file of the user's. The diff of create_file is the whole file, each line " +
	"with + in front. The diff of update_file has one or more sections. A section begins with a line @@, which may name the " +
	"function or class that the change is in (@@ def main():). Then come lines of the file with a space in front, lines " +
	"that go with -, and lines that come with +; about three unchanged lines around a change tell where it is. There are " +
	"no line numbers and no file names in a diff."

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
	parameters := string(t.Parameters)
	if o.kind != reply.CallFunction {
		parameters = [...]string{reply.CallCustom: customInput, reply.CallLocalShell: programInput,
			reply.CallShell: commandsInput, reply.CallPatch: patchInput}[o.kind]
	}
	if parameters != "" {
		b = append(append(b, `,"parameters":`...), parameters...)
	}
	if t.Strict != nil && o.kind == reply.CallFunction {
		b = append(b, `,"strict":`...)
		b = appendBool(b, *t.Strict)
	}
	return append(b, "}}"...)
}

// description is what the model is told of a tool. A grammar is told too: nothing else holds the model to it.
func description(t *openai.ResponsesTool) string {
	text := map[string]string{
		openai.ToolLocalShell: "Runs a command in the user's shell and returns its output",
		openai.ToolShell:      "Runs command lines in the user's shell and returns their output",
		openai.ToolPatch:      patchText,
	}[t.Type]
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
