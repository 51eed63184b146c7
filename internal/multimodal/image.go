package multimodal

import "context"

// Format is the kind of an image file, named as PIL names it, in lower case.
type Format string

// The formats that are decoded.
const (
	JPEG Format = "jpeg"
	PNG  Format = "png"
	WebP Format = "webp"
	GIF  Format = "gif"
	BMP  Format = "bmp"
)

// File is an image file as it was fetched.
type File struct {
	Path string // JSON path of the content part, for errors: messages[1].content[0].image_url
	Data []byte // not changed, and not kept after the call it is passed to
}

// Header is what an image file says of itself before anything is decoded.
type Header struct {
	Path          string // of the file it is of
	Format        Format
	Width, Height int // in pixels, upright: EXIF orientation is taken into account
}

// Pixels is a decoded image: 8-bit RGB, upright, rows from top to bottom, Width*3 bytes each.
type Pixels struct {
	Header
	Data []byte
}

// Decoder decodes image files as PIL does. Safe for concurrent use. A file that can't be decoded is a *fault.Error of
// kind BadRequest that names the file's path; a full queue is one of kind Overloaded.
type Decoder interface {
	// Header reads the dimensions and checks them against the budget of one image. It is cheap and runs at once.
	Header(file File) (Header, error)
	// Decode decodes into dst when that is large enough (Width*Height*3 bytes), else into memory of its own. When ctx
	// ends first, Decode still waits for a decoder that is writing to dst, which takes no longer than one image does.
	Decode(ctx context.Context, file File, dst []byte) (*Pixels, error)
}

// Processor turns an image into what a model's engine takes, equal to the bit to what the engine's own processor makes,
// and knows what an image does to the prompt. There is one for each model; it is safe for concurrent use. Errors are as
// those of Decoder.
//
//	header, err := p.Header(file)
//	plan, err := p.Plan(header)
//	dst := ... // plan.Size bytes, such as a transfer slot
//	item, err := p.Process(ctx, file, plan, dst)
//	expansion, err := p.Expand(tokens, []*Plan{plan})
type Processor interface {
	// Name is the family of the processor, such as qwen2_vl.
	Name() string
	// Header is Decoder's.
	Header(file File) (Header, error)
	// Plan says what will become of an image with these dimensions. It decodes nothing.
	Plan(h Header) (*Plan, error)
	// Identity is the identity that a file's item will have. Items of one identity are equal to the last byte.
	Identity(file File) string
	// Process writes the item's blob into dst, which has at least plan.Size bytes; nil: into memory of its own. What it
	// returns has passed the checks that keep a wrong item from a worker. The wait for a cancelled call is as Decode's.
	Process(ctx context.Context, file File, plan *Plan, dst []byte) (*Item, error)
	// Expand puts as many placeholder tokens into a prompt as its images need: plans has one for each image, in the
	// order of the prompt. The result has been checked. An error says why the prompt doesn't fit the images: then only
	// the URL way is left.
	Expand(tokens []uint32, plans []*Plan) (*Expansion, error)
}

// Plan is what becomes of one image: everything that is known before it is decoded. It isn't changed after Plan.
type Plan struct {
	Header
	Tensors []Tensor // with offsets into the blob; in order
	Size    int      // bytes of the blob
	Frame   []Chunk  // all of the blob that isn't the data of a large tensor
	Tokens  int      // placeholder tokens in the prompt, of which Embeds are replaced by embeddings
	Embeds  int
	Grid    [3]int // frames, rows and columns of patches, or 0 where the model has no grid
	// Variant says which of several layouts of placeholders the image has, for models that cut images into tiles.
	Variant [2]int
}

// Chunk is a piece of a blob.
type Chunk struct {
	Offset int
	Data   []byte
}

// DType is a tensor's element type, named as engines do.
type DType string

// The element types that processors make.
const (
	Uint8    DType = "uint8"
	Float16  DType = "float16"
	BFloat16 DType = "bfloat16"
	Float32  DType = "float32"
	Int64    DType = "int64"
)

// Size returns the bytes of one element.
func (t DType) Size() int {
	switch t {
	case Uint8:
		return 1
	case Float16, BFloat16:
		return 2
	case Float32:
		return 4
	}
	return 8
}

// FieldKind says how the engine joins the tensors of several items.
type FieldKind string

// The kinds of field.
const (
	Batched FieldKind = "batched" // each item is one element
	Flat    FieldKind = "flat"    // concatenated along the first axis
	Shared  FieldKind = "shared"  // the same for all items
)

// Tensor is one tensor of an item: little-endian, in C order.
type Tensor struct {
	Name      string
	DType     DType
	Shape     []int // empty: a single number
	Field     FieldKind
	KeepOnCPU bool
	Offset    int    // of its bytes in the blob, when Inline is nil
	Inline    []byte // the bytes of a small tensor, which is part of the frame; nil: it isn't
}

// Len returns the number of bytes of the tensor's data.
func (t *Tensor) Len() int {
	n := t.DType.Size()
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// Item is one processed image.
type Item struct {
	*Plan
	Blob     []byte // as the engine's transfer takes it; the slice given to Process, cut to length, or its own
	Identity string // 64 hex digits, of the file and of all that shapes the item; see Identity
}

// Expansion is a prompt with its placeholders.
type Expansion struct {
	Tokens       []uint32
	Placeholders []Placeholder // one for each image, in order
}

// Placeholder is where an image stands in the expanded prompt.
type Placeholder struct {
	Offset, Length int
	// IsEmbed tells the tokens that embeddings replace from those that only frame them; nil: all of them are.
	IsEmbed []bool
}
