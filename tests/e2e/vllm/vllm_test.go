// Package vllm_test has a real vLLM worker of Dynamo's read the images that this server processes. It runs only where
// PORTICO_VLLM_VENV names an environment with both, which `make e2e-vllm` makes.
package vllm_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/internal/multimodal/nixl"
	"github.com/portico-llm/portico/internal/testkit"
	"github.com/portico-llm/portico/tests/e2e/stack"
)

// model makes the folder of a small Qwen2-VL with random weights and the public tokenizer of its family.
func model(t *testing.T, root, python string) string {
	t.Helper()
	dir := t.TempDir()
	golden, tokenizer := filepath.Join(root, "tests", "golden", "vllm-images", "qwen2vl"), filepath.Join(root, ".build", "fixtures", "qwen3")
	for _, path := range []string{
		filepath.Join(golden, "config.json"), filepath.Join(golden, "preprocessor_config.json"),
		filepath.Join(tokenizer, "tokenizer.json"), filepath.Join(tokenizer, "tokenizer_config.json"),
		filepath.Join("testdata", "chat_template.jinja"),
	} {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Skipf("%v: make fixtures gets the tokenizer", err)
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(path)), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(python, "weights.py", dir)
	cmd.Env = append(os.Environ(), "HF_HUB_OFFLINE=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir
}

// question stands behind the images of each prompt.
const question = "What is in this image?"

// answer is what the model says.
type answer struct {
	text   string
	tokens []int
}

// ask sends images and the question, and returns the answer at temperature 0.
func ask(t *testing.T, f *stack.Frontend, images ...string) answer {
	t.Helper()
	parts := []any{}
	for _, url := range images {
		parts = append(parts, map[string]any{"type": "image_url", "image_url": map[string]any{"url": url}})
	}
	parts = append(parts, map[string]any{"type": "text", "text": question})
	var got struct {
		Choices []struct {
			Message  struct{ Content string }
			LogProbs struct{ Content []struct{ Token string } }
		}
		Usage struct {
			Prompt int `json:"prompt_tokens"`
		}
	}
	post(t, f, "/v1/chat/completions", map[string]any{
		"messages": []any{map[string]any{"role": "user", "content": parts}}, "logprobs": true}, &got)
	if len(got.Choices) != 1 {
		t.Fatalf("got %d choices", len(got.Choices))
	}
	out := answer{text: got.Choices[0].Message.Content}
	for _, c := range got.Choices[0].LogProbs.Content {
		out.tokens = append(out.tokens, tokenID(t, c.Token))
	}
	t.Logf("%s: %d images, %d tokens: %v %q", f.URL, len(images), got.Usage.Prompt, out.tokens, out.text)
	return out
}

// complete sends a prompt of tokens and returns those of the answer.
func complete(t *testing.T, f *stack.Frontend, prompt []int) (tokens []int) {
	t.Helper()
	var got struct {
		Choices []struct{ LogProbs struct{ Tokens []string } }
	}
	post(t, f, "/v1/completions", map[string]any{"prompt": prompt, "logprobs": 0}, &got)
	if len(got.Choices) != 1 {
		t.Fatalf("got %d choices", len(got.Choices))
	}
	for _, token := range got.Choices[0].LogProbs.Tokens {
		tokens = append(tokens, tokenID(t, token))
	}
	t.Logf("%s: %d tokens: %v", f.URL, len(prompt), tokens)
	return tokens
}

// post sends a request and reads the response's body into got.
func post(t *testing.T, f *stack.Frontend, path string, request map[string]any, got any) {
	t.Helper()
	maps.Copy(request, map[string]any{"model": "m", "max_tokens": 12, "temperature": 0, "return_tokens_as_token_ids": true})
	body, err := json.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	c := testkit.Client(t)
	c.Timeout = 3 * time.Minute // the first image takes the worker long
	res, err := c.Post(f.URL+path, "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, got); err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("status %d: %s", res.StatusCode, text)
	}
}

// tokenID reads a token's number.
func tokenID(t *testing.T, token string) int {
	t.Helper()
	id, err := strconv.Atoi(strings.TrimPrefix(token, "token_id:"))
	if err != nil {
		t.Fatalf("got the token %q", token)
	}
	return id
}

// What Dynamo's frontend and worker answered with these weights: about rgb.png, and to the same prompt when the worker had
// no image for its placeholder.
var (
	recorded        = []int{18904, 43807, 98162, 61585, 70865}
	recordedWithout = []int{93591, 27323, 48063, 11805, 78262}
	prompt          = []int{151644, 8948, 198, 2610, 525, 264, 10950, 17847, 13, 151645, 198, 151644, 872, 198,
		151652, 151655, 151653, 3838, 374, 304, 419, 2168, 30, 151645, 198, 151644, 77091, 198}
)

// begins fails the test unless an answer begins with the tokens that were recorded.
func begins(t *testing.T, what string, got, want []int) {
	t.Helper()
	if diff := cmp.Diff(want, got[:min(len(want), len(got))]); diff != "" {
		t.Errorf("%s: %s", what, diff)
	}
}

// TestWays: the worker says the same of an image that it fetched and processed itself, and of one that was handed to it
// over either transport, which is what was recorded; and something else of another image, and without any.
func TestWays(t *testing.T) {
	venv := os.Getenv("PORTICO_VLLM_VENV")
	if venv == "" {
		t.Skip("PORTICO_VLLM_VENV is not set: make e2e-vllm")
	}
	root, err := filepath.Abs(filepath.Join("..", "..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	python := filepath.Join(venv, "bin", "python")
	s, err := stack.New(&stack.Tools{Root: root, Venv: venv}, stack.Options{
		Dir: t.TempDir(), Plane: stack.PlaneTCP, Backend: stack.BackendFile})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	env := []string{"DYN_MM_ALLOW_INTERNAL=1", "VLLM_CPU_KVCACHE_SPACE=1", "VLLM_LOGGING_LEVEL=WARNING", "UCX_NET_DEVICES=lo", "PATH=" + filepath.Join(venv, "bin") + ":" + os.Getenv("PATH")}
	if _, err := s.Run("vllm", s.Env(env...), python, "-m", "dynamo.vllm", "--model", model(t, root, python),
		"--served-model-name", "m", "--enforce-eager", "--max-model-len", "4096", "--enable-multimodal",
		"--kv-events-config", `{"enable_kv_cache_events": false}`, "--discovery-backend", "file", "--request-plane", "tcp"); err != nil {
		t.Fatal(err)
	}
	frontends := map[string]*stack.Frontend{}
	for name, extra := range map[string][]string{
		"url": nil, "shm": {"PORTICO_MM_WAY=kwargs"},
		"nixl": {"PORTICO_MM_WAY=kwargs", "DYNAMO_MM_TRANSFER=nixl", "PORTICO_NIXL_LIBRARY=" + nixl.Find(venv)[0]},
	} {
		if frontends[name], err = s.StartFrontend(stack.Portico, append(extra, "UCX_NET_DEVICES=lo", "DYN_MM_ALLOW_INTERNAL=1")...); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range frontends {
		if err := f.WaitModel("m", true, 8*time.Minute); err != nil {
			t.Fatalf("%v\n%s", err, s.Ended())
		}
	}
	names := []string{"rgb.png", "gray.jpg", "rgba.png"}
	var urls []string
	for _, name := range names {
		urls = append(urls, "data:image/"+strings.TrimPrefix(filepath.Ext(name), ".")+";base64,"+
			base64.StdEncoding.EncodeToString(golden(t, root, name)))
	}
	site := onlyOnce(t, root)
	begins(t, "without an image", complete(t, frontends["url"], prompt), recordedWithout)
	seen := map[string]bool{ask(t, frontends["url"]).text: true}
	for n, list := range [][]int{{0}, {1}, {1, 2}, {0, 1, 2}} {
		var data []string
		for _, i := range list {
			data = append(data, urls[i])
		}
		want := ask(t, frontends["url"], data...)
		if n == 0 {
			begins(t, "by URL", want.tokens, recorded)
		}
		if seen[want.text] {
			t.Errorf("other images have the same answer: the model doesn't look at them")
		}
		seen[want.text] = true
		for _, way := range []string{"shm", "nixl"} {
			for round := range 2 { // the second time the worker knows the image already
				var once []string
				for _, i := range list {
					once = append(once, fmt.Sprintf("%s/%s-%d-%d/%s", site, way, n, round, names[i]))
				}
				if got := ask(t, frontends[way], once...); !slices.Equal(got.tokens, want.tokens) || got.text != want.text {
					t.Errorf("%s: got %v, by URL it was %v", way, got, want)
				}
			}
		}
	}
}

func golden(t *testing.T, root, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, "tests", "golden", "images", "files", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// onlyOnce is a site that gives each of its URLs once, to the frontend: a worker that fell back on a URL would get
// nothing, and answer something else.
func onlyOnce(t *testing.T, root string) string {
	t.Helper()
	var given sync.Map
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, again := given.LoadOrStore(r.URL.Path, true); again {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(golden(t, root, filepath.Base(r.URL.Path)))
	}))
	t.Cleanup(site.Close)
	return site.URL
}
