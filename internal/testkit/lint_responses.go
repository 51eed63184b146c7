package testkit

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
)

// responseEvent is one event of a responses stream, as far as the rules reach.
type responseEvent struct {
	Type         string          `json:"type"`
	Number       *int            `json:"sequence_number"`
	Response     *responseState  `json:"response"`
	OutputIndex  *int            `json:"output_index"`
	ContentIndex *int            `json:"content_index"`
	SummaryIndex *int            `json:"summary_index"`
	ItemID       string          `json:"item_id"`
	Item         map[string]any  `json:"item"`
	Delta        *string         `json:"delta"`
	Text         *string         `json:"text"`
	Arguments    *string         `json:"arguments"`
	Input        *string         `json:"input"`
	Diff         *string         `json:"diff"`
	Command      *string         `json:"command"`
	CommandIndex *int            `json:"command_index"`
	Part         map[string]any  `json:"part"`
	Error        json.RawMessage `json:"error"`
}

// responseState is the response that some events hold.
type responseState struct {
	ID     string           `json:"id"`
	Object string           `json:"object"`
	Status string           `json:"status"`
	Output []map[string]any `json:"output"`
	Usage  json.RawMessage  `json:"usage"`
	Error  json.RawMessage  `json:"error"`
}

// responseLinter is what LintResponses remembers of the events so far.
type responseLinter struct {
	next  int // sequence number
	id    string
	state string // of the response: "", created, in_progress, or how it ended
	error bool   // an error event followed the failure
	open  map[string]any
	part  bool   // the open item has a part that isn't done
	text  string // of the open item so far
	whole bool   // its text is done

	commands []any // of a shell's open item so far
	items    []map[string]any
}

// growing are the kinds of event that make an item grow, by the type of the item.
var growing = map[string]string{
	"message": "response.output_text", "reasoning": "response.reasoning_text",
	"function_call": "response.function_call_arguments", "custom_tool_call": "response.custom_tool_call_input",
	"local_shell_call": "nothing", // it has no events but its first and its last
	"shell_call":       "nothing", // each of its lines has events of its own
	"apply_patch_call": "response.apply_patch_call_operation_diff",
}

// LintResponses checks that a stream keeps the rules of OpenAI's Responses interface: numbers without gaps, one item at
// a time, each with what begins and what ends it, texts that are the sum of their pieces, one last response that is the
// sum of the items, and [DONE] once, at the end.
func LintResponses(body []byte) error { return lintResponses(body, true) }

// lintResponses checks a whole stream, or the beginning of one.
func lintResponses(body []byte, whole bool) error {
	events, err := Events(body)
	if err != nil {
		return err
	}
	l := responseLinter{}
	done := false
	for i, e := range events {
		if e.Data == "" && e.Name == "" {
			continue // a comment
		}
		if done {
			return fmt.Errorf("event %d follows the end mark: %q", i, e.Data)
		}
		if done = e.Data == "[DONE]"; done {
			continue
		}
		if err := l.event(e); err != nil {
			return fmt.Errorf("event %d: %w: %q", i, err, e.Data)
		}
	}
	switch {
	case !whole:
		return nil
	case !done:
		return fmt.Errorf("no end mark")
	case l.state != "completed" && l.state != "incomplete" && l.state != "failed":
		return fmt.Errorf("the response has not ended: %s", l.state)
	case l.state == "failed" && !l.error:
		return fmt.Errorf("no error event follows the failure")
	}
	return nil
}

// lintRest checks the end of a stream that is told again from a number on: numbers without gaps, and after the last
// response nothing but [DONE]. What the items were before isn't known here.
func lintRest(body []byte, next int, whole bool) error {
	events, err := Events(body)
	if err != nil {
		return err
	}
	over, done := false, false
	for i, e := range events {
		if e.Data == "" && e.Name == "" {
			continue // a comment
		}
		if e.Data == "[DONE]" && !done {
			done = true
			continue
		}
		var v responseEvent
		if err := json.Unmarshal([]byte(e.Data), &v); err != nil {
			return fmt.Errorf("event %d: no JSON: %w: %q", i, err, e.Data)
		}
		if done || over && v.Type != "error" || v.Type != e.Name || v.Number == nil || *v.Number != next {
			return fmt.Errorf("event %d: number %d was expected: %q", i, next, e.Data)
		}
		over = over || v.Response != nil && v.Type != "response.created" && v.Type != "response.in_progress"
		next++
	}
	if whole && !done {
		return fmt.Errorf("no end mark")
	}
	return nil
}

