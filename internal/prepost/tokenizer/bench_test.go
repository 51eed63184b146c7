package tokenizer_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/prepost/tokenizer"
)

// prompts returns texts of about the given number of tokens, of a vocabulary large enough that they are fresh.
func prompts(tb testing.TB, tok prepost.Tokenizer, tokens int) []string {
	tb.Helper()
	r := rand.New(rand.NewPCG(1, uint64(tokens)))
	texts := make([]string, 64)
	for i := range texts {
		var b strings.Builder
		for b.Len() < 4*tokens {
			switch r.IntN(12) {
			case 0:
				fmt.Fprintf(&b, "%d, ", r.IntN(10_000))
			case 1:
				b.WriteString("(and it's so). ")
			default:
				for range 1 + r.IntN(3) {
					b.WriteString([]string{"con", "tin", "u", "al", "re", "mark", "able", "ly", "south", "er", "n", "light", "ing"}[r.IntN(13)])
				}
				b.WriteByte(' ')
			}
		}
		ids := encode(tb, tok, b.String(), false)
		texts[i] = decode(tb, tok, ids[:min(tokens, len(ids))])
	}
	return texts
}

func BenchmarkEncode(b *testing.B) {
	for _, backend := range []string{tokenizer.Tokenizers, tokenizer.FastBPE} {
		tok := load(b, benchmarkJSON(b), backend)
		for _, tokens := range []int{109, 4033} {
			texts := prompts(b, tok, tokens)
			b.Run(fmt.Sprintf("%s/tokens=%d", backend, tokens), func(b *testing.B) {
				ctx, cancel := context.WithCancel(b.Context())
				defer cancel()
				b.ReportAllocs()
				b.SetBytes(int64(len(texts[0])))
				for i := 0; b.Loop(); i++ {
					if _, err := tok.Encode(ctx, texts[i%len(texts)], true); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkKinds encodes 16 KB of each kind of text.
func BenchmarkKinds(b *testing.B) {
	kinds := map[string]string{
		"english": "The quick brown fox jumps over the lazy dog while it's raining on southern plains, remarkably. ",
		"code":    "func (s *Server) Serve(ctx context.Context) error {\n\tfor i := 0; i < 10; i++ {\n\t\ts.mu.Lock()\n\t}\n}\n",
		"chinese": "机器学习模型在近年来得到了广泛的应用，研究人员不断提出新的方法来提高它们的效率和准确性。",
	}
	for _, backend := range []string{tokenizer.Tokenizers, tokenizer.FastBPE} {
		tok := load(b, benchmarkJSON(b), backend)
		for name, unit := range kinds {
			text := strings.Repeat(unit, 16<<10/len(unit))
			b.Run(backend+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(len(text)))
				for b.Loop() {
					encode(b, tok, text, false)
				}
			})
		}
	}
}

func BenchmarkLoad(b *testing.B) {
	json := benchmarkJSON(b)
	for _, backend := range []string{tokenizer.Tokenizers, tokenizer.Auto} {
		b.Run(backend, func(b *testing.B) {
			begin := time.Now()
			for b.Loop() {
				load(b, json, backend).Close()
			}
			b.ReportMetric(time.Since(begin).Seconds()/float64(b.N), "s/load")
		})
	}
}

// benchmarkJSON is qwen3's tokenizer where it has been fetched.
func benchmarkJSON(tb testing.TB) []byte {
	tb.Helper()
	if json := optionalFixture("qwen3"); json != nil {
		return json
	}
	return smallJSON(tb)
}
