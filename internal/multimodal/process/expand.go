package process

import (
	"errors"
	"fmt"

	"github.com/portico-llm/portico/internal/multimodal"
)

// splice puts as many image tokens in the place of each as its image needs.
func splice(tokens []uint32, plans []*multimodal.Plan, image uint32, known bool) (*multimodal.Expansion, error) {
	if !known {
		return nil, errors.New("config.json doesn't name the image token")
	}
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
			n := plans[seen].Tokens
			e.Placeholders = append(e.Placeholders, multimodal.Placeholder{Offset: len(e.Tokens), Length: n})
			for range n {
				e.Tokens = append(e.Tokens, image)
			}
		}
		seen++
	}
	if seen != len(plans) {
		return nil, fmt.Errorf("the prompt has %d image tokens for %d images", seen, len(plans))
	}
	return e, checkPlaceholders(e, plans, image)
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
