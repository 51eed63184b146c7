package process_test

import (
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/internal/multimodal"
	"github.com/portico-llm/portico/internal/multimodal/decode"
	"github.com/portico-llm/portico/internal/multimodal/item"
	"github.com/portico-llm/portico/internal/multimodal/process"
)

// made is what vLLM's own processor makes of a family's images; see tests/golden/vllm-images. Tokens and masks are
// written as pairs: what, and how often.
type made struct {
	Vocabulary map[string]uint32
	Cases      map[string]struct {
		Images       []string
		TokenIDs     []uint32 `json:"token_ids"`
		Expanded     [][2]uint32
		Placeholders []json.RawMessage `json:"mm_placeholders"`
		Blobs        []struct {
			Hex     string `json:"msgpack_hex"`
			Buffers []string
		}
	}
	Sizes []struct {
		Size        [2]int
		Error       string
		Expanded    [][2]uint32
		Placeholder json.RawMessage `json:"mm_placeholder"`
		Shapes      map[string][]int
	}
}

// families are those that were made so.
var families = []string{"llava_next", "siglip", "pixtral", "mistral3", "idefics3", "smolvlm"}

func readMade(t testing.TB, family string) (m made) {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(read(t, "vllm-images", family, "cases.json.gz")))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.NewDecoder(z).Decode(&m); err != nil {
		t.Fatal(err)
	}
	return m
}

// tokenID looks up a token.
func (m *made) tokenID(text string) (uint32, bool) {
	id, ok := m.Vocabulary[text]
	return id, ok
}

// encode tokenises the text that is among an image's tokens: the longest token first.
func (m *made) encode(text string) (ids []uint32, err error) {
	for text != "" {
		best := ""
		for token := range m.Vocabulary {
			if strings.HasPrefix(text, token) && len(token) > len(best) {
				best = token
			}
		}
		if best == "" {
			return nil, errors.New("no token for " + text)
		}
		ids, text = append(ids, m.Vocabulary[best]), text[len(best):]
	}
	return ids, nil
}

// options are those of a family's model.
func (m *made) options(t testing.TB, family string) process.Options {
	t.Helper()
	pool := decode.New(decode.Options{})
	t.Cleanup(func() { pool.Close() })
	return process.Options{
		Config:       read(t, "vllm-images", family, "config.json"),
		Preprocessor: read(t, "vllm-images", family, "preprocessor_config.json"),
		Processor:    read(t, "vllm-images", family, "processor_config.json"),
		TokenID:      m.tokenID, Encode: m.encode, Pool: pool,
	}
}

func unrolled(runs [][2]uint32) (out []uint32) {
	for _, r := range runs {
		for range r[1] {
			out = append(out, r[0])
		}
	}
	return out
}

// place reads a placeholder whose mask is written as runs.
func place(t testing.TB, raw json.RawMessage) multimodal.Placeholder {
	t.Helper()
	var pair [2]int
	if json.Unmarshal(raw, &pair) == nil {
		return multimodal.Placeholder{Offset: pair[0], Length: pair[1]}
	}
	var full struct {
		Offset, Length int
		Mask           [][2]any `json:"is_embed"`
	}
	if err := json.Unmarshal(raw, &full); err != nil {
		t.Fatal(err)
	}
	p := multimodal.Placeholder{Offset: full.Offset, Length: full.Length}
	for _, run := range full.Mask {
		for range int(run[1].(float64)) {
			p.IsEmbed = append(p.IsEmbed, run[0].(bool))
		}
	}
	return p
}

