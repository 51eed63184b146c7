package simworker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/simworker"
)

// item is the blob of a real image.
func item(t testing.TB) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "tests", "golden", "vllm-images", "qwen2vl", "mix.1.bin"))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// spoken gathers an answer whose tokens are bytes.
type spoken struct{ text strings.Builder }

func (s *spoken) Send(it *worker.Item) error {
	for _, id := range it.Output.TokenIDs {
		s.text.WriteByte(byte(id))
	}
	return nil
}

func (s *spoken) SendJSON([]byte) error { return errors.New("not asked for") }

func bytesOf(text string) ([]uint32, error) {
	ids := make([]uint32, 0, len(text))
	for _, c := range []byte(text) {
		ids = append(ids, uint32(c))
	}
	return ids, nil
}

// handOver is a request that tells of a file in shared memory, or of memory to read over NIXL.
func handOver(field, value string) *simworker.Request {
	return &simworker.Request{Tokens: &worker.Request{
		TokenIDs: []uint32{1}, MultiModalData: json.RawMessage(`{"image_url":[{"Url":"u"}]}`),
		ExtraArgs: json.RawMessage(`{"` + field + `":` + value + `}`),
	}}
}

func TestImages(t *testing.T) {
	dir := t.TempDir()
	blob := item(t)
	for name, data := range map[string][]byte{"mm_kwargs_1": blob, "junk": []byte("junk")} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	shm := func(name string, size int) *simworker.Request {
		return handOver("mm_kwargs_shm", fmt.Sprintf(`{"modality":"image","items":[{"name":%q,"size":%d}],"mm_hashes":["a"]}`, name, size))
	}
	overNIXL := handOver("mm_kwargs_nixl", `{"tensor_specs":[{"serialized_request":{"descriptors":[{"size":28407}]}}]}`)
	decoded := func(media string) *simworker.Request {
		return &simworker.Request{Tokens: &worker.Request{TokenIDs: []uint32{1}, MultiModalData: json.RawMessage(media)}}
	}
	const pixels = `{"Decoded":{"nixl_metadata":"m","nixl_descriptor":{"addr":18446744073709551615,"size":28407},"shape":[2,3,3],"dtype":"UINT8"}}`
	var asked []int
	read := func(_ context.Context, description []byte, most int) ([]byte, error) {
		if asked = append(asked, most); !json.Valid(description) {
			return nil, errors.New("no description")
		}
		return blob, nil
	}
	const saw = "image 0: 28407 bytes, sha256 "
	for name, tc := range map[string]struct {
		req  *simworker.Request
		mode simworker.ImageMode
		mute bool // no NIXL
		want string
		err  error
	}{
		"shared memory": {req: shm("mm_kwargs_1", len(blob)), want: saw},
		"NIXL":          {req: overNIXL, want: saw},
		"no NIXL":       {req: overNIXL, mute: true, want: "can not be read: there is no NIXL here"},
		"shapes":        {req: shm("mm_kwargs_1", len(blob)), want: "image_grid_thw int64 [3], pixel_values uint8 [24 1176]"},
		"not an item":   {req: shm("junk", 4), want: "not an item: it ends too early"},
		"gone":          {req: shm("mm_kwargs_2", 5), want: "can not be read"},
		"too short":     {req: shm("junk", 5), want: "has 4 bytes, not 5"},
		"elsewhere":     {req: shm("../junk", 4), want: "not a name"},
		"below":         {req: shm("a/junk", 4), want: "not a name"},
		"URL alone":     {req: handOver("nvext", `{}`), want: "The images came by URL."},
		"pixels":        {req: decoded(`{"image_url":[` + pixels + `,` + pixels + `]}`), want: ", pixels UINT8 [2 3 3]\nimage 1: 28407 bytes, sha256 "},
		"half of them":  {req: decoded(`{"image_url":[` + pixels + `]}`), mode: simworker.HalfImages, want: "Half of the images was read."},
		"some by URL":   {req: decoded(`{"image_url":[` + pixels + `,{"Url":"u"}]}`), want: "The images came by URL."},
		"odd media":     {req: decoded(`{"image_url":7}`), err: &worker.Error{}},
		"never":         {req: overNIXL, mode: simworker.NeverImages, want: "The images were not read."},
		"half":          {req: overNIXL, mode: simworker.HalfImages, want: "Half of the images was read."},
		"die":           {req: overNIXL, mode: simworker.DieImages, err: simworker.ErrDie},
		"no images":     {req: &simworker.Request{Tokens: &worker.Request{TokenIDs: []uint32{1}}}, want: "There are no images."},
		"not readable":  {req: handOver("mm_kwargs_shm", `[]`), err: &worker.Error{}},
	} {
		t.Run(name, func(t *testing.T) {
			e := &simworker.Images{Encode: bytesOf, Read: read, ShmDir: dir}
			if tc.mute {
				e.Read = nil
			}
			if tc.mode != "" {
				e.Mode = func(*simworker.Request) simworker.ImageMode { return tc.mode }
			}
			var out spoken
			err := e.Generate(t.Context(), tc.req, &out)
			if !strings.Contains(out.text.String(), tc.want) || (err == nil) != (tc.err == nil) {
				t.Errorf("got %q, %v", out.text.String(), err)
			}
			if tc.err == simworker.ErrDie && !errors.Is(err, simworker.ErrDie) {
				t.Errorf("got %v", err)
			}
		})
	}
	for _, most := range asked {
		if most != 0 && most != 28407/2 {
			t.Errorf("asked for %d bytes", most)
		}
	}
}

