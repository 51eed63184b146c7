package messages

import (
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/portico-llm/portico/api/anthropic"
)

// conversation gathers the messages of a chat request.
type conversation struct {
	messages []chatMessage
	origins  []string // where each comes from, as a JSON path of the client's request
}

// add adds a message.
func (w *conversation) add(origin string, m chatMessage) {
	w.messages = append(w.messages, m)
	w.origins = append(w.origins, origin)
}

// preamble begins the line that Claude Code puts ahead of its system prompt.
const preamble = "x-anthropic-billing-header"

// system makes one message of all instructions that a conversation begins with, those that stand among its first turns
// included: many templates take one system message, and only ahead of all others.
func (w *conversation) system(req *anthropic.Request, begins int, keepPreamble bool) {
	texts := textsOf(nil, &req.System)
	for i := range req.Messages[:begins] {
		if m := &req.Messages[i]; m.Role == "system" {
			texts = textsOf(texts, &m.Content)
		}
	}
	kept := texts[:0]
	for i, t := range texts {
		if i == 0 && !keepPreamble && strings.HasPrefix(t, preamble) {
			// The rest of the line is a version and numbers that mean nothing to a model.
			_, t, _ = strings.Cut(t, "\n")
			t = strings.TrimLeft(t, "\n")
		}
		if t != "" {
			kept = append(kept, t)
		}
	}
	if len(kept) > 0 {
		w.add("system", chatMessage{Role: "system", Content: strings.Join(kept, "\n")})
	}
}

// textsOf appends the texts of a content that holds nothing else.
func textsOf(texts []string, c *anthropic.Content) []string {
	if c.Plain {
		texts = append(texts, c.Text)
	}
	for i := range c.Blocks {
		texts = append(texts, *c.Blocks[i].Text)
	}
	return texts
}

// turn translates one turn: the assistant's into one message, a user's into the results it brings and the rest.
func (w *conversation) turn(m *anthropic.Message, i int) error {
	origin := "messages[" + strconv.Itoa(i) + "]"
	switch {
	case m.Content.Plain:
		w.add(origin, chatMessage{Role: m.Role, Content: m.Content.Text})
	case m.Role == "assistant":
		return w.assistant(origin, m.Content.Blocks)
	default:
		w.user(origin, m)
	}
	return nil
}

// assistant joins the blocks of an assistant's turn. Its content is a string even when there is none: many templates
// take nothing else.
func (w *conversation) assistant(origin string, blocks []anthropic.Block) error {
	out := chatMessage{Role: "assistant"}
	var text, thought strings.Builder
	for i := range blocks {
		switch b := &blocks[i]; b.Type {
		case anthropic.BlockText:
			text.WriteString(*b.Text)
		case anthropic.BlockThinking:
			thought.WriteString(*b.Thinking)
		case anthropic.BlockToolUse:
			input := jsontext.Value("{}")
			if v := given(b.Input); len(v) > 0 {
				input = v.Clone()
				// In one form, whatever client sends it: a worker's cache knows the prompt again.
				if err := input.Compact(lenient); err != nil {
					return err
				}
			}
			out.ToolCalls = append(out.ToolCalls, chatCall{b.ID, "function", chatFunction{b.Name, string(input)}})
		}
	}
	out.Content, out.Reasoning = text.String(), thought.String()
	w.add(origin, out)
	return nil
}

// user splits a user's turn: results are messages of their own, and stand right behind the calls they belong to.
// Images that came with a result follow with the user's own words, since no chat API has them in a result.
func (w *conversation) user(origin string, m *anthropic.Message) {
	var parts []chatPart
	results := 0
	for i := range m.Content.Blocks {
		b := &m.Content.Blocks[i]
		if b.Type != anthropic.BlockToolResult {
			continue
		}
		results++
		text, images := resultOf(b)
		w.add(origin, chatMessage{Role: "tool", Content: text, ToolCallID: b.ToolUseID})
		parts = append(parts, images...)
	}
	for i := range m.Content.Blocks {
		if b := &m.Content.Blocks[i]; b.Type != anthropic.BlockToolResult {
			parts = append(parts, partOf(b))
		}
	}
	if len(parts) > 0 || results == 0 { // an empty turn is still one
		w.add(origin, chatMessage{Role: m.Role, Content: contentOf(parts)})
	}
}

// contentOf is a string where there is nothing but text, which templates take whatever else they know.
func contentOf(parts []chatPart) any {
	var text strings.Builder
	for i := range parts {
		if parts[i].Text == nil {
			return parts
		}
		text.WriteString(*parts[i].Text)
	}
	return text.String()
}

// resultOf is the text and the images of a tool's result.
func resultOf(b *anthropic.Block) (string, []chatPart) {
	var texts []string
	var images []chatPart
	if b.Content.Plain {
		texts = append(texts, b.Content.Text)
	}
	for i := range b.Content.Blocks {
		if p := partOf(&b.Content.Blocks[i]); p.Image != nil {
			images = append(images, p)
		} else {
			texts = append(texts, *p.Text)
		}
	}
	text := strings.Join(texts, "\n")
	if text == "" && b.IsError { // all that is known of it
		text = "Error"
	}
	return text, images
}

// partOf is the content part that stands for a block of a user's turn or of a result.
func partOf(b *anthropic.Block) chatPart {
	switch b.Type {
	case anthropic.BlockImage:
		url := b.Source.URL
		if b.Source.Type == "base64" {
			url = "data:" + b.Source.MediaType + ";base64," + b.Source.Data
		}
		return chatPart{Type: "image_url", Image: &chatImage{url}}
	case anthropic.BlockDocument:
		return textPart(b.Title, b.Context, b.Source.Data, joined(&b.Source.Content))
	case anthropic.BlockToolReference:
		return textPart(b.ToolName)
	case anthropic.BlockSearchResult:
		return textPart(b.Title, joined(&b.Content))
	}
	return chatPart{Type: "text", Text: b.Text}
}

// textPart is a text of the given ones, each on lines of its own.
func textPart(texts ...string) chatPart {
	var all []string
	for _, t := range texts {
		if t != "" {
			all = append(all, t)
		}
	}
	text := strings.Join(all, "\n")
	return chatPart{Type: "text", Text: &text}
}

// joined is the text of a content that holds nothing else.
func joined(c *anthropic.Content) string {
	return strings.Join(textsOf(nil, c), "")
}
