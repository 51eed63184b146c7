package tokenizer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/prepost/executor"
	"github.com/portico-llm/portico/internal/prepost/tokenizer"
)

// loadCached makes a tokenizer that remembers blocks.
func loadCached(tb testing.TB, json []byte, backend string, o tokenizer.CacheOptions) *tokenizer.Tokenizer {
	tb.Helper()
	t, err := tokenizer.Load(tb.Context(), tokenizer.Options{JSON: json, Backend: backend, Name: "m", Registry: newRegistry(tb),
		Caches: tokenizer.NewCaches(o), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { t.Close() })
	return t
}

// addedContents are the texts of a tokenizer's added tokens.
func addedContents(tb testing.TB, file []byte) []string {
	tb.Helper()
	var f struct {
		Added []struct{ Content string } `json:"added_tokens"`
	}
	if err := json.Unmarshal(file, &f); err != nil {
		tb.Fatal(err)
	}
	var out []string
	for _, a := range f.Added {
		out = append(out, a.Content)
	}
	return out
}

// fragments are texts that matter at the borders of blocks.
var fragments = []string{
	"", " ", "  ", "\n", "\n\n", "\t", "a", "Hello", " world", "user", "assistant\n", "é", "e\u0301", "\u0301", "好", "😀", "\xe4\xbd", "\xff",
	"<", "<|", "|>", "<|im_", "im_start|>", "<|im_start|", "</", "[", "1", "12", "'s", " 's", ".", "\u00a0", "\u3000", "ﬁ", "＜|im_start|＞",
}

// conversation makes texts that grow, with tokens and whatever may stand next to them. Some go on from an earlier one.
func conversation(r *rand.Rand, added []string, turns int) []string {
	var b []byte
	var out []string
	for range turns {
		if r.IntN(4) == 0 && len(out) > 0 {
			b = append(b[:0], out[r.IntN(len(out))]...)
			b = b[:len(b)-r.IntN(min(len(b), 8)+1)]
		}
		for range r.IntN(6) {
			if r.IntN(3) == 0 && len(added) > 0 {
				b = append(b, added[r.IntN(len(added))]...)
			} else {
				b = append(b, fragments[r.IntN(len(fragments))]...)
			}
		}
		out = append(out, string(b))
	}
	return out
}

// differs compares what a tokenizer that remembers says with what one that doesn't does.
func differs(t *testing.T, cached, plain *tokenizer.Tokenizer, texts []string) {
	t.Helper()
	var wants, gots [][]prepost.TokenID
	check := func(text string, want, got []prepost.TokenID) {
		t.Helper()
		if !slices.Equal(want, got) {
			t.Fatalf("%q (-want +got):\n%s", text, cmp.Diff(want, got))
		}
	}
	for _, text := range texts {
		want := encode(t, plain, text, false)
		for range 2 { // as it comes, and as it is known
			got := encode(t, cached, text, false)
			check(text, want, got)
			wants, gots = append(wants, want), append(gots, got)
		}
	}
	for i := range wants { // still, though others had parts of the same memory since
		check(texts[i/2], wants[i], gots[i])
		_ = append(gots[i], 1<<31) // is the caller's alone
	}
	for i := range wants {
		check(texts[i/2], wants[i], gots[i])
	}
	if err := tokenizer.CheckCache(cached); err != nil {
		t.Fatal(err)
	}
}

// TestCacheEqualsWhole: with blocks of any size, the ids are those of the whole text.
func TestCacheEqualsWhole(t *testing.T) {
	files := map[string][]byte{"small": smallJSON(t)}
	if !testing.Short() {
		for name := range fixtures {
			if f := optionalFixture(name); f != nil && (name != "gemma3" || !raceEnabled) {
				files[name] = f
			}
		}
	}
	for name, file := range files {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(7, uint64(len(file))))
			added := addedContents(t, file)
			cached := loadCached(t, file, tokenizer.Auto, tokenizer.CacheOptions{Block: 1, Strip: 1})
			plain := load(t, file, tokenizer.Auto)
			for range 20 {
				differs(t, cached, plain, conversation(r, added, 10))
			}
		})
	}
}

