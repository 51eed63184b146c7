package detok_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/prepost/detok"
)

// TestMarkupDecoder: of the special tokens only the markup shows, in every way of decoding. What the reference makes of
// the ids without the others is the oracle.
func TestMarkupDecoder(t *testing.T) {
	eachModel(t, func(t *testing.T, _ []byte, m *detok.Model, ref detok.NativeDecode) {
		var specials []prepost.TokenID
		for id := range prepost.TokenID(m.VocabSize()) {
			if m.IsSpecial(id) {
				specials = append(specials, id)
			}
		}
		specials = noNUL(m, specials)
		if len(specials) < 2 {
			t.Fatalf("special tokens %v", specials)
		}
		r := rand.New(rand.NewPCG(9, uint64(m.VocabSize())))
		for range 200 {
			markup := []prepost.TokenID{specials[r.IntN(len(specials))]}
			ids := make([]prepost.TokenID, 1+r.IntN(24))
			for i := range ids {
				ids[i] = prepost.TokenID(r.IntN(min(300, m.VocabSize())))
				if r.IntN(3) == 0 {
					ids[i] = specials[r.IntN(len(specials))]
				}
			}
			ids = noNUL(m, ids)
			shown := slices.DeleteFunc(slices.Clone(ids), func(id prepost.TokenID) bool {
				return m.IsSpecial(id) && !slices.Contains(markup, id)
			})
			want, _ := ref(shown, false)
			if got := push(t, m.NewMarkupDecoder(nil, markup), ids); got != want {
				t.Fatalf("ids %v, markup %v: %q, want %q", ids, markup, got, want)
			}
		}
	})
}

// TestMarkupDecoderOfIDs: the same where the special tokens are told by their ids, which may be beyond the vocabulary.
func TestMarkupDecoderOfIDs(t *testing.T) {
	decode := func(ids []prepost.TokenID, skip bool) (string, error) {
		if skip {
			t.Error("the reference is to skip tokens")
		}
		out := ""
		for _, id := range ids {
			out += string(rune('a' + id))
		}
		return out, nil
	}
	m := detok.NewNative(8, slices.Values([]prepost.TokenID{5, 6, 7, 99}), decode)
	got := push(t, m.NewMarkupDecoder([]prepost.TokenID{1, 6, 7}, []prepost.TokenID{6}), []prepost.TokenID{0, 5, 6, 7, 2})
	if got != "agc" {
		t.Errorf("%q", got)
	}
}

// TestMarkupDecoderKeepsTheFirstSpace: a prompt that ends in tokens that aren't shown is no text ahead of the answer.
func TestMarkupDecoderKeepsTheFirstSpace(t *testing.T) {
	m, err := detok.NewModel(models(t)["llama2-like"], nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		prompt, markup []prepost.TokenID
		want           string
	}{
		{[]prepost.TokenID{1}, []prepost.TokenID{2}, "Hello"},
		{[]prepost.TokenID{1}, []prepost.TokenID{1}, " Hello"},
		{[]prepost.TokenID{263, 1}, []prepost.TokenID{2}, " Hello"},
	} {
		if got := push(t, m.NewMarkupDecoder(c.prompt, c.markup), []prepost.TokenID{260}); got != c.want {
			t.Errorf("after %v with %v: %q, want %q", c.prompt, c.markup, got, c.want)
		}
	}
}
