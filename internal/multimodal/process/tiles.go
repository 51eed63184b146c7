package process

import (
	"errors"
	"math"

	"github.com/portico-llm/portico/internal/multimodal"
	"github.com/portico-llm/portico/internal/native"
)

// llavaNext takes the whole image in one tile, and again in the tiles of the resolution that suits it best.
type llavaNext struct {
	Edge, Resample, Patch int
	Pinpoints             [][2]int // height, width
	Token                 uint32
	HasToken              bool
	Whole                 int // embeddings of the whole image
	Tower                 tower
	Agree                 bool // config.json has the same resolutions
}

func (l *llavaNext) sendable() error {
	switch {
	case !l.HasToken:
		return errNoToken
	case !l.Agree:
		return errors.New("config.json and preprocessor_config.json have different image_grid_pinpoints")
	}
	return l.Tower.takes(l.Edge, l.Edge)
}

func (l *llavaNext) expand(tokens []uint32, plans []*multimodal.Plan) (*multimodal.Expansion, error) {
	return splice(tokens, plans, l.Token, l.HasToken)
}

// best returns the resolution that keeps most of the image's pixels and wastes the least of its own.
func (l *llavaNext) best(width, height int) (w, h int) {
	most, least := 0, math.MaxInt
	for _, p := range l.Pinpoints {
		scale := min(float64(p[1])/float64(width), float64(p[0])/float64(height))
		kept := min(int(float64(width)*scale)*int(float64(height)*scale), width*height)
		wasted := p[0]*p[1] - kept
		if kept > most || (kept == most && wasted < least) {
			most, least, w, h = kept, wasted, p[1], p[0]
		}
	}
	return w, h
}

// fit returns the size of an image that fits into another one. The rounded edge isn't larger than the frame's.
func fit(width, height, w, h int) (int, int) {
	sw, sh := float64(w)/float64(width), float64(h)/float64(height)
	if sw < sh {
		return w, min(int(math.Ceil(float64(height)*sw)), h)
	}
	return min(int(math.Ceil(float64(width)*sh)), w), h
}

func (l *llavaNext) plan(width, height int, s Settings) (geometry, error) {
	w, h := l.best(width, height)
	if !positive(w, h) {
		return geometry{}, errTooLong(width, height)
	}
	whole := step(s, l.Resample, l.Edge, l.Edge)
	fw, fh := fit(width, height, w, h)
	tiles := step(s, l.Resample, fw, fh)
	tiles.Left, tiles.Top = (w-fw)/2, (h-fh)/2
	tiles.CanvasWidth, tiles.CanvasHeight, tiles.TileWidth, tiles.TileHeight = w, h, l.Edge, l.Edge
	tiles.Offset = bytesOf(&whole)
	count := 1 + w/l.Edge*(h/l.Edge)
	tokens := l.tokens(width, height, w, h)
	return geometry{
		steps: []native.ImageStep{whole, tiles},
		tensors: []multimodal.Tensor{
			{Name: "pixel_values", DType: s.DType, Shape: []int{count, 3, l.Edge, l.Edge}, Field: multimodal.Batched},
			{Name: "image_sizes", DType: multimodal.Int64, Shape: []int{2}, Field: multimodal.Batched, KeepOnCPU: true, Inline: int64s(height, width)},
		},
		tokens: tokens, embeds: tokens,
	}, nil
}

// tokens counts the embeddings: those of the whole image, and those of the tiles without their padding, with one more
// at the end of each row.
func (l *llavaNext) tokens(width, height, w, h int) int {
	side := l.Edge / l.Patch
	columns, rows := side*(w/l.Edge), side*(h/l.Edge)
	if float64(width)/float64(height) > float64(columns)/float64(rows) {
		kept := int(round7(float64(height) * (float64(columns) / float64(width))))
		rows -= 2 * ((rows - kept) / 2)
	} else {
		kept := int(round7(float64(width) * (float64(rows) / float64(height))))
		columns -= 2 * ((columns - kept) / 2)
	}
	return l.Whole + columns*rows + rows
}

// round7 rounds to seven digits after the point, as the reference does before it cuts them off.
func round7(v float64) float64 { return math.RoundToEven(v*1e7) / 1e7 }

// pixtral resizes an image to whole patches, smaller than a limit.
type pixtral struct {
	Longest, Resample int
	Patch             int // the edge of what has one embedding: patches may be merged
	tokens            rowTokens
	disagree          error
}

