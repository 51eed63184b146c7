package process

import (
	"errors"
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
		"SmolVLMImageProcessor":   newIdefics3,
	}
	models := map[string][]string{
		"Qwen2VLImageProcessor":   {"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"},
		"CLIPImageProcessor":      {"llava"},
		"SiglipImageProcessor":    {"llava"},
		"Gemma3ImageProcessor":    {"gemma3"},
		"LlavaNextImageProcessor": {"llava_next"},
		"PixtralImageProcessor":   {"llava", "mistral3"},
		"MllamaImageProcessor":    {"mllama"},
		"Idefics3ImageProcessor":  {"idefics3"},
		"SmolVLMImageProcessor":   {"smolvlm"},
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
		if name == "llava" {
			name = "pixtral"
		}
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

func newLlava(config *modelConfig, pre *preprocessor, _ Options) (family, common, error) {
	square := imageSize{ShortestEdge: 224, Height: 224, Width: 224}
	c, err := pre.common(defaults{clipMean, clipStd, 3, square})
	crop := or(pre.CropSize, square)
	l := &llava{Edge: c.Size.ShortestEdge, CropHeight: crop.Height, CropWidth: crop.Width, Resample: c.Resample, Tower: config.tower()}
	l.Token, l.HasToken = config.imageToken()
	l.Tokens = config.towerTokens(crop.Width, crop.Height)
	if err == nil && (!positive(l.Edge, l.CropHeight, l.CropWidth, l.Tokens) || !or(pre.DoCrop, true)) {
		err = fmt.Errorf("%w: an image isn't cut to a fixed size", ErrUnknown)
	}
	return l, c, err
}

func newSiglip(config *modelConfig, pre *preprocessor, _ Options) (family, common, error) {
	c, err := pre.common(defaults{half, half, 3, imageSize{Height: 224, Width: 224}})
	f := &fixed{Height: c.Size.Height, Width: c.Size.Width, Resample: c.Resample, Tower: config.tower()}
	f.Token, f.HasToken = config.imageToken()
	f.Tokens = config.towerTokens(f.Width, f.Height)
	if err == nil && !positive(f.Height, f.Width, f.Tokens) {
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
	l := &llavaNext{Edge: c.Size.ShortestEdge, Pinpoints: pre.Pinpoints, Resample: c.Resample, Tower: config.tower()}
	l.Patch = max(l.Tower.Patch, 1)
	l.Token, l.HasToken = config.imageToken()
	if l.Edge == 0 && c.Size.Height == c.Size.Width {
		l.Edge = c.Size.Height
	}
	usual := [][2]int{{336, 672}, {672, 336}, {672, 672}, {1008, 336}, {336, 1008}}
	given := config.Pinpoints
	if len(l.Pinpoints) == 0 {
		l.Pinpoints = usual
	}
	if len(given) == 0 {
		given = usual
	}
	l.Agree = slices.Equal(l.Pinpoints, given)
	l.Whole = config.towerTokens(l.Edge, l.Edge)
	crop := or(pre.CropSize, imageSize{Height: l.Edge, Width: l.Edge})
	whole := func(p [2]int) bool { return positive(p[0], p[1]) && p[0]%l.Edge == 0 && p[1]%l.Edge == 0 }
	if err == nil && (!positive(l.Edge, l.Whole) || crop.Height != l.Edge || crop.Width != l.Edge ||
		slices.ContainsFunc(l.Pinpoints, func(p [2]int) bool { return !whole(p) })) {
		err = fmt.Errorf("%w: resolutions that aren't multiples of the tile's", ErrUnknown)
	}
	return l, c, err
}

func newPixtral(config *modelConfig, pre *preprocessor, opts Options) (family, common, error) {
	c, err := pre.common(defaults{clipMean, clipStd, 3, imageSize{LongestEdge: 1024}})
	pc, bad := opts.processor()
	if err == nil {
		err = bad
	}
	// The processor has a patch size of its own, which its image processor is told.
	patch := or(pc.PatchSize, 16) * or(pc.MergeSize, 1)
	p := &pixtral{Longest: c.Size.LongestEdge, Patch: patch, Resample: c.Resample, tokens: newRowTokens(config, &opts, &pc)}
	tower := config.tower()
	switch {
	case tower.Patch == 0 || tower.Patch*max(config.MergeSize, 1) != patch:
		p.disagree = fmt.Errorf("the processor's patches of %d aren't those of the vision model", patch)
	// Of Mistral 3's image size the engine asks the processor.
	case config.ModelType == "llava" && tower.Edge != p.Longest:
		p.disagree = fmt.Errorf("the image processor makes images of up to %d, and the vision model takes them of %d", p.Longest, tower.Edge)
	}
	if err == nil && !positive(p.Longest, p.Patch) {
		err = fmt.Errorf("%w: sizes of patches or images that aren't positive", ErrUnknown)
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

func newIdefics3(config *modelConfig, pre *preprocessor, opts Options) (family, common, error) {
	c, err := pre.common(defaults{half, half, 1, imageSize{LongestEdge: 4 * 364}})
	pc, bad := opts.processor()
	if err == nil {
		err = bad
	}
	i := &idefics3{Longest: c.Size.LongestEdge, Tile: or(pre.MaxImageSize, imageSize{LongestEdge: 364}).LongestEdge, Resample: c.Resample}
	perTile := or(pc.SeqLength, 169)
	if err == nil && (!positive(i.Longest, i.Tile, perTile) || !or(pre.DoSplit, true)) {
		err = fmt.Errorf("%w: an image isn't cut into tiles", ErrUnknown)
	}
	if err != nil {
		return i, c, err
	}
	side := (min(i.Longest, idefics3Limit)-1)/i.Tile + 1
	if side > maxTiles || perTile > maxPerTile {
		return i, c, fmt.Errorf("%w: an image is cut into %d x %d tiles of %d tokens", ErrUnknown, side, side, perTile)
	}
	i.tokens = newTileTokens(config, &opts, perTile, side)
	tower, scale := config.tower(), config.ScaleFactor
	switch {
	case tower.Edge == 0 || tower.Patch == 0 || scale < 1:
		i.disagree = errors.New("config.json doesn't tell the sizes of the vision model, or its scale_factor")
	case tower.Edge != i.Tile:
		i.disagree = tower.takes(i.Tile, i.Tile)
	case (tower.Edge/tower.Patch)*(tower.Edge/tower.Patch) != perTile*scale*scale:
		i.disagree = fmt.Errorf("the processor has %d tokens for a tile, and the model another number of embeddings", perTile)
	}
	return i, c, nil
}

// positive reports whether all numbers are sizes that a tensor may have.
func positive(numbers ...int) bool {
	return !slices.ContainsFunc(numbers, func(n int) bool { return n < 1 || n > 1<<28 })
}
