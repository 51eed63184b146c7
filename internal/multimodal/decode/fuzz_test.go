package decode_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/multimodal"
	"github.com/portico-llm/portico/internal/multimodal/decode"
)

// seed adds the golden files and the odd ones to a fuzz target, whole and cut off: every format, and most of their kinds.
func seed(f *testing.F) {
	formats := map[string]bool{}
	for name, data := range oddFiles(f) {
		formats[filepath.Ext(name)] = true
		f.Add(data)
		f.Add(data[:len(data)/2])
	}
	files, err := filepath.Glob(filepath.Join(goldens, "files", "*"))
	if err != nil || len(files) == 0 {
		f.Fatal(files, err)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		if len(data) < 24<<10 {
			formats[filepath.Ext(name)] = true
			f.Add(data)
			f.Add(data[:len(data)/2])
		}
	}
	for _, ext := range []string{".jpg", ".png", ".webp", ".gif", ".bmp"} {
		if !formats[ext] {
			f.Fatalf("no seed of %s", ext)
		}
	}
}

// FuzzHeader: whatever the bytes, a header is within the limits, or the client is told what is wrong with the file.
func FuzzHeader(f *testing.F) {
	seed(f)
	pool := decode.New(decode.Options{MaxPixels: 1 << 20})
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := pool.Header(multimodal.File{Path: part, Data: data})
		if err != nil {
			if e := fault.From(err); e.Kind != fault.BadRequest || e.Param != part {
				t.Errorf("not the client's fault: %v", err)
			}
			return
		}
		if h.Width < 1 || h.Height < 1 || h.Width*h.Height > 1<<20 || h.Format == "" {
			t.Errorf("got %+v", h)
		}
	})
}

// FuzzDecode: whatever the bytes, decoding ends, with as many pixels as the header has told, and with the same ones the
// next time, or with an error that is the client's.
func FuzzDecode(f *testing.F) {
	seed(f)
	pool := decode.New(decode.Options{MaxPixels: 1 << 18})
	f.Fuzz(func(t *testing.T, data []byte) {
		file := multimodal.File{Path: part, Data: data}
		one, err := pool.Decode(t.Context(), file, nil)
		if err != nil {
			if e := fault.From(err); e.Kind != fault.BadRequest || e.Param != part {
				t.Errorf("not the client's fault: %v", err)
			}
			return
		}
		if len(one.Data) != one.Width*one.Height*3 {
			t.Errorf("%d bytes for %d x %d", len(one.Data), one.Width, one.Height)
		}
		two, err := pool.Decode(t.Context(), file, nil)
		if err != nil || string(one.Data) != string(two.Data) {
			t.Errorf("the second time: %v, or other pixels", err)
		}
	})
}
