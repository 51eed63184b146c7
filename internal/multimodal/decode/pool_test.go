package decode_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/portico-llm/portico/internal/fault"
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