// TestLateImages: the answer doesn't wait for the read, which comes all the same.
func TestLateImages(t *testing.T) {
	group := lifecycle.New(t.Context())
	seen := make(chan int, 1)
	e := &simworker.Images{
		Encode: bytesOf, Delay: 10 * time.Millisecond, Late: group,
		Mode: func(*simworker.Request) simworker.ImageMode { return simworker.LateImages },
		Read: func(context.Context, []byte, int) ([]byte, error) { return []byte("abc"), nil },
		Seen: func(_ *simworker.Request, blobs [][]byte, _ error) { seen <- len(blobs) },
	}
	var out spoken
	if err := e.Generate(t.Context(), handOver("mm_kwargs_nixl", `{"tensor_specs":[{"serialized_request":{}}]}`), &out); err != nil {
		t.Fatal(err)
	}
	select {
	case <-seen:
		t.Error("read before the answer ended")
	default:
	}
	if n := <-seen; n != 1 || out.text.String() != "The images will be read later." {
		t.Errorf("got %d images and %q", n, out.text.String())
	}
	if err := group.Stop(); err != nil {
		t.Error(err)
	}
}

func TestParseImageMode(t *testing.T) {
	for text, want := range map[string]time.Duration{"read": 0, "never": 0, "half": 0, "die": 0, "late=2s": 2 * time.Second} {
		if mode, delay, err := simworker.ParseImageMode(text); err != nil || delay != want || !strings.HasPrefix(text, string(mode)) {
			t.Errorf("%s: got %s, %v, %v", text, mode, delay, err)
		}
	}
	for _, text := range []string{"", "late", "late=x", "late=-1s", "read=1s", "twice"} {
		if _, _, err := simworker.ParseImageMode(text); err == nil {
			t.Errorf("%q passes", text)
		}
	}
}

// FuzzImages: blobs are what a frontend writes, whatever that is.
func FuzzImages(f *testing.F) {
	dir := f.TempDir()
	f.Add(item(f)[:300])
	f.Add([]byte{1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0x81, 0xa0})
	f.Add([]byte{1, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0xdf, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(filepath.Join(dir, "x"), data, 0o600); err != nil {
			t.Fatal(err)
		}
		var out spoken
		e := &simworker.Images{Encode: bytesOf, ShmDir: dir}
		req := handOver("mm_kwargs_shm", fmt.Sprintf(`{"items":[{"name":"x","size":%d}]}`, len(data)))
		if err := e.Generate(t.Context(), req, &out); err != nil || !strings.HasPrefix(out.text.String(), "image 0: ") {
			t.Errorf("got %q, %v", out.text.String(), err)
		}
	})
}