func (p *pixtral) sendable() error {
	if p.tokens.missing != nil {
		return p.tokens.missing
	}
	return p.disagree
}

func (p *pixtral) expand(tokens []uint32, plans []*multimodal.Plan) (*multimodal.Expansion, error) {
	return spliceWith(tokens, plans, p.tokens.Image, p.tokens.put)
}

func (p *pixtral) plan(width, height int, s Settings) (geometry, error) {
	w, h := width, height
	if ratio := max(float64(h)/float64(p.Longest), float64(w)/float64(p.Longest)); ratio > 1 {
		w, h = int(math.Floor(float64(w)/ratio)), int(math.Floor(float64(h)/ratio))
	}
	columns, rows := (max(w, 1)-1)/p.Patch+1, (max(h, 1)-1)/p.Patch+1
	w, h = columns*p.Patch, rows*p.Patch
	return geometry{
		steps: []native.ImageStep{step(s, p.Resample, w, h)},
		tensors: []multimodal.Tensor{
			{Name: "pixel_values", DType: s.DType, Shape: []int{3, h, w}, Field: multimodal.Batched},
		},
		tokens: rows * (columns + 1), embeds: rows * columns, // each row ends with a token of its own
		variant: [2]int{rows, columns},
	}, nil
}

// mllama fits an image into an arrangement of square tiles.
type mllama struct {
	Tile, MaxTiles, Resample int
}

// errNobody is what keeps Llama 3.2 Vision's items here.
var errNobody = errors.New("no version of vLLM takes items of this kind of model, so there is none to compare them with")

func (*mllama) sendable() error { return errNobody }

func (*mllama) expand([]uint32, []*multimodal.Plan) (*multimodal.Expansion, error) {
	return nil, errNobody
}

// arrangements returns all rows and columns of at most MaxTiles tiles, in the reference's order.
func (m *mllama) arrangements() [][2]int {
	var out [][2]int
	for rows := 1; rows <= m.MaxTiles; rows++ {
		for columns := 1; columns*rows <= m.MaxTiles; columns++ {
			out = append(out, [2]int{rows, columns})
		}
	}
	return out
}

// arrange returns the index of the arrangement that enlarges the image least, or shrinks it least where none doesn't;
// of several the one with the fewest tiles.
func (m *mllama) arrange(width, height int, all [][2]int) int {
	best, scale := 0, 0.0
	for i, a := range all {
		sh, sw := float64(a[0]*m.Tile)/float64(height), float64(a[1]*m.Tile)/float64(width)
		s := min(sh, sw)
		better := s > scale
		if s >= 1 && scale >= 1 {
			better = s < scale
		}
		if i == 0 || better || (s == scale && a[0]*a[1] < all[best][0]*all[best][1]) {
			best, scale = i, s
		}
	}
	return best
}

func (m *mllama) plan(width, height int, s Settings) (geometry, error) {
	all := m.arrangements()
	index := m.arrange(width, height, all)
	h, w := all[index][0]*m.Tile, all[index][1]*m.Tile
	tw, th := min(max(width, m.Tile), w), min(max(height, m.Tile), h)
	sh, sw := float64(th)/float64(height), float64(tw)/float64(width)
	if sw < sh {
		th = min(max(int(math.Floor(float64(height)*sw)), 1), th)
	} else {
		tw = min(max(int(math.Floor(float64(width)*sh)), 1), tw)
	}
	tiles := step(s, m.Resample, tw, th)
	tiles.CanvasWidth, tiles.CanvasHeight, tiles.TileWidth, tiles.TileHeight = w, h, m.Tile, m.Tile
	used := all[index][0] * all[index][1]
	mask := make([]int, m.MaxTiles)
	for i := range used {
		mask[i] = 1
	}
	small := func(name string, shape []int, numbers ...int) multimodal.Tensor {
		return multimodal.Tensor{
			Name: name, DType: multimodal.Int64, Shape: shape, Field: multimodal.Batched, KeepOnCPU: true, Inline: int64s(numbers...),
		}
	}
	if m.MaxTiles*8 >= 256 {
		return geometry{}, errTooLong(width, height)
	}
	return geometry{
		steps: []native.ImageStep{tiles},
		tensors: []multimodal.Tensor{
			{Name: "pixel_values", DType: s.DType, Shape: []int{m.MaxTiles, 3, m.Tile, m.Tile}, Field: multimodal.Batched},
			small("aspect_ratio_ids", []int{}, index+1),
			small("aspect_ratio_mask", []int{m.MaxTiles}, mask...),
			small("num_tiles", []int{}, used),
		},
		tokens: 1, embeds: 1,
	}, nil
}

