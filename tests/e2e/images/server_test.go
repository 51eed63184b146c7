package images_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/portico-llm/portico/internal/testkit"
	"github.com/portico-llm/portico/tests/e2e/stack"
)

// template puts one token for each image, of the small model's vocabulary.
const template = `{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% else %}<repo_name>{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}<|im_start|>assistant
`

// qwen makes a model folder: Qwen2-VL's processor, with the tokenizer of the small model that comes with the repository.
func qwen(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	golden := filepath.Join(tools.Root, "tests", "golden", "vllm-images", "qwen2vl")
	copyFile(t, filepath.Join(golden, "preprocessor_config.json"), filepath.Join(dir, "preprocessor_config.json"))
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json", "generation_config.json"} {
		copyFile(t, filepath.Join(tools.Model(), name), filepath.Join(dir, name))
	}
	text, err := os.ReadFile(filepath.Join(golden, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	var config map[string]any
	if err := json.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	config["image_token_id"], config["eos_token_id"], config["bos_token_id"] = 3, 2, 1
	if text, err = json.Marshal(config); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "config.json"), text)
	write(t, filepath.Join(dir, "chat_template.jinja"), []byte(template))
	return dir
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	write(t, to, data)
}

// serve starts a worker that treats images in a way, and the server in front of it, which processes them.
func serve(t *testing.T, images string, env ...string) *stack.Frontend {
	t.Helper()
	return serveOver(t, stack.PlaneTCP, []string{"--images", images}, append(env, "PORTICO_MM_WAY=kwargs")...)
}

// serveOver is serve with a plane, the worker's flags and all settings of the server.
func serveOver(t *testing.T, plane string, flags []string, env ...string) *stack.Frontend {
	t.Helper()
	for _, name := range []string{"frontend", "simworker"} {
		if _, err := os.Stat(filepath.Join(tools.Root, "bin", name)); err != nil {
			t.Skip("the programs are not built: run make build")
		}
	}
	s, err := stack.New(tools, stack.Options{Dir: t.TempDir(), Plane: plane, Backend: stack.BackendFile})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	env = append([]string{"PORTICO_NIXL_LIBRARY=" + libraries()[0], "UCX_NET_DEVICES=lo"}, env...) // the last one counts
	command := []string{filepath.Join(tools.Root, "bin", "simworker"), "--model-path", qwen(t), "--model-name", "m"}
	if _, err := s.Run("simworker", s.Env(env...), append(command, flags...)...); err != nil {
		t.Fatal(err)
	}
	f, err := s.StartFrontend(stack.Portico, env...)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.WaitModel("m", true, time.Minute); err != nil {
		t.Fatalf("%v\n%s", err, s.Ended())
	}
	return f
}

// ask sends a chat with images and returns the status and the answer's text, or its error.
func ask(t *testing.T, f *stack.Frontend, urls ...string) (int, string) {
	t.Helper()
	parts := make([]map[string]any, 0, 2*len(urls))
	for i, u := range urls {
		parts = append(parts, map[string]any{"type": "image_url", "image_url": map[string]any{"url": u}},
			map[string]any{"type": "text", "text": fmt.Sprintf("image %d", i)})
	}
	body, err := json.Marshal(map[string]any{
		"model": "m", "max_tokens": 1000, "messages": []any{map[string]any{"role": "user", "content": parts}}})
	if err != nil {
		t.Fatal(err)
	}
	c := testkit.Client(t)
	c.Timeout = 60 * time.Second
	res, err := c.Post(f.URL+"/v1/chat/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	var answer struct {
		Choices []struct{ Message struct{ Content string } }
	}
	if res.StatusCode != http.StatusOK || json.Unmarshal(text, &answer) != nil || len(answer.Choices) == 0 {
		return res.StatusCode, string(text)
	}
	return res.StatusCode, answer.Choices[0].Message.Content
}