// TestCacheKnowsFlags: what added tokens are told to take in, and what a tokenizer puts ahead of words, stays the same.
func TestCacheKnowsFlags(t *testing.T) {
	type object = map[string]any
	metaspace := func(scheme string) object {
		return object{"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true}
	}
	for name, change := range map[string]func(f object, added []any){
		"lstrip":      func(_ object, a []any) { a[1].(object)["lstrip"] = true },
		"rstrip":      func(_ object, a []any) { a[1].(object)["rstrip"] = true; a[2].(object)["rstrip"] = true },
		"single word": func(_ object, a []any) { a[1].(object)["single_word"] = true },
		"normalized": func(f object, a []any) {
			f["normalizer"] = object{"type": "Lowercase"}
			a[1].(object)["normalized"] = true
		},
		"all lowercase": func(f object, _ []any) { f["normalizer"] = object{"type": "Lowercase"} },
		"stripped": func(f object, _ []any) {
			f["normalizer"] = object{"type": "Strip", "strip_left": true, "strip_right": true}
		},
		"prepended":  func(f object, _ []any) { f["normalizer"] = object{"type": "Prepend", "prepend": "Ġ"} },
		"metaspace":  func(f object, _ []any) { f["pre_tokenizer"] = metaspace("first") },
		"metaspaces": func(f object, _ []any) { f["pre_tokenizer"] = metaspace("always") },
		"prefix space": func(f object, _ []any) {
			f["pre_tokenizer"] = object{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}
		},
		"one inside another": func(_ object, a []any) { a[3].(object)["content"] = "<|im_start|>user" },
		"one around another": func(_ object, a []any) { a[3].(object)["content"] = "a<|im_start|>" },
		"overlapping":        func(_ object, a []any) { a[3].(object)["content"] = "x<|im"; a[4].(object)["content"] = "|><" },
		"white at its end":   func(_ object, a []any) { a[3].(object)["content"] = "<|im_start|> "; a[5].(object)["rstrip"] = true },
		"white space":        func(_ object, a []any) { a[3].(object)["content"] = " <|x|>"; a[5].(object)["rstrip"] = true },
		"truncated": func(f object, _ []any) {
			f["truncation"] = object{"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
		},
	} {
		t.Run(name, func(t *testing.T) {
			var f object
			if err := json.Unmarshal(smallJSON(t), &f); err != nil {
				t.Fatal(err)
			}
			change(f, f["added_tokens"].([]any))
			file, err := json.Marshal(f)
			if err != nil {
				t.Fatal(err)
			}
			cached := loadCached(t, file, tokenizer.Tokenizers, tokenizer.CacheOptions{Block: 1, Strip: 1})
			plain := load(t, file, tokenizer.Tokenizers)
			r := rand.New(rand.NewPCG(3, 3))
			added := addedContents(t, file)
			for range 15 {
				differs(t, cached, plain, conversation(r, added[:8], 10))
			}
		})
	}
}

// FuzzCacheEqualsWhole: the same for any text around any token.
func FuzzCacheEqualsWhole(f *testing.F) {
	f.Add("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n", "Hi<|im_end|>\n", " x <|im_start|>")
	f.Add("\xff<|im_end|>\xe4", "<|im_<|im_end|>end|>", "<|im_start|><|im_start|>")
	f.Add("e", "\u0301<|endoftext|>\u0301", "<repo_name> <repo_name>a")
	cached := loadCached(f, smallJSON(f), tokenizer.Auto, tokenizer.CacheOptions{Block: 1, Strip: 1})
	plain := load(f, smallJSON(f), tokenizer.Auto)
	f.Fuzz(func(t *testing.T, a, b, c string) {
		differs(t, cached, plain, []string{a, a + b, b + a, a + b + c, a + "<|im_start|>" + c + "<|im_end|>" + b, c})
	})
}

// grown is a chat of about so many tokens, and the same with another message. Its messages are of this repository's text;
// each number has others.
func grown(tb testing.TB, tok *tokenizer.Tokenizer, tokens, number int) (before, after string) {
	tb.Helper()
	var files []byte
	for _, name := range []string{"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "internal/prepost/tokenizer/cache.go",
		"internal/server/server.go", "internal/pipeline/run.go", "native/src/lib.rs", "api/openai/chat.go", "api/openapi.yaml"} {
		files = append(files, readFile(tb, filepath.Join(root, name))...)
	}
	var b strings.Builder
	for i, n := 0, 0; n < tokens; i++ {
		begin := (i*1800 + number*7919) % (len(files) - 1800)
		turn := fmt.Sprintf("<|im_start|>%s\n%d %s<|im_end|>\n", []string{"user", "assistant"}[i%2], i, files[begin:begin+1800])
		n += len(encode(tb, tok, turn, false))
		b.WriteString(turn)
	}
	before = b.String() + "<|im_start|>assistant\n"
	return before, before + "Certainly, here it is.<|im_end|>\n<|im_start|>user\nThanks! And what about the other one?<|im_end|>\n<|im_start|>assistant\n"
}

// TestGrownChat: a chat of 32k tokens whose last message is new costs a twentieth of encoding it all, at most.
func TestGrownChat(t *testing.T) { grownChat(t, tokenizer.Tokenizers) }

// TestGrownChatFast is the same for the fast encoder, which takes so little for all of it that comparing the text weighs,
// and copying the ids would.
func TestGrownChatFast(t *testing.T) { grownChat(t, tokenizer.FastBPE) }

func grownChat(t *testing.T, backend string) {
	t.Helper()
	if testing.Short() || raceEnabled {
		t.Skip("measures time")
	}
	file := benchmarkJSON(t)
	// A busy machine can only make the share look larger, so the best of some rounds counts.
	best := 1.0
	for round := 0; round < 5 && best > 0.05; round++ {
		best = min(best, grownShare(t, file, backend))
	}
	if best > 0.05 {
		t.Errorf("%s: a grown chat costs %.1f %% of all of it", backend, 100*best)
	}
}

// grownShare measures what a chat that has grown by a message costs, as a share of encoding it all.
func grownShare(t *testing.T, file []byte, backend string) float64 {
	t.Helper()
	plain, cached := load(t, file, backend), loadCached(t, file, backend, tokenizer.CacheOptions{})
	defer plain.Close()
	defer cached.Close()
	var whole, rest []time.Duration
	for i := range 9 {
		before, after := grown(t, cached, 32<<10, i)
		encode(t, cached, before, false)
		begin := time.Now()
		want := encode(t, plain, after, false)
		whole = append(whole, time.Since(begin))
		begin = time.Now()
		got := encode(t, cached, after, false)
		rest = append(rest, time.Since(begin))
		if !slices.Equal(want, got) { // cmp.Diff would leave the machine with much to tidy up
			t.Fatal("other ids")
		}
	}
	slices.Sort(whole)
	slices.Sort(rest)
	a, b := whole[len(whole)/2], rest[len(rest)/2]
	t.Logf("%s: whole %v, grown %v: %.1f %%", backend, a, b, 100*float64(b)/float64(a))
	return float64(b) / float64(a)
}

func BenchmarkGrownChat(b *testing.B) {
	file := benchmarkJSON(b)
	for _, backend := range []string{tokenizer.Tokenizers, tokenizer.FastBPE} {
		plain := load(b, file, backend)
		_, after := grown(b, plain, 32<<10, 0)
		for name, tok := range map[string]*tokenizer.Tokenizer{
			"whole": plain, "grown": loadCached(b, file, backend, tokenizer.CacheOptions{}),
		} {
			b.Run(backend+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				next := []byte(after)
				for i := 0; b.Loop(); i++ { // another question each time
					copy(next[len(next)-60:], fmt.Sprintf("%8d", i))
					encode(b, tok, unsafe.String(&next[0], len(next)), false)
				}
			})
		}
	}
}

// BenchmarkFreshPrompt is what remembering costs texts that were never seen.
func BenchmarkFreshPrompt(b *testing.B) {
	file := benchmarkJSON(b)
	for _, tokens := range []int{109, 4033} {
		plain := load(b, file, tokenizer.FastBPE)
		texts := prompts(b, plain, tokens)
		for i, text := range texts {
			texts[i] = "<|im_start|>user\n" + strings.ReplaceAll(text, ". ", ".<|im_end|>\n<|im_start|>user\n") + "<|im_end|>\n"
		}
		for name, tok := range map[string]*tokenizer.Tokenizer{
			"plain": plain, "remembering": loadCached(b, file, tokenizer.FastBPE, tokenizer.CacheOptions{}),
		} {
			b.Run(fmt.Sprintf("tokens=%d/%s", tokens, name), func(b *testing.B) {
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ { // every message is another one
					encode(b, tok, strings.ReplaceAll(texts[i%len(texts)], "user", fmt.Sprint(i)), false)
				}
			})
		}
	}
}

func TestCacheCountsAndBounds(t *testing.T) {
	reg := prometheus.NewRegistry()
	const limit = 64 << 10
	cached := loadCached(t, smallJSON(t), tokenizer.Auto, tokenizer.CacheOptions{Bytes: limit, Block: 32, Registerer: reg})
	value := func(name string) float64 {
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "dynamo_frontend_tokenizer_cache_"+name {
				m := f.GetMetric()[0]
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
		t.Fatalf("no metric %s", name)
		return 0
	}
	chat := "<|im_start|>user\nA question of some length, in words.<|im_end|>\n<|im_start|>assistant\nAn answer of some length.<|im_end|>\n"
	first := encode(t, cached, chat+"<|im_start|>user\nMore?", false)
	if value("misses_total") != 1 || value("hits_total") != 0 || value("uncached_tokens_total") != float64(len(first)) {
		t.Errorf("after a first text: misses %v, hits %v, tokens %v", value("misses_total"), value("hits_total"), value("uncached_tokens_total"))
	}
	second := encode(t, cached, chat+"<|im_start|>user\nSomething else?", false)
	known, fresh := value("cached_tokens_total"), value("uncached_tokens_total")-float64(len(first))
	if value("hits_total") != 1 || known < 10 || known+fresh != float64(len(second)) {
		t.Errorf("after a second: hits %v, known %v, fresh %v of %d", value("hits_total"), known, fresh, len(second))
	}
	// Far more than there is room for.
	for i := range 2000 {
		encode(t, cached, fmt.Sprintf("<|im_start|>user\nQuestion %d of many more.<|im_end|>\n%s", i, chat), false)
		if b := value("bytes"); i%500 == 0 && b > limit {
			t.Fatalf("%v bytes, limit %d", b, limit)
		}
	}
	if b := value("bytes"); b < limit/4 || b > limit {
		t.Errorf("%v bytes, limit %d", b, limit)
	}
	if n, err := testutil.GatherAndCount(reg); err != nil || n != 5 {
		t.Errorf("%d series, %v", n, err)
	}
	if err := cached.Close(); err != nil {
		t.Fatal(err)
	}
	if b := value("bytes"); b != 0 {
		t.Errorf("%v bytes are left after Close", b)
	}
	if _, err := cached.Encode(context.Background(), chat+chat, false); !errors.Is(err, executor.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	// Those of the model have gone with it.
	if n, err := testutil.GatherAndCount(reg); err != nil || n != 3 {
		t.Errorf("%d series after Close, %v", n, err)
	}
}

func TestCacheMindsContext(t *testing.T) {
	cached := loadCached(t, smallJSON(t), tokenizer.Auto, tokenizer.CacheOptions{Block: 1, Strip: 1})
	text := strings.Repeat("<|im_start|>user\nhi<|im_end|>\n", 4)
	encode(t, cached, text, false)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := cached.Encode(ctx, text, false); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	// Special tokens around a text depend on nothing but whether they are asked for.
	plain := load(t, smallJSON(t), tokenizer.Auto)
	if diff := cmp.Diff(encode(t, plain, text, true), encode(t, cached, text, true)); diff != "" {
		t.Error(diff)
	}
}

// TestCacheConcurrently: many turns of many chats at once, with hardly any room.
func TestCacheConcurrently(t *testing.T) {
	cached := loadCached(t, smallJSON(t), tokenizer.Auto, tokenizer.CacheOptions{Block: 1, Strip: 8, Bytes: 32 << 10})
	plain := load(t, smallJSON(t), tokenizer.Auto)
	added := addedContents(t, smallJSON(t))
	for w := range 4 {
		t.Run(fmt.Sprint(w), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(1, uint64(w%2)))
			for range 30 {
				differs(t, cached, plain, conversation(r, added, 10))
			}
		})
	}
}
