package fieldreports_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/portico-llm/portico/internal/testkit"
)

// TestEveryStreamIsLinted: the linter passes every stream that is kept in the repository: transcripts, golden answers.
// Streams that tests make themselves pass it where they are made.
func TestEveryStreamIsLinted(t *testing.T) {
	linted := 0
	err := filepath.WalkDir("../..", func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := e.Name()
		if e.IsDir() && (name == ".git" || name == ".build" || name == "bin" || name == "target") {
			return filepath.SkipDir
		}
		// Upstream's own streams keep rules of their own.
		if e.IsDir() || !strings.Contains(path, "testdata") || strings.Contains(path, "tests/replay") ||
			strings.Contains(path, "loadgen") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, stream := range streams(text) {
			linted++
			if err := lintKept(text, stream); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if linted < 20 {
		t.Errorf("only %d streams were found", linted)
	}
	t.Logf("%d streams", linted)
}

// lintKept lints a stream of a file: by the request that a transcript has with it, and else by what the stream itself
// says of usage.
func lintKept(text, stream []byte) error {
	if _, request, ok := bytes.Cut(text, []byte("\n-- request --\nPOST ")); ok {
		request, _, _ = bytes.Cut(request, []byte("\n-- "))
		head, body, _ := bytes.Cut(request, []byte("\n\n"))
		path, _, _ := strings.Cut(string(head), "\n")
		forced := bytes.Contains(text, []byte("\nusage: forced\n"))
		return testkit.LintStream(testkit.Asked{Path: path, Body: body, Usage: forced}, stream)
	}
	opts := testkit.LintOptions{
		Chat:  bytes.Contains(stream, []byte(`"chat.completion.chunk"`)),
		Usage: bytes.Contains(stream, []byte(`"choices":[]`)),
	}
	err := testkit.Lint(stream, opts)
	if err != nil {
		opts.ContinuousUsage = true
		err = testkit.Lint(stream, opts)
	}
	return err
}

// streams finds whole streams of chunks in a file: from the first event to the end mark.
func streams(text []byte) [][]byte {
	var out [][]byte
	done := []byte("data: [DONE]\n\n")
	for {
		from := bytes.Index(text, []byte("data: {"))
		if from < 0 {
			return out
		}
		length := bytes.Index(text[from:], done)
		if length < 0 {
			return out
		}
		stream := text[from : from+length+len(done)]
		text = text[from+length+len(done):]
		if bytes.Contains(stream, []byte(`.chunk"`)) || bytes.Contains(stream, []byte(`"text_completion"`)) {
			out = append(out, stream)
		}
	}
}
