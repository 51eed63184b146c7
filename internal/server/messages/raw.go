package messages

import (
	"encoding/json"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/prepost"
)

// rawChunk is a chunk of a worker that speaks OpenAI's chat format itself, as far as a message shows it.
type rawChunk struct {
	Choices []struct {
		Delta   *rawDelta `json:"delta"`
		Message *rawDelta `json:"message"` // a whole answer in one piece
		Finish  *string   `json:"finish_reason"`
		Stop    any       `json:"stop_reason"` // vLLM's: a string, a token id or null
	} `json:"choices"`
	Usage *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Details    *struct {
			Cached *int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
}

// rawDelta is what a chunk adds. Thoughts go by two names.
type rawDelta struct {
	Content   string `json:"content"`
	Reasoning string `json:"reasoning"`
	Thought   string `json:"reasoning_content"`
	Calls     []struct {
		Index    int    `json:"index"`
		ID       string `json:"id"`
		Function struct {
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls"`
}

// errRawChunk is the failure of a worker that speaks some other format. Because makes copies of it.
var errRawChunk = fault.New(fault.BadGateway, "The worker's answer could not be read")

// addRaw adds one chunk.
func (a *answer) addRaw(raw []byte) error {
	var c rawChunk
	if err := json.Unmarshal(raw, &c); err != nil {
		return errRawChunk.Because(err)
	}
	if u := c.Usage; u != nil {
		report := worker.Usage{PromptTokens: u.Prompt}
		if u.Details != nil {
			report.CachedTokens = u.Details.Cached
		}
		a.usage(&report)
		a.output = u.Completion
	}
	if len(c.Choices) == 0 {
		return nil
	}
	// A message is one answer: no other choice was asked for.
	first := &c.Choices[0]
	for _, d := range []*rawDelta{first.Delta, first.Message} {
		if d != nil {
			a.addDelta(d)
		}
	}
	if first.Finish != nil {
		switch *first.Finish {
		case "length":
			a.finish = worker.FinishLength
		case "content_filter":
			a.finish = worker.FinishContentFilter
		default: // stop, tool_calls
			a.finish = worker.FinishStop
		}
		if text, ok := first.Stop.(string); ok {
			a.stop = worker.StopReason{Kind: worker.StopString, Text: text}
		}
	}
	return nil
}

// addDelta adds what a chunk holds, in the order in which models write.
func (a *answer) addDelta(d *rawDelta) {
	thought := d.Thought
	if thought == "" {
		thought = d.Reasoning
	}
	for _, p := range []prepost.Piece{{Kind: prepost.Reasoning, Text: thought}, {Kind: prepost.Content, Text: d.Content}} {
		if p.Text != "" {
			a.blocks.push(&p)
		}
	}
	for _, c := range d.Calls {
		a.blocks.push(&prepost.Piece{
			Kind: prepost.ToolCall, Call: c.Index, ID: c.ID, Name: c.Function.Name, Text: c.Function.Arguments})
	}
}
