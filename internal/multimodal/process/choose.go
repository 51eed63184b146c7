package process

import (
	"encoding/json"
	"fmt"
	"slices"
)

// choose picks a model's family by the name of its image processor, and checks that the model is one that uses it so.
func choose(config *modelConfig, pre *preprocessor, opts Options) (string, family, common, error) {
	families := map[string]func(*modelConfig, *preprocessor, Options) (family, common, error){
		"Qwen2VLImageProcessor":   newQwen,
		"CLIPImageProcessor":      newLlava,
		"SiglipImageProcessor":    newSiglip,
		"Gemma3ImageProcessor":    newGemma3,
		"LlavaNextImageProcessor": newLlavaNext,
		"PixtralImageProcessor":   newPixtral,
		"MllamaImageProcessor":    newMllama,
		"Idefics3ImageProcessor":  newIdefics3,
	}
	models := map[string][]string{
		"Qwen2VLImageProcessor":   {"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"},
		"CLIPImageProcessor":      {"llava"},
		"SiglipImageProcessor":    {"llava", "siglip"},
		"Gemma3ImageProcessor":    {"gemma3"},
		"LlavaNextImageProcessor": {"llava_next"},
		"PixtralImageProcessor":   {"llava", "pixtral", "mistral3"},
		"MllamaImageProcessor":    {"mllama"},
		"Idefics3ImageProcessor":  {"idefics3", "smolvlm"},
	}
	class := pre.class()
	newFamily, ok := families[class]
	if !ok || !slices.Contains(models[class], config.ModelType) {
		return "", nil, common{}, fmt.Errorf("%w: %q of a model of type %q", ErrUnknown, pre.Type, config.ModelType)
	}
	f, c, err := newFamily(config, pre, opts)
	name := config.ModelType
	switch class {
	case "PixtralImageProcessor":
		name = "pixtral"
	case "SiglipImageProcessor":
		name = "siglip"
	}
	return name, f, c, err
}

func newQwen(config *modelConfig, pre *preprocessor, _ Options) (family, common, error) {
	c, err := pre.common(defaults{clipMean, clipStd, 3, imageSize{ShortestEdge: 56 * 56, LongestEdge: 28 * 28 * 1280}})
	q := &qwen{
		Patch: or(pre.PatchSize, imageSize{Height: 14}).Height, Merge: or(pre.Merge, 2), Frames: or(pre.Temporal, 2),
		MinPixels: or(pre.MinPixels, c.Size.ShortestEdge), MaxPixels: or(pre.MaxPixels, c.Size.LongestEdge), Resample: c.Resample,
	}
	q.Token, q.HasToken = config.imageToken()
	if err == nil && !positive(q.Patch, q.Merge, q.Frames, q.MinPixels, q.MaxPixels) {
		err = fmt.Errorf("%w: sizes of patches or images that aren't positive", ErrUnknown)
	}
	return q, c, err
}

func newLlava(config *modelConfig, pre *preprocessor, opts Options) (family, common, error) {
	square := imageSize{ShortestEdge: 224, Height: 224, Width: 224}
	c, err := pre.common(defaults{clipMean, clipStd, 3, square})
	crop := or(pre.CropSize, square)
	l := &llava{Edge: c.Size.ShortestEdge, CropHeight: crop.Height, CropWidth: crop.Width, Resample: c.Resample}
	l.Token, l.HasToken = config.imageToken()
	l.Tokens = clipTokens(config, opts, crop)
	if err == nil && (!positive(l.Edge, l.CropHeight, l.CropWidth, l.Tokens) || !or(pre.DoCrop, true)) {
		err = fmt.Errorf("%w: an image isn't cut to a fixed size", ErrUnknown)
	}
	return l, c, err
}

// clipTokens returns how many embeddings a vision tower of patches makes of an image of fixed size. The processor's own
// settings count more than the model's: the engine asks the processor.
func clipTokens(config *modelConfig, opts Options, size imageSize) int {
	var processor struct {
		PatchSize  int    `json:"patch_size"`
		Additional int    `json:"num_additional_image_tokens"`
		Strategy   string `json:"vision_feature_select_strategy"`
	}
	processor.Additional = 1
	if len(opts.Processor) > 0 && json.Unmarshal(opts.Processor, &processor) != nil {
		return 0
	}
	if processor.PatchSize == 0 {
		processor.PatchSize = config.Vision.PatchSize
	}
	if processor.PatchSize <= 0 {
		return 0
	}
	if processor.Strategy == "" {
		processor.Strategy = config.Strategy
	}
	n := (size.Height/processor.PatchSize)*(size.Width/processor.PatchSize) + processor.Additional
	if processor.Strategy == "default" || processor.Strategy == "" {
		n--
	}
	return n
}

