package process

import (
	"math"

	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/multimodal"
	"github.com/portico-llm/portico/internal/native"
)

// qwen resizes an image to whole patches within a range of pixels, and takes it apart into patches.
type qwen struct {
	Patch, Merge, Frames, MinPixels, MaxPixels, Resample int
	Token                                                uint32
	HasToken                                             bool
}

// maxAspect is the most that one edge may be of the other: the reference refuses what is beyond.
const maxAspect = 200

// maxEdge bounds what an edge may become by resizing.
const maxEdge = 1 << 19

func errTooLong(width, height int) error {
	return fault.Bad("", "is too long for its other side: it has %d x %d pixels", width, height)
}

// size returns the size that is closest to the image's, in whole groups of patches.
func (q *qwen) size(width, height int) (w, h int, err error) {
	if max(width, height) > maxAspect*min(width, height) {
		return 0, 0, fault.Bad("", "is too long with %d x %d pixels: one side may be at most %d times the other",
			width, height, maxAspect)
	}
	factor := float64(q.Patch * q.Merge)
	fw, fh := float64(width), float64(height)
	round := func(v float64) int { return int(math.RoundToEven(v/factor)) * q.Patch * q.Merge }
	w, h = round(fw), round(fh)
	switch {
	case w*h > q.MaxPixels:
		beta := math.Sqrt(fw * fh / float64(q.MaxPixels))
		down := func(v float64) int { return max(1, int(math.Floor(v/beta/factor))) * q.Patch * q.Merge }
		w, h = down(fw), down(fh)
	case w*h < q.MinPixels:
		beta := math.Sqrt(float64(q.MinPixels) / (fw * fh))
		up := func(v float64) int { return int(math.Ceil(v*beta/factor)) * q.Patch * q.Merge }
		w, h = up(fw), up(fh)
	}
	if !positive(w, h) || max(w, h) > maxEdge {
		return 0, 0, errTooLong(width, height)
	}
	return w, h, nil
}

func (q *qwen) plan(width, height int, s Settings) (geometry, error) {
	w, h, err := q.size(width, height)
	if err != nil {
		return geometry{}, err
	}
	cut := step(s, q.Resample, w, h)
	cut.Layout, cut.Side, cut.Merge, cut.Frames = native.Patches, q.Patch, q.Merge, q.Frames
	grid := [3]int{1, h / q.Patch, w / q.Patch}
	rows := grid[1] * grid[2]
	tokens := rows / (q.Merge * q.Merge)
	return geometry{
		steps: []native.ImageStep{cut},
		tensors: []multimodal.Tensor{
			{Name: "pixel_values", DType: s.DType, Shape: []int{rows, 3 * q.Frames * q.Patch * q.Patch}, Field: multimodal.Flat},
			{
				Name: "image_grid_thw", DType: multimodal.Int64, Shape: []int{3}, Field: multimodal.Batched, KeepOnCPU: true,
				Inline: int64s(grid[0], grid[1], grid[2]),
			},
		},
		tokens: tokens, embeds: tokens, grid: grid,
	}, nil
}

func (q *qwen) sendable() error {
	if !q.HasToken {
		return errNoToken
	}
	return nil
}

func (q *qwen) expand(tokens []uint32, plans []*multimodal.Plan) (*multimodal.Expansion, error) {
	return splice(tokens, plans, q.Token, q.HasToken)
}
