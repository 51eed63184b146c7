// Package process is the image processors of models: which tensors an image becomes, how many placeholder tokens it has
// in the prompt, and where. New reads a model's configs and chooses; an ErrUnknown says that there is no processor for
// it, and then images go as URLs or pixels.
//
//	image processor              models                              checked against
//	Qwen2VLImageProcessor        Qwen2-VL, Qwen2.5-VL, Qwen3-VL      vLLM with torchvision; Pillow
//	CLIPImageProcessor           LLaVA-1.5                           vLLM with torchvision; Pillow
//	Gemma3ImageProcessor         Gemma 3                             vLLM with torchvision; Pillow
//	LlavaNextImageProcessor      LLaVA-NeXT                          vLLM with torchvision; Pillow
//	SiglipImageProcessor         LLaVA with SigLIP                   vLLM with torchvision; Pillow
//	PixtralImageProcessor        LLaVA with Pixtral, Mistral 3       vLLM with torchvision; Pillow
//	Idefics3ImageProcessor       Idefics3                            vLLM with torchvision; Pillow
//	SmolVLMImageProcessor        SmolVLM                             vLLM with torchvision
//	MllamaImageProcessor         Llama 3.2 Vision                    Pillow
//
// A wrong item doesn't fail a request but kills an engine. So the prompt is expanded (Expand) only for models whose items
// have been compared with the engine's own, and whose configs agree with each other where the engine reads one and its
// processor the other; Sendable says what is in the way of others, and their images go another way. Llama 3.2 Vision
// is one of them: vLLM has had no such model since 0.10.2, so there is nothing to compare with, and nobody to send it to.
//
// What is decided here is arithmetic on sizes; pixels are worked on by the native library, on the pool of package
// decode. A Processor is immutable and safe for concurrent use.
package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/multimodal"
	"github.com/portico-llm/portico/internal/multimodal/decode"
	"github.com/portico-llm/portico/internal/multimodal/item"
	"github.com/portico-llm/portico/internal/native"
)

// ErrUnknown says that a model has an image processor that isn't known, or one with settings that aren't.
var ErrUnknown = errors.New("unknown image processor")

// Options are what a Processor is made of. Config, Pool and one of Preprocessor and Processor are needed.
type Options struct {
	Config       []byte // config.json
	Preprocessor []byte // preprocessor_config.json
	Processor    []byte // processor_config.json
	Settings     Settings
	// TokenID returns the id of a token by its exact text; needed where an image has tokens around it or within.
	TokenID func(token string) (uint32, bool)
	// Encode returns a text's tokens, without those that begin a prompt; needed where text is among an image's tokens.
	Encode func(text string) ([]uint32, error)
	Pool   *decode.Pool
}

// Processor is a multimodal.Processor.
type Processor struct {
	name     string
	family   family
	settings Settings
	version  item.Version
	values   []byte
	identity string // all that shapes an item, as text
	pool     *decode.Pool
}

var _ multimodal.Processor = (*Processor)(nil)

// geometry is what a family makes of an image of some size.
type geometry struct {
	steps   []native.ImageStep // Offset counts from the beginning of the first large tensor's data
	tensors []multimodal.Tensor
	ones    string // the name of a large tensor that is 1 throughout; empty: there is none
	tokens  int    // placeholders
	embeds  int    // those of them that embeddings replace
	grid    [3]int
	variant [2]int // rows and columns of tiles or patches, where placeholders follow them
}

// family is a kind of processor.
type family interface {
	// plan says what becomes of an image; a *fault.Error without a path says why it can't be taken, in words that follow the path.
	plan(width, height int, s Settings) (geometry, error)
	// sendable says why the model's items can't be sent to an engine; nil: they can.
	sendable() error
	// expand puts placeholders into a prompt.
	expand(tokens []uint32, plans []*multimodal.Plan) (*multimodal.Expansion, error)
}

// New returns the processor of a model.
func New(opts Options) (*Processor, error) {
	var config modelConfig
	if err := json.Unmarshal(opts.Config, &config); err != nil {
		return nil, fmt.Errorf("config.json: %w", err)
	}
	pre, err := opts.preprocessor()
	if err != nil {
		return nil, err
	}
	settings, version, err := opts.Settings.resolve(&config)
	if err != nil {
		return nil, err
	}
	name, family, common, err := choose(&config, &pre, opts)
	if err != nil {
		return nil, err
	}
	p := &Processor{name: name, family: family, settings: settings, version: version, pool: opts.Pool}
	p.values = values(common, settings)
	text, err := json.Marshal([]any{name, family, common, settings})
	if err != nil {
		return nil, fmt.Errorf("settings of the image processor: %w", err)
	}
	p.identity = string(text)
	return p, nil
}

// Name returns the family's name, such as qwen2_vl.
func (p *Processor) Name() string { return p.name }

// Settings returns the settings with their defaults filled in.
func (p *Processor) Settings() Settings { return p.settings }

// Sendable says why the model's items can't be sent to an engine, though they can be made; nil: they can.
func (p *Processor) Sendable() error {
	if err := p.family.sendable(); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	return nil
}

// Header reads the dimensions of a file.
func (p *Processor) Header(file multimodal.File) (multimodal.Header, error) {
	return p.pool.Header(file)
}

