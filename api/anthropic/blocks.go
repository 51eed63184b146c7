package anthropic

import (
	"slices"
	"strings"
)

// The blocks each place may hold, in the order in which failures list them.
var (
	userBlocks      = []string{BlockText, BlockImage, BlockDocument, BlockSearchResult, BlockToolResult}
	assistantBlocks = []string{BlockText, BlockThinking, BlockRedactedThinking, BlockToolUse}
	systemBlocks    = []string{BlockText}
	resultBlocks    = []string{BlockText, BlockImage, BlockDocument, BlockSearchResult, BlockToolReference}
)

// check looks at one turn.
func (m *Message) check(path string) error {
	var allowed []string
	switch m.Role {
	case "user":
		allowed = userBlocks
	case "assistant":
		allowed = assistantBlocks
	case "system": // no part of Anthropic's API, but of clients that know other ones
		allowed = systemBlocks
	case "":
		return missing(path+".role", "user or assistant")
	default:
		return refuse(path+".role", "`%s.role` must be user or assistant, not %q", path, clip(m.Role))
	}
	if !m.Content.Given {
		return missing(path+".content", "a string or an array of content blocks")
	}
	return m.Content.check(path+".content", allowed)
}

// check looks at the blocks of a content.
func (c *Content) check(path string, allowed []string) error {
	for i := range c.Blocks {
		if err := c.Blocks[i].check(path+index(i), allowed); err != nil {
			return err
		}
	}
	return nil
}

// check looks at one block: its type, and what that type promises.
func (b *Block) check(path string, allowed []string) error {
	if !slices.Contains(allowed, b.Type) {
		return refuse(path+".type", "`%s.type` must be %s here, not %q", path, strings.Join(allowed, ", "), clip(b.Type))
	}
	switch b.Type {
	case BlockText:
		if b.Text == nil {
			return missing(path+".text", "a string")
		}
	case BlockThinking:
		if b.Thinking == nil {
			return missing(path+".thinking", "a string")
		}
	case BlockImage, BlockDocument:
		return b.checkSource(path + ".source")
	case BlockToolReference:
		if b.ToolName == "" {
			return missing(path+".tool_name", "the name of a tool")
		}
	case BlockSearchResult:
		return b.Content.check(path+".content", systemBlocks)
	case BlockToolUse:
		switch {
		case b.ID == "":
			return missing(path+".id", "the id of the use")
		case b.Name == "":
			return missing(path+".name", "the name of a tool")
		}
		return object(path+".input", b.Input)
	case BlockToolResult:
		if b.ToolUseID == "" {
			return missing(path+".tool_use_id", "the id of a tool_use block")
		}
		return b.Content.check(path+".content", resultBlocks)
	}
	return nil
}

// checkSource looks at where an image or a document is.
func (b *Block) checkSource(path string) error {
	s := b.Source
	if s == nil {
		return missing(path, "an object")
	}
	kinds := []string{"base64", "url"}
	if b.Type == BlockDocument { // nothing here reads PDF
		kinds = []string{"text", "content"}
	}
	switch {
	case !slices.Contains(kinds, s.Type):
		return refuse(path+".type", "`%s.type` must be %s for a block of type %s, not %q",
			path, strings.Join(kinds, " or "), b.Type, clip(s.Type))
	case s.Type == "url" && s.URL == "":
		return missing(path+".url", "a URL")
	case s.Type == "base64" && s.MediaType == "":
		return missing(path+".media_type", "a media type such as image/png")
	case s.Type == "base64" && s.Data == "":
		return missing(path+".data", "the image in base64")
	case s.Type == "content":
		return s.Content.check(path+".content", systemBlocks)
	}
	return nil
}
