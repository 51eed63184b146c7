package openai

// CompletionRequest is the body of POST /v1/completions. Nil is absent.
type CompletionRequest struct {
	Common

	Prompt       Prompt  `json:"prompt"`        // required unless PromptEmbeds is given
	PromptEmbeds *string `json:"prompt_embeds"` // base64; replaces the prompt
	Suffix       *string `json:"suffix"`        // accepted; workers have no use for it
	Echo         *bool   `json:"echo"`          // the text begins with the prompt
	BestOf       *int64  `json:"best_of"`       // candidates the worker chooses n from
	Logprobs     *int64  `json:"logprobs"`      // alternatives for each token; 0 still names the token drawn
	NoStopTrim   *bool   `json:"no_stop_trim"`  // keep matched stop strings and tokens in the text
}

// Prompt is one prompt or a batch of them, each as text or as token ids. Texts and Tokens are never both set.
type Prompt struct {
	Given  bool       // present and not null
	Batch  bool       // the client sent an array of prompts: [] is an empty batch
	Texts  []string   // one for each prompt, as sent
	Tokens [][]uint32 // ids of each prompt, not yet checked against a vocabulary
}

// Len returns the number of prompts.
func (p *Prompt) Len() int { return len(p.Texts) + len(p.Tokens) }
