package pipeline

import (
	"encoding/json"
	"math"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/fault"
)

// tokenBudget is what a worker publishes when it wants overlong requests refused before they reach it.
type tokenBudget struct {
	Limit          int64 `json:"combined_limit"`         // prompt and answer together
	RejectPrompt   bool  `json:"reject_prompt_overflow"` // refuse prompts that leave no room
	RejectCombined bool  `json:"reject_total_overflow"`  // refuse prompts whose max_tokens don't fit either
}

// fitBudget refuses a prompt that leaves no room to answer and, when the worker wants it so, an answer that may grow
// beyond the context. A completion without max_tokens gets the room that is left. Without a budget overlong requests
// are the worker's business.
func fitBudget(set *catalog.Set, q *worker.Request, path string, fill bool) error {
	// The worker's own JSON, parsed for each request: it is three members, and cards change.
	raw, ok := set.Card.RuntimeConfig.RuntimeData["token_budget"]
	if !ok {
		return nil
	}
	var b tokenBudget
	if err := json.Unmarshal(raw, &b); err != nil || b.Limit <= 0 {
		return nil // a budget that can't be read is none
	}
	// A completion that gets the room that is left needs some, whatever the worker wants refused.
	prompt := int64(len(q.TokenIDs))
	room := b.Limit - prompt
	if room <= 0 && (b.RejectPrompt || b.RejectCombined || fill && q.Stop.MaxTokens == nil) {
		return tooLong(path, b.Limit, prompt, 0)
	}
	if q.Stop.MaxTokens == nil {
		if fill {
			// room is positive here: the check above has refused all else.
			left := uint32(min(room, math.MaxUint32))
			q.Stop.MaxTokens = &left
		}
		return nil
	}
	if asked := int64(*q.Stop.MaxTokens); b.RejectCombined && asked > room {
		return tooLong(path, b.Limit, prompt, asked)
	}
	return nil
}

// tooLong is the failure of a request beyond the context, with OpenAI's code: clients shorten their history on seeing
// it. An answer of unknown length counts as one token.
func tooLong(path string, limit, prompt, asked int64) error {
	e := fault.Bad(path, "The model's context holds %d tokens, but the request needs %d (%d of the prompt, %d to "+
		"generate)", limit, prompt+max(asked, 1), prompt, max(asked, 1)).WithCode("context_length_exceeded")
	e.Details = map[string]any{
		"type": "context_length", "limit": limit, "prompt_tokens": prompt, "requested_tokens": asked,
	}
	return e
}
