package pipeline

import (
	"context"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/prepost"
)

// CountChat returns how many tokens the prompt of a validated chat request has. Nothing is sent, and nothing is counted
// in the metrics of what was. Failures are those of PrepareChat.
func (p *Pipeline) CountChat(ctx context.Context, set *catalog.Set, req *openai.ChatRequest) (int, error) {
	if err := tokenizes(set, req.Model); err != nil {
		return 0, err
	}
	ids, _, err := p.chatTokens(ctx, newPrepared(set, Meta{}, &req.Common), req)
	return len(ids), err
}

// TokenizeChat returns the tokens of the prompt of a validated chat request, with the model's own around it when they are
// asked for: templates write those themselves. Otherwise it is as CountChat.
func (p *Pipeline) TokenizeChat(
	ctx context.Context, set *catalog.Set, req *openai.ChatRequest, addSpecial bool,
) ([]prepost.TokenID, error) {
	if err := tokenizes(set, req.Model); err != nil {
		return nil, err
	}
	prompt, err := p.render(ctx, set, req)
	if err != nil {
		return nil, err
	}
	return set.Tokenizer.Encode(ctx, prompt, addSpecial)
}

// Tokenize returns the tokens of a text.
func (p *Pipeline) Tokenize(
	ctx context.Context, set *catalog.Set, model, text string, addSpecial bool,
) ([]prepost.TokenID, error) {
	if err := tokenizes(set, model); err != nil {
		return nil, err
	}
	return set.Tokenizer.Encode(ctx, text, addSpecial)
}

// Detokenize returns the text of tokens, special ones included, and refuses those that the model doesn't have.
func (p *Pipeline) Detokenize(set *catalog.Set, model string, ids []prepost.TokenID) (string, error) {
	if err := tokenizes(set, model); err != nil {
		return "", err
	}
	if err := checkTokens(set.Tokenizer, ids, "tokens"); err != nil {
		return "", err
	}
	return set.Tokenizer.Decode(ids, false)
}

// tokenizes refuses models whose tokenizer is the workers' business.
func tokenizes(set *catalog.Set, model string) error {
	if set.TakesText() || set.Tokenizer == nil {
		return fault.New(fault.NotImplemented,
			"The workers of model %q tokenise for themselves; its prompts can't be counted", model)
	}
	return nil
}
