package simworker

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/lifecycle"
)

// ImageMode is what a worker does with the images that it was handed.
type ImageMode string

// The modes. All but ReadImages are what a frontend has to put up with.
const (
	ReadImages  ImageMode = "read"  // read them, then answer
	NeverImages ImageMode = "never" // answer without having read them
	LateImages  ImageMode = "late"  // answer, and read them after Delay
	HalfImages  ImageMode = "half"  // read the first half and say nothing, then answer
	DieImages   ImageMode = "die"   // begin to read, then break the connection off
)

// ParseImageMode reads a mode for a command line: its name, and for late the delay, as in late=2s.
func ParseImageMode(text string) (mode ImageMode, delay time.Duration, err error) {
	name, value, timed := strings.Cut(text, "=")
	switch mode = ImageMode(name); mode {
	case ReadImages, NeverImages, HalfImages, DieImages:
		if timed {
			err = fmt.Errorf("simworker: images %q: only late takes a time", text)
		}
	case LateImages:
		if delay, err = time.ParseDuration(value); err != nil || delay < 0 {
			err = fmt.Errorf("simworker: images %q: want late=DURATION", text)
		}
	default:
		err = fmt.Errorf("simworker: unknown image mode %q", name)
	}
	return mode, delay, err
}

// Images is an engine that gets its images as a worker does, over NIXL or from shared memory, and answers with what it
// saw of each: its size, its checksum, and the names, types and shapes of its tensors or, of decoded images, the shape of
// the pixels. Requests without images are Next's.
type Images struct {
	Next   Engine                              // nil: such requests are told that there are none
	Encode func(text string) ([]uint32, error) // the answer's tokens

	// Read reads over NIXL: all of what a description tells of, or at most so many bytes of it and without a word. Nil:
	// there is no NIXL here.
	Read   func(ctx context.Context, description []byte, most int) ([]byte, error)
	ShmDir string // empty: /dev/shm

	Mode  func(*Request) ImageMode // nil: ReadImages
	Delay time.Duration            // of LateImages
	Late  *lifecycle.Group         // runs late reads; needed for them
	Seen  func(*Request, [][]byte, error)
}

var _ Engine = (*Images)(nil)

// handed is what a request says of images that were handed over.
type handed struct {
	NIXL *struct {
		Specs []struct {
			Request json.RawMessage `json:"serialized_request"`
		} `json:"tensor_specs"`
	} `json:"mm_kwargs_nixl"`
	SHM *struct {
		Items []struct {
			Name string `json:"name"`
			Size int    `json:"size"`
		} `json:"items"`
	} `json:"mm_kwargs_shm"`
	pixels []decodedImage // part of multi_modal_data
}

// decodedImage says where the pixels of an image are.
type decodedImage struct {
	Metadata   string `json:"nixl_metadata"`
	Descriptor struct {
		Addr uint64 `json:"addr"`
		Size int    `json:"size"`
	} `json:"nixl_descriptor"`
	Shape []int  `json:"shape"`
	DType string `json:"dtype"`
}

// description says the same in the words of items. The key is the reader's own: nobody waits for it.
func (d *decodedImage) description() ([]byte, error) {
	return json.Marshal(map[string]any{
		"descriptors":   []any{map[string]any{"device": "cpu", "ptr": d.Descriptor.Addr, "size": d.Descriptor.Size}},
		"nixl_metadata": d.Metadata, "notification_key": uuid.NewString(), "operation_kind": 1,
	})
}

// parseHanded reads what a request says of its images; nil: none were handed over.
func parseHanded(q *worker.Request) (*handed, error) {
	var h handed
	if err := json.Unmarshal(q.ExtraArgs, &h); len(q.ExtraArgs) > 0 && err != nil {
		return nil, &worker.Error{Class: "InvalidRequest", Reason: "request.invalid", Message: "extra_args: " + err.Error()}
	}
	if h.NIXL != nil || h.SHM != nil {
		return &h, nil
	}
	var media struct {
		Images []struct{ Decoded *decodedImage } `json:"image_url"`
	}
	if err := json.Unmarshal(q.MultiModalData, &media); len(q.MultiModalData) > 0 && err != nil {
		return nil, &worker.Error{Class: "InvalidRequest", Reason: "request.invalid", Message: "multi_modal_data: " + err.Error()}
	}
	for _, m := range media.Images {
		if m.Decoded == nil {
			return nil, nil // by URL, all of them
		}
		h.pixels = append(h.pixels, *m.Decoded)
	}
	if len(h.pixels) == 0 {
		return nil, nil
	}
	return &h, nil
}

