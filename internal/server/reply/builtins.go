package reply

import (
	"encoding/json"
	"strconv"
)

// OpenAI's own tools that clients run: the shell, in two forms, and changes of files. A model knows each as a function,
// and a client gets what the arguments ask for. It runs what it is told, so that nothing is guessed but what is plain.

// What there is to do where nobody knows it yet, or it can't be read.
const (
	noProgram  = `{"type":"exec","command":[],"env":{}}`
	noCommands = `{"commands":[],"timeout_ms":null,"max_output_length":null}`
	noPatch    = `{"type":"update_file","path":"","diff":""}`
)

// action makes of the arguments that a model wrote what a client is told to do. It reports false for arguments that
// don't say, and returns an action of nothing.
func (k itemKind) action(arguments []byte) ([]byte, bool) {
	switch k {
	case itemLocalShell:
		return programAction(arguments)
	case itemShell:
		return commandsAction(arguments)
	}
	p, ok := patchOf(arguments)
	if !ok {
		return k.noAction(), false
	}
	return p.append(nil, true), true
}

// noAction is an action of nothing.
func (k itemKind) noAction() []byte {
	switch k {
	case itemLocalShell:
		return []byte(noProgram)
	case itemShell:
		return []byte(noCommands)
	}
	return []byte(noPatch)
}

// programAction is the action of local_shell: one program with its arguments. A command in one string is for a shell.
func programAction(arguments []byte) ([]byte, bool) {
	var in struct {
		Command json.RawMessage   `json:"command"`
		Env     map[string]string `json:"env"`
		Timeout *int64            `json:"timeout_ms"`
		Folder  *string           `json:"working_directory"`
		User    *string           `json:"user"`
	}
	if json.Unmarshal(arguments, &in) != nil {
		return []byte(noProgram), false
	}
	command, line := words(in.Command)
	switch {
	case line != "":
		command = []string{"sh", "-c", line}
	case len(command) == 0:
		return []byte(noProgram), false
	}
	b := appendTexts([]byte(`{"type":"exec","command":`), command)
	b = append(b, `,"env":`...)
	if env, err := json.Marshal(in.Env); err == nil && in.Env != nil {
		b = append(b, env...)
	} else {
		b = append(b, "{}"...)
	}
	if in.Timeout != nil {
		b = strconv.AppendInt(append(b, `,"timeout_ms":`...), *in.Timeout, 10)
	}
	if in.Folder != nil {
		b = appendString(append(b, `,"working_directory":`...), *in.Folder)
	}
	if in.User != nil {
		b = appendString(append(b, `,"user":`...), *in.User)
	}
	return append(b, '}'), true
}

// commandsAction is the action of shell: lines, each for a shell.
func commandsAction(arguments []byte) ([]byte, bool) {
	var in struct {
		Commands json.RawMessage `json:"commands"`
		Timeout  *int64          `json:"timeout_ms"`
		Length   *int64          `json:"max_output_length"`
	}
	if json.Unmarshal(arguments, &in) != nil {
		return []byte(noCommands), false
	}
	commands, line := words(in.Commands)
	switch {
	case line != "":
		commands = []string{line}
	case len(commands) == 0:
		return []byte(noCommands), false
	}
	b := appendTexts([]byte(`{"commands":`), commands)
	b = appendIntOrNull(append(b, `,"timeout_ms":`...), in.Timeout)
	return append(appendIntOrNull(append(b, `,"max_output_length":`...), in.Length), '}'), true
}

// commandsOf are the lines of an action of shell.
func commandsOf(action []byte) []string {
	var in struct {
		Commands []string `json:"commands"`
	}
	_ = json.Unmarshal(action, &in) // our own
	return in.Commands
}

// words are several words, or one line.
func words(value json.RawMessage) (several []string, line string) {
	if json.Unmarshal(value, &line) == nil {
		return nil, line
	}
	if json.Unmarshal(value, &several) != nil {
		return nil, ""
	}
	return several, ""
}

// patch is a change of one file.
type patch struct {
	Type string  `json:"type"`
	Path string  `json:"path"`
	Diff *string `json:"diff"` // nil: the file is deleted
}

// patchOf reads a change of a file, and reports whether it is one.
func patchOf(value []byte) (patch, bool) {
	var p patch
	if json.Unmarshal(value, &p) != nil || p.Path == "" {
		return p, false
	}
	switch p.Type {
	case "create_file", "update_file":
		return p, p.Diff != nil
	case "delete_file":
		p.Diff = nil
		return p, true
	}
	return p, false
}

// append appends the change, with its diff or with an empty one in its place.
func (p *patch) append(b []byte, whole bool) []byte {
	b = appendString(append(b, `{"type":`...), p.Type)
	b = appendString(append(b, `,"path":`...), p.Path)
	switch {
	case p.Diff == nil:
	case whole:
		b = appendString(append(b, `,"diff":`...), *p.Diff)
	default:
		b = append(b, `,"diff":""`...)
	}
	return append(b, '}')
}

// appendBegun appends a change of a file without what it changes: what a client may know of one that isn't whole.
func appendBegun(b, operation []byte) []byte {
	if p, ok := patchOf(operation); ok {
		return p.append(b, false)
	}
	return append(b, noPatch...)
}

// appendTexts appends an array of strings.
func appendTexts(b []byte, list []string) []byte {
	b = append(b, '[')
	for i, s := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, s)
	}
	return append(b, ']')
}

// appendIntOrNull appends a number that may be absent.
func appendIntOrNull(b []byte, n *int64) []byte {
	if n == nil {
		return append(b, "null"...)
	}
	return strconv.AppendInt(b, *n, 10)
}

// appendCommands appends the events of a shell's lines. Each comes in one piece: until all are read nobody knows that
// they are what is to be run.
func (r *Responses) appendCommands(b []byte, it *item) []byte {
	for i, command := range commandsOf(it.text) {
		for _, e := range [...]struct{ name, member, text string }{
			{"added", "command", ""}, {"delta", "delta", command}, {"done", "command", command},
		} {
			if e.text == "" && e.name == "delta" {
				continue
			}
			b = r.beginEvent(b, "response.shell_call_command."+e.name)
			b = strconv.AppendInt(append(b, `,"output_index":`...), int64(len(r.items)-1), 10)
			b = strconv.AppendInt(append(b, `,"command_index":`...), int64(i), 10)
			b = append(append(append(b, `,"`...), e.member...), `":`...)
			b = append(appendString(b, e.text), "}\n\n"...)
		}
	}
	return b
}

// appendPatch appends the events of a change of a file, from its beginning on: clients take the kind and the path from
// there, which the model may have written last.
func (r *Responses) appendPatch(b []byte, it *item) []byte {
	status := it.status
	it.status = "in_progress"
	b = r.itemEvent(b, "response.output_item.added", it)
	it.status = status
	p, ok := patchOf(it.text)
	if !ok || status != "completed" || p.Diff == nil {
		return b
	}
	if *p.Diff != "" {
		b = r.appendGrowth(b, it, *p.Diff, nil)
	}
	b = r.beginItemEvent(b, it.kind.growthEvent()+".done", it)
	return append(appendString(append(b, `,"diff":`...), *p.Diff), "}\n\n"...)
}
