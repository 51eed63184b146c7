package item_test

import (
	"bytes"
	"encoding/hex"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/internal/multimodal"
	"github.com/portico-llm/portico/internal/multimodal/item"
)

// tensors are one of each: large and small, of every field.
func tensors() []multimodal.Tensor {
	return []multimodal.Tensor{
		{Name: "pixel_values", DType: multimodal.BFloat16, Shape: []int{300, 2}, Field: multimodal.Flat},
		{Name: "grid", DType: multimodal.Int64, Shape: []int{3}, Field: multimodal.Batched, KeepOnCPU: true, Inline: bytes.Repeat([]byte{7}, 24)},
		{Name: "number", DType: multimodal.Int64, Shape: []int{}, Field: multimodal.Batched, Inline: []byte{1, 0, 0, 0, 0, 0, 0, 0}},
		{Name: "mask", DType: multimodal.Uint8, Shape: []int{300}, Field: multimodal.Shared},
	}
}

// assemble puts a blob together, with the data of tensor i filled with i.
func assemble(t testing.TB, ts []multimodal.Tensor, v item.Version) []byte {
	t.Helper()
	frame, size, err := item.Layout(ts, v)
	if err != nil {
		t.Fatal(err)
	}
	blob := make([]byte, size)
	for _, c := range frame {
		copy(blob[c.Offset:], c.Data)
	}
	for i := range ts {
		if ts[i].Inline == nil {
			copy(blob[ts[i].Offset:], bytes.Repeat([]byte{byte(i)}, ts[i].Len()))
		}
	}
	return blob
}

// TestRoundTrip: what is laid out is read back, in both versions.
func TestRoundTrip(t *testing.T) {
	for name, v := range map[string]item.Version{"keyed": item.Keyed, "listed": item.Listed} {
		t.Run(name, func(t *testing.T) {
			ts := tensors()
			got, err := item.Decode(assemble(t, ts, v))
			if err != nil {
				t.Fatal(err)
			}
			byName := map[string]item.Tensor{}
			for _, g := range got {
				byName[g.Name] = g
			}
			for i, want := range ts {
				g := byName[want.Name]
				data := want.Inline
				if data == nil {
					data = bytes.Repeat([]byte{byte(i)}, want.Len())
				}
				if !bytes.Equal(g.Data, data) {
					t.Errorf("%s has other data", want.Name)
				}
				keep := want.KeepOnCPU && v == item.Keyed // the older form doesn't say
				if g.DType != want.DType || g.Field != want.Field || g.KeepOnCPU != keep {
					t.Errorf("%s: got %+v, want %+v", want.Name, g.Tensor, want)
				}
				if diff := cmp.Diff(want.Shape, append([]int{}, g.Shape...)); diff != "" {
					t.Errorf("%s: %s", want.Name, diff)
				}
			}
		})
	}
}

// TestListedTree pins the older form, element by element.
func TestListedTree(t *testing.T) {
	buffers, err := item.Buffers(assemble(t, tensors()[:2], item.Listed))
	if err != nil {
		t.Fatal(err)
	}
	got, err := item.Tree(buffers[0])
	if err != nil {
		t.Fatal(err)
	}
	want := []any{
		map[string]any{
			"modality": "image", "key": "pixel_values", "data": []any{"bfloat16", []any{int64(300), int64(2)}, int64(1)},
			"field": []any{"flat", []any{[]any{[]any{int64(0), int64(300), nil}}}, int64(0)},
		},
		map[string]any{
			"modality": "image", "key": "grid", "data": []any{"int64", []any{int64(3)}, bytes.Repeat([]byte{7}, 24)},
			"field": []any{"batched"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestCapturedBlob: a blob as vLLM wrote it is read.
func TestCapturedBlob(t *testing.T) {
	blob, err := os.ReadFile("../../../tests/golden/vllm-images/qwen2vl/mix.1.bin")
	if err != nil {
		t.Fatal(err)
	}
	got, err := item.Decode(blob)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0].Name != "image_grid_thw" || !got[0].KeepOnCPU || got[1].Name != "pixel_values" ||
		got[1].DType != multimodal.Uint8 || got[1].Field != multimodal.Flat || len(got[1].Data) != 24*1176 {
		t.Errorf("got %+v", got)
	}
}

// TestLayoutRefuses: what can't be encoded is an error, not a blob.
func TestLayoutRefuses(t *testing.T) {
	for name, ts := range map[string][]multimodal.Tensor{
		"small outside": {{Name: "a", DType: multimodal.Uint8, Shape: []int{255}}},
		"large inside":  {{Name: "a", DType: multimodal.Uint8, Shape: []int{256}, Inline: make([]byte, 256)}},
		"other size":    {{Name: "a", DType: multimodal.Int64, Shape: []int{3}, Inline: make([]byte, 16)}},
	} {
		if _, _, err := item.Layout(ts, item.Keyed); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestDecodeRefuses: broken blobs are errors.
func TestDecodeRefuses(t *testing.T) {
	whole := assemble(t, tensors(), item.Keyed)
	for n := range whole {
		if n > 300 {
			n = len(whole) - (n - 300) // the beginning, and the end
		}
		if n <= 0 {
			break
		}
		if _, err := item.Decode(whole[:n]); err == nil {
			t.Fatalf("the first %d of %d bytes are no error", n, len(whole))
		}
	}
	for name, text := range map[string]string{
		"no buffers":     "00000000",
		"too many":       "ffffffff",
		"length":         "01000000ffffffffffffffff",
		"not a tree":     "01000000010000000000000001",
		"trailing":       "0100000001000000000000008000",
		"element":        "01000000040000000000000081a16101",
		"deep":           "010000001400000000000000" + "9191919191919191919191919191919191919191",
		"huge list":      "010000000500000000000000ddffffffff",
		"key isn't text": "0100000003000000000000008101c0",
	} {
		blob, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := item.Decode(blob); err == nil {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

func TestVersionOf(t *testing.T) {
	for _, c := range []struct {
		major, minor int
		want         item.Version
	}{{0, 11, item.Listed}, {0, 13, item.Listed}, {0, 14, item.Keyed}, {0, 31, item.Keyed}, {1, 0, item.Keyed}} {
		if got := item.VersionOf(c.major, c.minor); got != c.want {
			t.Errorf("%d.%d: %v", c.major, c.minor, got)
		}
	}
}

// FuzzDecode: whatever the bytes, decoding ends, and no tensor has other bytes than its shape asks for.
func FuzzDecode(f *testing.F) {
	f.Add(assemble(f, tensors(), item.Keyed))
	f.Add(assemble(f, tensors(), item.Listed))
	f.Fuzz(func(t *testing.T, blob []byte) {
		got, err := item.Decode(blob)
		if err != nil {
			return
		}
		for _, g := range got {
			if len(g.Data) != g.Len() {
				t.Errorf("%s: %d bytes for the shape %v", g.Name, len(g.Data), g.Shape)
			}
		}
	})
}
