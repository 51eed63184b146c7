package native

/*
#include "image.h"
#cgo noescape portico_image_header
#cgo nocallback portico_image_header
#cgo noescape portico_image_run
#cgo nocallback portico_image_run
#cgo nocallback portico_image_worker
#cgo nocallback portico_image_worker_free
*/
import "C"

import (
	"errors"
	"unsafe"
)

// ImageFormat is the format of an image file. The numbers are the native library's.
type ImageFormat uint32

// The formats that are decoded.
const (
	ImageJPEG ImageFormat = 1
	ImagePNG  ImageFormat = 2
	ImageWebP ImageFormat = 3
	ImageGIF  ImageFormat = 4
	ImageBMP  ImageFormat = 5
)

// ImageHeader is what an image file says of itself; Width and Height are those of the upright image.
type ImageHeader struct {
	Format        ImageFormat
	Width, Height int
	Orientation   int // as EXIF counts them: 1 is upright
}

// ImageFilter is a filter of resizing, numbered as in Pillow.
type ImageFilter int32

// The filters.
const (
	Lanczos  ImageFilter = 1
	Bilinear ImageFilter = 2
	Bicubic  ImageFilter = 3
	Box      ImageFilter = 4
	Hamming  ImageFilter = 5
)

// ImageRule says whose arithmetic resizing follows.
type ImageRule int32

// The rules.
const (
	TorchRule          ImageRule = 0 // PyTorch, torchvision
	PillowRule         ImageRule = 1 // Pillow up to 12
	PillowCheapestRule ImageRule = 2 // Pillow from 13 on
)

// ImageLayout is the form in which a step writes.
type ImageLayout int32

// The layouts.
const (
	Interleaved ImageLayout = 0 // rows of RGB bytes
	Tiles       ImageLayout = 1 // tiles one after the other, each of three planes
	Patches     ImageLayout = 2 // groups of patches, as Qwen's models take them
)

// ImageStep is one step of processing: the image is resized to Width x Height, if it hasn't that size already.
type ImageStep struct {
	Keep          bool // the result replaces the image, and nothing is written
	Filter        ImageFilter
	Rule          ImageRule
	Width, Height int

	Layout ImageLayout
	Offset int // where in the destination the step writes

	// Tiles: the image is put on a black canvas at Left, Top, and the canvas is cut into tiles.
	CanvasWidth, CanvasHeight, Left, Top, TileWidth, TileHeight int

	// Patches: squares of Side pixels in groups of Merge x Merge, each Frames times.
	Side, Merge, Frames int

	// Element is the size of a value in bytes: 1, 2 or 4. Interleaved has bytes.
	Element int
}

// ImageFailure says why an image gave nothing. The numbers are the native library's.
type ImageFailure int

// The failures of an image.
const (
	ImageBroken   ImageFailure = 1 // the file can't be decoded
	ImageTooLarge ImageFailure = 2 // it has more pixels than allowed
	ImageNoMemory ImageFailure = 3 // there isn't enough memory for it
	ImageMisuse   ImageFailure = 4 // steps and buffers don't fit together
	ImagePanicked ImageFailure = 5 // a defect of the library
)

// ImageError is a failed decode. Message says what is wrong with the file.
type ImageError struct {
	Failure ImageFailure
	Message string
}

// Error returns the message.
func (e *ImageError) Error() string { return e.Message }

// ErrNoMemory says that a worker couldn't be made.
var ErrNoMemory = errors.New("not enough memory for an image decoder")

// ImageWorker decodes and processes images, one at a time, and keeps scratch memory for the next. For one goroutine.
type ImageWorker struct{ p unsafe.Pointer }

// NewImageWorker returns a worker. It holds up to 64 MB of scratch memory, depending on what it has worked on.
func NewImageWorker() (*ImageWorker, error) {
	p := C.portico_image_worker()
	if p == nil {
		return nil, ErrNoMemory
	}
	return &ImageWorker{p: p}, nil
}

// Close frees the worker. A second Close does nothing.
func (w *ImageWorker) Close() error {
	C.portico_image_worker_free(w.p)
	w.p = nil
	return nil
}

// Header reads the dimensions of a file; more than maxPixels are an error. An error is an *ImageError.
func (w *ImageWorker) Header(file []byte, maxPixels int) (ImageHeader, error) {
	var (
		out     C.portico_image_header_t
		failure C.portico_bytes
	)
	code := C.portico_image_header(w.p, bytesPtr(file), C.size_t(len(file)), C.size_t(maxPixels), &out, &failure)
	return imageResult(code, out, failure)
}

// ImageJob is what Run does with a file.
type ImageJob struct {
	MaxPixels  int
	KeyToWhite bool // the colour that stands for transparency in a palette becomes white
	Narrow     bool // no vector instructions, for tests
	Steps      []ImageStep
	// Values has, for each of three channels, what its 256 values become, in elements of the steps' size. Interleaved
	// doesn't use it.
	Values []byte
}

// Run decodes a file and runs the steps, which write into dst. An error is an *ImageError; what dst holds then is
// undefined.
func (w *ImageWorker) Run(file []byte, job *ImageJob, dst []byte) (ImageHeader, error) {
	var (
		out     C.portico_image_header_t
		failure C.portico_bytes
		flags   C.uint32_t
	)
	if job.KeyToWhite {
		flags |= 1
	}
	if job.Narrow {
		flags |= 2
	}
	steps := make([]C.portico_image_step, len(job.Steps))
	for i := range job.Steps {
		steps[i] = job.Steps[i].native()
	}
	code := C.portico_image_run(w.p, bytesPtr(file), C.size_t(len(file)), C.size_t(job.MaxPixels), flags,
		unsafe.SliceData(steps), C.size_t(len(steps)), bytesPtr(job.Values), C.size_t(len(job.Values)),
		bytesPtr(dst), C.size_t(len(dst)), &out, &failure)
	return imageResult(code, out, failure)
}

func imageResult(code C.int32_t, out C.portico_image_header_t, failure C.portico_bytes) (ImageHeader, error) {
	if code != 0 {
		e := &ImageError{Failure: ImageFailure(code), Message: "misuse of the image library"}
		if failure.ptr != nil {
			e.Message = takeError(failure).Error()
		}
		return ImageHeader{}, e
	}
	return ImageHeader{
		Format: ImageFormat(out.format), Width: int(out.width), Height: int(out.height), Orientation: int(out.orientation),
	}, nil
}

func (s *ImageStep) native() C.portico_image_step {
	kind := C.int32_t(1)
	if s.Keep {
		kind = 0
	}
	n := func(v int) C.int32_t { return C.int32_t(min(max(v, -1<<30), 1<<30)) } // out of range is refused there
	return C.portico_image_step{
		kind: kind, filter: C.int32_t(s.Filter), rule: C.int32_t(s.Rule), width: n(s.Width), height: n(s.Height),
		layout: C.int32_t(s.Layout), canvas_width: n(s.CanvasWidth), canvas_height: n(s.CanvasHeight),
		left: n(s.Left), top: n(s.Top), tile_width: n(s.TileWidth), tile_height: n(s.TileHeight),
		side: n(s.Side), merge: n(s.Merge), frames: n(s.Frames), element: n(s.Element), offset: C.size_t(s.Offset),
	}
}
