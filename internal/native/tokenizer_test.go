package native_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/internal/native"
)

func smallJSON(tb testing.TB) []byte {
	tb.Helper()
	b, err := os.ReadFile(filepath.FromSlash("../../configs/models/smollm2-135m-instruct/tokenizer.json"))
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func reference(tb testing.TB) *native.Tokenizer {
	tb.Helper()
	t, err := native.NewTokenizer(smallJSON(tb))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { t.Close() })
	return t
}

func TestTokenizerRoundTrip(t *testing.T) {
	tok := reference(t)
	for _, text := range []string{
		"", " ", "Hello, world!", "abc\x00def", "\x00", "日本語 😀", "<|im_start|>user\nhi<|im_end|>", strings.Repeat("x y ", 5000),
	} {
		ids, err := tok.Encode(text, false)
		if err != nil {
			t.Fatalf("Encode(%.20q): %v", text, err)
		}
		got, err := tok.Decode(ids, false)
		if err != nil {
			t.Fatalf("Decode(%.20q): %v", text, err)
		}
		if strings.Contains(text, "\x00") {
			continue // this vocabulary has a token for NUL; its text is looked at below
		}
		if got != text {
			t.Errorf("decode of encode of %.40q is %.40q", text, got)
		}
	}
}

func TestTokenizerSeesPastNUL(t *testing.T) {
	tok := reference(t)
	short, err := tok.Encode("abc", false)
	if err != nil {
		t.Fatal(err)
	}
	long, err := tok.Encode("abc\x00def", false)
	if err != nil {
		t.Fatal(err)
	}
	if len(long) <= len(short) {
		t.Errorf("ids after the NUL are missing: %v and %v", short, long)
	}
	text, err := tok.Decode(long, false)
	if err != nil || text != "abc\x00def" {
		t.Errorf("Decode = %q, %v", text, err)
	}
}

// FuzzWordsEqualWhole: asked word by word, the library gives the ids that it gives for the whole text.
func FuzzWordsEqualWhole(f *testing.F) {
	const pattern = `"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"`
	var file map[string]any
	if err := json.Unmarshal(smallJSON(f), &file); err != nil {
		f.Fatal(err)
	}
	file["normalizer"] = map[string]any{"type": "NFC"}
	file["pre_tokenizer"] = json.RawMessage(`{"type":"Sequence","pretokenizers":[
		{"type":"Split","pattern":{"Regex":` + pattern + `},"behavior":"Isolated","invert":false},
		{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":false}]}`)
	b, err := json.Marshal(file)
	if err != nil {
		f.Fatal(err)
	}
	tok, err := native.NewTokenizer(b)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { tok.Close() })
	for _, seed := range []string{
		"", "Hello, world! It's 2024.", "abc\x00def", "a\xff\xe4\xbdb", "<|im_start|>user\n<|im_end|>", "你好，世界", "e\u0301 \u1112\u1161\u11ab",
	} {
		f.Add(seed, true)
		f.Add(seed+" "+seed, false)
	}
	f.Fuzz(func(t *testing.T, text string, addSpecial bool) {
		want, err := tok.EncodeWhole(text, addSpecial)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // asked again, words are remembered
			got, err := tok.Encode(text, addSpecial)
			if diff := cmp.Diff(want, got); diff != "" || err != nil {
				t.Errorf("%q: %v (-whole +words)\n%s", text, err, diff)
			}
		}
	})
}

func TestTokenizerReplacesInvalidUTF8(t *testing.T) {
	tok := reference(t)
	for _, text := range []string{"a\xffb", "\xe4\xbd", "\xed\xa0\x80", "ok\xf0\x9f\x98"} {
		got, err := tok.Encode(text, false)
		if err != nil {
			t.Fatal(err)
		}
		// The first two bytes of a broken sequence are one replacement, as upstream counts; a surrogate is three.
		want, err := tok.Encode(lossy(text), false)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q: (-want +got)\n%s", text, diff)
		}
	}
}

// lossy replaces each maximal part of a well-formed sequence by one U+FFFD, for the texts of the test above.
func lossy(s string) string {
	r := strings.NewReplacer("\xff", "\uFFFD", "\xe4\xbd", "\uFFFD", "\xed\xa0\x80", "\uFFFD\uFFFD\uFFFD", "\xf0\x9f\x98", "\uFFFD")
	return r.Replace(s)
}

func TestTokenizerFailuresAreNotEmpty(t *testing.T) {
	for _, json := range []string{"", "{", `{"version":"1.0"}`, `{"model":{"type":"BPE","vocab":{},"merges":["a b"]}}`} {
		tok, err := native.NewTokenizer([]byte(json))
		if err == nil {
			tok.Close()
			t.Errorf("NewTokenizer(%q) succeeded", json)
		}
	}
	tok := reference(t)
	if err := errors.Join(tok.Close(), tok.Close()); err != nil {
		t.Fatal(err)
	}
	if ids, err := tok.Encode("x", false); err == nil {
		t.Errorf("Encode after Close = %v", ids)
	}
	if text, err := tok.Decode([]uint32{5}, false); err == nil {
		t.Errorf("Decode after Close = %q", text)
	}
	if id, ok := tok.TokenID("a"); ok {
		t.Errorf("TokenID after Close = %d", id)
	}
	if n := tok.VocabSize(); n != 0 {
		t.Errorf("VocabSize after Close = %d", n)
	}
}

