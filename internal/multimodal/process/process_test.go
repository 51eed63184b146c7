package process_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/multimodal"
	"github.com/portico-llm/portico/internal/multimodal/decode"
	"github.com/portico-llm/portico/internal/multimodal/process"
)

// plan plans an image of a size.
func plan(t testing.TB, p *process.Processor, width, height int) *multimodal.Plan {
	t.Helper()
	got, err := p.Plan(multimodal.Header{Path: "messages[0].content[0].image_url", Width: width, Height: height})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// TestExpandMany: prompts with one to eight images of mixed sizes, and text between them, are expanded as vLLM does it.
func TestExpandMany(t *testing.T) {
	for family, image := range map[string]uint32{"qwen2vl": 151655, "llava15": 32000} {
		z, err := gzip.NewReader(bytes.NewReader(read(t, "vllm-images", family, "many.json.gz")))
		if err != nil {
			t.Fatal(err)
		}
		var cases []struct {
			Sizes        [][2]int
			TokenIDs     []uint32 `json:"token_ids"`
			Expanded     [][2]uint32
			Placeholders []json.RawMessage `json:"mm_placeholders"`
		}
		if err := json.NewDecoder(z).Decode(&cases); err != nil || len(cases) != 8 {
			t.Fatal(len(cases), err)
		}
		p := model(t, family, process.Settings{})
		for i, c := range cases {
			// Its vocabulary has the image at 300.
			prompt := c.TokenIDs
			want := &multimodal.Expansion{Tokens: unrolled(c.Expanded)}
			for _, tokens := range [][]uint32{prompt, want.Tokens} {
				for k := range tokens {
					if tokens[k] == 300 {
						tokens[k] = image
					}
				}
			}
			var plans []*multimodal.Plan
			for k, s := range c.Sizes {
				plans = append(plans, plan(t, p, s[0], s[1]))
				want.Placeholders = append(want.Placeholders, place(t, c.Placeholders[k]))
			}
			e, err := p.Expand(prompt, plans)
			if err != nil {
				t.Fatal(err)
			}
			if len(plans) != i+1 || len(e.Tokens) < len(prompt) {
				t.Fatalf("%d images, %d tokens", len(plans), len(e.Tokens))
			}
			if diff := cmp.Diff(want, e); diff != "" {
				t.Errorf("%s, %d images (-want +got):\n%s", family, len(plans), diff)
			}
			for name, wrong := range map[string][]uint32{
				"one image token more": append([]uint32{image}, prompt...),
				"none":                 {10, 11},
			} {
				if _, err := p.Expand(wrong, plans); err == nil {
					t.Errorf("%s: no error", name)
				}
			}
		}
	}
}

// TestGemmaNewlines: newlines next to an image merge with its own, the longest first as the engine does it.
func TestGemmaNewlines(t *testing.T) {
	p := model(t, "gemma3", process.Settings{})
	const begin, end, image = 255999, 256000, 262144
	pl := plan(t, p, 100, 100)
	pictures := func(before, behind uint32) string { return fmt.Sprintf("%d B 256 E %d", before, behind) }
	for name, c := range map[string]struct {
		prompt []uint32
		want   string
		places [][2]int // offset, length
	}{
		"alone":              {[]uint32{begin}, pictures(108, 108), [][2]int{{0, 260}}},
		"text around":        {[]uint32{5, begin, 6}, "5 " + pictures(108, 108) + " 6", [][2]int{{1, 260}}},
		"a newline before":   {[]uint32{107, begin}, pictures(109, 108), [][2]int{{0, 260}}},
		"a newline behind":   {[]uint32{begin, 107}, pictures(108, 109), [][2]int{{0, 260}}},
		"two on both sides":  {[]uint32{108, begin, 108}, pictures(110, 110), [][2]int{{0, 260}}},
		"one image at other": {[]uint32{begin, begin}, "108 B 256 E 110 B 256 E 108", [][2]int{{0, 260}, {259, 260}}},
		"three before stay":  {[]uint32{109, begin}, "109 " + pictures(108, 108), [][2]int{{1, 260}}},
		"text of newlines":   {[]uint32{107, 108, 5, begin}, "109 5 " + pictures(108, 108), [][2]int{{2, 260}}},
	} {
		t.Run(name, func(t *testing.T) {
			plans := []*multimodal.Plan{pl, pl}[:len(c.places)]
			e, err := p.Expand(c.prompt, plans)
			if err != nil {
				t.Fatal(err)
			}
			var words []string
			run := 0
			for i, tok := range e.Tokens {
				if tok == image {
					if run++; i+1 < len(e.Tokens) && e.Tokens[i+1] == image {
						continue
					}
					words, run = append(words, strconv.Itoa(run)), 0
					continue
				}
				words = append(words, map[uint32]string{begin: "B", end: "E"}[tok])
				if words[len(words)-1] == "" {
					words[len(words)-1] = strconv.FormatUint(uint64(tok), 10)
				}
			}
			if got := strings.Join(words, " "); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			var places [][2]int
			for _, pl := range e.Placeholders {
				places = append(places, [2]int{pl.Offset, pl.Length})
			}
			if diff := cmp.Diff(c.places, places); diff != "" {
				t.Errorf("placeholders (-want +got):\n%s", diff)
			}
		})
	}
}

// TestSettings: defaults follow from the architecture and the engine's version, and choices go before them.
func TestSettings(t *testing.T) {
	for name, c := range map[string]struct {
		family       string
		choice, want process.Settings
	}{
		"qwen2":        {"qwen2vl", process.Settings{}, process.Settings{Engine: "0.31.0", Backend: "torchvision", Scale: "bytes", DType: "uint8"}},
		"qwen2.5":      {"qwen2_5vl", process.Settings{}, process.Settings{Engine: "0.31.0", Backend: "torchvision", Scale: "bytes", DType: "uint8"}},
		"an older one": {"qwen2vl", process.Settings{Engine: "0.29.1"}, process.Settings{Engine: "0.29.1", Backend: "torchvision", Scale: "normalized", DType: "bfloat16"}},
		"no device":    {"qwen2vl", process.Settings{Scale: process.Normalized}, process.Settings{Engine: "0.31.0", Backend: "torchvision", Scale: "normalized", DType: "bfloat16"}},
		"pillow":       {"qwen2vl", process.Settings{Backend: process.Pillow12, DType: multimodal.Float32}, process.Settings{Engine: "0.31.0", Backend: "pillow12", Scale: "normalized", DType: "float32"}},
		"qwen3":        {"qwen3vl", process.Settings{}, process.Settings{Engine: "0.31.0", Backend: "torchvision", Scale: "normalized", DType: "bfloat16"}},
		"a newer one":  {"qwen3vl", process.Settings{Engine: "0.32.0"}, process.Settings{Engine: "0.32.0", Backend: "torchvision", Scale: "bytes", DType: "uint8"}},
		"newer still":  {"qwen3vl", process.Settings{Engine: "v1.0"}, process.Settings{Engine: "v1.0", Backend: "torchvision", Scale: "bytes", DType: "uint8"}},
		"llava":        {"llava15", process.Settings{}, process.Settings{Engine: "0.31.0", Backend: "torchvision", Scale: "normalized", DType: "float16"}},
		"gemma":        {"gemma3", process.Settings{}, process.Settings{Engine: "0.31.0", Backend: "torchvision", Scale: "normalized", DType: "bfloat16"}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, model(t, c.family, c.choice).Settings()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestWrongSettings: what can't be right is an error, and not another model's answer.
func TestWrongSettings(t *testing.T) {
	pool := decode.New(decode.Options{})
	defer pool.Close()
	for _, s := range []process.Settings{
		{Backend: "cv2"}, {Scale: "both"}, {DType: "int8"}, {DType: multimodal.Int64}, {Engine: "new"}, {Engine: "1"},
		{Scale: process.Normalized, DType: multimodal.Uint8},
	} {
		_, err := process.New(process.Options{
			Config: []byte(`{"model_type":"qwen2_vl"}`), Preprocessor: []byte(`{"image_processor_type":"Qwen2VLImageProcessor"}`),
			Pool: pool, Settings: s,
		})
		if err == nil {
			t.Errorf("%+v: no error", s)
		}
	}
}

// TestIdentity: it depends on the file and on what is made of it, and not on how the file came.
func TestIdentity(t *testing.T) {
	file := func(path, name string) multimodal.File {
		return multimodal.File{Path: path, Data: read(t, "images", "files", name)}
	}
	bytes, normalized := model(t, "qwen2vl", process.Settings{}), model(t, "qwen2vl", process.Settings{Scale: process.Normalized})
	one := bytes.Identity(file("messages[0].content[0].image_url", "rgb.png"))
	if it := build(t, bytes, "rgb.png"); it.Identity != one || len(one) != 64 {
		t.Errorf("the item's identity is %s, told before was %s", it.Identity, one)
	}
	if got := bytes.Identity(file("messages[3].content[1].image_url", "rgb.png")); got != one {
		t.Errorf("another place makes it %s", got)
	}
	for name, other := range map[string]string{
		"another file":   bytes.Identity(file("", "tiny.png")),
		"other settings": normalized.Identity(file("", "rgb.png")),
		"another model":  model(t, "qwen3vl", process.Settings{}).Identity(file("", "rgb.png")),
		"another way":    multimodal.Identity(multimodal.Digest(file("", "rgb.png").Data), multimodal.ByURL, ""),
	} {
		if other[:16] == one[:16] {
			t.Errorf("%s doesn't make another identity", name)
		}
	}
}

// TestUnknown: models whose processor isn't known, or used in a way that isn't, are told so; images then go by URL.
func TestUnknown(t *testing.T) {
	pool := decode.New(decode.Options{})
	defer pool.Close()
	for name, c := range map[string][2]string{
		"no such processor": {`{"model_type":"glm4v"}`, `{"image_processor_type":"Glm4vImageProcessor"}`},
		"another model":     {`{"model_type":"keye"}`, `{"image_processor_type":"Qwen2VLImageProcessor"}`},
		"not resized":       {`{"model_type":"qwen2_vl"}`, `{"image_processor_type":"Qwen2VLImageProcessor","do_resize":false}`},
		"not cut":           {`{"model_type":"llava"}`, `{"image_processor_type":"CLIPImageProcessor","do_center_crop":false}`},
		"crops":             {`{"model_type":"gemma3","image_token_index":1,"boi_token_index":2,"eoi_token_index":3}`, `{"image_processor_type":"Gemma3ImageProcessor","do_pan_and_scan":true}`},
		"nearest":           {`{"model_type":"qwen2_vl"}`, `{"image_processor_type":"Qwen2VLImageProcessor","resample":0}`},
		"one channel":       {`{"model_type":"qwen2_vl"}`, `{"image_processor_type":"Qwen2VLImageProcessor","image_mean":[0.5]}`},
		"no deviation":      {`{"model_type":"qwen2_vl"}`, `{"image_processor_type":"Qwen2VLImageProcessor","image_std":[0.5,0,1]}`},
		"no patches":        {`{"model_type":"qwen2_vl"}`, `{"image_processor_type":"Qwen2VLImageProcessor","patch_size":0}`},
		"odd resolutions":   {`{"model_type":"llava_next"}`, `{"image_processor_type":"LlavaNextImageProcessor","size":{"shortest_edge":336},"image_grid_pinpoints":[[300,336]]}`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := process.New(process.Options{Config: []byte(c[0]), Preprocessor: []byte(c[1]), TokenID: newlines, Pool: pool})
			if !errors.Is(err, process.ErrUnknown) {
				t.Errorf("got %v", err)
			}
		})
	}
	for name, c := range map[string][2]string{
		"config":        {`[`, `{}`},
		"preprocessor":  {`{}`, `{`},
		"size":          {`{"model_type":"qwen2_vl"}`, `{"image_processor_type":"Qwen2VLImageProcessor","size":"large"}`},
		"no vocabulary": {`{"model_type":"gemma3","image_token_index":1,"boi_token_index":2,"eoi_token_index":3}`, `{"image_processor_type":"Gemma3ImageProcessor"}`},
	} {
		if _, err := process.New(process.Options{Config: []byte(c[0]), Preprocessor: []byte(c[1]), Pool: pool}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestOddImages: what the reference refuses is the client's error, by the path of its part.
func TestOddImages(t *testing.T) {
	const path = "messages[2].content[0].image_url"
	for family, size := range map[string][2]int{"qwen2vl": {201, 1}, "qwen3vl": {1, 100_000}, "llava15": {1, 100_000}} {
		_, err := model(t, family, process.Settings{}).Plan(multimodal.Header{Path: path, Width: size[0], Height: size[1]})
		if f := fault.From(err); err == nil || f.Kind != fault.BadRequest || f.Param != path || !strings.HasPrefix(f.Message, "`"+path+"` ") {
			t.Errorf("%s, %v: %v", family, size, err)
		}
	}
	for _, size := range [][2]int{{1, 1}, {1, 200}, {200, 1}, {13000, 13000}, {65535, 400}} {
		p := plan(t, model(t, "qwen2vl", process.Settings{}), size[0], size[1])
		if p.Tokens < 1 || p.Grid[1]*p.Grid[2] != 4*p.Tokens || p.Size < p.Tensors[0].Len() {
			t.Errorf("%v: %+v", size, p)
		}
	}
}

// TestSelfCheck: a plan that doesn't fit its processor isn't carried out.
func TestSelfCheck(t *testing.T) {
	p := model(t, "qwen2vl", process.Settings{})
	file := multimodal.File{Data: read(t, "images", "files", "rgb.png")}
	for name, spoil := range map[string]func(*multimodal.Plan){
		"fewer placeholders": func(p *multimodal.Plan) { p.Embeds-- },
		"another grid":       func(p *multimodal.Plan) { p.Grid[1]++ },
		"rows":               func(p *multimodal.Plan) { p.Tensors[0].Shape[0]-- },
		"type":               func(p *multimodal.Plan) { p.Tensors[0].DType = multimodal.Float32 },
		"a tensor less":      func(p *multimodal.Plan) { p.Tensors = p.Tensors[:1] },
		"another image":      func(p *multimodal.Plan) { p.Width, p.Height = p.Height, p.Width },
	} {
		t.Run(name, func(t *testing.T) {
			pl := plan(t, p, 320, 240)
			pl.Header, _ = p.Header(file)
			spoil(pl)
			if _, err := p.Process(context.Background(), file, pl, nil); err == nil {
				t.Error("it was carried out")
			} else if fault.KindOf(err) != fault.Internal {
				t.Errorf("blamed on the client: %v", err)
			}
		})
	}
	pl := plan(t, p, 320, 240)
	if _, err := p.Process(context.Background(), file, pl, make([]byte, pl.Size-1)); err == nil {
		t.Error("a buffer that is too small was taken")
	}
}

// TestReadFolder: settings are found in either file, and a model of text is told from one that can't be read.
func TestReadFolder(t *testing.T) {
	write := func(files map[string]string) string {
		dir := t.TempDir()
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	pool := decode.New(decode.Options{})
	defer pool.Close()
	pre, config := `{"image_processor_type":"Qwen2VLImageProcessor"}`, `{"model_type":"qwen2_vl"}`
	for name, files := range map[string]map[string]string{
		"a file of its own": {"config.json": config, "preprocessor_config.json": pre},
		"inside":            {"config.json": config, "processor_config.json": `{"image_processor":` + pre + `}`},
	} {
		opts, err := process.ReadFolder(write(files))
		if err != nil {
			t.Fatal(err)
		}
		opts.Pool = pool
		if p, err := process.New(opts); err != nil || p.Name() != "qwen2_vl" {
			t.Errorf("%s: %v", name, err)
		}
	}
	opts, err := process.ReadFolder(write(map[string]string{"config.json": "{}", "processor_config.json": "{}"}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := process.New(opts); !errors.Is(err, process.ErrUnknown) {
		t.Errorf("a model of text: %v", err)
	}
	if _, err := process.ReadFolder(t.TempDir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an empty folder: %v", err)
	}
}
