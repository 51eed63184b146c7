package fieldreports_test

import (
	"bytes"
	"os"
	"testing"

	"github.com/portico-llm/portico/internal/multimodal"
	"github.com/portico-llm/portico/internal/multimodal/decode"
)

// TestBrokenEXIF: what a camera's notes can't say, they don't: the picture is decoded, and stays as it lies.
func TestBrokenEXIF(t *testing.T) {
	whole, err := os.ReadFile("../golden/images/files/exif6_420.jpg")
	if err != nil {
		t.Fatal(err)
	}
	notes := bytes.Index(whole, []byte("Exif\x00\x00"))
	if notes < 0 {
		t.Fatal("the picture has no notes")
	}
	pool := decode.New(decode.Options{})
	defer pool.Close()
	size := func(data []byte) [2]int {
		t.Helper()
		got, err := pool.Decode(t.Context(), multimodal.File{Path: "p", Data: data}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return [2]int{got.Width, got.Height}
	}
	upright := size(whole)
	lying := [2]int{upright[1], upright[0]}
	if upright == lying {
		t.Fatal("a square shows nothing")
	}
	for name, bad := range map[string][]byte{
		"no such byte order":   []byte("XX\x00\x00\x00\x00\x00\x08"),
		"another magic number": []byte("MM\x00\x2b\x00\x00\x00\x08"),
		"entries out of reach": []byte("MM\x00\x2a\xff\xff\xff\xf0"),
		"entries ahead of it":  []byte("MM\x00\x2a\x00\x00\x00\x00"),
		"nothing but zeros":    make([]byte, 8),
	} {
		data := bytes.Clone(whole)
		copy(data[notes+6:], bad)
		if got := size(data); got != lying {
			t.Errorf("%s: %v, want %v", name, got, lying)
		}
	}
}
