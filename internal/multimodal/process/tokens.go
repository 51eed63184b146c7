package process

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/portico-llm/portico/internal/multimodal"
)

// processorConfig is what is read of processor_config.json: what a model's processor does beside its images. Nil is not
// given.
type processorConfig struct {
	PatchSize  *int   `json:"patch_size"`
	MergeSize  *int   `json:"spatial_merge_size"`
	BreakToken string `json:"image_break_token"`
	EndToken   string `json:"image_end_token"`
	SeqLength  *int   `json:"image_seq_len"`
}

func (o *Options) processor() (c processorConfig, err error) {
	if len(o.Processor) == 0 {
		return c, nil
	}
	if err = json.Unmarshal(o.Processor, &c); err != nil {
		err = fmt.Errorf("processor_config.json: %w", err)
	}
	return c, err
}

// tokenID looks up a token that an image needs.
func (o *Options) tokenID(text string) (uint32, error) {
	if o.TokenID == nil {
		return 0, errors.New("an image's tokens are looked up in a tokenizer, and there is none")
	}
	id, ok := o.TokenID(text)
	if !ok {
		return 0, fmt.Errorf("the vocabulary has no token %s", text)
	}
	return id, nil
}

// rowTokens are the tokens of models that end each row of an image with a token of its own.
type rowTokens struct {
	Image, Break, End uint32
	missing           error
}

func newRowTokens(config *modelConfig, opts *Options, pc *processorConfig) (t rowTokens) {
	var ok bool
	if t.Image, ok = config.imageToken(); !ok {
		t.missing = errNoToken
		return t
	}
	name := func(given, otherwise string) string {
		if given == "" {
			return otherwise
		}
		return given
	}
	if t.Break, t.missing = opts.tokenID(name(pc.BreakToken, "[IMG_BREAK]")); t.missing == nil {
		t.End, t.missing = opts.tokenID(name(pc.EndToken, "[IMG_END]"))
	}
	return t
}

// put appends the tokens of an image.
func (t *rowTokens) put(dst []uint32, p *multimodal.Plan) []uint32 {
	rows, columns := p.Variant[0], p.Variant[1]
	for range rows {
		dst = append(appendRun(dst, t.Image, columns), t.Break)
	}
	dst[len(dst)-1] = t.End
	return dst
}

// tileTokens are the tokens of models that name each tile of an image. Fields are part of an item's identity.
type tileTokens struct {
	Image, Around    uint32
	Global           []uint32
	Line, Lines      []uint32 // one line feed, and two
	Tiles            [][]uint32
	Columns, PerTile int
	missing          error
}

// What bounds an image's tokens: the rows, and the columns, of its tiles, and the tokens of each.
const (
	maxTiles   = 16
	maxPerTile = 1 << 12
)

func newTileTokens(config *modelConfig, opts *Options, perTile, side int) *tileTokens {
	t := &tileTokens{
		Columns: side, PerTile: perTile, Global: make([]uint32, 1), Line: make([]uint32, 1), Lines: make([]uint32, 1),
		Tiles: make([][]uint32, side*side),
	}
	for i := range t.Tiles {
		t.Tiles[i] = make([]uint32, 1) // as all vocabularies of such models have it
	}
	t.missing = t.lookUp(config, opts)
	return t
}

// lookUp asks the tokenizer.
func (t *tileTokens) lookUp(config *modelConfig, opts *Options) (err error) {
	image, ok := config.imageToken()
	if !ok {
		return errNoToken
	}
	const imageText, aroundText = "<image>", "<fake_token_around_image>"
	if t.Image, err = opts.tokenID(imageText); err != nil {
		return err
	}
	if t.Image != image {
		return fmt.Errorf("config.json says that %d is the image token, and the vocabulary %d", image, t.Image)
	}
	if t.Around, err = opts.tokenID(aroundText); err != nil {
		return err
	}
	if opts.Encode == nil {
		return errors.New("an image's text is for a tokenizer, and there is none")
	}
	// Between the tokens that it will stand between: what is next to it may matter.
	between := func(text string) ([]uint32, error) {
		ids, err := opts.Encode(imageText + text + aroundText)
		if err != nil {
			return nil, err
		}
		if n := len(ids); n < 3 || ids[0] != t.Image || ids[n-1] != t.Around {
			return nil, fmt.Errorf("the tokenizer doesn't keep the image's tokens apart from %q", text)
		}
		return ids[1 : len(ids)-1], nil
	}
	if t.Line, err = between("\n"); err != nil {
		return err
	}
	if t.Lines, err = between("\n\n"); err != nil {
		return err
	}
	tag := func(text string) ([]uint32, error) {
		ids, err := opts.Encode(aroundText + text + imageText)
		if err != nil {
			return nil, err
		}
		if n := len(ids); n < 3 || ids[0] != t.Around || ids[n-1] != t.Image {
			return nil, fmt.Errorf("the tokenizer doesn't keep the image's tokens apart from %q", text)
		}
		return ids[1 : len(ids)-1], nil
	}
	if t.Global, err = tag("<global-img>"); err != nil {
		return err
	}
	for i := range t.Tiles {
		if t.Tiles[i], err = tag(fmt.Sprintf("<row_%d_col_%d>", i/t.Columns+1, i%t.Columns+1)); err != nil {
			return err
		}
	}
	return nil
}

// put appends the tokens of an image with so many rows and columns of tiles; without any it has the whole image alone.
func (t *tileTokens) put(dst []uint32, rows, columns int) []uint32 {
	for r := range rows {
		for c := range columns {
			dst = append(append(dst, t.Around), t.Tiles[r*t.Columns+c]...)
			dst = appendRun(dst, t.Image, t.PerTile)
		}
		if r+1 < rows {
			dst = append(dst, t.Line...)
		}
	}
	if rows > 0 {
		dst = append(dst, t.Lines...) // the last row's, and the one in front of the whole image
	}
	dst = append(append(dst, t.Around), t.Global...)
	return append(appendRun(dst, t.Image, t.PerTile), t.Around)
}
