package modelcard_test

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/zeebo/blake3"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/prepost/modelcard"
)

// write puts files into a folder and returns it.
func write(t *testing.T, dir string, files map[string]string) string {
	t.Helper()
	for name, content := range files {
		place := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(place), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(place, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// sum is a content's checksum as cards give it.
func sum(content string) string {
	s := blake3.Sum256([]byte(content))
	return "blake3:" + hex.EncodeToString(s[:])
}

// file is a card's entry for a file of this content, wherever it may be.
func file(kind, path, content string) worker.CardFile {
	return worker.CardFile{Kind: kind, File: worker.CheckedFile{Path: path, Checksum: sum(content)}}
}

func open(t *testing.T, card *worker.Card, opts modelcard.Options) (*modelcard.Files, error) {
	t.Helper()
	opts.Log = slog.New(slog.DiscardHandler)
	return modelcard.Open(t.Context(), card, opts)
}

// A model's files in small: settings has a token as an object, a null one, and a member that only looks like one.
const (
	config    = `{"model_type":"qwen3","architectures":["Qwen3ForCausalLM"],"max_position_embeddings":40960,"vocab_size":151936,"eos_token_id":151645}`
	gen       = `{"eos_token_id":[151645,151643],"temperature":0.6}`
	settings  = `{"bos_token":null,"eos_token":{"content":"<|im_end|>","lstrip":false},"pad_token":"<pad>","add_bos_token":false,"model_max_length":1e30,"chat_template":"from the settings"}`
	tokenizer = `{"added_tokens":[{"id":7,"content":"<|im_end|>"}],"model":{"vocab":{"a":0,"</s>":9}}}`
)

// TestFromFolder makes a card of a folder and opens the card again.
func TestFromFolder(t *testing.T) {
	dir := write(t, t.TempDir(), map[string]string{
		"config.json": config, "generation_config.json": gen, "tokenizer_config.json": settings, "tokenizer.json": tokenizer,
		"chat_template.jinja": "from its own file", "preprocessor_config.json": `{"image_processor_type":"x"}`,
	})
	card, err := modelcard.FromFolder(dir, "Org/Qwen3 0.6B")
	if err != nil {
		t.Fatal(err)
	}
	if card.Slug != "org_qwen3_0_6b" || card.ModelType != "Chat | Completions" || card.EffectiveContextLength() != 40960 {
		t.Errorf("%+v", card)
	}
	if got := card.Tokenizer.File.Checksum; got != sum(tokenizer) {
		t.Errorf("tokenizer's sum %s, want %s", got, sum(tokenizer))
	}
	got, err := open(t, card, modelcard.Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := &modelcard.Files{
		Tokenizer: []byte(tokenizer), TokenizerKind: worker.KindTokenizer, TokenizerPath: filepath.Join(dir, "tokenizer.json"),
		TemplateDefault: "from its own file", SpecialTokens: map[string]string{"eos_token": "<|im_end|>", "pad_token": "<pad>"},
		EOS: []uint32{151645, 151643}, MaxContext: 40960, VocabSize: 151936, ModelType: "qwen3", Architectures: []string{"Qwen3ForCausalLM"},
		Config: []byte(config), Preprocessor: []byte(`{"image_processor_type":"x"}`),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := modelcard.FromFolder(t.TempDir(), ""); err == nil {
		t.Error("a folder without a tokenizer is taken")
	}
	// A wrong path is named, and so is what is wrong with it.
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for place, want := range map[string]string{file + ".gone": "no such file or directory", file: "not a folder"} {
		_, err := modelcard.FromFolder(place, "")
		if err == nil || !strings.Contains(err.Error(), place) || !strings.Contains(err.Error(), want) {
			t.Errorf("FromFolder(%s) = %v, want %q", place, err, want)
		}
	}
}

// TestWhatFilesSay leaves files out, one after the other, to see what steps in for them.
func TestWhatFilesSay(t *testing.T) {
	tests := []struct {
		name  string
		files map[string]string
		check func(f *modelcard.Files) string // what is wrong
		err   string
	}{
		{name: "template in settings", files: map[string]string{"tokenizer_config.json": settings}, check: func(f *modelcard.Files) string {
			return cmp.Diff("from the settings", f.TemplateDefault)
		}},
		{name: "named templates", files: map[string]string{"tokenizer_config.json": `{"chat_template":[{"name":"default","template":"d"},{"name":"tool_use","template":"t"},{"name":"rag","template":"r"}]}`},
			check: func(f *modelcard.Files) string {
				return cmp.Diff([]string{"d", "t"}, []string{f.TemplateDefault, f.TemplateToolUse})
			}},
		{name: "named templates, short", files: map[string]string{"tokenizer_config.json": `{"chat_template":[{"default":"d"},{"tool_use":"t"}]}`},
			check: func(f *modelcard.Files) string {
				return cmp.Diff([]string{"d", "t"}, []string{f.TemplateDefault, f.TemplateToolUse})
			}},
		{name: "template as JSON", files: map[string]string{"chat_template.json": `{"chat_template":"j"}`, "tokenizer_config.json": settings},
			check: func(f *modelcard.Files) string { return cmp.Diff("j", f.TemplateDefault) }},
		{name: "no template", files: map[string]string{"tokenizer_config.json": `{}`}, check: func(f *modelcard.Files) string { return cmp.Diff("", f.TemplateDefault) }},
		{name: "EOS of config", files: map[string]string{"config.json": config}, check: func(f *modelcard.Files) string { return cmp.Diff([]uint32{151645}, f.EOS) }},
		{name: "EOS of text config", files: map[string]string{"config.json": `{"text_config":{"eos_token_id":[1,106],"max_position_embeddings":8,"vocab_size":3}}`, "generation_config.json": `{"eos_token_id":null}`},
			check: func(f *modelcard.Files) string {
				return cmp.Diff([]uint32{1, 106}, f.EOS) + cmp.Diff(uint32(8), f.MaxContext) + cmp.Diff(3, f.VocabSize)
			}},
		{name: "EOS of added tokens", files: map[string]string{"tokenizer_config.json": settings}, check: func(f *modelcard.Files) string { return cmp.Diff([]uint32{7}, f.EOS) }},
		{name: "EOS of vocabulary", files: map[string]string{"tokenizer_config.json": `{"eos_token":"</s>"}`}, check: func(f *modelcard.Files) string { return cmp.Diff([]uint32{9}, f.EOS) }},
		{name: "no EOS", files: map[string]string{}, check: func(f *modelcard.Files) string { return cmp.Diff([]uint32(nil), f.EOS) }},
		{name: "context of tokenizer", files: map[string]string{"tokenizer_config.json": `{"model_max_length":2048}`}, check: func(f *modelcard.Files) string { return cmp.Diff(uint32(2048), f.MaxContext) }},
		{name: "bad config", files: map[string]string{"config.json": `{"vocab_size":"many"}`}, err: "config.json"},
		{name: "bad settings", files: map[string]string{"tokenizer_config.json": `[`}, err: "tokenizer_config.json"},
		{name: "bad generation config", files: map[string]string{"generation_config.json": `{`}, err: "generation_config.json"},
		{name: "bad template list", files: map[string]string{"tokenizer_config.json": `{"chat_template":5}`}, err: "tokenizer_config.json"},
		{name: "bad template file", files: map[string]string{"chat_template.json": `{"chat_template":5}`}, err: "chat_template.json"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := write(t, t.TempDir(), tt.files)
			write(t, dir, map[string]string{"tokenizer.json": tokenizer})
			card := &worker.Card{Tokenizer: file(worker.KindTokenizer, filepath.Join(dir, "tokenizer.json"), tokenizer)}
			for base, to := range map[string]*worker.CardFile{
				"config.json": &card.ModelInfo, "generation_config.json": &card.GenConfig, "tokenizer_config.json": &card.Formatter, "chat_template.json": &card.ChatTemplate,
			} {
				kinds := map[string]string{"config.json": worker.KindConfig, "generation_config.json": worker.KindGenerationConfig,
					"tokenizer_config.json": worker.KindTokenizerConfig, "chat_template.json": worker.KindChatTemplateJSON}
				if content, ok := tt.files[base]; ok {
					*to = file(kinds[base], filepath.Join(dir, base), content)
				}
			}
			got, err := open(t, card, modelcard.Options{})
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("%v, want an error that names %s", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if wrong := tt.check(got); wrong != "" {
				t.Errorf("(-want +got):\n%s", wrong)
			}
		})
	}
}

func TestPlaces(t *testing.T) {
	const good, bad = `{"model":{}}`, `{"model":{"vocab":{}}}`
	size := uint64(len(good))
	var requests int
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests++
		if strings.HasSuffix(r.URL.Path, "/tokenizer.json") {
			fmt.Fprint(w, good)
			return
		}
		http.NotFound(w, r)
	}))
	defer server.Close()
	here := write(t, t.TempDir(), map[string]string{"tokenizer.json": good})
	other := write(t, t.TempDir(), map[string]string{"tokenizer.json": bad})
	hub := write(t, t.TempDir(), map[string]string{
		"models--org--name/snapshots/aaa/tokenizer.json": bad,
		"models--org--name/snapshots/bbb/tokenizer.json": good,
	})
	gone := "/no/such/folder/tokenizer.json"
	tests := []struct {
		name, path string
		custom     bool
		opts       modelcard.Options
		err        string
	}{
		{name: "as given", path: filepath.Join(here, "tokenizer.json")},
		{name: "file URL", path: "file://" + filepath.Join(here, "tokenizer.json")},
		{name: "model path", path: gone, opts: modelcard.Options{ModelPath: here}},
		{name: "hub cache, the right revision", path: gone, opts: modelcard.Options{HubCache: hub}},
		{name: "hub URL", path: "hf://org/name@main/tokenizer.json", opts: modelcard.Options{HubCache: hub}},
		{name: "another content first", path: filepath.Join(other, "tokenizer.json"), opts: modelcard.Options{ModelPath: here}},
		{name: "download", path: server.URL + "/m/tokenizer.json"},
		{name: "nowhere", path: gone, err: "not found"},
		{name: "another content", path: filepath.Join(other, "tokenizer.json"), err: strings.TrimPrefix(sum(bad), "blake3:") + ", the card says " + strings.TrimPrefix(sum(good), "blake3:")},
		{name: "custom files are looked up nowhere else", path: gone, custom: true, opts: modelcard.Options{ModelPath: here, HubCache: hub}, err: "not found"},
		{name: "download fails", path: server.URL + "/m/other.json", err: "404"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			card := &worker.Card{SourcePath: "org/name", Tokenizer: file(worker.KindTokenizer, tt.path, good)}
			card.Tokenizer.Custom, card.Tokenizer.File.Size = tt.custom, &size
			got, err := open(t, card, tt.opts)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) || !strings.Contains(err.Error(), tt.path) {
					t.Fatalf("%v, want an error with %q that names the file", err, tt.err)
				}
				return
			}
			if err != nil || string(got.Tokenizer) != good {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
	if requests != 2 {
		t.Errorf("%d requests, want 2", requests)
	}
	short := uint64(3)
	card := &worker.Card{Tokenizer: file(worker.KindTokenizer, server.URL+"/m/tokenizer.json", good)}
	card.Tokenizer.File.Size = &short
	if _, err := open(t, card, modelcard.Options{}); err == nil || !strings.Contains(err.Error(), "larger than 3 bytes") {
		t.Errorf("%v, want a file that is larger than declared refused", err)
	}
	card.Tokenizer.File.Checksum = "sha256:00"
	if _, err := open(t, card, modelcard.Options{}); err == nil || !strings.Contains(err.Error(), "sha256:00") {
		t.Errorf("%v, want an unknown checksum refused", err)
	}
}

// realCard is a card as a worker published it, its paths shortened.
const realCard = `{"display_name":"qwen3","slug":"qwen3","source_path":"/srv/models/qwen3",
"model_info":{"hf_config_json":{"path":"/srv/models/qwen3/config.json","checksum":"blake3:1803d8a42249f53da5abe7bf48e7191d88043dd3a34302df0290a3ee8a04264f","size":582}},
"tokenizer":{"hf_tokenizer_json":{"path":"/srv/models/qwen3/tokenizer.json","checksum":"blake3:b0cb923fc505fdf0a53f0287654fa26577d3f333d4134350da0a97664b228739","size":11422654}},
"prompt_formatter":{"hf_tokenizer_config_json":{"path":"/srv/models/qwen3/tokenizer_config.json","checksum":"blake3:462b64713e7a0c08d58f5da7fa54eb2e520172f25cb7b7c07b9d4ddb872aabe9","size":9675}},
"gen_config":{"hf_generation_config_json":{"path":"/srv/models/qwen3/generation_config.json","checksum":"blake3:e2828fb19bb3b02c2934db29dad5a79af9ce846562f9c950c8718ced429d8827","size":136}},
"architectural_max_context_length":40960,"context_length":0,"kv_cache_block_size":64,"migration_limit":0,"model_type":"Chat | Completions",
"model_input":"Tokens","worker_type":"aggregated","needs":[],"runtime_config":{"context_length":0,"total_kv_blocks":16384}}`

func TestSum(t *testing.T) {
	parse := func(old, new string) *worker.Card {
		card := &worker.Card{}
		if err := json.Unmarshal([]byte(strings.Replace(realCard, old, new, 1)), card); err != nil {
			t.Fatal(err)
		}
		return card
	}
	base := modelcard.Sum(parse("", ""))
	if len(base) != 64 || base != modelcard.Sum(parse("", "")) {
		t.Errorf("sum %q isn't stable", base)
	}
	for _, same := range [][2]string{{`"size":582`, `"size":583`}, {"/srv/models/qwen3/config.json", "/elsewhere/config.json"}, {`"total_kv_blocks":16384`, `"total_kv_blocks":1`}} {
		if modelcard.Sum(parse(same[0], same[1])) != base {
			t.Errorf("%s: another sum", same[1])
		}
	}
	for _, other := range [][2]string{
		{`"display_name":"qwen3"`, `"display_name":"qwen4"`}, {"1803d8", "1803d9"}, {`"kv_cache_block_size":64`, `"kv_cache_block_size":32`},
		{`"aggregated"`, `"decode"`}, {`"needs":[]`, `"needs":[["prefill"]]`}, {`"needs":[]`, `"needs":[],"aliases":["a"]`},
		{`"context_length":0,"total`, `"context_length":5,"total`}, {`"needs":[]`, `"needs":[],"router_config":{}`},
		{`"needs":[]`, `"needs":[],"extra_files":[{"path":"/a/b.json","checksum":"blake3:00"}]`},
	} {
		if modelcard.Sum(parse(other[0], other[1])) == base {
			t.Errorf("%s: the same sum", other[1])
		}
	}
	_, err := open(t, parse("", ""), modelcard.Options{})
	if err == nil || !strings.Contains(err.Error(), "/srv/models/qwen3/config.json") {
		t.Errorf("%v, want an error that names the missing file", err)
	}
}

// TestPipe: what isn't a file is no model file, and isn't waited for.
func TestPipe(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "config.json")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Skip(err)
	}
	if _, err := open(t, &worker.Card{ModelInfo: file(worker.KindConfig, pipe, "{}")}, modelcard.Options{}); err == nil ||
		!strings.Contains(err.Error(), "not a file") {
		t.Error(err)
	}
}
