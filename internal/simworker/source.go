package simworker

import (
	"math/rand/v2"

	"github.com/portico-llm/portico/api/worker"
)

// Source makes the tokens of answers. Safe for concurrent use.
type Source interface {
	// Tokens returns a function that gives the tokens of one choice in order; false is the natural end of the answer.
	// The function is for one goroutine, and after false it isn't called again. r belongs to the choice.
	Tokens(req *worker.Request, choice int, r *rand.Rand) func() (id uint32, ok bool)
}

// Text answers with prepared passages, one chosen by the prompt: equal prompts have equal answers. After the passage
// comes the natural end.
type Text struct {
	Passages [][]uint32
}

// NewText encodes passages with encode, which any tokenizer of the model provides; Vocabulary.Encode is one.
func NewText(encode func(text string) ([]uint32, error), passages ...string) (*Text, error) {
	if len(passages) == 0 {
		passages = defaultPassages
	}
	t := &Text{}
	for _, p := range passages {
		ids, err := encode(p)
		if err != nil {
			return nil, err
		}
		t.Passages = append(t.Passages, ids)
	}
	return t, nil
}

// defaultPassages say what they are: whoever tries the service without a model shall not take them for one's answers.
var defaultPassages = []string{
	"Hello! You are talking to a simulated worker, so these words were chosen beforehand. Your request itself made the " +
		"whole journey: it was checked, rendered, tokenised, sent to this worker and streamed back to you.",
	"This answer comes from a simulated worker that speaks the real worker protocol. Put a real engine in its place " +
		"and the same request will be answered by a model.",
	"Everything works: the server took your prompt, turned it into tokens and found this worker. The worker has no " +
		"model to think with, so it sends this friendly text instead.",
}

// Tokens implements Source.
func (t *Text) Tokens(req *worker.Request, choice int, _ *rand.Rand) func() (uint32, bool) {
	passage := t.Passages[(promptHash(req.TokenIDs)+uint64(choice))%uint64(len(t.Passages))]
	i := 0
	return func() (uint32, bool) {
		if i == len(passage) {
			return 0, false
		}
		i++
		return passage[i-1], true
	}
}

// Echo answers with the prompt's own tokens, those of the chat template included.
type Echo struct{}

// Tokens implements Source.
func (Echo) Tokens(req *worker.Request, _ int, _ *rand.Rand) func() (uint32, bool) {
	i := 0
	return func() (uint32, bool) {
		if i == len(req.TokenIDs) {
			return 0, false
		}
		i++
		return req.TokenIDs[i-1], true
	}
}

// Random answers with tokens drawn evenly from IDs and never ends by itself, unless IDs is empty: then it ends at once.
type Random struct{ IDs []uint32 }

// Tokens implements Source.
func (s Random) Tokens(_ *worker.Request, _ int, r *rand.Rand) func() (uint32, bool) {
	return func() (uint32, bool) {
		if len(s.IDs) == 0 {
			return 0, false
		}
		return s.IDs[r.IntN(len(s.IDs))], true
	}
}

// Walk answers with tokens of IDs, each of which follows from all tokens before it, prompt included, as a model's does
// at temperature 0: a request that goes on at another worker, with its answer so far as part of the prompt, gets the
// rest of the same answer. It never ends by itself, unless IDs is empty: then it ends at once.
type Walk struct{ IDs []uint32 }

// Tokens implements Source.
func (s Walk) Tokens(req *worker.Request, choice int, _ *rand.Rand) func() (uint32, bool) {
	// The choice is part of the start, so that choices differ; the first is the one that can be continued.
	h := promptHash(req.TokenIDs) + uint64(choice)
	return func() (uint32, bool) {
		if len(s.IDs) == 0 {
			return 0, false
		}
		// The high bits: the low ones of this hash depend on few of the bytes.
		id := s.IDs[(h>>32)%uint64(len(s.IDs))]
		h = addHash(h, id)
		return id, true
	}
}

// promptHash is what stands for a prompt where something is chosen by it. It is the same on every machine and in every
// run, so that the worker that answers makes no difference.
func promptHash(ids []uint32) uint64 {
	h := uint64(fnvOffset)
	for _, id := range ids {
		h = addHash(h, id)
	}
	return h
}

// The constants of FNV-1a with 64 bits, which is written out here since the standard library's can't go on from a sum.
const (
	fnvOffset = 14695981039346656037
	fnvPrime  = 1099511628211
)

// addHash returns the hash of a prompt with one more token, given that of the prompt.
func addHash(h uint64, id uint32) uint64 {
	for shift := 0; shift < 32; shift += 8 {
		h = (h ^ uint64(byte(id>>shift))) * fnvPrime
	}
	return h
}