func TestTokenizerVocabulary(t *testing.T) {
	tok := reference(t)
	if got := tok.VocabSize(); got != 49152 {
		t.Errorf("VocabSize = %d", got)
	}
	if id, ok := tok.TokenID("<|im_end|>"); !ok || id != 2 {
		t.Errorf("TokenID(<|im_end|>) = %d, %v", id, ok)
	}
	if id, ok := tok.TokenID("no such token"); ok {
		t.Errorf("TokenID(no such token) = %d", id)
	}
}

func TestTokenizerIsConcurrent(t *testing.T) {
	tok := reference(t)
	want, err := tok.Encode("the same text, again and again", false)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				got, err := tok.Encode("the same text, again and again", false)
				if err != nil || cmp.Diff(want, got) != "" {
					t.Errorf("Encode = %v, %v", got, err)
				}
			}
		})
	}
	wg.Wait()
}

const tiktokenPattern = `\p{L}+| ?[^\s\p{L}]+|\s+`

func TestTiktoken(t *testing.T) {
	dir := t.TempDir()
	model, config := filepath.Join(dir, "tiktoken.model"), filepath.Join(dir, "tokenizer_config.json")
	var lines strings.Builder
	for i, token := range []string{"YQ==", "Yg==", "YWI=", "IA==", "AA=="} { // a, b, ab, space, NUL
		lines.WriteString(token + " " + string(rune('0'+i)) + "\n")
	}
	write := func(path, text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(model, lines.String())
	write(config, `{"added_tokens_decoder":{"7":{"content":"<e>","lstrip":false,"normalized":false,"rstrip":false,
		"single_word":false,"special":true}},"bos_token":"<e>","eos_token":"<e>","model_max_length":10,
		"tokenizer_class":"T"}`)

	tok, err := native.NewTiktoken(model, config, tiktokenPattern)
	if err != nil {
		t.Fatal(err)
	}
	defer tok.Close()
	got, err := tok.Encode("ab b\x00<e>", true)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]uint32{2, 3, 1, 4, 7}, got); diff != "" {
		t.Errorf("Encode (-want +got)\n%s", diff)
	}
	if text, err := tok.Decode(got, true); err != nil || text != "ab b\x00" {
		t.Errorf("Decode = %q, %v", text, err)
	}
	if n := tok.VocabSize(); n != 8 {
		t.Errorf("VocabSize = %d", n)
	}

	if _, err := native.NewTiktoken(model+"x", config, tiktokenPattern); err == nil {
		t.Error("a missing file is no error")
	}
	if _, err := native.NewTiktoken(model, config, "("); err == nil {
		t.Error("a bad pattern is no error")
	}
}

func TestFastEqualsReference(t *testing.T) {
	tok := reference(t)
	fast, err := native.NewFast(smallJSON(t))
	if err != nil {
		t.Fatal(err)
	}
	enc, err := fast.NewEncoder()
	if err != nil {
		t.Fatal(err)
	}
	defer enc.Close()
	fast.Close() // the encoder goes on
	fast.Close()
	for _, text := range []string{"", "Hello, world!", "abc\x00def", "a\xff\xe4\xbdb", "<|im_start|>x", "日本語", " \n\n 12"} {
		want, err := tok.Encode(text, true)
		if err != nil {
			t.Fatal(err)
		}
		got, err := enc.Encode(text, true)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(append([]uint32{}, want...), append([]uint32{}, got...)); diff != "" {
			t.Errorf("%q (-want +got)\n%s", text, diff)
		}
		if utf8.ValidString(text) && text != "" && len(got) == 0 {
			t.Errorf("%q has no ids", text)
		}
	}
	if err := errors.Join(enc.Close(), enc.Close()); err != nil {
		t.Error(err)
	}
	if ids, err := enc.Encode("x", false); err == nil {
		t.Errorf("Encode after Close = %v", ids)
	}
	if _, err := fast.NewEncoder(); err == nil {
		t.Error("NewEncoder after Close succeeded")
	}
}

func TestFastRefuses(t *testing.T) {
	json := strings.Replace(string(smallJSON(t)), `"normalizer":null`, `"normalizer":{"type":"NFKC"}`, 1)
	_, err := native.NewFast([]byte(json))
	refused, ok := errors.AsType[*native.RefusedError](err)
	if !ok || !strings.Contains(refused.Reason, "NFKC") {
		t.Errorf("NewFast = %v", err)
	}
}

func TestHeapInUseSeesTokenizers(t *testing.T) {
	before := native.HeapInUse()
	if before == 0 {
		t.Skip("this C library doesn't tell")
	}
	tok := reference(t)
	if during := native.HeapInUse(); during < before+1<<20 {
		t.Errorf("a tokenizer took %d bytes", during-before)
	}
	tok.Close()
	if after := native.HeapInUse(); after > before+1<<20 {
		t.Errorf("%d bytes are left", after-before)
	}
}