// event checks one event against those before it.
func (l *responseLinter) event(e Event) error {
	var v responseEvent
	if err := json.Unmarshal([]byte(e.Data), &v); err != nil {
		return fmt.Errorf("no JSON: %w", err)
	}
	switch {
	case v.Type != e.Name:
		return fmt.Errorf("the event is called %q", e.Name)
	case v.Number == nil || *v.Number != l.next:
		return fmt.Errorf("number %d was expected", l.next)
	}
	l.next++
	if l.state == "failed" && v.Type == "error" && !l.error && v.Error != nil {
		l.error = true
		return nil
	}
	if v.Response != nil {
		return l.response(&v)
	}
	if l.state != "in_progress" {
		return fmt.Errorf("the response is %q", l.state)
	}
	if v.OutputIndex == nil || *v.OutputIndex != len(l.items) {
		return fmt.Errorf("output_index %d was expected", len(l.items))
	}
	switch v.Type {
	case "response.output_item.added":
		return l.added(&v)
	case "response.output_item.done":
		return l.ended(&v)
	}
	return l.grow(&v)
}

// response checks an event with the response in it.
func (l *responseLinter) response(v *responseEvent) error {
	r := v.Response
	if l.id == "" {
		l.id = r.ID
	}
	if r.ID == "" || r.ID != l.id || r.Object != "response" {
		return fmt.Errorf("id or object has changed")
	}
	name := v.Type[len("response."):]
	follows := map[string]string{"created": "", "in_progress": "created", "completed": "in_progress",
		"incomplete": "in_progress", "failed": "in_progress"}
	if before, ok := follows[name]; !ok || before != l.state {
		return fmt.Errorf("it follows %q", l.state)
	}
	l.state = name
	over := name != "created" && name != "in_progress"
	switch {
	case !over && (r.Status != "in_progress" || len(r.Output) != 0):
		return fmt.Errorf("the response is %q with %d items", r.Status, len(r.Output))
	case !over:
		return nil
	case r.Status != name:
		return fmt.Errorf("the response is %q", r.Status)
	case (string(r.Error) != "null") != (name == "failed"):
		return fmt.Errorf("error is %s", r.Error)
	case string(r.Usage) == "null":
		return fmt.Errorf("no usage")
	case name == "failed": // what was going on is in the output, and has had no last event
		return nil
	case l.open != nil:
		return fmt.Errorf("item %d has no end", len(l.items))
	case len(r.Output) != len(l.items):
		return fmt.Errorf("%d items were told", len(l.items))
	}
	for i := range r.Output {
		if !reflect.DeepEqual(r.Output[i], l.items[i]) {
			return fmt.Errorf("item %d was told as %v", i, l.items[i])
		}
	}
	return nil
}

// added checks the beginning of an item.
func (l *responseLinter) added(v *responseEvent) error {
	if l.open != nil {
		return fmt.Errorf("item %d has no end", len(l.items))
	}
	kind, _ := v.Item["type"].(string)
	if growing[kind] == "" || v.Item["id"] == "" || v.Item["status"] != "in_progress" {
		return fmt.Errorf("it begins no item")
	}
	l.open, l.text, l.whole, l.part, l.commands = v.Item, "", false, false, []any{}
	return nil
}

// grow checks an event of the open item.
func (l *responseLinter) grow(v *responseEvent) error {
	if l.open != nil && l.open["type"] == "shell_call" {
		return l.command(v)
	}
	if l.open == nil || v.ItemID != l.open["id"] {
		return fmt.Errorf("it belongs to no open item")
	}
	kind := l.open["type"].(string)
	// A thought may be told as its summary: the same under other names.
	if name, ok := strings.CutPrefix(v.Type, "response.reasoning_summary_"); ok && kind == "reasoning" {
		v.ContentIndex = v.SummaryIndex
		v.Type = "response.content_" + name
		if rest, ok := strings.CutPrefix(name, "text."); ok {
			v.Type = growing[kind] + "." + rest
		}
	}
	parted := kind == "message" || kind == "reasoning"
	if parted != (v.ContentIndex != nil && *v.ContentIndex == 0) {
		return fmt.Errorf("content_index is wrong")
	}
	switch v.Type {
	case "response.content_part.added":
		if !parted || l.part || l.text != "" || v.Part == nil {
			return fmt.Errorf("a part begins that can't")
		}
		l.part = true
	case "response.content_part.done":
		if !l.part || !l.whole || v.Part["text"] != l.text {
			return fmt.Errorf("a part ends that can't, or with another text")
		}
		l.part = false
	case growing[kind] + ".delta":
		if parted && !l.part || l.whole || v.Delta == nil || *v.Delta == "" {
			return fmt.Errorf("a delta that can't be")
		}
		l.text += *v.Delta
	case growing[kind] + ".done":
		sum := map[string]*string{"message": v.Text, "reasoning": v.Text, "function_call": v.Arguments, "custom_tool_call": v.Input,
			"apply_patch_call": v.Diff}[kind]
		if l.whole || sum == nil || *sum != l.text {
			return fmt.Errorf("the text isn't the sum of its pieces %q", l.text)
		}
		l.whole = true
	default:
		return fmt.Errorf("an unknown event")
	}
	return nil
}