// metric returns the value of a series.
func metric(t *testing.T, f *stack.Frontend, series string) string {
	t.Helper()
	c := testkit.Client(t)
	c.Timeout = 5 * time.Second
	res, err := c.Get(f.URL + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, series+" "); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

// golden returns an image of the goldens.
func golden(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(tools.Root, "tests", "golden", "images", "files", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

var checksum = regexp.MustCompile(`sha256 ([0-9a-f]{64})`)

// TestServer: images come to the worker as the tensors of its model, the same ones whichever way they came in and went
// out.
func TestServer(t *testing.T) {
	rgb := golden(t, "rgb.png")
	data := "data:image/png;base64," + base64.StdEncoding.EncodeToString(rgb)
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(rgb) }))
	t.Cleanup(site.Close)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "rgb.png"), rgb)
	sums := map[string]string{}
	for name, env := range map[string][]string{
		"shm": {"DYNAMO_MM_TRANSFER=shm"}, "nixl": {"DYNAMO_MM_TRANSFER=nixl"},
		"nixl over tcp": {"DYNAMO_MM_TRANSFER=nixl", "UCX_TLS=tcp,self"},
	} {
		t.Run(name, func(t *testing.T) {
			if name != "shm" {
				needNIXL(t)
			}
			f := serve(t, "read", append(env, "DYN_MM_ALLOW_INTERNAL=1", "DYN_MM_LOCAL_PATH="+dir)...)
			for _, url := range []string{data, site.URL + "/rgb.png", "file://" + dir + "/rgb.png"} {
				status, text := ask(t, f, url)
				sum := checksum.FindStringSubmatch(text)
				if status != http.StatusOK || sum == nil || !strings.Contains(text, "image_grid_thw int64 [3], pixel_values uint8 [396 1176]") {
					t.Fatalf("%.40s: got %d %s", url, status, text)
				}
				sums[sum[1]] = text
			}
			status, text := ask(t, f, data, "data:;base64,"+base64.StdEncoding.EncodeToString(golden(t, "wide.jpg")), data)
			if all := checksum.FindAllString(text, -1); status != http.StatusOK || len(all) != 3 || all[0] != all[2] || all[0] == all[1] {
				t.Errorf("got %d %s", status, text)
			}
			if got := metric(t, f, "portico_media_slots_in_use"); name != "shm" && got != "0" {
				t.Errorf("%s slots are still in use", got)
			}
			way := strings.Fields(name)[0]
			result := map[string]string{"shm": "unlinked", "nixl": "read"}[way]
			if got := metric(t, f, fmt.Sprintf(`portico_media_transfers_total{result="%s",way="%s"}`, result, way)); got != "4" {
				t.Errorf("got %s transfers of 4", got)
			}
			if got := metric(t, f, `portico_media_items_total{result="processed"}`); got != "2" {
				t.Errorf("two images were processed %s times", got)
			}
			status, text = ask(t, f, data, "data:image/png;base64,aGVsbG8=")
			if status != http.StatusBadRequest || !strings.Contains(text, "messages[0].content[2].image_url") {
				t.Errorf("a broken image: got %d %s", status, text)
			}
		})
	}
	if len(sums) != 1 {
		t.Errorf("one image has %d forms: %v", len(sums), sums)
	}
}