// TestEqualsVLLMFamilies: tensors, all that is said of them, prompts and placeholders are those of vLLM's processors.
func TestEqualsVLLMFamilies(t *testing.T) {
	for _, family := range families {
		m := readMade(t, family)
		p, err := process.New(m.options(t, family))
		if err != nil {
			t.Fatalf("%s: %v", family, err)
		}
		if err := p.Sendable(); err != nil {
			t.Errorf("%s: %v", family, err)
		}
		if len(m.Cases) == 0 {
			t.Errorf("%s has no cases", family)
		}
		for name, c := range m.Cases {
			t.Run(family+"/"+name, func(t *testing.T) {
				var plans []*multimodal.Plan
				for i, image := range c.Images {
					it := build(t, p, image)
					plans = append(plans, it.Plan)
					compareNamed(t, it.Blob, c.Blobs[i].Hex, c.Blobs[i].Buffers)
				}
				e, err := p.Expand(c.TokenIDs, plans)
				if err != nil {
					t.Fatal(err)
				}
				want := &multimodal.Expansion{Tokens: unrolled(c.Expanded)}
				for _, raw := range c.Placeholders {
					want.Placeholders = append(want.Placeholders, place(t, raw))
				}
				if diff := cmp.Diff(want, e); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		}
	}
}

// compareNamed compares items tensor by tensor: their order, and with it that of the buffers, means nothing.
func compareNamed(t testing.TB, blob []byte, wantHex string, buffers []string) {
	t.Helper()
	raw, err := hex.DecodeString(wantHex)
	if err != nil {
		t.Fatal(err)
	}
	want, err := item.Tree(raw)
	if err != nil {
		t.Fatal(err)
	}
	parts, err := item.Buffers(blob)
	if err != nil {
		t.Fatal(err)
	}
	got, err := item.Tree(parts[0])
	if err != nil {
		t.Fatal(err)
	}
	onlyOwnRows(want)
	// In place of a buffer's number, what is in it.
	name := func(tree any, sum func(int64) string) {
		for _, element := range tree.(map[string]any) {
			data := element.(map[string]any)["data"].([]any)
			if n, ok := data[2].(int64); ok {
				data[2] = sum(n)
			}
		}
	}
	name(want, func(n int64) string { return buffers[n] })
	name(got, func(n int64) string { return sum(parts[n]) })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestSizesVLLM: images of all sizes have as many placeholders, in the same places, and tensors of the same shapes.
func TestSizesVLLM(t *testing.T) {
	for _, family := range families {
		m := readMade(t, family)
		p, err := process.New(m.options(t, family))
		if err != nil {
			t.Fatalf("%s: %v", family, err)
		}
		compared := 0
		for _, c := range m.Sizes {
			plan, err := p.Plan(multimodal.Header{Width: c.Size[0], Height: c.Size[1]})
			if c.Error != "" || err != nil {
				t.Logf("%s, %v: vLLM says %q, we say %v", family, c.Size, c.Error, err)
				continue
			}
			compared++
			e, err := p.Expand([]uint32{5, m.Vocabulary[imageToken(family)], 6}, []*multimodal.Plan{plan})
			if err != nil {
				t.Errorf("%s, %v: %v", family, c.Size, err)
				continue
			}
			want := &multimodal.Expansion{
				Tokens: unrolled(c.Expanded), Placeholders: []multimodal.Placeholder{place(t, c.Placeholder)},
			}
			if diff := cmp.Diff(want, e); diff != "" {
				t.Errorf("%s, %v (-want +got):\n%s", family, c.Size, diff)
			}
			shapes := map[string][]int{}
			for _, tensor := range plan.Tensors {
				shapes[tensor.Name] = tensor.Shape
			}
			if diff := cmp.Diff(c.Shapes, shapes); diff != "" {
				t.Errorf("%s, %v, shapes (-want +got):\n%s", family, c.Size, diff)
			}
		}
		if compared < 20 {
			t.Errorf("%s: only %d sizes compared", family, compared)
		}
	}
}

func imageToken(family string) string {
	if family == "pixtral" || family == "mistral3" {
		return "[IMG]"
	}
	return "<image>"
}

// TestSendable: items are made, but not sent, where there is no engine to compare them with, or where its config and the
// processor's don't agree: the engine reads both.
func TestSendable(t *testing.T) {
	for name, c := range map[string]struct{ family, file, from, to, want string }{
		"no image token":      {"llava_next", "config", `"image_token_index": 300`, `"other": 300`, "image token"},
		"other resolutions":   {"llava_next", "config", "1008", "672", "image_grid_pinpoints"},
		"larger tower":        {"llava_next", "config", `"image_size": 336`, `"image_size": 448`, "takes them of 448"},
		"unknown tower":       {"siglip", "config", `"image_size": 384`, `"x": 384`, "doesn't tell the size"},
		"smaller images":      {"siglip", "preprocessor_config", `"height": 384`, `"height": 224`, "384 x 224"},
		"longest edge":        {"pixtral", "config", `"image_size": 1024`, `"image_size": 1540`, "up to 1024"},
		"patches":             {"pixtral", "processor_config", `"patch_size": 16`, `"patch_size": 14`, "patches of 14"},
		"merged patches":      {"mistral3", "processor_config", `"spatial_merge_size": 2`, `"spatial_merge_size": 1`, "patches of 14"},
		"no such token":       {"pixtral", "processor_config", "[IMG_END]", "[END]", "no token [END]"},
		"another image token": {"idefics3", "config", `"image_token_id": 300`, `"image_token_id": 301`, "301 is the image token"},
		"tokens of a tile":    {"idefics3", "processor_config", "169", "64", "64 tokens for a tile"},
		"tiles":               {"smolvlm", "config", `"image_size": 512`, `"image_size": 384`, "takes them of 384"},
		"unknown scale":       {"smolvlm", "config", "scale_factor", "x", "scale_factor"},
	} {
		t.Run(name, func(t *testing.T) {
			m := readMade(t, c.family)
			opts := m.options(t, c.family)
			file := map[string]*[]byte{
				"config": &opts.Config, "preprocessor_config": &opts.Preprocessor, "processor_config": &opts.Processor,
			}[c.file]
			if !bytes.Contains(*file, []byte(c.from)) {
				t.Fatalf("%s doesn't have %s", c.file, c.from)
			}
			*file = bytes.ReplaceAll(*file, []byte(c.from), []byte(c.to))
			p, err := process.New(opts)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Sendable(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
			if _, err := p.Expand([]uint32{300}, []*multimodal.Plan{plan(t, p, 320, 240)}); err == nil {
				t.Error("it would be sent")
			}
		})
	}
	pool := decode.New(decode.Options{})
	defer pool.Close()
	p, err := process.New(process.Options{
		Config:       []byte(`{"model_type":"mllama","image_token_index":9}`),
		Preprocessor: []byte(`{"image_processor_type":"MllamaImageProcessor","size":{"height":448,"width":448}}`), Pool: pool,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Sendable(); err == nil || !strings.Contains(err.Error(), "no version of vLLM") {
		t.Errorf("Llama 3.2 Vision: got %v", err)
	}
	m := readMade(t, "idefics3")
	opts := m.options(t, "idefics3")
	opts.TokenID, opts.Encode = nil, nil
	if p, err = process.New(opts); err != nil {
		t.Fatal(err)
	}
	if err := p.Sendable(); err == nil {
		t.Error("without a tokenizer it would be sent")
	}
}
