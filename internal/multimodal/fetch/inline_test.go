package fetch_test

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/portico-llm/portico/internal/multimodal"
	"github.com/portico-llm/portico/internal/multimodal/fetch"
)

func TestDataURLs(t *testing.T) {
	f := newFetcher(t, fetch.Options{MaxDataURL: 1000})
	bin := string([]byte{0xfb, 0xff, 0xbe, 1}) // with both characters that alphabets differ in
	full, over := strings.Repeat("x", 1000), strings.Repeat("x", 1001)
	b64 := base64.StdEncoding.EncodeToString
	for raw, want := range map[string]string{
		"data:image/png;base64,aGVsbG8=":               "hello",
		"DATA:image/png;BASE64,aGVsbG8=":               "hello",
		"data:;base64,aGVsbG8":                         "hello",
		"data:base64,aGVsbG8":                          "aGVsbG8", // a media type of that name
		"data:image/png;charset=x; base64 ,aGVs\nbG8=": "hello",
		"data:image/png;base64,aGVs%62G8%3D":           "hello",
		"data:image/png;base64,+/++AQ==":               bin,
		"data:image/png;base64,%2B/%2B%2BAQ":           bin,
		"data:image/png;base64,-_--AQ":                 bin,
		"data:image/png;base64, aGVs bG8 = ":           "hello",
		"data:,a+b%20c":                                "a+b c",
		"data:text/plain;base64," + b64([]byte(full)):  full,
		"data:x/y," + full:                             full,
		"data:;base64," + folded(b64([]byte(full))):    full,
	} {
		if data, err := get(t, f, raw); err != nil || string(data) != want {
			t.Errorf("%.60q: got %q, %v", raw, data, err)
		}
	}
	for raw, reason := range map[string]string{
		"data:image/png;base64": "without a comma", "data:": "without a comma", "data:,": "is empty",
		"data:;base64,": "is empty", "data:;base64,%%%": "percent sign", "data:;base64,a*b": "not base64",
		"data:;base64,aGVsbG8=aGVsbG8=": "not base64", "data:;base64,a": "not base64",
		"data:;base64," + b64([]byte(over)): "more than 1000 bytes", "data:," + over: "more than 1000 bytes",
		"data:;base64," + strings.Repeat("x", 100_000): "more than 1000 bytes",
		"ftp://a.test/": "http, https or data", "javascript:alert(1)": "http, https or data", "picture.png": "http, https or data",
		"": "http, https or data", "file:///etc/passwd": "http, https or data", "//a.test/x": "http, https or data",
		"FILE:/etc/passwd": "http, https or data", "gopher://127.0.0.1:1/": "http, https or data",
	} {
		_, err := get(t, f, raw)
		refused(t, err, reason)
	}
}

// folded breaks text into the lines that mail programs and command line tools make.
func folded(s string) string {
	var b strings.Builder
	for len(s) > 64 {
		b.WriteString(s[:64] + "\r\n")
		s = s[64:]
	}
	return b.String() + s
}

// TestSameContent: equal bytes have one digest, however they came.
func TestSameContent(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a"), []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := newFetcher(t, fetch.Options{LocalDir: dir})
	got, err := f.Fetch(t.Context(), sources("data:,hello", "data:;base64,aGVsbG8", "file://"+dir+"/a"))
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range got {
		if multimodal.Digest(c.Data) != multimodal.Digest([]byte("hello")) {
			t.Errorf("source %d: got %q", i, c.Data)
		}
	}
}

func TestFiles(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "media")
	for _, d := range []string{dir, filepath.Join(dir, "sub"), filepath.Join(top, "media2")} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		"media/a b.png": "picture", "media/sub/c": "picture", "secret": "hunter2", "media2/d": "hunter2",
		"media/large": strings.Repeat("x", 2000), "media/empty": "",
	} {
		if err := os.WriteFile(filepath.Join(top, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{
		"media/out": "../secret", "media/abs": filepath.Join(top, "secret"), "media/dir": "../media2", "media/in": "sub/c",
	} {
		if err := os.Symlink(to, filepath.Join(top, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := newFetcher(t, fetch.Options{LocalDir: dir, MaxBytes: 1000})
	for _, ok := range []string{
		"file://" + dir + "/a%20b.png", "file://localhost" + dir + "/sub/c", "FILE://" + dir + "/sub/../sub/c", "file:" + dir + "/in",
	} {
		if data, err := get(t, f, ok); err != nil || string(data) != "picture" {
			t.Errorf("%s: got %q, %v", ok, data, err)
		}
	}
	for bad, reason := range map[string]string{
		"file:///etc/passwd": "outside", "file://" + dir + "/../secret": "outside", "file://" + dir + "/%2e%2e/secret": "outside",
		"file://" + dir + "2/d": "outside", "file://" + top: "outside", "file:a": "absolute path", "file:": "outside",
		"file://" + dir + "/out": "can not be read", "file://" + dir + "/abs": "can not be read",
		"file://" + dir + "/dir/d": "can not be read", "file://" + dir + "/none": "can not be read",
		"file://" + dir + "/pipe": "can not be read", "file://" + dir: "can not be read", "file://" + dir + "/sub": "can not be read",
		"file://" + dir + "/a%00b": "can not be read", "file://host" + dir + "/sub/c": "another host",
		"file://" + dir + "/large": "larger than 1000 bytes", "file://" + dir + "/empty": "is empty", "ftp://x": "data or file",
	} {
		_, err := get(t, f, bad)
		refused(t, err, reason)
	}
	if _, err := fetch.New(fetch.Options{LocalDir: filepath.Join(top, "none")}); err == nil {
		t.Error("a folder that isn't there is opened")
	}
}

// FuzzDataURL: any data URL is bytes within the bound, or a refusal that names the part.
func FuzzDataURL(f *testing.F) {
	for _, seed := range []string{"image/png;base64,aGVsbG8=", ",a%20b", ";base64,%2B%2f", ";base64,-_=\n", "", ";;;,,,", ";base64,="} {
		f.Add(seed)
	}
	fetcher := newFetcher(f, fetch.Options{MaxDataURL: 256})
	f.Fuzz(func(t *testing.T, rest string) {
		got, err := fetcher.Fetch(t.Context(), []multimodal.Source{{URL: "data:" + rest, Path: part}})
		if err != nil {
			refused(t, err, "")
			return
		}
		if n := len(got[0].Data); n == 0 || n > 256 {
			t.Errorf("got %d bytes", n)
		}
	})
}