// command checks an event of a line of a shell's, which comes in one piece.
func (l *responseLinter) command(v *responseEvent) error {
	if v.CommandIndex == nil || *v.CommandIndex != len(l.commands) {
		return fmt.Errorf("command_index %d was expected", len(l.commands))
	}
	switch {
	case v.Type == "response.shell_call_command.added" && !l.part && v.Command != nil && *v.Command == "":
		l.part, l.text = true, ""
	case v.Type == "response.shell_call_command.delta" && l.part && v.Delta != nil && *v.Delta != "":
		l.text += *v.Delta
	case v.Type == "response.shell_call_command.done" && l.part && v.Command != nil && *v.Command == l.text:
		l.part, l.text = false, ""
		l.commands = append(l.commands, *v.Command)
	default:
		return fmt.Errorf("an event of a line that can't be")
	}
	return nil
}

// endedOwn checks the end of a call of one of OpenAI's own tools. What isn't completed says nothing of what to do.
func (l *responseLinter) endedOwn(item map[string]any) error {
	done := item["status"] == "completed"
	action, _ := item["action"].(map[string]any)
	ok := false
	switch item["type"] {
	case "local_shell_call":
		command, _ := action["command"].([]any)
		ok = action["type"] == "exec" && (!done || len(command) > 0)
	case "shell_call":
		commands, _ := action["commands"].([]any)
		ok = (!done || len(commands) > 0) && reflect.DeepEqual(commands, l.commands)
	case "apply_patch_call":
		operation, _ := item["operation"].(map[string]any)
		begun, _ := l.open["operation"].(map[string]any)
		diff, _ := operation["diff"].(string)
		ok = (begun["diff"] == "" || begun["type"] == "delete_file") && begun["type"] == operation["type"] &&
			begun["path"] == operation["path"] && diff == l.text && l.whole == (done && operation["type"] != "delete_file")
	}
	if !ok {
		return fmt.Errorf("it isn't what was told of it")
	}
	return nil
}

// ended checks the end of an item.
func (l *responseLinter) ended(v *responseEvent) error {
	if l.open == nil || v.Item["id"] != l.open["id"] || v.Item["type"] != l.open["type"] {
		return fmt.Errorf("it ends no open item")
	}
	kind := v.Item["type"].(string)
	own := kind == "local_shell_call" || kind == "shell_call" || kind == "apply_patch_call"
	if l.part || !l.whole && !own {
		return fmt.Errorf("its text or part isn't done")
	}
	cut := "incomplete"
	if kind == "apply_patch_call" { // for which OpenAI has no such word
		cut = "in_progress"
	}
	if s := v.Item["status"]; s != "completed" && s != cut {
		return fmt.Errorf("its status is %v", s)
	}
	if own {
		if err := l.endedOwn(v.Item); err != nil {
			return err
		}
		l.items, l.open = append(l.items, v.Item), nil
		return nil
	}
	var text any
	switch v.Item["type"] {
	case "function_call":
		text = v.Item["arguments"]
	case "custom_tool_call":
		text = v.Item["input"]
	default:
		parts, _ := v.Item["content"].([]any)
		if summary, ok := v.Item["summary"].([]any); ok && len(parts) == 0 {
			parts = summary
		}
		if len(parts) != 1 {
			return fmt.Errorf("%d parts", len(parts))
		}
		text = parts[0].(map[string]any)["text"]
	}
	if text != l.text {
		return fmt.Errorf("its text isn't the sum of its pieces %q", l.text)
	}
	l.items, l.open = append(l.items, v.Item), nil
	return nil
}