// Generate implements Engine.
func (e *Images) Generate(ctx context.Context, req *Request, out Output) error {
	if req.Tokens == nil || len(req.Tokens.MultiModalData) == 0 && len(req.Tokens.ExtraArgs) == 0 {
		return e.other(ctx, req, out)
	}
	h, err := parseHanded(req.Tokens)
	if err != nil {
		return err
	}
	if h == nil {
		return e.other(ctx, req, out)
	}
	mode := ReadImages
	if e.Mode != nil {
		mode = e.Mode(req)
	}
	switch mode {
	case NeverImages:
		return e.say(ctx, req, out, "The images were not read.")
	case HalfImages, DieImages:
		blobs, err := e.get(ctx, h, true)
		e.seen(req, blobs, err)
		if mode == DieImages {
			return ErrDie
		}
		return e.say(ctx, req, out, "Half of the images was read.")
	case LateImages:
		e.Late.Go("late", func(ctx context.Context) error {
			timer := time.NewTimer(e.Delay)
			defer timer.Stop()
			select {
			case <-timer.C:
				blobs, err := e.get(ctx, h, false)
				e.seen(req, blobs, err)
			case <-ctx.Done():
			}
			return nil
		})
		return e.say(ctx, req, out, "The images will be read later.")
	}
	blobs, err := e.get(ctx, h, false)
	e.seen(req, blobs, err)
	if err != nil { // as a worker does: it takes the URL
		return e.say(ctx, req, out, "The images can not be read: "+err.Error())
	}
	return e.say(ctx, req, out, describe(h, blobs))
}

// seen tells whoever asked to be told.
func (e *Images) seen(req *Request, blobs [][]byte, err error) {
	if e.Seen != nil {
		e.Seen(req, blobs, err)
	}
}

// other answers a request to which no images were handed over.
func (e *Images) other(ctx context.Context, req *Request, out Output) error {
	if e.Next != nil {
		return e.Next.Generate(ctx, req, out)
	}
	if req.Tokens != nil && len(req.Tokens.MultiModalData) > 0 {
		return e.say(ctx, req, out, "The images came by URL.")
	}
	return e.say(ctx, req, out, "There are no images.")
}

// say answers with a text, whole.
func (e *Images) say(ctx context.Context, req *Request, out Output, text string) error {
	ids, err := e.Encode(text)
	if err != nil {
		return err
	}
	g := Generator{Source: &Text{Passages: [][]uint32{ids}}, MaxTokens: len(ids) + 1}
	return g.Generate(ctx, req, out)
}

// get reads all images, or half of each.
func (e *Images) get(ctx context.Context, h *handed, half bool) ([][]byte, error) {
	var out [][]byte
	if h.SHM != nil { // before NIXL, as workers choose
		for _, item := range h.SHM.Items {
			data, err := e.segment(item.Name, item.Size)
			if err != nil {
				return out, err
			}
			if half {
				data = data[:len(data)/2]
			}
			out = append(out, data)
		}
		return out, nil
	}
	if e.Read == nil {
		return nil, errors.New("there is no NIXL here")
	}
	descriptions, err := h.descriptions()
	if err != nil {
		return nil, err
	}
	for _, d := range descriptions {
		most := 0
		if half {
			most = max(size(d)/2, 1)
		}
		data, err := e.Read(ctx, d, most)
		if err != nil {
			return out, err
		}
		out = append(out, data)
	}
	return out, nil
}

// descriptions lists what is to be read over NIXL.
func (h *handed) descriptions() (out [][]byte, err error) {
	if h.NIXL != nil {
		for _, spec := range h.NIXL.Specs {
			out = append(out, spec.Request)
		}
	}
	for i := range h.pixels {
		d, err := h.pixels[i].description()
		if err != nil {
			return nil, err
		}
		out = append(out, d)
	}
	return out, nil
}

// segment reads a file in shared memory. Its name is the frontend's, and leads nowhere else.
func (e *Images) segment(name string, size int) ([]byte, error) {
	dir := e.ShmDir
	if dir == "" {
		dir = "/dev/shm"
	}
	if !filepath.IsLocal(name) || strings.ContainsRune(name, filepath.Separator) {
		return nil, fmt.Errorf("segment %q: not a name", name)
	}
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return nil, err
	}
	if size < 0 || size > len(data) {
		return nil, fmt.Errorf("segment %q has %d bytes, not %d", name, len(data), size)
	}
	return data[:size], nil
}

// size is how many bytes a description tells of.
func size(description []byte) int {
	var d struct {
		Descriptors []struct {
			Size int `json:"size"`
		} `json:"descriptors"`
	}
	if json.Unmarshal(description, &d) != nil || len(d.Descriptors) == 0 {
		return 0
	}
	return d.Descriptors[0].Size
}

// describe says what blobs, or pixels, are, one line each.
func describe(h *handed, blobs [][]byte) string {
	var b strings.Builder
	for i, blob := range blobs {
		fmt.Fprintf(&b, "image %d: %d bytes, sha256 %x", i, len(blob), sha256.Sum256(blob))
		if len(h.pixels) > 0 {
			fmt.Fprintf(&b, ", pixels %s %v\n", h.pixels[i].DType, h.pixels[i].Shape)
			continue
		}
		tensors, err := blobTensors(blob)
		if err != nil {
			fmt.Fprintf(&b, ", not an item: %v", err)
		}
		for _, t := range tensors {
			fmt.Fprintf(&b, ", %s %s %v", t.name, t.dtype, t.shape)
		}
		b.WriteString("\n")
	}
	return b.String()
}
