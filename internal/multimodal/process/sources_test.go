package process_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"image"
	"image/color"
	"image/color/palette"
	"image/gif"
	"image/jpeg"
	"image/png"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/portico-llm/portico/internal/multimodal"
	"github.com/portico-llm/portico/internal/multimodal/fetch"
	"github.com/portico-llm/portico/internal/multimodal/process"
)

// drawn returns a random image of a random kind.
func drawn(r *rand.Rand) image.Image {
	box := image.Rect(0, 0, 1+r.IntN(160), 1+r.IntN(160))
	fill := func(pix []byte) {
		step := byte(r.IntN(7))
		for i := range pix {
			pix[i] = byte(i)*step + byte(r.IntN(32))
		}
	}
	switch r.IntN(4) {
	case 0:
		m := image.NewGray(box)
		fill(m.Pix)
		return m
	case 1:
		m := image.NewPaletted(box, append(color.Palette{color.Transparent}, palette.WebSafe...))
		for i := range m.Pix {
			m.Pix[i] = byte(r.IntN(len(m.Palette)))
		}
		return m
	case 2:
		m := image.NewRGBA64(box)
		fill(m.Pix)
		for i := 6; i < len(m.Pix); i += 8 {
			m.Pix[i], m.Pix[i+1] = 0xff, 0xff
		}
		return m
	}
	m := image.NewNRGBA(box)
	fill(m.Pix)
	return m
}

// encoded returns an image as a file of a random kind.
func encoded(t testing.TB, r *rand.Rand, m image.Image) []byte {
	t.Helper()
	var b bytes.Buffer
	var err error
	switch r.IntN(4) {
	case 0:
		err = jpeg.Encode(&b, m, &jpeg.Options{Quality: 1 + r.IntN(100)})
	case 1:
		err = gif.Encode(&b, m, &gif.Options{NumColors: 2 + r.IntN(255)})
	default:
		err = (&png.Encoder{CompressionLevel: png.CompressionLevel(-r.IntN(4))}).Encode(&b, m)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestSameFromEverySource: for random images in random files, neither the content's hash, nor the identity, nor a byte of
// the item depends on how the file came: by a URL, by another one, in a data URL of any spelling, or from a folder.
func TestSameFromEverySource(t *testing.T) {
	var data []byte
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/moved" {
			http.Redirect(w, req, "/elsewhere", http.StatusFound)
			return
		}
		w.Header().Set("Content-Type", "text/html") // says nothing
		_, _ = w.Write(data)
	}))
	defer srv.Close()
	dir := t.TempDir()
	f, err := fetch.New(fetch.Options{AllowInternal: true, LocalDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	processors := []*process.Processor{model(t, "qwen2vl", process.Settings{}), model(t, "llava15", process.Settings{})}
	r := rand.New(rand.NewPCG(3, 4))
	seen := map[string]int{}
	for n := range 16 {
		data = encoded(t, r, drawn(r))
		path := filepath.Join(dir, fmt.Sprintf("%d.bin", n))
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		b64 := base64.StdEncoding.EncodeToString(data)
		cut := r.IntN(len(b64))
		// A path of its own for each round: nothing is taken from the round before.
		urls := []string{
			fmt.Sprintf("%s/%d/a.png", srv.URL, n), fmt.Sprintf("%s/%d/b?c=d#e", srv.URL, n), srv.URL + "/moved",
			"data:image/png;base64," + b64, "data:image/jpeg;charset=x;base64," + b64[:cut] + "\r\n" + b64[cut:],
			"DATA:;base64," + base64.RawURLEncoding.EncodeToString(data), "data:application/pdf;base64," + url.QueryEscape(b64),
			"data:," + strings.ReplaceAll(url.QueryEscape(string(data)), "+", "%20"),
			"file://" + path,
		}
		var sources []multimodal.Source
		for i, u := range urls {
			sources = append(sources, multimodal.Source{Kind: multimodal.ImageURL, URL: u, Path: fmt.Sprintf("messages[%d]", i)})
		}
		files, err := f.Fetch(t.Context(), sources)
		if err != nil {
			t.Fatalf("round %d: %v", n, err)
		}
		for _, p := range processors {
			var first *multimodal.Item
			for i, file := range files {
				h, err := p.Header(file)
				if err != nil {
					t.Fatal(err)
				}
				pl, err := p.Plan(h)
				if err != nil {
					break // too long for the model, by whichever way
				}
				it, err := p.Process(t.Context(), file, pl, nil)
				if err != nil {
					t.Fatal(err)
				}
				if first == nil {
					first = it
				}
				if multimodal.Digest(file.Data) != multimodal.Digest(data) || it.Identity != first.Identity ||
					it.Identity != p.Identity(file) || !bytes.Equal(it.Blob, first.Blob) {
					t.Fatalf("round %d, %s: %.40s is another image than %.40s", n, p.Name(), urls[i], urls[0])
				}
			}
			if first != nil {
				if before, ok := seen[first.Identity[:16]]; ok {
					t.Errorf("rounds %d and %d have one identity", before, n)
				}
				seen[first.Identity[:16]] = n
			}
		}
	}
	if len(seen) < 24 {
		t.Errorf("only %d items compared", len(seen))
	}
}