func newSiglip(config *modelConfig, pre *preprocessor, _ Options) (family, common, error) {
	c, err := pre.common(defaults{half, half, 3, imageSize{Height: 224, Width: 224}})
	f := &fixed{Height: c.Size.Height, Width: c.Size.Width, Resample: c.Resample}
	f.Patch = max(config.Vision.PatchSize, 1)
	if err == nil && !positive(f.Height, f.Width) {
		err = fmt.Errorf("%w: an image isn't resized to a fixed size", ErrUnknown)
	}
	return f, c, err
}

func newGemma3(config *modelConfig, pre *preprocessor, opts Options) (family, common, error) {
	c, err := pre.common(defaults{half, half, 2, imageSize{Height: 224, Width: 224}})
	g := &gemma3{Height: c.Size.Height, Width: c.Size.Width, Resample: c.Resample, Embeds: or(config.TokensPerImage, 256)}
	if err == nil {
		err = g.vocabulary(config, opts.TokenID)
	}
	if err == nil && (!positive(g.Height, g.Width, g.Embeds) || or(pre.DoPanScan, false)) {
		err = fmt.Errorf("%w: an image is cut into crops", ErrUnknown)
	}
	return g, c, err
}

func newLlavaNext(config *modelConfig, pre *preprocessor, _ Options) (family, common, error) {
	c, err := pre.common(defaults{clipMean, clipStd, 3, imageSize{ShortestEdge: 224, Height: 224, Width: 224}})
	l := &llavaNext{Edge: c.Size.ShortestEdge, Pinpoints: pre.Pinpoints, Resample: c.Resample, Patch: max(config.Vision.PatchSize, 1)}
	if l.Edge == 0 && c.Size.Height == c.Size.Width {
		l.Edge = c.Size.Height
	}
	if len(l.Pinpoints) == 0 {
		l.Pinpoints = [][2]int{{336, 672}, {672, 336}, {672, 672}, {1008, 336}, {336, 1008}}
	}
	crop := or(pre.CropSize, imageSize{Height: l.Edge, Width: l.Edge})
	whole := func(p [2]int) bool { return positive(p[0], p[1]) && p[0]%l.Edge == 0 && p[1]%l.Edge == 0 }
	if err == nil && (!positive(l.Edge) || crop.Height != l.Edge || crop.Width != l.Edge ||
		slices.ContainsFunc(l.Pinpoints, func(p [2]int) bool { return !whole(p) })) {
		err = fmt.Errorf("%w: resolutions that aren't multiples of the tile's", ErrUnknown)
	}
	return l, c, err
}

func newPixtral(config *modelConfig, pre *preprocessor, _ Options) (family, common, error) {
	c, err := pre.common(defaults{clipMean, clipStd, 3, imageSize{LongestEdge: 1024}})
	patch := or(pre.PatchSize, imageSize{Height: 16, Width: 16})
	p := &pixtral{Longest: c.Size.LongestEdge, Patch: patch.Height, Merge: max(config.MergeSize, 1), Resample: c.Resample}
	if err == nil && (!positive(p.Longest, p.Patch) || patch.Height != patch.Width) {
		err = fmt.Errorf("%w: patches that aren't square", ErrUnknown)
	}
	return p, c, err
}

func newMllama(_ *modelConfig, pre *preprocessor, _ Options) (family, common, error) {
	c, err := pre.common(defaults{half, half, 2, imageSize{Height: 224, Width: 224}})
	m := &mllama{Tile: c.Size.Height, MaxTiles: or(pre.MaxTiles, 4), Resample: c.Resample}
	if err == nil && (!positive(m.Tile, m.MaxTiles) || c.Size.Width != m.Tile || m.MaxTiles > 64) {
		err = fmt.Errorf("%w: tiles that aren't square", ErrUnknown)
	}
	return m, c, err
}

func newIdefics3(_ *modelConfig, pre *preprocessor, _ Options) (family, common, error) {
	c, err := pre.common(defaults{half, half, 1, imageSize{LongestEdge: 4 * 364}})
	i := &idefics3{Longest: c.Size.LongestEdge, Tile: or(pre.MaxImageSize, imageSize{LongestEdge: 364}).LongestEdge, Resample: c.Resample}
	if err == nil && (!positive(i.Longest, i.Tile) || !or(pre.DoSplit, true)) {
		err = fmt.Errorf("%w: an image isn't cut into tiles", ErrUnknown)
	}
	return i, c, err
}

// positive reports whether all numbers are sizes that a tensor may have.
func positive(numbers ...int) bool {
	return !slices.ContainsFunc(numbers, func(n int) bool { return n < 1 || n > 1<<28 })
}
