package decode_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"image"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/multimodal"
	"github.com/portico-llm/portico/internal/multimodal/decode"
)

const goldens = "../../../tests/golden/images"

const part = "messages[1].content[0].image_url"

func golden(t testing.TB, name string) multimodal.File {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(goldens, "files", name))
	if err != nil {
		t.Fatal(err)
	}
	return multimodal.File{Path: part, Data: data}
}

// TestDecodeEqualsPIL: every pixel of every kind of file is the one that PIL has.
func TestDecodeEqualsPIL(t *testing.T) {
	var manifest struct {
		Images map[string]struct {
			Shape  []int
			SHA256 string
		}
	}
	text, err := os.ReadFile(filepath.Join(goldens, "manifest.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &manifest); err != nil {
		t.Fatal(err)
	}
	pool := decode.New(decode.Options{})
	defer pool.Close()
	for name, want := range manifest.Images {
		t.Run(name, func(t *testing.T) {
			got, err := pool.Decode(context.Background(), golden(t, name), nil)
			if ext := filepath.Ext(name); ext == ".avif" || ext == ".heic" {
				f := fault.From(err)
				if err == nil || f.Kind != fault.BadRequest || f.Param != part || !strings.Contains(f.Message, "isn't supported") {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.Height != want.Shape[0] || got.Width != want.Shape[1] {
				t.Fatalf("%d x %d, want %v", got.Height, got.Width, want.Shape)
			}
			if sum := sha256.Sum256(got.Data); hex.EncodeToString(sum[:]) != want.SHA256 {
				t.Error("pixels differ from PIL's")
			}
		})
	}
}

// oddFiles returns files of the rarer kinds, by name.
func oddFiles(t testing.TB) map[string][]byte {
	t.Helper()
	packed, err := os.Open(filepath.Join(goldens, "odd.tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	z, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]byte{}
	for archive := tar.NewReader(z); ; {
		entry, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if out[entry.Name], err = io.ReadAll(archive); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOddFiles: the rarer kinds of files, too, become what PIL makes of them: every depth and colour of PNG, whole and
// interlaced; every BMP; GIFs whose frame isn't the screen; all orientations; small JPEGs with every sampling.
func TestOddFiles(t *testing.T) {
	var want map[string]struct {
		Shape  []int
		SHA256 string
	}
	text, err := os.ReadFile(filepath.Join(goldens, "odd.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	pool := decode.New(decode.Options{})
	defer pool.Close()
	files := oddFiles(t)
	for name, data := range files {
		got, err := pool.Decode(context.Background(), multimodal.File{Path: part, Data: data}, nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		sum, w := sha256.Sum256(got.Data), want[name]
		if got.Height != w.Shape[0] || got.Width != w.Shape[1] || hex.EncodeToString(sum[:]) != w.SHA256 {
			t.Errorf("%s: %d x %d pixels differ from PIL's, %v", name, got.Height, got.Width, w.Shape)
		}
	}
	if len(files) != len(want) || len(files) < 100 {
		t.Errorf("%d files of %d", len(files), len(want))
	}
}

// TestBadFiles: whatever is wrong with a file is told by the path of its part, and nothing of it gets further.
func TestBadFiles(t *testing.T) {
	pool := decode.New(decode.Options{MaxPixels: 200_000})
	defer pool.Close()
	cut := func(name string, n int) []byte { d := golden(t, name).Data; return d[:len(d)*n/100] }
	lying := func(name string, at int, bytes ...byte) []byte {
		d := append([]byte{}, golden(t, name).Data...)
		copy(d[at:], bytes)
		return d
	}
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"empty":              {nil, "it is empty"},
		"text":               {[]byte("<html>"), "it isn't a JPEG, PNG, WebP, GIF or BMP file"},
		"svg":                {[]byte(`<svg xmlns="http://www.w3.org/2000/svg"/>`), "it isn't a JPEG"},
		"half a JPEG":        {cut("gray.jpg", 50), "it is truncated"},
		"half a progressive": {cut("q444_progressive.jpg", 60), "it is truncated"},
		"half a PNG":         {cut("rgb.png", 50), "it is truncated"},
		"half a WebP":        {cut("lossy.webp", 50), "truncated or broken"},
		"half an animation":  {cut("anim.webp", 20), "truncated or broken"},
		"half a GIF":         {cut("anim.gif", 10), "can't be decoded"},
		"head of a JPEG":     {[]byte("\xff\xd8\xff\xe0"), "can't be decoded"},
		"head of a PNG":      {[]byte("\x89PNG\r\n\x1a\n"), "it is truncated"},
		"head of a WebP":     {[]byte("RIFF\x10\x00\x00\x00WEBP"), "truncated or broken"},
		"head of a GIF":      {[]byte("GIF89a"), "can't be decoded"},
		"head of a BMP":      {[]byte("BM"), "it is truncated"},
		"a bomb":             {lying("rgb.png", 16, 0, 0, 0x80, 0, 0, 0, 0x80, 0), "too large: 32768 x 32768 pixels; the limit is 200000"},
		"a taller one":       {lying("tiny.png", 16, 0x7f, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff), "too large"},
		"no pixels":          {lying("rgb.png", 16, 0, 0, 0, 0), "no pixels"},
		"another size":       {lying("tiny.png", 16, 0, 0, 0, 21), "can't be decoded"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := pool.Decode(context.Background(), multimodal.File{Path: part, Data: c.data}, nil)
			f := fault.From(err)
			if err == nil || f.Kind != fault.BadRequest || f.Param != part || !strings.HasPrefix(f.Message, "`"+part+"` ") ||
				!strings.Contains(f.Message, c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

// TestDamagedFiles: single damaged bytes end in an image or in a client's error, never in anything else.
func TestDamagedFiles(t *testing.T) {
	pool := decode.New(decode.Options{})
	defer pool.Close()
	for _, name := range []string{"q422.jpg", "exif6_420.jpg", "palette_trns.png", "lossy.webp", "anim.webp", "anim.gif", "gray16.png"} {
		whole := golden(t, name).Data
		step := max(1, len(whole)/150)
		for at := 0; at < len(whole); at += step {
			data := append([]byte{}, whole...)
			data[at] ^= 0x55
			if _, err := pool.Decode(context.Background(), multimodal.File{Path: part, Data: data}, nil); err != nil {
				if f := fault.From(err); f.Kind != fault.BadRequest {
					t.Errorf("%s, byte %d: %v", name, at, err)
				}
			}
		}
	}
}

// bigPNG returns a PNG of so many black pixels a side.
func bigPNG(t testing.TB, side int) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestSpeed}).Encode(&b, image.NewGray(image.Rect(0, 0, side, side))); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestLargeImagesTakeTurns: while large images are worked on, small ones are, too; they are never all of the workers'.
func TestLargeImagesTakeTurns(t *testing.T) {
	pool := decode.New(decode.Options{Workers: 2, LargePixels: 1 << 20})
	defer pool.Close()
	large := multimodal.File{Path: part, Data: bigPNG(t, 3000)}
	ctx, cancel := context.WithCancel(context.Background())
	group := lifecycle.New(ctx)
	began := make(chan struct{}, 3) // one for each goroutine
	for range 3 {
		group.Go("large", func(ctx context.Context) error {
			began <- struct{}{}
			for ctx.Err() == nil {
				if _, err := pool.Decode(ctx, large, nil); err != nil && ctx.Err() == nil {
					return err
				}
			}
			return nil
		})
	}
	for range 3 {
		<-began
	}
	small := golden(t, "tiny.png")
	for range 20 {
		if _, err := pool.Decode(context.Background(), small, nil); err != nil {
			t.Error(err)
		}
	}
	cancel()
	if err := group.Stop(); err != nil {
		t.Error(err)
	}
}

// TestQueue: what can't wait is refused, what no longer needs to leaves, and Close ends all.
func TestQueue(t *testing.T) {
	pool := decode.New(decode.Options{Workers: 1, Queue: 1})
	done, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := pool.Decode(done, golden(t, "tiny.png"), nil); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled request: %v", err)
	}
	large := multimodal.File{Path: part, Data: bigPNG(t, 4000)}
	group := lifecycle.New(context.Background())
	var refused atomic.Int64
	for range 8 {
		group.Go("decode", func(ctx context.Context) error {
			_, err := pool.Decode(ctx, large, nil)
			if fault.KindOf(err) == fault.Overloaded {
				refused.Add(1)
				return nil
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	if n := refused.Load(); n == 0 || n > 7 {
		t.Errorf("%d of 8 were refused", n)
	}
	for range 2 {
		if err := pool.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := pool.Decode(context.Background(), golden(t, "tiny.png"), nil); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("after Close: %v", err)
	}
}

// TestForeignTables: a JPEG that lacks tables is refused whatever was decoded before it: those of another client's image
// aren't used for it.
func TestForeignTables(t *testing.T) {
	pool := decode.New(decode.Options{Workers: 1}) // one decoder for all
	defer pool.Close()
	for _, name := range []string{"gray.jpg", "q422.jpg", "q444_progressive.jpg"} {
		whole := golden(t, name)
		without := multimodal.File{Path: part}
		for data := whole.Data; len(data) > 0; {
			n := 2 // the start of the image
			if data[1] != 0xd8 {
				n += int(data[2])<<8 | int(data[3])
			}
			if data[1] == 0xda {
				n = len(data) // the scan, and what follows it
			}
			if data[1] != 0xdb {
				without.Data = append(without.Data, data[:n]...)
			}
			data = data[n:]
		}
		if len(without.Data) >= len(whole.Data) {
			t.Fatalf("%s has no tables", name)
		}
		for range 2 {
			_, err := pool.Decode(t.Context(), without, nil)
			if fault.KindOf(err) != fault.BadRequest || !strings.Contains(fault.From(err).Message, "uantization table") {
				t.Errorf("%s without its tables: %v", name, err)
			}
			if _, err := pool.Decode(t.Context(), whole, nil); err != nil {
				t.Error(err)
			}
		}
	}
}