// Plan says what will become of an image.
func (p *Processor) Plan(h multimodal.Header) (*multimodal.Plan, error) {
	g, err := p.family.plan(h.Width, h.Height, p.settings)
	if err != nil {
		return nil, named(err, h.Path)
	}
	plan := &multimodal.Plan{Header: h, Tensors: g.tensors, Tokens: g.tokens, Embeds: g.embeds, Grid: g.grid, Variant: g.variant}
	if plan.Frame, plan.Size, err = item.Layout(plan.Tensors, p.version); err != nil {
		return nil, fmt.Errorf("%s: %w", p.name, err)
	}
	return plan, nil
}

// Process makes the item of a file.
func (p *Processor) Process(
	ctx context.Context, file multimodal.File, plan *multimodal.Plan, dst []byte,
) (*multimodal.Item, error) {
	if dst == nil {
		dst = make([]byte, plan.Size)
	}
	if len(dst) < plan.Size {
		return nil, fault.New(fault.Internal, "The image couldn't be processed").Because(
			fmt.Errorf("an item of %d bytes has a buffer of %d", plan.Size, len(dst)))
	}
	g, err := p.family.plan(plan.Width, plan.Height, p.settings)
	if err != nil {
		return nil, named(err, file.Path)
	}
	if err := check(plan, g, p.values); err != nil {
		return nil, fault.New(fault.Internal, "The image couldn't be processed").Because(err)
	}
	dst = dst[:plan.Size]
	for _, chunk := range plan.Frame {
		copy(dst[chunk.Offset:], chunk.Data)
	}
	pixels := dst[plan.Tensors[0].Offset:][:plan.Tensors[0].Len()]
	written := 0
	for i := range g.steps {
		written = max(written, g.steps[i].Offset+bytesOf(&g.steps[i]))
	}
	clear(pixels[written:]) // tiles that the image doesn't have
	fillOnes(dst, plan, g.ones)
	job := &native.ImageJob{Steps: g.steps, Values: p.values, KeyToWhite: p.settings.Backend != Torchvision}
	if err := p.pool.Run(ctx, file, plan.Header, job, pixels); err != nil {
		return nil, err
	}
	digest := multimodal.Digest(file.Data)
	return &multimodal.Item{
		Plan: plan, Blob: dst, Identity: multimodal.Identity(digest, multimodal.ByKwargs, p.identity),
	}, nil
}

// Identity returns the identity of a file's item without making it.
func (p *Processor) Identity(file multimodal.File) string {
	return multimodal.Identity(multimodal.Digest(file.Data), multimodal.ByKwargs, p.identity)
}

// Expand puts placeholders into a prompt and checks them.
func (p *Processor) Expand(tokens []uint32, plans []*multimodal.Plan) (*multimodal.Expansion, error) {
	if err := p.Sendable(); err != nil {
		return nil, err
	}
	e, err := p.family.expand(tokens, plans)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.name, err)
	}
	return e, nil
}

// named makes a family's fault one of the part with a path.
func named(err error, path string) error {
	f, ok := errors.AsType[*fault.Error](err)
	if !ok || f.Param != "" {
		return err
	}
	with := *f
	with.Param, with.Message = path, "`"+path+"` "+f.Message
	return &with
}

// bytesOf returns how many bytes a step writes.
func bytesOf(s *native.ImageStep) int {
	switch {
	case s.Keep:
		return 0
	case s.Layout == native.Patches:
		return 3 * s.Width * s.Height * s.Frames * s.Element
	}
	return 3 * s.CanvasWidth * s.CanvasHeight * s.Element
}

// check refuses what would break an engine: tensors that don't fit each other, the grid or the placeholders.
func check(plan *multimodal.Plan, g geometry, values []byte) error {
	if len(plan.Tensors) == 0 || plan.Tensors[0].Inline != nil || plan.Tokens <= 0 || plan.Embeds > plan.Tokens {
		return fmt.Errorf("an item with %d tensors and %d placeholders", len(plan.Tensors), plan.Tokens)
	}
	pixels := &plan.Tensors[0]
	if element := pixels.DType.Size(); len(values) != 768*element {
		return fmt.Errorf("values of %d bytes for elements of %d", len(values), element)
	}
	if plan.Grid != [3]int{} {
		rows := plan.Grid[0] * plan.Grid[1] * plan.Grid[2]
		if len(pixels.Shape) != 2 || pixels.Shape[0] != rows || plan.Embeds == 0 || rows%plan.Embeds != 0 {
			return fmt.Errorf("shape %v and %d placeholders with a grid of %v", pixels.Shape, plan.Embeds, plan.Grid)
		}
	}
	if !slices.EqualFunc(plan.Tensors, g.tensors, func(a, b multimodal.Tensor) bool {
		return a.Name == b.Name && a.DType == b.DType && slices.Equal(a.Shape, b.Shape)
	}) {
		return errors.New("a plan of another processor")
	}
	for i := range g.steps {
		if s := &g.steps[i]; s.Offset+bytesOf(s) > pixels.Len() {
			return fmt.Errorf("step %d writes beyond the %d bytes of %s", i, pixels.Len(), pixels.Name)
		}
	}
	return nil
}

// one returns the bytes of the number 1 of a type that a mask may have.
func one(t multimodal.DType) []byte {
	if t == multimodal.Int64 {
		return int64s(1)
	}
	return appendValue(nil, 1, t)
}

// fillOnes sets every number of a tensor to 1.
func fillOnes(dst []byte, plan *multimodal.Plan, name string) {
	for i := range plan.Tensors {
		if t := &plan.Tensors[i]; name != "" && t.Name == name {
			data := dst[t.Offset:][:t.Len()]
			for done := copy(data, one(t.DType)); done < len(data); done *= 2 {
				copy(data[done:], data[:done])
			}
		}
	}
}
