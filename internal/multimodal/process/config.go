package process

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// modelConfig is what is read of config.json.
type modelConfig struct {
	ModelType     string   `json:"model_type"`
	Architectures []string `json:"architectures"`
	TorchDType    string   `json:"torch_dtype"` // as transformers 4 wrote it
	DType         string   `json:"dtype"`       // as transformers 5 does

	ImageTokenID    *uint32 `json:"image_token_id"`
	ImageTokenIndex *uint32 `json:"image_token_index"`
	BOITokenIndex   *uint32 `json:"boi_token_index"`
	EOITokenIndex   *uint32 `json:"eoi_token_index"`

	TokensPerImage *int   `json:"mm_tokens_per_image"`
	ImageSeqLength *int   `json:"image_seq_length"`
	Strategy       string `json:"vision_feature_select_strategy"`
	MergeSize      int    `json:"spatial_merge_size"`
	ScaleFactor    int    `json:"scale_factor"`

	Pinpoints [][2]int `json:"image_grid_pinpoints"` // height, width
	Vision    struct {
		ModelType string `json:"model_type"`
		ImageSize int    `json:"image_size"`
		PatchSize int    `json:"patch_size"`
		MergeSize int    `json:"spatial_merge_size"`
	} `json:"vision_config"`
	Text struct {
		TorchDType string `json:"torch_dtype"`
		DType      string `json:"dtype"`
	} `json:"text_config"`
}

// imageToken returns the id of the token that stands for a piece of an image.
func (c *modelConfig) imageToken() (uint32, bool) {
	for _, id := range []*uint32{c.ImageTokenID, c.ImageTokenIndex} {
		if id != nil {
			return *id, true
		}
	}
	return 0, false
}

// tower returns what is known of the vision model.
func (c *modelConfig) tower() tower {
	t := tower{Edge: c.Vision.ImageSize, Patch: c.Vision.PatchSize}
	if c.Vision.ModelType == "clip_vision_model" || c.Vision.ModelType == "" {
		t.Extra = 1 // the class token
	}
	return t
}

// selected returns how many of a tower's n embeddings a model uses.
func (c *modelConfig) selected(n int) int {
	if c.Strategy == "full" {
		return n
	}
	return n - 1 // the default: without the first
}

// towerTokens returns how many embeddings a model uses of an image of a size; 0: nobody knows.
func (c *modelConfig) towerTokens(width, height int) int {
	t := c.tower()
	if t.Patch <= 0 {
		return 0
	}
	return c.selected((width/t.Patch)*(height/t.Patch) + t.Extra)
}

// dtype returns the element type of the model's weights as its config names it; empty: it doesn't.
func (c *modelConfig) dtype() string {
	for _, name := range []string{c.DType, c.TorchDType, c.Text.DType, c.Text.TorchDType} {
		if name != "" {
			return strings.TrimPrefix(name, "torch.")
		}
	}
	return ""
}

// imageSize is a size as preprocessor configs write it: a number, or an object with some of the fields. 0 is absent.
type imageSize struct {
	Height       int `json:"height"`
	Width        int `json:"width"`
	ShortestEdge int `json:"shortest_edge"`
	LongestEdge  int `json:"longest_edge"`
}

// UnmarshalJSON reads either form.
func (s *imageSize) UnmarshalJSON(b []byte) error {
	var n int
	if json.Unmarshal(b, &n) == nil {
		*s = imageSize{Height: n, Width: n, ShortestEdge: n}
		return nil
	}
	type fields imageSize
	return json.Unmarshal(b, (*fields)(s))
}

// preprocessor is what is read of preprocessor_config.json. Nil is not given; defaults are those of transformers'
// classes.
type preprocessor struct {
	Type           string `json:"image_processor_type"`
	ProcessorClass string `json:"processor_class"`

	DoResize    *bool    `json:"do_resize"`
	DoCrop      *bool    `json:"do_center_crop"`
	DoRescale   *bool    `json:"do_rescale"`
	DoNormalize *bool    `json:"do_normalize"`
	DoRGB       *bool    `json:"do_convert_rgb"`
	DoPad       *bool    `json:"do_pad"`
	DoPanScan   *bool    `json:"do_pan_and_scan"`
	DoSplit     *bool    `json:"do_image_splitting"`
	Rescale     *float64 `json:"rescale_factor"`
	Resample    *int     `json:"resample"`

	Mean []float64 `json:"image_mean"`
	Std  []float64 `json:"image_std"`

	Size         *imageSize `json:"size"`
	CropSize     *imageSize `json:"crop_size"`
	PatchSize    *imageSize `json:"patch_size"`
	MaxImageSize *imageSize `json:"max_image_size"`
	MinPixels    *int       `json:"min_pixels"`
	MaxPixels    *int       `json:"max_pixels"`
	Temporal     *int       `json:"temporal_patch_size"`
	Merge        *int       `json:"merge_size"`
	Pinpoints    [][2]int   `json:"image_grid_pinpoints"` // height, width
	MaxTiles     *int       `json:"max_image_tiles"`
	SeqLength    *int       `json:"image_seq_length"`
}

// class returns the name of the image processor without what tells the backend.
func (p *preprocessor) class() string {
	name := p.Type
	for _, suffix := range []string{"Fast", "Pil"} {
		name = strings.TrimSuffix(name, suffix)
	}
	return name
}

func or[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

var (
	clipMean = []float64{0.48145466, 0.4578275, 0.40821073}
	clipStd  = []float64{0.26862954, 0.26130258, 0.27577711}
	half     = []float64{0.5, 0.5, 0.5}
)

// common is what every processor needs of its config, with the class's defaults filled in.
type common struct {
	Mean, Std []float64
	Rescale   float64
	Resample  int // Pillow's number of the filter
	Size      imageSize
}

// defaults are those of a class.
type defaults struct {
	mean, std []float64
	resample  int
	size      imageSize
}

// common fills in defaults and refuses configs that ask for less than a whole processor: those would need code of
// their own, and nobody has such models.
func (p *preprocessor) common(d defaults) (common, error) {
	c := common{
		Mean: p.Mean, Std: p.Std, Rescale: or(p.Rescale, 1.0/255), Resample: or(p.Resample, d.resample), Size: or(p.Size, d.size),
	}
	if len(c.Mean) == 0 {
		c.Mean = d.mean
	}
	if len(c.Std) == 0 {
		c.Std = d.std
	}
	for name, on := range map[string]*bool{"do_resize": p.DoResize, "do_rescale": p.DoRescale, "do_normalize": p.DoNormalize} {
		if !or(on, true) {
			return c, fmt.Errorf("%w: %s is off", ErrUnknown, name)
		}
	}
	if len(c.Mean) != 3 || len(c.Std) != 3 || slices.Contains(c.Std, 0) {
		return c, fmt.Errorf("%w: image_mean and image_std aren't for three channels", ErrUnknown)
	}
	if c.Resample < 1 || c.Resample > 5 {
		return c, fmt.Errorf("%w: resample %d", ErrUnknown, c.Resample)
	}
	return c, nil
}
