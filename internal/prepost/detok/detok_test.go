package detok_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/daulet/tokenizers"

	_ "github.com/portico-llm/portico/internal/native" // links the native library
	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/prepost/detok"
)

// reference decodes with the tokenizers library itself. Its call goes through C strings, so ids whose text has a NUL
// byte are not given to it (see noNUL).
func reference(t testing.TB, tokenizerJSON []byte) detok.NativeDecode {
	t.Helper()
	tk, err := tokenizers.FromBytes(tokenizerJSON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tk.Close() })
	return func(ids []prepost.TokenID, skip bool) (string, error) {
		if len(ids) == 0 {
			return "", nil
		}
		return tk.Decode(ids, skip), nil
	}
}

// stream decodes piece by piece and checks that every piece is whole UTF-8.
func stream(t testing.TB, m *detok.Model, ids []prepost.TokenID, skip bool) string {
	t.Helper()
	return push(t, m.NewDecoder(nil, skip), ids)
}

// push gives the ids to a decoder.
func push(t testing.TB, d prepost.Decoder, ids []prepost.TokenID) string {
	t.Helper()
	var all []byte
	var err error
	for _, id := range ids {
		n := len(all)
		if all, err = d.Push(all, id); err != nil {
			t.Fatal(err)
		}
		if !utf8.Valid(all[n:]) {
			t.Fatalf("piece %q of id %d is not whole UTF-8", all[n:], id)
		}
	}
	if all, err = d.Flush(all); err != nil {
		t.Fatal(err)
	}
	return string(all)
}

// models are small tokenizers written here, one for each way of decoding, beside real ones where they are installed.
func models(t *testing.T) map[string][]byte {
	t.Helper()
	var sp strings.Builder
	for i := range 256 {
		fmt.Fprintf(&sp, `"<0x%02X>":%d,`, i, 3+i)
	}
	spVocab := `"vocab":{"<unk>":0,"<s>":1,"</s>":2,` + sp.String() + `"▁":259,"▁Hello":260,"▁world":261,"é":262,"!":263,"日本":264,"▁▁a":265}`
	spAdded := `"added_tokens":[{"id":1,"content":"<s>","special":true,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false},{"id":2,"content":"</s>","special":true,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false}]`
	replace := `{"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"}`
	form := `{"version":"1.0","truncation":null,"padding":null,` + spAdded + `,"normalizer":null,"pre_tokenizer":null,"post_processor":null,"decoder":%s,"model":{"type":"BPE","dropout":null,"unk_token":"<unk>","continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":true,"byte_fallback":true,"merges":[],` + spVocab + `}}`
	out := map[string][]byte{
		"gemma-like":     fmt.Appendf(nil, form, `{"type":"Sequence","decoders":[`+replace+`]}`),
		"llama2-like":    fmt.Appendf(nil, form, `{"type":"Sequence","decoders":[`+replace+`,{"type":"Strip","content":" ","start":1,"stop":0}]}`),
		"metaspace":      fmt.Appendf(nil, form, `{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true}`),
		"no decoder":     fmt.Appendf(nil, form, `null`),
		"smollm2 (real)": read(t, "../../../configs/models/smollm2-135m-instruct/tokenizer.json"),
	}
	found, _ := filepath.Glob("../../../.build/fixtures/*/tokenizer.json")
	for _, f := range found {
		out[filepath.Base(filepath.Dir(f))] = read(t, f)
	}
	return out
}

// read returns a whole file.
func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// eachModel runs test for every vocabulary, beside what the reference makes of it.
func eachModel(t *testing.T, test func(t *testing.T, raw []byte, m *detok.Model, ref detok.NativeDecode)) {
	for name, raw := range models(t) {
		t.Run(name, func(t *testing.T) {
			ref := reference(t, raw)
			m, err := detok.NewModel(raw, ref)
			if err != nil {
				t.Fatal(err)
			}
			test(t, raw, m, ref)
		})
	}
}

