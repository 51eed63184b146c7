package process

import (
	"errors"
	"fmt"
	"slices"

	"github.com/portico-llm/portico/internal/multimodal"
)

// errNoToken says that a model's placeholder isn't known.
var errNoToken = errors.New("config.json doesn't name the image token")

// splice puts as many image tokens in the place of each as its image needs.
func splice(tokens []uint32, plans []*multimodal.Plan, image uint32, known bool) (*multimodal.Expansion, error) {
	if !known {
		return nil, errNoToken
	}
	return spliceWith(tokens, plans, image, func(dst []uint32, p *multimodal.Plan) []uint32 {
		return appendRun(dst, image, p.Tokens)
	})
}

// spliceWith puts what its image needs in the place of each image token. Embeddings replace the image tokens among it.
func spliceWith(tokens []uint32, plans []*multimodal.Plan, image uint32,
	put func(dst []uint32, p *multimodal.Plan) []uint32) (*multimodal.Expansion, error) {
	size := len(tokens)
	for _, p := range plans {
		size += p.Tokens
	}
	e := &multimodal.Expansion{Tokens: make([]uint32, 0, size)}
	seen := 0
	for _, t := range tokens {
		if t != image {
			e.Tokens = append(e.Tokens, t)
			continue
		}
		if seen < len(plans) {
			at := len(e.Tokens)
			e.Tokens = put(e.Tokens, plans[seen])
			e.Placeholders = append(e.Placeholders, multimodal.Placeholder{
				Offset: at, Length: len(e.Tokens) - at, IsEmbed: mask(e.Tokens[at:], image),
			})
		}
		seen++
	}
	if seen != len(plans) {
		return nil, fmt.Errorf("the prompt has %d image tokens for %d images", seen, len(plans))
	}
	return e, checkPlaceholders(e, plans, image)
}

// appendRun appends a token n times.
func appendRun(dst []uint32, token uint32, n int) []uint32 {
	for range n {
		dst = append(dst, token)
	}
	return dst
}

// mask tells the image tokens from what frames them; nil: nothing does.
func mask(tokens []uint32, image uint32) []bool {
	if !slices.ContainsFunc(tokens, func(t uint32) bool { return t != image }) {
		return nil
	}
	out := make([]bool, len(tokens))
	for i, t := range tokens {
		out[i] = t == image
	}
	return out
}

// checkPlaceholders refuses what an engine wouldn't notice, and answer with a wrong text, or die of.
func checkPlaceholders(e *multimodal.Expansion, plans []*multimodal.Plan, image uint32) error {
	if len(e.Placeholders) != len(plans) {
		return fmt.Errorf("%d placeholders for %d images", len(e.Placeholders), len(plans))
	}
	for i, p := range e.Placeholders {
		embeds := 0
		if p.Offset < 0 || p.Offset+p.Length > len(e.Tokens) || p.Length != plans[i].Tokens {
			return fmt.Errorf("placeholder %d is at %d, %d long, in a prompt of %d", i, p.Offset, p.Length, len(e.Tokens))
		}
		if p.IsEmbed != nil && len(p.IsEmbed) != p.Length {
			return fmt.Errorf("placeholder %d has a mask of %d for %d tokens", i, len(p.IsEmbed), p.Length)
		}
		for k, t := range e.Tokens[p.Offset : p.Offset+p.Length] {
			if p.IsEmbed == nil || p.IsEmbed[k] {
				embeds++
				if t != image {
					return fmt.Errorf("placeholder %d covers token %d", i, t)
				}
			}
		}
		if embeds != plans[i].Embeds {
			return fmt.Errorf("placeholder %d takes %d embeddings of %d", i, embeds, plans[i].Embeds)
		}
	}
	return nil
}
