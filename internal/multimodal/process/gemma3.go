package process

import (
	"errors"
	"fmt"

	"github.com/portico-llm/portico/internal/multimodal"
	"github.com/portico-llm/portico/internal/native"
)

// gemma3 resizes every image to one size. In the prompt an image is two newlines, a begin token, its embeddings, an end
// token, and two newlines.
type gemma3 struct {
	Height, Width, Resample, Embeds int

	Image, Begin, End uint32
	// Newlines are the tokens of one to four newlines: those around an image merge with the prompt's own.
	Newlines [4]uint32
}

// frame is how many tokens are before and behind the embeddings.
const frame = 2

// vocabulary looks up the tokens.
func (g *gemma3) vocabulary(config *modelConfig, tokenID func(string) (uint32, bool)) error {
	image, ok := config.imageToken()
	if !ok || config.BOITokenIndex == nil || config.EOITokenIndex == nil {
		return errors.New("config.json doesn't name the image tokens")
	}
	g.Image, g.Begin, g.End = image, *config.BOITokenIndex, *config.EOITokenIndex
	if tokenID == nil {
		return errors.New("newline tokens are looked up in a tokenizer, and there is none")
	}
	for i, text := range []string{"\n", "\n\n", "\n\n\n", "\n\n\n\n"} {
		if g.Newlines[i], ok = tokenID(text); !ok {
			return fmt.Errorf("the vocabulary has no token of %d newlines", i+1)
		}
	}
	return nil
}

func (g *gemma3) plan(_, _ int, s Settings) (geometry, error) {
	return geometry{
		steps: []native.ImageStep{step(s, g.Resample, g.Width, g.Height)},
		tensors: []multimodal.Tensor{
			{Name: "pixel_values", DType: s.DType, Shape: []int{1, 3, g.Height, g.Width}, Field: multimodal.Flat},
			{
				Name: "num_patches", DType: multimodal.Int64, Shape: []int{}, Field: multimodal.Batched, KeepOnCPU: true,
				Inline: int64s(1),
			},
		},
		tokens: g.Embeds + 2*frame, embeds: g.Embeds,
	}, nil
}

// sendable: what is missing has been found while the vocabulary was looked up.
func (g *gemma3) sendable() error { return nil }

// span is where an image's first and last token are in a prompt.
type span struct{ first, last int }

func (g *gemma3) expand(tokens []uint32, plans []*multimodal.Plan) (*multimodal.Expansion, error) {
	var (
		spans []span
		out   []uint32
	)
	for _, t := range tokens {
		if t != g.Begin {
			out = append(out, t)
			continue
		}
		first := len(out)
		out = append(out, g.Newlines[1], g.Begin)
		for range g.Embeds {
			out = append(out, g.Image)
		}
		out = append(out, g.End, g.Newlines[1])
		spans = append(spans, span{first, len(out) - 1})
	}
	if len(spans) != len(plans) {
		return nil, fmt.Errorf("the prompt has %d image tokens for %d images", len(spans), len(plans))
	}
	one, two, three, four := g.Newlines[0], g.Newlines[1], g.Newlines[2], g.Newlines[3]
	// In the engine's order, which matters where three newline tokens meet.
	for _, m := range [][3]uint32{{one, two, three}, {two, one, three}, {two, two, four}} {
		out = merge(out, spans, m[0], m[1], m[2])
	}
	e := &multimodal.Expansion{Tokens: out}
	for _, s := range spans {
		p := multimodal.Placeholder{Offset: s.first, Length: s.last - s.first + 1, IsEmbed: make([]bool, g.Embeds+2*frame)}
		for i := range g.Embeds {
			p.IsEmbed[frame+i] = true
		}
		e.Placeholders = append(e.Placeholders, p)
	}
	return e, checkPlaceholders(e, plans, g.Image)
}

// merge replaces each pair of tokens by one, from the left, and moves the spans along.
func merge(tokens []uint32, spans []span, a, b, merged uint32) []uint32 {
	out := tokens[:0]
	moved := make([]int, len(tokens)) // where each token has gone
	for i := 0; i < len(tokens); i++ {
		moved[i] = len(out)
		if i+1 < len(tokens) && tokens[i] == a && tokens[i+1] == b {
			moved[i+1] = len(out)
			out = append(out, merged)
			i++
			continue
		}
		out = append(out, tokens[i])
	}
	for i := range spans {
		spans[i] = span{moved[spans[i].first], moved[spans[i].last]}
	}
	return out
}
