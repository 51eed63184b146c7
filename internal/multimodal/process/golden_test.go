package process_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/internal/multimodal"
	"github.com/portico-llm/portico/internal/multimodal/decode"
	"github.com/portico-llm/portico/internal/multimodal/item"
	"github.com/portico-llm/portico/internal/multimodal/process"
)

const goldens = "../../../tests/golden"

func read(t testing.TB, parts ...string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(append([]string{goldens}, parts...)...))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// newlines is the part of Gemma's vocabulary that counts here.
func newlines(token string) (uint32, bool) {
	return 106 + uint32(len(token)), token == strings.Repeat("\n", len(token))
}

// model returns the processor of a captured model.
func model(t testing.TB, family string, settings process.Settings) *process.Processor {
	t.Helper()
	pool := decode.New(decode.Options{})
	t.Cleanup(func() { pool.Close() })
	opts := process.Options{
		Config:       read(t, "vllm-images", family, "config.json"),
		Preprocessor: read(t, "vllm-images", family, "preprocessor_config.json"),
		Settings:     settings, TokenID: newlines, Pool: pool,
	}
	if b, err := os.ReadFile(filepath.Join(goldens, "vllm-images", family, "processor_config.json")); err == nil {
		opts.Processor = b
	}
	p, err := process.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// capture is a request as it went from vLLM's frontend to its worker.
type capture struct {
	Images       []string
	TokenIDs     []uint32          `json:"token_ids"`
	Expanded     []uint32          `json:"expanded_token_ids"`
	Placeholders []json.RawMessage `json:"mm_placeholders"`
	Blobs        []struct {
		Hex     string `json:"msgpack_hex"`
		Buffers []string
	}
}

func captures(t testing.TB, family string) map[string]capture {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(read(t, "vllm-images", family, "cases.json.gz")))
	if err != nil {
		t.Fatal(err)
	}
	var out map[string]capture
	if err := json.NewDecoder(z).Decode(&out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestEqualsVLLM: items are what vLLM's own processor makes, in every byte of every tensor and in all that is said of
// them; and so are the expanded prompt and the placeholders.
func TestEqualsVLLM(t *testing.T) {
	for _, family := range []string{"qwen2vl", "qwen2_5vl", "qwen3vl", "llava15", "gemma3"} {
		p := model(t, family, process.Settings{})
		for name, c := range captures(t, family) {
			t.Run(family+"/"+name, func(t *testing.T) {
				var plans []*multimodal.Plan
				for i, image := range c.Images {
					it := build(t, p, image)
					plans = append(plans, it.Plan)
					compareBlob(t, it.Blob, c.Blobs[i].Hex, c.Blobs[i].Buffers[1:])
				}
				e, err := p.Expand(c.TokenIDs, plans)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(c.Expanded, e.Tokens); diff != "" {
					t.Errorf("expanded prompt (-want +got):\n%s", diff)
				}
				var want []multimodal.Placeholder
				for _, raw := range c.Placeholders {
					want = append(want, placeholder(t, raw))
				}
				if diff := cmp.Diff(want, e.Placeholders); diff != "" {
					t.Errorf("placeholders (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// build makes the item of one golden image.
func build(t testing.TB, p *process.Processor, image string) *multimodal.Item {
	t.Helper()
	file := multimodal.File{Path: "messages[0].content[0].image_url", Data: read(t, "images", "files", image)}
	h, err := p.Header(file)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := p.Plan(h)
	if err != nil {
		t.Fatal(err)
	}
	dst := bytes.Repeat([]byte{0xa5}, plan.Size+7) // a used slot, somewhat too large
	it, err := p.Process(context.Background(), file, plan, dst)
	if err != nil {
		t.Fatal(err)
	}
	if len(it.Blob) != plan.Size || &it.Blob[0] != &dst[0] {
		t.Fatalf("the item isn't in the buffer it was to be in")
	}
	return it
}

// placeholder reads either form of a captured placeholder.
func placeholder(t testing.TB, raw json.RawMessage) (p multimodal.Placeholder) {
	t.Helper()
	var pair [2]int
	if json.Unmarshal(raw, &pair) == nil {
		return multimodal.Placeholder{Offset: pair[0], Length: pair[1]}
	}
	var full struct {
		Offset, Length int
		IsEmbed        []bool `json:"is_embed"`
	}
	if err := json.Unmarshal(raw, &full); err != nil {
		t.Fatal(err)
	}
	return multimodal.Placeholder(full)
}

// compareBlob compares trees, as the order of their keys means nothing, and all buffers.
func compareBlob(t testing.TB, blob []byte, wantHex string, buffers []string) {
	t.Helper()
	parts, err := item.Buffers(blob)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := hex.DecodeString(wantHex)
	if err != nil {
		t.Fatal(err)
	}
	want, err := item.Tree(raw)
	if err != nil {
		t.Fatal(err)
	}
	got, err := item.Tree(parts[0])
	if err != nil {
		t.Fatal(err)
	}
	onlyOwnRows(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("tree (-want +got):\n%s", diff)
	}
	var sums []string
	for _, b := range parts[1:] {
		sums = append(sums, sum(b))
	}
	if diff := cmp.Diff(buffers, sums); diff != "" {
		t.Errorf("tensors (-want +got):\n%s", diff)
	}
}

// onlyOwnRows replaces the slices of flat fields, in which vLLM repeats the rows of all images that were processed with
// this one. Workers don't read them; ours tell of the item's own rows.
func onlyOwnRows(tree any) {
	for _, element := range tree.(map[string]any) {
		e := element.(map[string]any)
		field := e["field"].([]any)
		if settings := field[1].(map[string]any); settings["slices"] != nil {
			rows := e["data"].([]any)[1].([]any)[0]
			settings["slices"] = []any{[]any{[]any{int64(0), rows, nil}}}
		}
	}
}

// TestEqualsPillow: with Pillow's backend the tensors are those of transformers without torchvision, for all families.
func TestEqualsPillow(t *testing.T) {
	var manifest struct {
		Processors map[string]json.RawMessage
		Cases      []struct {
			Image, Processor string
			Out              map[string]struct {
				DType  string
				Shape  []int
				SHA256 string
				Value  json.RawMessage
			}
		}
	}
	if err := json.Unmarshal(read(t, "images", "manifest.json"), &manifest); err != nil {
		t.Fatal(err)
	}
	types := map[string]string{
		"qwen2_vl": "qwen2_vl", "qwen2_vl_small": "qwen2_vl", "qwen3_vl_like_p16": "qwen3_vl", "llava15_clip336": "llava",
		"llava_next": "llava_next", "siglip384": "llava", "gemma3_896": "gemma3", "pixtral": "llava", "mllama": "mllama",
		"idefics3": "idefics3",
	}
	pool := decode.New(decode.Options{})
	defer pool.Close()
	for _, c := range manifest.Cases {
		t.Run(c.Processor+"/"+c.Image, func(t *testing.T) {
			if ext := filepath.Ext(c.Image); ext == ".avif" || ext == ".heic" {
				return // refused: see package decode
			}
			config := fmt.Sprintf(`{"model_type":%q,"image_token_index":9,"boi_token_index":7,"eoi_token_index":8,"vision_config":{"patch_size":14}}`,
				types[c.Processor])
			p, err := process.New(process.Options{
				Config: []byte(config), Preprocessor: manifest.Processors[c.Processor], TokenID: newlines, Pool: pool,
				Settings: process.Settings{Backend: process.Pillow, DType: multimodal.Float32},
			})
			if err != nil {
				t.Fatal(err)
			}
			it := build(t, p, c.Image)
			got, err := item.Decode(it.Blob)
			if err != nil {
				t.Fatal(err)
			}
			for name, want := range c.Out {
				i := slices.IndexFunc(got, func(x item.Tensor) bool { return x.Name == name })
				if name == "num_crops" || name == "image_sizes" && c.Processor == "pixtral" {
					continue // vLLM has num_patches in place of the first, and takes the second from the pixels
				}
				if i < 0 {
					t.Errorf("no tensor %s", name)
					continue
				}
				compareTensor(t, got[i], want.DType, want.Shape, want.SHA256, want.Value)
			}
		})
	}
}

// compareTensor compares a tensor with a reference that has one or two more axes of length 1 in front.
func compareTensor(t testing.TB, got item.Tensor, dtype string, shape []int, sha string, value json.RawMessage) {
	t.Helper()
	for len(shape) > len(got.Shape) && shape[0] == 1 {
		shape = shape[1:]
	}
	if diff := cmp.Diff(shape, append([]int{}, got.Shape...)); diff != "" || string(got.DType) != dtype {
		t.Errorf("%s is %s %v, want %s %v", got.Name, got.DType, got.Shape, dtype, shape)
	}
	if sha != "" {
		if s := sum(got.Data); s != sha {
			t.Errorf("%s differs", got.Name)
		}
		return
	}
	var want any
	if err := json.Unmarshal(value, &want); err != nil {
		t.Fatal(err)
	}
	var numbers []int64
	for b := got.Data; len(b) > 0; b = b[8:] {
		numbers = append(numbers, int64(binary.LittleEndian.Uint64(b)))
	}
	if diff := cmp.Diff(flat(want), numbers); diff != "" {
		t.Errorf("%s (-want +got):\n%s", got.Name, diff)
	}
}

// flat returns the numbers of nested lists.
func flat(v any) (out []int64) {
	if list, ok := v.([]any); ok {
		for _, v := range list {
			out = append(out, flat(v)...)
		}
		return out
	}
	return append(out, int64(v.(float64)))
}
