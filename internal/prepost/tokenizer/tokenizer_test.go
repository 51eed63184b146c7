package tokenizer_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/portico-llm/portico/internal/native"
	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/prepost/executor"
	"github.com/portico-llm/portico/internal/prepost/tokenizer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const root = "../../.."

// smallJSON is the tokenizer that is always there.
func smallJSON(tb testing.TB) []byte {
	tb.Helper()
	return readFile(tb, filepath.Join(root, "configs/models/smollm2-135m-instruct/tokenizer.json"))
}

func readFile(tb testing.TB, path string) []byte {
	tb.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// fixtures are the tokenizers that tests/fixtures/fetch.sh fetches, with the backend auto chooses.
var fixtures = map[string]string{
	"qwen3":       tokenizer.FastBPE,
	"llama3_1":    tokenizer.FastBPE,
	"gptoss":      tokenizer.FastBPE,
	"deepseek_v3": tokenizer.FastBPE,
	"gemma3":      tokenizer.Tokenizers,
}

// fixtureJSON skips the test when the fixture isn't there, unless PORTICO_FIXTURES=require.
func fixtureJSON(tb testing.TB, name string) []byte {
	tb.Helper()
	path := filepath.Join(root, ".build/fixtures", name, "tokenizer.json")
	if _, err := os.Stat(path); err != nil {
		if os.Getenv("PORTICO_FIXTURES") == "require" {
			tb.Fatalf("fixture %s is missing: run tests/fixtures/fetch.sh", name)
		}
		tb.Skipf("fixture %s is missing: run tests/fixtures/fetch.sh", name)
	}
	return readFile(tb, path)
}

// optionalFixture is nil when the fixture isn't there and needn't be.
func optionalFixture(name string) []byte {
	b, err := os.ReadFile(filepath.Join(root, ".build/fixtures", name, "tokenizer.json"))
	if err != nil {
		return nil
	}
	return b
}

func newRegistry(tb testing.TB) *executor.Registry {
	tb.Helper()
	r := executor.NewRegistry(executor.Options{Workers: 2, Gate: native.NewGate(2)})
	tb.Cleanup(func() {
		if err := r.Close(); err != nil {
			tb.Error(err)
		}
	})
	return r
}

// load makes a tokenizer that is closed with the test.
func load(tb testing.TB, json []byte, backend string) *tokenizer.Tokenizer {
	tb.Helper()
	t, err := tokenizer.Load(tb.Context(), tokenizer.Options{JSON: json, Backend: backend, Registry: newRegistry(tb),
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { t.Close() })
	return t
}

func encode(tb testing.TB, t prepost.Tokenizer, text string, addSpecial bool) []prepost.TokenID {
	tb.Helper()
	ids, err := t.Encode(context.Background(), text, addSpecial)
	if err != nil {
		tb.Fatalf("Encode(%.60q): %v", text, err)
	}
	return ids
}

func decode(tb testing.TB, t prepost.Tokenizer, ids []prepost.TokenID) string {
	tb.Helper()
	text, err := t.Decode(ids, false)
	if err != nil {
		tb.Fatal(err)
	}
	return text
}

func TestBackends(t *testing.T) {
	for _, backend := range []string{tokenizer.Auto, tokenizer.Tokenizers, tokenizer.FastBPE, ""} {
		tok := load(t, smallJSON(t), backend)
		want := tokenizer.FastBPE
		if backend == tokenizer.Tokenizers {
			want = tokenizer.Tokenizers
		}
		if tok.Backend() != want {
			t.Errorf("backend %q gives %q, want %q", backend, tok.Backend(), want)
		}
		if diff := cmp.Diff([]prepost.TokenID{19556, 28, 905, 17}, encode(t, tok, "Hello, world!", true)); diff != "" {
			t.Errorf("%q: ids (-want +got)\n%s", backend, diff)
		}
		if id, ok := tok.TokenID("<|im_end|>"); !ok || id != 2 {
			t.Errorf("TokenID = %d, %v", id, ok)
		}
		if n := tok.VocabSize(); n != 49152 {
			t.Errorf("VocabSize = %d", n)
		}
	}
}

func TestFixturesWithAuto(t *testing.T) {
	for name, want := range fixtures {
		t.Run(name, func(t *testing.T) {
			tok := load(t, fixtureJSON(t, name), tokenizer.Auto)
			if tok.Backend() != want {
				t.Errorf("backend %q, want %q", tok.Backend(), want)
			}
			for _, text := range []string{"Hello, world!", "a\x00b\x00", "你好，世界 😀", " \n\n  x", "12345 <|im_end|>"} {
				if got := decode(t, tok, encode(t, tok, text, false)); got != text {
					t.Errorf("%q comes back as %q", text, got)
				}
			}
		})
	}
}

// NULs are characters like any other, in both directions and in streams.
func TestNUL(t *testing.T) {
	for _, backend := range []string{tokenizer.Tokenizers, tokenizer.FastBPE} {
		tok := load(t, smallJSON(t), backend)
		for _, text := range []string{"abc\x00def", "\x00", "\x00\x00 x", "x\x00"} {
			ids := encode(t, tok, text, false)
			if got := decode(t, tok, ids); got != text {
				t.Errorf("%s: %q comes back as %q", backend, text, got)
			}
			dec, got := tok.NewDecoder(nil, false), []byte(nil)
			for _, id := range ids {
				var err error
				if got, err = dec.Push(got, id); err != nil {
					t.Fatal(err)
				}
			}
			got, err := dec.Flush(got)
			if err != nil || string(got) != text {
				t.Errorf("%s: %q streams as %q, %v", backend, text, got, err)
			}
		}
	}
}

func TestInvalidUTF8IsReplacedAlike(t *testing.T) {
	reference := load(t, smallJSON(t), tokenizer.Tokenizers)
	fast := load(t, smallJSON(t), tokenizer.FastBPE)
	for _, text := range []string{"a\xffb", "\xe4\xbd", "\xed\xa0\x80", "\xf0\x9f\x98 ok", strings.Repeat("\x80", 100), "\xc0\xaf"} {
		want, got := encode(t, reference, text, false), encode(t, fast, text, false)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q (-reference +fast)\n%s", text, diff)
		}
		if got := decode(t, fast, got); !strings.Contains(got, "\uFFFD") {
			t.Errorf("%q comes back as %q", text, got)
		}
	}
}

func TestForcedFastRefuses(t *testing.T) {
	json := bytes.Replace(smallJSON(t), []byte(`"normalizer":null`), []byte(`"normalizer":{"type":"NFKC"}`), 1)
	_, err := tokenizer.Load(t.Context(), tokenizer.Options{JSON: json, Backend: tokenizer.FastBPE, Registry: newRegistry(t)})
	if refused, ok := errors.AsType[*native.RefusedError](err); !ok || !strings.Contains(refused.Reason, "NFKC") {
		t.Errorf("Load = %v", err)
	}
}

func TestAutoSaysOnceWhyItFallsBack(t *testing.T) {
	json := bytes.Replace(smallJSON(t), []byte(`"normalizer":null`), []byte(`"normalizer":{"type":"NFKC"}`), 1)
	var out bytes.Buffer
	tok, err := tokenizer.Load(t.Context(), tokenizer.Options{JSON: json, Name: "m", Registry: newRegistry(t),
		Log: slog.New(slog.NewTextHandler(&out, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer tok.Close()
	if tok.Backend() != tokenizer.Tokenizers {
		t.Errorf("backend %q", tok.Backend())
	}
	if log := out.String(); strings.Count(log, "\n") != 1 || !strings.Contains(log, "NFKC") {
		t.Errorf("log: %q", log)
	}
	if got := encode(t, tok, "ﬁ", false); cmp.Diff(encode(t, tok, "fi", false), got) != "" {
		t.Errorf("the normalizer isn't in use: %v", got)
	}
}

func TestLoadRefusesNonsense(t *testing.T) {
	r := newRegistry(t)
	json := smallJSON(t)
	for name, o := range map[string]tokenizer.Options{
		"no registry":     {JSON: json},
		"nothing to load": {Registry: r},
		"both":            {Registry: r, JSON: json, Tiktoken: "x"},
		"unknown backend": {Registry: r, JSON: json, Backend: "quick"},
		"broken JSON":     {Registry: r, JSON: json[:len(json)/2]},
		"missing file":    {Registry: r, Tiktoken: filepath.Join(t.TempDir(), "tiktoken.model")},
	} {
		if _, err := tokenizer.Load(t.Context(), o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := tokenizer.Load(ctx, tokenizer.Options{Registry: r, JSON: json}); !errors.Is(err, context.Canceled) {
		t.Errorf("an ended context: %v", err)
	}
	if n := r.Live(); n != 0 {
		t.Errorf("%d executors are left", n)
	}
}

func TestCloseIsIdempotentAndEndsEncode(t *testing.T) {
	for _, backend := range []string{tokenizer.Tokenizers, tokenizer.FastBPE} {
		tok := load(t, smallJSON(t), backend)
		encode(t, tok, "x", false)
		if err := errors.Join(tok.Close(), tok.Close()); err != nil {
			t.Error(err)
		}
		if _, err := tok.Encode(t.Context(), "x", false); !errors.Is(err, executor.ErrClosed) {
			t.Errorf("Encode after Close: %v", err)
		}
		if got, err := tok.Decode([]prepost.TokenID{28}, false); err != nil || got != "," {
			t.Errorf("a table decodes after Close, too: %q, %v", got, err)
		}
	}
}

// Closing under running native calls: every caller gets ids or ErrClosed, and nothing crashes.
func TestCloseWhileEncoding(t *testing.T) {
	text := strings.Repeat("hello wörld, foo bar ", 300)
	for _, backend := range []string{tokenizer.Tokenizers, tokenizer.FastBPE} {
		tok := load(t, smallJSON(t), backend)
		want := len(encode(t, tok, text, false))
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for {
					ids, err := tok.Encode(t.Context(), text, false)
					if errors.Is(err, executor.ErrClosed) {
						return
					}
					if err != nil || len(ids) != want {
						t.Errorf("Encode: %d ids, %v", len(ids), err)
						return
					}
				}
			})
		}
		time.Sleep(20 * time.Millisecond)
		tok.Close()
		wg.Wait()
	}
}

// The caller drops the tokenizer and leaves while a long job is inside the native library.
func TestEvictedDuringANativeCall(t *testing.T) {
	r := newRegistry(t)
	text := strings.Repeat("hello wörld 123 ", 60_000)
	func() {
		tok, err := tokenizer.Load(t.Context(), tokenizer.Options{JSON: smallJSON(t), Backend: tokenizer.Tokenizers, Registry: r})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if _, err := tok.Encode(ctx, text, false); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Encode: %v", err)
		}
	}()
	begin := time.Now()
	for r.Live() > 0 && time.Since(begin) < 10*time.Second {
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
	if n := r.Live(); n != 0 {
		t.Errorf("%d executors live", n)
	}
	// The registry's Close waits for the job and the free; a use after free would end the process.
}

// markupText streams an answer with special tokens for markup.
func markupText(t *testing.T, tok *tokenizer.Tokenizer, markup, ids []prepost.TokenID) string {
	t.Helper()
	dec, got, err := tok.NewMarkupDecoder(nil, markup), []byte(nil), error(nil)
	for _, id := range ids {
		if got, err = dec.Push(got, id); err != nil {
			t.Fatal(err)
		}
	}
	if got, err = dec.Flush(got); err != nil {
		t.Fatal(err)
	}
	return string(got)
}

// TestMarkup: special tokens show if they are markup, with a table and without.
func TestMarkup(t *testing.T) {
	noTable := bytes.Replace(smallJSON(t), []byte(`"decoder":{"type":"ByteLevel"`), []byte(`"decoder":{"type":"Sequence","decoders":[
		{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true},{"type":"Fuse"}],"was":"ByteLevel"`), 1)
	if bytes.Equal(noTable, smallJSON(t)) {
		t.Fatal("the decoder is another one")
	}
	for name, file := range map[string][]byte{"table": smallJSON(t), "reference": noTable} {
		for _, backend := range []string{tokenizer.Tokenizers, tokenizer.FastBPE} {
			tok := load(t, file, backend)
			ids := encode(t, tok, "<|im_start|>é <|im_end|>x<|im_start|>", false)
			start, ok := tok.TokenID("<|im_start|>")
			if got := markupText(t, tok, []prepost.TokenID{start}, ids); !ok || got != "<|im_start|>é x<|im_start|>" {
				t.Errorf("%s, %s: %q", name, backend, got)
			}
		}
	}
}

func TestTiktoken(t *testing.T) {
	dir := t.TempDir()
	model := filepath.Join(dir, "tiktoken.model")
	write := func(path, text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(model, "YQ== 0\nYg== 1\nYWI= 2\nIA== 3\nAA== 4\n") // a, b, ab, space, NUL
	write(filepath.Join(dir, "tokenizer_config.json"), `{"added_tokens_decoder":{"7":{"content":"<e>","lstrip":false,
		"normalized":false,"rstrip":false,"single_word":false,"special":true},"6":{"content":"<m>","lstrip":false,"normalized":false,"rstrip":false,"single_word":false,
		"special":true}},"bos_token":"<e>","eos_token":"<e>",
		"model_max_length":10,"tokenizer_class":"T"}`)
	o := tokenizer.Options{Tiktoken: model, Registry: newRegistry(t)}
	tok, err := tokenizer.Load(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer tok.Close()
	// Special tokens in a rendered prompt are tokens whether or not special ones are added.
	if diff := cmp.Diff([]prepost.TokenID{2, 3, 1, 4, 7}, encode(t, tok, "ab b\x00<e>", false)); diff != "" {
		t.Errorf("ids (-want +got)\n%s", diff)
	}
	if got, err := tok.Decode([]prepost.TokenID{2, 99, 3, 7, 1}, true); err != nil || got != "ab b" {
		t.Errorf("Decode = %q, %v", got, err)
	}
	if got := markupText(t, tok, []prepost.TokenID{6}, []prepost.TokenID{2, 7, 6, 99, 1, 7}); got != "ab<m>b" {
		t.Errorf("with markup: %q", got)
	}
	if id, ok := tok.TokenID("<e>"); !ok || id != 7 || tok.VocabSize() != 8 || tok.Backend() != tokenizer.Tokenizers {
		t.Errorf("TokenID = %d, %v; VocabSize = %d; Backend = %q", id, ok, tok.VocabSize(), tok.Backend())
	}
	tok.Close()
	if _, err := tok.Decode([]prepost.TokenID{2}, false); !errors.Is(err, executor.ErrClosed) {
		t.Errorf("Decode after Close: %v", err)
	}
	o.Backend = tokenizer.FastBPE
	if _, err := tokenizer.Load(t.Context(), o); err == nil {
		t.Error("fast was forced on a tiktoken model")
	}
}
