package testkit

import (
	"encoding/json"
	"fmt"
	"slices"
)

// messageEvent is one event of a Messages stream, as far as the rules reach.
type messageEvent struct {
	Type    string `json:"type"`
	Index   *int   `json:"index"`
	Message *struct {
		ID      string            `json:"id"`
		Role    string            `json:"role"`
		Content []json.RawMessage `json:"content"`
		Usage   *struct {
			Input *int `json:"input_tokens"`
		} `json:"usage"`
	} `json:"message"`
	Block *struct {
		Type string  `json:"type"`
		ID   string  `json:"id"`
		Name string  `json:"name"`
		Text *string `json:"text"`
	} `json:"content_block"`
	Delta *struct {
		Type       string  `json:"type"`
		Thinking   *string `json:"thinking"`
		StopReason *string `json:"stop_reason"`
	} `json:"delta"`
	Error *struct {
		Type, Message string
	} `json:"error"`
	Usage *struct {
		Input  *int `json:"input_tokens"`
		Output *int `json:"output_tokens"`
	} `json:"usage"`
}

// deltaTypes are the deltas that each type of block may have.
var deltaTypes = map[string][]string{
	"text":     {"text_delta"},
	"thinking": {"thinking_delta", "signature_delta"},
	"tool_use": {"input_json_delta"},
}

// messageLint is where a stream stands.
type messageLint struct {
	begun, told, ended bool // message_start, message_delta, message_stop or error seen
	open               string
	blocks             int
	sealed             bool // the open thought has its signature
}

// LintMessages checks a stream of Anthropic's events against the rules that its clients rely on: one message_start, and
// it is first; blocks one after the other with dense indices, each begun, filled with its own kind of delta and
// stopped; then message_delta and message_stop, or an error and nothing more.
func LintMessages(body []byte) error { return lintMessages(body, true) }

// lintMessages checks a whole stream, or the beginning of one.
func lintMessages(body []byte, whole bool) error {
	events, err := Events(body)
	if err != nil {
		return err
	}
	var l messageLint
	for _, e := range events {
		if e.Name == "" && e.Data == "" { // a comment
			continue
		}
		var m messageEvent
		if err := json.Unmarshal([]byte(e.Data), &m); err != nil {
			return fmt.Errorf("data that is no JSON: %q: %w", e.Data, err)
		}
		if m.Type != e.Name {
			return fmt.Errorf("event %q has data of type %q", e.Name, m.Type)
		}
		if err := l.event(&m); err != nil {
			return fmt.Errorf("%w: %s", err, e.Data)
		}
	}
	if whole && !l.ended {
		return fmt.Errorf("the stream ends without message_stop or error")
	}
	return nil
}

// event checks the next event.
func (l *messageLint) event(m *messageEvent) error {
	switch {
	case l.ended:
		return fmt.Errorf("an event after the last")
	case m.Type == "ping":
		return nil
	case m.Type == "error":
		l.ended = true
		if m.Error == nil || m.Error.Type == "" || m.Error.Message == "" {
			return fmt.Errorf("an error that says nothing")
		}
		return nil
	case m.Type == "message_start":
		if l.begun || m.Message == nil || m.Message.ID == "" || m.Message.Role != "assistant" || len(m.Message.Content) != 0 {
			return fmt.Errorf("a second or broken message_start")
		}
		if m.Message.Usage == nil || m.Message.Usage.Input == nil { // clients show it from here on
			return fmt.Errorf("a message_start without the length of the prompt")
		}
		l.begun = true
		return nil
	case !l.begun:
		return fmt.Errorf("an event ahead of message_start")
	case m.Type == "message_delta":
		if l.open != "" || l.told || m.Delta == nil || m.Delta.StopReason == nil || m.Usage == nil || m.Usage.Output == nil {
			return fmt.Errorf("a message_delta inside a block, a second one, or one without reason or usage")
		}
		l.told = true
		return nil
	case m.Type == "message_stop":
		if !l.told {
			return fmt.Errorf("message_stop ahead of message_delta")
		}
		l.ended = true
		return nil
	}
	return l.block(m)
}

// block checks an event of a block.
func (l *messageLint) block(m *messageEvent) error {
	if l.told || m.Index == nil {
		return fmt.Errorf("an event of a block without index, or after message_delta")
	}
	switch m.Type {
	case "content_block_start":
		if l.open != "" || m.Block == nil || *m.Index != l.blocks || deltaTypes[m.Block.Type] == nil {
			return fmt.Errorf("a block that begins inside another, of an unknown type, or with a gap in the indices")
		}
		if m.Block.Type == "tool_use" && (m.Block.ID == "" || m.Block.Name == "") {
			return fmt.Errorf("a use of a tool without id or name")
		}
		l.open, l.sealed = m.Block.Type, false
		l.blocks++
	case "content_block_delta":
		if l.open == "" || *m.Index != l.blocks-1 || m.Delta == nil || !slices.Contains(deltaTypes[l.open], m.Delta.Type) || l.sealed {
			return fmt.Errorf("a delta outside of its block")
		}
		l.sealed = m.Delta.Type == "signature_delta"
	case "content_block_stop":
		if l.open == "" || *m.Index != l.blocks-1 || l.open == "thinking" && !l.sealed {
			return fmt.Errorf("a stop outside of a block, or of a thought without signature")
		}
		l.open = ""
	default:
		return fmt.Errorf("an unknown event")
	}
	return nil
}
