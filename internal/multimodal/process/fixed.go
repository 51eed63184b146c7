package process

import (
	"encoding/binary"
	"errors"

	"github.com/portico-llm/portico/internal/multimodal"
	"github.com/portico-llm/portico/internal/native"
)

// errUnchecked is the answer of families whose items haven't been compared with an engine's.
var errUnchecked = errors.New("items of this kind of model haven't been compared with the engine's own, so they aren't sent")

// unchecked is part of such families.
type unchecked struct{}

func (unchecked) expand([]uint32, []*multimodal.Plan) (*multimodal.Expansion, error) {
	return nil, errUnchecked
}

// int64s returns the bytes of numbers.
func int64s(numbers ...int) []byte {
	var b []byte
	for _, n := range numbers {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	return b
}

// step is a step with what all have in common.
func step(s Settings, resample, width, height int) native.ImageStep {
	return native.ImageStep{
		Filter: native.ImageFilter(resample), Rule: s.Backend.rule(), Width: width, Height: height, Element: s.DType.Size(),
		Layout: native.Tiles, CanvasWidth: width, CanvasHeight: height, TileWidth: width, TileHeight: height,
	}
}

// fixed resizes every image to one size, whatever its shape.
type fixed struct {
	unchecked
	Height, Width, Resample int
	Patch                   int // of the vision tower
}

func (f *fixed) plan(_, _ int, s Settings) (geometry, error) {
	tokens := (f.Height / f.Patch) * (f.Width / f.Patch)
	return geometry{
		steps: []native.ImageStep{step(s, f.Resample, f.Width, f.Height)},
		tensors: []multimodal.Tensor{
			{Name: "pixel_values", DType: s.DType, Shape: []int{3, f.Height, f.Width}, Field: multimodal.Batched},
		},
		tokens: tokens, embeds: tokens,
	}, nil
}

// llava brings the shorter edge to a length and cuts a square out of the middle.
type llava struct {
	Edge, CropHeight, CropWidth, Resample int
	Tokens                                int // for every image
	Token                                 uint32
	HasToken                              bool
}

func (l *llava) plan(width, height int, s Settings) (geometry, error) {
	w, h := l.Edge, l.Edge
	if width <= height {
		h = l.Edge * height / width
	} else {
		w = l.Edge * width / height
	}
	if max(w, h) > maxEdge {
		return geometry{}, errTooLong(width, height)
	}
	cut := step(s, l.Resample, w, h)
	cut.CanvasWidth, cut.CanvasHeight, cut.TileWidth, cut.TileHeight = l.CropWidth, l.CropHeight, l.CropWidth, l.CropHeight
	cut.Left, cut.Top = -floorHalf(w-l.CropWidth), -floorHalf(h-l.CropHeight)
	return geometry{
		steps: []native.ImageStep{cut},
		tensors: []multimodal.Tensor{
			{Name: "pixel_values", DType: s.DType, Shape: []int{3, l.CropHeight, l.CropWidth}, Field: multimodal.Batched},
		},
		tokens: l.Tokens, embeds: l.Tokens,
	}, nil
}

func (l *llava) expand(tokens []uint32, plans []*multimodal.Plan) (*multimodal.Expansion, error) {
	return splice(tokens, plans, l.Token, l.HasToken)
}

// floorHalf is half of n, rounded down.
func floorHalf(n int) int { return n >> 1 }
