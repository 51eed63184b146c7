// Package catalog holds the models being served. It follows discovery, builds what a model needs (card, template,
// tokenizer) when its first worker appears, and retires it after its last. Readers take an immutable snapshot.
package catalog

import (
	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/prepost"
)

// Set is a model at one endpoint: the workers there share one card. It is immutable; requests in flight may hold one
// after it has been retired.
type Set struct {
	Endpoint worker.EndpointID
	Card     *worker.Card
	MDCSum   string // identifies the card; workers with another card wait until this set has drained
	LoRA     string // adapter name, empty for base models

	// For model_input "Tokens"; nil when the worker takes the client's own request ("Text").
	Renderer  prepost.Renderer // nil when the model has no chat template
	Tokenizer prepost.Tokenizer
	EOS       []prepost.TokenID
}

// TakesText reports whether the set's workers take the client's request as it is and answer in the client's format.
func (s *Set) TakesText() bool { return s.Card.ModelInput == "Text" }
