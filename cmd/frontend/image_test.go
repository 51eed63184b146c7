package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	imageFiles  = "../../tests/golden/images/files/"
	imageModels = "../../tests/golden/vllm-images/"
)

// TestImage: what is printed of a file is what the server would send, and an error is what a client would get.
func TestImage(t *testing.T) {
	var stdout, stderr strings.Builder
	code := runImage([]string{"--model-path", imageModels + "qwen2vl", imageFiles + "rgb.png", imageFiles + "sample.heic"},
		&stdout, &stderr)
	if code != exitFailure || stderr.Len() > 0 { // the second file is an error
		t.Errorf("exit code %d, complaint %s", code, stderr.String())
	}
	var got []imageReport
	for d := json.NewDecoder(strings.NewReader(stdout.String())); d.More(); {
		var r imageReport
		if err := d.Decode(&r); err != nil {
			t.Fatal(err)
		}
		got = append(got, r)
	}
	want := []imageReport{
		{
			File: imageFiles + "rgb.png", Format: "png", Width: 320, Height: 240, Name: "qwen2_vl",
			Tensors: []tensorReport{
				{"image_grid_thw", []int{3}, "int64", "86a7e9c5e7cd5d9d2ed6e0c9a4fcdbba6dbb9a5f5d2dc05c8fdb4b7a7b9be9d2"},
				{"pixel_values", []int{396, 1176}, "uint8", "b5112a6c84e5961be181fb9829428ae0cdc03fcc7569825bd606cd4db5bbf361"},
			},
			Grid: &[3]int{1, 18, 22}, Tokens: 99, Embeds: 99, Bytes: 465883,
		},
		{File: imageFiles + "sample.heic", Error: "`" + imageFiles + "sample.heic` can't be decoded: HEIC isn't supported: send JPEG, PNG, WebP, GIF or BMP"},
	}
	if len(got) != 2 || len(got[0].ID) != 64 {
		t.Fatalf("got %s", stdout.String())
	}
	got[0].ID = ""
	want[0].Tensors[0].SHA256 = hexSum([]byte("\x01\x00\x00\x00\x00\x00\x00\x00\x12\x00\x00\x00\x00\x00\x00\x00\x16\x00\x00\x00\x00\x00\x00\x00"))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestImageOutcomes(t *testing.T) {
	tests := []struct {
		name           string
		args           []string
		code           int
		stdout, stderr string
	}{
		{"pixels", []string{imageFiles + "tiny.png"}, exitOK, `"pixels_sha256":"`, ""},
		{"other settings", []string{"--model-path", imageModels + "qwen2vl", "--image-scale", "normalized", imageFiles + "tiny.png"},
			exitOK, `"dtype":"bfloat16"`, ""},
		{"no tokenizer to send with", []string{"--model-path", imageModels + "idefics3", imageFiles + "tiny.png"},
			exitOK, `"not_sent":"idefics3: an image's tokens`, ""},
		{"no files", nil, exitUsage, "", "at least one file"},
		{"wrong settings", []string{"--model-path", imageModels + "qwen2vl", "--image-scale", "large", "x"}, exitFailure, "", `"large" is neither bytes nor normalized`},
		{"no such file", []string{"nowhere.png"}, exitFailure, `"error":"open nowhere.png`, ""},
		{"no such model", []string{"--model-path", "nowhere", "x"}, exitFailure, "", "nowhere"},
		{"a model of text", []string{"--model-path", "../../internal/simworker/testdata", "x"}, exitFailure, "", "model file"},
		{"no tokenizer", []string{"--model-path", imageModels + "gemma3", "x"}, exitFailure, "", "newline tokens"},
		{"help", []string{"--help"}, exitOK, "--model-path DIR", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr strings.Builder
			code := runImage(tt.args, &stdout, &stderr)
			if code != tt.code || !strings.Contains(stdout.String(), tt.stdout) || !strings.Contains(stderr.String(), tt.stderr) {
				t.Errorf("exit code %d, want %d\nstdout: %s\nstderr: %s", code, tt.code, stdout.String(), stderr.String())
			}
		})
	}
}

// TestImageTiles: a tokenizer says what stands between an image's tiles. SmolVLM's is the small model's with more tokens.
func TestImageTiles(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"config.json", "preprocessor_config.json", "processor_config.json"} {
		text, err := os.ReadFile(imageModels + "smolvlm/" + name)
		if err != nil {
			t.Fatal(err)
		}
		text = []byte(strings.ReplaceAll(string(text), `"image_token_id": 300`, `"image_token_id": 49152`))
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile("../../configs/models/smollm2-135m-instruct/tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	var tree map[string]any
	if err := json.Unmarshal(text, &tree); err != nil {
		t.Fatal(err)
	}
	added := tree["added_tokens"].([]any)
	more := []string{"<image>", "<fake_token_around_image>", "<global-img>"}
	for r := range 6 {
		for c := range 6 {
			more = append(more, fmt.Sprintf("<row_%d_col_%d>", r+1, c+1))
		}
	}
	for i, token := range more {
		added = append(added, map[string]any{"id": 49152 + i, "content": token, "single_word": false, "lstrip": false,
			"rstrip": false, "normalized": false, "special": true})
	}
	tree["added_tokens"] = added
	if text, err = json.Marshal(tree); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "tokenizer.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr strings.Builder
	if code := runImage([]string{"--model-path", dir, imageFiles + "rgb.png"}, &stdout, &stderr); code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr.String())
	}
	var got imageReport
	if err := json.Unmarshal([]byte(stdout.String()), &got); err != nil {
		t.Fatal(err)
	}
	// 3 x 4 tiles and the whole image: 64 tokens and two more for each, two line feeds between rows, one token for the two
	// behind them, and one at the end.
	if want := 13*(64+2) + 2 + 1 + 1; got.Unsent != "" || got.Tokens != want || got.Embeds != 13*64 {
		t.Errorf("got %s, want %d placeholders", stdout.String(), want)
	}
}