// TestPixelsWay: a worker whose card asks for decoded images gets their pixels, the ones that PIL decodes, however they
// came in. They go over NIXL alone: with shared memory as the way to hand over it is used all the same, and without its
// library the worker gets URLs.
func TestPixelsWay(t *testing.T) {
	var manifest struct {
		Images map[string]struct {
			SHA256 string `json:"sha256"`
			Shape  []int
		}
	}
	if err := json.Unmarshal(golden(t, "../manifest.json"), &manifest); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files := []string{"rgb.png", "exif6_420.jpg", "lossy.webp", "cmyk.jpg"}
	var urls []string
	for i, name := range files {
		data := golden(t, name)
		if i%2 == 0 {
			write(t, filepath.Join(dir, name), data)
			urls = append(urls, "file://"+filepath.Join(dir, name))
			continue
		}
		urls = append(urls, "data:;base64,"+base64.StdEncoding.EncodeToString(data))
	}
	flags := []string{"--images", "read", "--media-decoder"}
	for name, env := range map[string][]string{
		"nixl": {"DYNAMO_MM_TRANSFER=nixl"}, "nixl over tcp": {"DYNAMO_MM_TRANSFER=nixl", "UCX_TLS=tcp,self"}, "shm": {"DYNAMO_MM_TRANSFER=shm"},
	} {
		t.Run(name, func(t *testing.T) {
			needNIXL(t)
			f := serveOver(t, stack.PlaneTCP, flags, append(env, "PORTICO_MM_WAY=pixels", "DYN_MM_LOCAL_PATH="+dir, "DYN_MM_NIXL_CLEANUP_TIMEOUT_S=1")...)
			for range 2 { // the second time from memory that another image may have had
				status, text := ask(t, f, urls...)
				if status != http.StatusOK {
					t.Fatalf("got %d %s", status, text)
				}
				sums := checksum.FindAllStringSubmatch(text, -1)
				for i, file := range files {
					want := manifest.Images[file]
					if shape := fmt.Sprintf("image %d: %d bytes", i, 3*want.Shape[0]*want.Shape[1]); len(sums) != len(files) || sums[i][1] != want.SHA256 || !strings.Contains(text, shape) {
						t.Errorf("%s: got %s, want %s and %s", file, text, shape, want.SHA256)
					}
				}
			}
			// Nobody hears when they have been read, so their memory isn't used again.
			eventually(t, 15*time.Second, "the slots are given up", func() bool {
				return metric(t, f, "portico_media_slots_in_use") == "0" && metric(t, f, "portico_media_slots_retired_total") == "8"
			})
			if status, text := ask(t, f, urls[0], "data:image/png;base64,aGVsbG8="); status != http.StatusBadRequest || !strings.Contains(text, "messages[0].content[2].image_url") {
				t.Errorf("a broken image: got %d %s", status, text)
			}
		})
	}
	t.Run("no library", func(t *testing.T) {
		f := serveOver(t, stack.PlaneTCP, flags, "PORTICO_MM_WAY=pixels", "PORTICO_NIXL_LIBRARY=/nowhere.so", "DYN_MM_LOCAL_PATH="+dir)
		if status, text := ask(t, f, urls[1]); status != http.StatusOK || checksum.MatchString(text) {
			t.Errorf("got %d %s", status, text)
		}
	})
}

// TestLargeDataURL: an image whose data URL is larger than what the message server takes reaches the worker as tensors,
// without the URL; and where there is no other way than the URL, the client is told of the limit.
func TestLargeDataURL(t *testing.T) {
	noise := image.NewGray(image.Rect(0, 0, 1300, 1000))
	_, _ = rand.NewChaCha8([32]byte{9}).Read(noise.Pix) // it doesn't fail
	var b bytes.Buffer
	if err := png.Encode(&b, noise); err != nil || b.Len() < 1<<20 {
		t.Fatal(err, b.Len())
	}
	large := "data:image/png;base64," + base64.StdEncoding.EncodeToString(b.Bytes())
	small := "data:image/png;base64," + base64.StdEncoding.EncodeToString(golden(t, "tiny.png"))
	f := serveOver(t, stack.PlaneNATS, []string{"--images", "read"}, "PORTICO_MM_WAY=kwargs", "DYNAMO_MM_TRANSFER=shm")
	status, text := ask(t, f, small, large)
	if sums := checksum.FindAllString(text, -1); status != http.StatusOK || len(sums) != 2 || !strings.Contains(text, "pixel_values uint8") {
		t.Errorf("got %d %.500s", status, text)
	}
	f = serveOver(t, stack.PlaneNATS, []string{"--images", "read"}, "PORTICO_MM_WAY=url")
	const part = "messages[0].content[2].image_url"
	if status, text := ask(t, f, small, large); status != http.StatusRequestEntityTooLarge ||
		!strings.Contains(text, "takes at most") || !strings.Contains(text, `"param":"`+part+`"`) {
		t.Errorf("got %d %.500s", status, text)
	}
}

// TestUnread: the answer doesn't wait for a worker that doesn't read, and the memory is given up in time.
func TestUnread(t *testing.T) {
	needNIXL(t)
	f := serve(t, "never", "DYNAMO_MM_TRANSFER=nixl", "DYN_MM_NIXL_CLEANUP_TIMEOUT_S=3")
	data := "data:image/png;base64," + base64.StdEncoding.EncodeToString(golden(t, "rgb.png"))
	for i := range 3 {
		begin := time.Now()
		if status, text := ask(t, f, data, data); status != http.StatusOK || text != "The images were not read." {
			t.Fatalf("got %d %s", status, text)
		}
		if took := time.Since(begin); i > 0 && took > 2500*time.Millisecond {
			t.Errorf("the answer took %v", took)
		}
	}
	eventually(t, 15*time.Second, "all slots are given up", func() bool {
		return metric(t, f, "portico_media_slots_retired_total") == "6" && metric(t, f, "portico_media_slot_bytes") == "0"
	})
}
