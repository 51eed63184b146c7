package process

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/portico-llm/portico/internal/multimodal"
	"github.com/portico-llm/portico/internal/native"
)

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
	Height, Width, Resample int
	Tokens                  int // for every image
	Token                   uint32
	HasToken                bool
	Tower                   tower
}

func (f *fixed) sendable() error {
	if !f.HasToken {
		return errNoToken
	}
	return f.Tower.takes(f.Width, f.Height)
}

func (f *fixed) expand(tokens []uint32, plans []*multimodal.Plan) (*multimodal.Expansion, error) {
	return splice(tokens, plans, f.Token, f.HasToken)
}

func (f *fixed) plan(_, _ int, s Settings) (geometry, error) {
	return geometry{
		steps: []native.ImageStep{step(s, f.Resample, f.Width, f.Height)},
		tensors: []multimodal.Tensor{
			{Name: "pixel_values", DType: s.DType, Shape: []int{3, f.Height, f.Width}, Field: multimodal.Batched},
		},
		tokens: f.Tokens, embeds: f.Tokens,
	}, nil
}

// tower is a vision model as far as images are concerned. Engines reckon with it, so it has to fit the image processor.
type tower struct {
	Edge, Patch int // 0: config.json doesn't say
	Extra       int // embeddings beside those of the patches
}

// takes refuses images of a size that the tower isn't made for.
func (t tower) takes(width, height int) error {
	switch {
	case t.Edge == 0 || t.Patch == 0:
		return errors.New("config.json doesn't tell the size of the vision model's images and patches")
	case width != t.Edge || height != t.Edge:
		return fmt.Errorf("the image processor makes images of %d x %d, and the vision model takes them of %d", width, height, t.Edge)
	}
	return nil
}

// llava brings the shorter edge to a length and cuts a square out of the middle.
type llava struct {
	Edge, CropHeight, CropWidth, Resample int
	Tokens                                int // for every image
	Token                                 uint32
	HasToken                              bool
	Tower                                 tower
}

func (l *llava) sendable() error {
	if !l.HasToken {
		return errNoToken
	}
	return l.Tower.takes(l.CropWidth, l.CropHeight)
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
