package validate

import (
	"encoding/base64"
	"strconv"

	"github.com/portico-llm/portico/api/openai"
)

// minEmbeds is the least a base64 prompt_embeds has to decode to: smaller ones are no tensors.
const minEmbeds = 100

// prompt checks that there is something to continue.
func prompt(req *openai.CompletionRequest) error {
	// The tensor stands in for the prompt, which is then empty in most requests.
	if req.PromptEmbeds != nil {
		return embeds(*req.PromptEmbeds)
	}
	// An empty text would leave a worker nothing to start from.
	p := &req.Prompt
	if p.Len() == 0 {
		return refuse("prompt", "`prompt` must hold at least one prompt")
	}
	// Prompts are all texts or all ids, so one of the loops is empty. The first empty prompt is reported.
	for i, s := range p.Texts {
		if s == "" {
			return refuse(promptPath(p, i), "`%s` must not be empty", promptPath(p, i))
		}
	}
	for i, ids := range p.Tokens {
		if len(ids) == 0 {
			return refuse(promptPath(p, i), "`%s` must hold at least one token id", promptPath(p, i))
		}
	}
	return nil
}

// promptPath is the JSON path of prompt i.
func promptPath(p *openai.Prompt, i int) string {
	if p.Batch {
		return "prompt[" + strconv.Itoa(i) + "]"
	}
	return "prompt"
}

// embeds checks that prompt_embeds can be a tensor at all; only the worker knows its shape.
func embeds(text string) error {
	// The length is known without decoding.
	if n := base64.StdEncoding.DecodedLen(len(text)); n < minEmbeds {
		return refuse("prompt_embeds", "`prompt_embeds` must decode to at least %d bytes, not %d", minEmbeds, n)
	}
	// Decoded and thrown away: the worker gets the text as it came, and must not be the first to find it broken.
	if _, err := base64.StdEncoding.DecodeString(text); err != nil {
		return refuse("prompt_embeds", "`prompt_embeds` must be base64")
	}
	return nil
}

// bestOf checks that there are enough candidates to choose n from; 0 is the same as none.
func bestOf(req *openai.CompletionRequest) error {
	// 20 is OpenAI's bound.
	if err := within("best_of", req.BestOf, 0, 20); err != nil {
		return err
	}
	// Left out, n is 1.
	n := int64(1)
	if req.N != nil {
		n = *req.N
	}
	// Fewer candidates than answers can't be met.
	if req.BestOf != nil && *req.BestOf != 0 && *req.BestOf < n {
		return refuse("best_of", "`best_of` must be at least `n`, which is %d, not %d", n, *req.BestOf)
	}
	return nil
}