// noNUL drops ids whose text holds a NUL byte, and unknown ids that are not below the vocabulary's size.
func noNUL(m *detok.Model, ids []prepost.TokenID) (out []prepost.TokenID) {
	for _, id := range ids {
		if s, err := m.Decode([]prepost.TokenID{id}, false); err == nil && !strings.Contains(s, "\x00") {
			out = append(out, id)
		}
	}
	return out
}

func TestStreamEqualsReference(t *testing.T) {
	eachModel(t, func(t *testing.T, _ []byte, m *detok.Model, ref detok.NativeDecode) {
		rounds := 3000
		if testing.Short() || !m.Table() {
			rounds = 400
		}
		seed := rand.Uint64()
		t.Logf("seed %d, table %v, %d ids", seed, m.Table(), m.VocabSize())
		r := rand.New(rand.NewPCG(seed, 2))
		for range rounds {
			ids := make([]prepost.TokenID, 1+r.IntN(24))
			for i := range ids {
				ids[i] = prepost.TokenID(r.IntN(m.VocabSize() + 2))
				if r.IntN(3) == 0 { // byte tokens stand at the front of most vocabularies
					ids[i] = prepost.TokenID(r.IntN(min(300, m.VocabSize())))
				}
			}
			ids = noNUL(m, ids)
			skip := r.IntN(2) == 0
			want, _ := ref(ids, skip)
			if got := stream(t, m, ids, skip); got != want {
				t.Fatalf("ids %v skip %v: streamed %q, reference %q", ids, skip, got, want)
			}
			if got, err := m.Decode(ids, skip); err != nil || got != want {
				t.Fatalf("ids %v skip %v: Decode %q, %v, reference %q", ids, skip, got, err, want)
			}
		}
	})
}

// TestRealText: ids of real text, where most tokens are whole and some characters span tokens.
func TestRealText(t *testing.T) {
	texts := []string{
		"The quick brown fox\n\n  jumps — over 13 lazy dogs…", "naïve café Zürich 東京 日本語のテキスト한국어",
		"👩‍👩‍👧 family, flags 🇫🇷🇩🇪, e\u0301 combining", "code:\n\tfor (i = 0; i < 10; i++) { x[i] += \"\\n\"; }\r\n", "שלום עולם مرحبا بالعالم สวัสดี",
	}
	eachModel(t, func(t *testing.T, raw []byte, m *detok.Model, ref detok.NativeDecode) {
		tk, err := tokenizers.FromBytes(raw)
		if err != nil {
			t.Fatal(err)
		}
		defer tk.Close()
		for _, text := range texts {
			ids, _ := tk.Encode(text, false)
			want, _ := ref(ids, true)
			if got := stream(t, m, ids, true); got != want {
				t.Errorf("%q: streamed %q, reference %q", text, got, want)
			}
		}
	})
}

func TestNULIsText(t *testing.T) {
	m, err := detok.NewModel(read(t, "../../../configs/models/smollm2-135m-instruct/tokenizer.json"), nil)
	if err != nil {
		t.Fatal(err)
	}
	id, ok := m.TokenID("Ā") // the byte-level name of NUL
	if !ok {
		t.Skip("no NUL token in this vocabulary")
	}
	a, _ := m.TokenID("a")
	if got := stream(t, m, []prepost.TokenID{a, id, a}, true); got != "a\x00a" {
		t.Errorf("got %q, want a NUL between two letters", got)
	}
}

func TestPromptContextKeepsTheFirstSpace(t *testing.T) {
	raw := models(t)["llama2-like"]
	m, err := detok.NewModel(raw, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		prompt []prepost.TokenID
		want   string
	}{{nil, "Hello world"}, {[]prepost.TokenID{1}, "Hello world"}, {[]prepost.TokenID{1, 263}, " Hello world"}} {
		d := m.NewDecoder(c.prompt, true)
		out, _ := d.Push(nil, 260)
		out, _ = d.Push(out, 261)
		if string(out) != c.want {
			t.Errorf("after prompt %v: %q, want %q", c.prompt, out, c.want)
		}
	}
}

