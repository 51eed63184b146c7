package tokenizer_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/prepost/tokenizer"
)

// FuzzFastEqualsReference: whatever the text, the fast backend gives the reference's ids, and both decode them to the
// same text. Run with fixtures it covers every pattern; without, the small tokenizer's.
func FuzzFastEqualsReference(f *testing.F) {
	for _, seed := range []string{
		"", "Hello, world! It's 2024.", "abc\x00def", "a\xff\xe4\xbdb", "<|im_start|>user\n<|im_end|>", "你好，世界", "😀👩\u200d👧",
		" \n\n\t  x\r\n", "1234567", "e\u0301\u1112\u1161\u11ab", "WE'LL'ſ don't HTTPServer", strings.Repeat("ab", 100),
		"//\n/*---*/", "<|endoftext|><|eot_id|><｜begin▁of▁sentence｜>", "ह\u093fन\u094dदी ½Ⅷ²",
	} {
		f.Add(seed, true)
		f.Add(seed+" "+seed, false)
	}
	type pair struct {
		name            string
		reference, fast prepost.Tokenizer
	}
	pairs := []pair{{"small", load(f, smallJSON(f), tokenizer.Tokenizers), load(f, smallJSON(f), tokenizer.FastBPE)}}
	for name, backend := range fixtures {
		if json := optionalFixture(name); json != nil && backend == tokenizer.FastBPE && !testing.Short() && !raceEnabled {
			pairs = append(pairs, pair{name, load(f, json, tokenizer.Tokenizers), load(f, json, tokenizer.FastBPE)})
		}
	}
	f.Fuzz(func(t *testing.T, text string, addSpecial bool) {
		for _, p := range pairs {
			want, got := encode(t, p.reference, text, addSpecial), encode(t, p.fast, text, addSpecial)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: %q (-reference +fast)\n%s", p.name, text, diff)
			}
			if a, b := decode(t, p.reference, want), decode(t, p.fast, want); a != b {
				t.Errorf("%s: the reference decodes to %q, fast to %q", p.name, a, b)
			}
		}
	})
}