// idefics3 brings the longer edge to a length, both edges to whole tiles, and adds the whole image as one more tile.
type idefics3 struct {
	Longest, Tile, Resample int
	tokens                  *tileTokens
	disagree                error
}

func (f *idefics3) sendable() error {
	if f.tokens.missing != nil {
		return f.tokens.missing
	}
	return f.disagree
}

func (f *idefics3) expand(tokens []uint32, plans []*multimodal.Plan) (*multimodal.Expansion, error) {
	return spliceWith(tokens, plans, f.tokens.Image, func(dst []uint32, p *multimodal.Plan) []uint32 {
		return f.tokens.put(dst, p.Variant[0], p.Variant[1])
	})
}

// idefics3Limit is the longest edge that the reference ever makes.
const idefics3Limit = 4096

// longest returns the size with the longer edge at its length and the other one even.
func (f *idefics3) longest(width, height int) (int, int) {
	aspect := float64(width) / float64(height)
	w, h := f.Longest, f.Longest
	if width >= height {
		h = int(float64(w) / aspect)
		h += h % 2
	} else {
		w = int(float64(h) * aspect)
		w += w % 2
	}
	w, h = max(w, 1), max(h, 1)
	aspect = float64(w) / float64(h)
	switch {
	case w >= h && w > idefics3Limit:
		w, h = idefics3Limit, int(idefics3Limit/aspect)
	case h > w && h > idefics3Limit:
		w, h = int(idefics3Limit*aspect), idefics3Limit
	}
	return max(w, 1), max(h, 1)
}

// whole rounds both edges up to whole tiles; the shorter one follows from the longer one's.
func (f *idefics3) whole(width, height int) (int, int) {
	aspect := float64(width) / float64(height)
	up := func(v int) int { return int(math.Ceil(float64(v)/float64(f.Tile))) * f.Tile }
	if width >= height {
		w := up(width)
		return w, up(int(float64(w) / aspect))
	}
	h := up(height)
	return up(int(float64(h) * aspect)), h
}

func (f *idefics3) plan(width, height int, s Settings) (geometry, error) {
	w, h := f.longest(width, height)
	tw, th := f.whole(w, h)
	if !positive(tw, th) || max(tw, th) > maxEdge {
		return geometry{}, errTooLong(width, height)
	}
	ones := multimodal.Int64
	if s.Backend == Torchvision { // there it is a tensor of floats, and engines give those the model's type
		ones = s.DType
	}
	keep := func(w, h int) native.ImageStep {
		k := step(s, f.Resample, w, h)
		k.Keep = true
		return k
	}
	tiles := step(s, f.Resample, tw, th)
	tiles.TileWidth, tiles.TileHeight = f.Tile, f.Tile
	steps := []native.ImageStep{keep(w, h), keep(tw, th), tiles}
	rows, columns := th/f.Tile, tw/f.Tile
	count := rows * columns
	if count == 1 {
		rows, columns = 0, 0
	} else {
		whole := step(s, f.Resample, f.Tile, f.Tile)
		whole.Offset = bytesOf(&tiles)
		steps = append(steps, whole)
		count++
	}
	return geometry{
		steps: steps,
		tensors: []multimodal.Tensor{
			{Name: "pixel_values", DType: s.DType, Shape: []int{count, 3, f.Tile, f.Tile}, Field: multimodal.Flat},
			{Name: "pixel_attention_mask", DType: ones, Shape: []int{count, f.Tile, f.Tile}, Field: multimodal.Flat},
			{
				Name: "num_patches", DType: multimodal.Int64, Shape: []int{}, Field: multimodal.Batched, KeepOnCPU: true,
				Inline: int64s(count),
			},
		},
		ones:   "pixel_attention_mask",
		tokens: len(f.tokens.put(nil, rows, columns)), embeds: count * f.tokens.PerTile,
		variant: [2]int{rows, columns},
	}, nil
}