func TestLongByteRunIsReleased(t *testing.T) {
	m, err := detok.NewModel(models(t)["gemma-like"], nil)
	if err != nil {
		t.Fatal(err)
	}
	d := m.NewDecoder(nil, true)
	var out []byte
	for range 100 { // 😀 as four byte tokens each time
		for _, b := range []byte("😀") {
			out, _ = d.Push(out, 3+prepost.TokenID(b))
		}
	}
	if held := 400 - len(out); held > 68 || !utf8.Valid(out) {
		t.Errorf("%d of 400 bytes are held back, valid %v", held, utf8.Valid(out))
	}
	if out, _ = d.Flush(out); string(out) != strings.Repeat("😀", 100) {
		t.Errorf("got %q", out)
	}
}

func TestBadFiles(t *testing.T) {
	for _, c := range []struct{ name, json string }{
		{"not JSON", `{`},
		{"no vocabulary", `{"model":{}}`},
		{"huge id", `{"decoder":{"type":"ByteLevel"},"model":{"vocab":{"a":4294967295}}}`},
		{"id not a number", `{"decoder":{"type":"ByteLevel"},"model":{"vocab":{"a":"b"}}}`},
		{"needs the native tokenizer", `{"decoder":{"type":"WordPiece"},"model":{"vocab":{"a":0}}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := detok.NewModel([]byte(c.json), nil); err == nil {
				t.Error("accepted")
			}
		})
	}
}

func TestTokenID(t *testing.T) {
	m, err := detok.NewModel(read(t, "../../../configs/models/smollm2-135m-instruct/tokenizer.json"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if id, ok := m.TokenID("<|im_end|>"); !ok || id != 2 || !m.IsSpecial(id) {
		t.Errorf("<|im_end|> is %d, %v", id, ok)
	}
	id, ok := m.TokenID("Ġthe")
	if s, _ := m.Decode([]prepost.TokenID{id}, false); !ok || s != " the" {
		t.Errorf("Ġthe is %d (%q), %v", id, s, ok)
	}
	if _, ok := m.TokenID("no such token at all"); ok {
		t.Error("found a token that doesn't exist")
	}
}

func TestTokenBytes(t *testing.T) {
	m, err := detok.NewModel([]byte(`{"decoder":{"type":"ByteLevel"},"model":{"vocab":{"Ġa":0,"Ã":1}}}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range []string{" a", "\xc3"} {
		if got, ok := m.TokenBytes(prepost.TokenID(id)); !ok || string(got) != want {
			t.Errorf("id %d has bytes %q, %v; want %q", id, got, ok, want)
		}
	}
	if _, ok := m.TokenBytes(2); ok {
		t.Error("an unknown id has bytes")
	}
}

func FuzzDecoder(f *testing.F) {
	raw, err := os.ReadFile("../../../configs/models/smollm2-135m-instruct/tokenizer.json")
	if err != nil {
		f.Fatal(err)
	}
	m, err := detok.NewModel(raw, nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte{1, 2, 3, 250, 251}, true)
	f.Fuzz(func(t *testing.T, b []byte, skip bool) {
		var ids []prepost.TokenID
		for i := 0; i+1 < len(b); i += 2 {
			ids = append(ids, prepost.TokenID(b[i])<<8|prepost.TokenID(b[i+1]))
		}
		want, err := m.Decode(ids, skip)
		if err != nil {
			t.Fatal(err)
		}
		if got := stream(t, m, ids, skip); got != want {
			t.Fatalf("ids %v: streamed %q, whole %q", ids, got, want)
		}
	})
}

func BenchmarkPush(b *testing.B) {
	raw, err := os.ReadFile("../../../configs/models/smollm2-135m-instruct/tokenizer.json")
	if err != nil {
		b.Fatal(err)
	}
	m, err := detok.NewModel(raw, nil)
	if err != nil {
		b.Fatal(err)
	}
	d := m.NewDecoder(nil, true)
	buf := make([]byte, 0, 64)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := d.Push(buf, 338); err != nil {
			b.Fatal(err)
		}
	}
}
