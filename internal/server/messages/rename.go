package messages

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/portico-llm/portico/internal/fault"
)

// renames are fields of the chat request that have another name in the client's. Messages are renamed by where they
// come from.
var renames = []struct {
	chat *regexp.Regexp
	own  string
}{
	{regexp.MustCompile(`^stop(\[\d+\])?$`), "stop_sequences$1"},
	{regexp.MustCompile(`^(tools\[\d+\])\.function\.parameters$`), "$1.input_schema"},
	{regexp.MustCompile(`^(tools\[\d+\])\.function\.(\w+)$`), "$1.$2"},
	{regexp.MustCompile(`^tool_choice\.function\.name$`), "tool_choice.name"},
	{regexp.MustCompile(`^thinking_token_budget$`), "thinking.budget_tokens"},
	{regexp.MustCompile(`^reasoning_effort$`), "output_config.effort"},
	{regexp.MustCompile(`^response_format(\..*)?$`), "output_config.format"},
}

// messagePath is the path of a message of the chat request, or of something in it.
var messagePath = regexp.MustCompile(`^messages\[(\d+)\]`)

// Own returns err with the field that the client sent in place of the chat request's, also where the message names it.
// Errors that name no other field come back as they are.
func (c *Chat) Own(err error) error {
	f := fault.From(err)
	if f == nil || f.Param == "" {
		return err
	}
	own := c.ownPath(f.Param)
	if own == f.Param {
		return err
	}
	out := *f
	out.Param = own
	out.Message = strings.ReplaceAll(f.Message, "`"+f.Param+"`", "`"+own+"`")
	// Some messages name the list an item stands in.
	if list, _, ok := strings.Cut(f.Param, "["); ok && list == "stop" {
		out.Message = strings.ReplaceAll(out.Message, "`stop`", "`stop_sequences`")
	}
	return &out
}

// ownPath is the client's name of a field of the chat request.
func (c *Chat) ownPath(path string) string {
	if m := messagePath.FindStringSubmatch(path); m != nil {
		// What is inside a message is in another place of the client's blocks: the turn is as close as it gets.
		if i, err := strconv.Atoi(m[1]); err == nil && i < len(c.origins) {
			return c.origins[i]
		}
		return "messages"
	}
	for _, r := range renames {
		if r.chat.MatchString(path) {
			return r.chat.ReplaceAllString(path, r.own)
		}
	}
	return path
}
