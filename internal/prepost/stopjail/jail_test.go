package stopjail_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/portico-llm/portico/internal/prepost/stopjail"
)

// oracle is the definition, on the whole text: of all matches the one with the earliest end, of two the longer.
func oracle(text string, stops []string, visible bool) (out, hit string) {
	for end := 1; end <= len(text); end++ {
		for _, s := range stops {
			if s != "" && strings.HasSuffix(text[:end], s) && len(s) > len(hit) {
				hit = s
			}
		}
		if hit != "" {
			if visible {
				return text[:end], hit
			}
			return text[:end-len(hit)], hit
		}
	}
	return text, ""
}

// run feeds text in the given pieces and checks after each that nothing comes out that has to be taken back.
func run(t *testing.T, pieces []string, stops []string, visible bool) (out, hit string) {
	t.Helper()
	j := stopjail.New(stops, nil)
	if visible {
		j = stopjail.New(nil, stops)
	}
	var got []byte
	for _, p := range pieces {
		var h *stopjail.Hit
		if got, h = j.Push(got, []byte(p)); h != nil {
			return string(got), h.Stop
		}
	}
	return string(j.Flush(got)), ""
}

func TestJailCases(t *testing.T) {
	for _, c := range []struct {
		name, pieces, stops string // separated by |
		visible             bool
		want, hit           string
	}{
		{"no stops", "a|b", "", false, "ab", ""},
		{"inside one piece", "hello END more", "END", false, "hello ", "END"},
		{"over a border", "hello E|N|D more", "END", false, "hello ", "END"},
		{"nearly, then not", "hello EN|E more", "END", false, "hello ENE more", ""},
		{"ends while held", "hello EN", "END", false, "hello EN", ""},
		{"restart inside a prefix", "aa|ab", "aab", false, "a", "aab"},
		{"visible", "x|STO|P y", "STOP", true, "xSTOP", "STOP"},
		{"earliest end wins", "xxabc", "abc|b", false, "xxa", "b"},
		{"longer of equal ends", "xxabc", "bc|abc", false, "xx", "abc"},
		{"multi-byte", "é|→|✓", "→✓", false, "é", "→✓"},
		{"at the very start", "END", "END", false, "", "END"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var stops []string
			if c.stops != "" {
				stops = strings.Split(c.stops, "|")
			}
			if out, hit := run(t, strings.Split(c.pieces, "|"), stops, c.visible); out != c.want || hit != c.hit {
				t.Errorf("got %q, stop %q; want %q, stop %q", out, hit, c.want, c.hit)
			}
		})
	}
}

// TestHeldIsMinimal: text that can't become a stop string is not held back.
func TestHeldIsMinimal(t *testing.T) {
	j := stopjail.New([]string{"END"}, nil)
	if out, _ := j.Push(nil, []byte("hello E")); string(out) != "hello " {
		t.Errorf("released %q, want all but the E", out)
	}
	if out, _ := j.Push(nil, []byte("x")); string(out) != "Ex" {
		t.Errorf("released %q, want Ex", out)
	}
	if out := j.Flush(nil); len(out) != 0 {
		t.Errorf("flushed %q, want nothing", out)
	}
}

func TestPassIsNeverSearchedAgain(t *testing.T) {
	j := stopjail.New([]string{"abc"}, nil)
	out := j.Pass(nil, []byte("ab"))
	out, hit := j.Push(out, []byte("cd"))
	if hit != nil || string(j.Flush(out)) != "abcd" {
		t.Errorf("got %q, hit %v; want abcd and no hit", out, hit)
	}
}

func TestSplitInvariance(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	letters := []string{"a", "b", "c", "é", "→"}
	word := func(n int) string {
		var b strings.Builder
		for range n {
			b.WriteString(letters[r.IntN(len(letters))])
		}
		return b.String()
	}
	for range 20000 {
		text, visible := word(r.IntN(30)), r.IntN(2) == 0
		var stops []string
		for range 1 + r.IntN(3) {
			stops = append(stops, word(1+r.IntN(4)))
		}
		var pieces []string
		for rest := []rune(text); len(rest) > 0; {
			n := 1 + r.IntN(min(5, len(rest)))
			pieces, rest = append(pieces, string(rest[:n])), rest[n:]
		}
		want, wantHit := oracle(text, stops, visible)
		if got, hit := run(t, pieces, stops, visible); got != want || hit != wantHit {
			t.Fatalf("pieces %q stops %q visible %v: got %q stop %q, want %q stop %q", pieces, stops, visible, got, hit, want, wantHit)
		}
	}
}

func FuzzJail(f *testing.F) {
	f.Add("hello END more", "END", "N", uint8(3), false)
	f.Fuzz(func(t *testing.T, text, a, b string, cut uint8, visible bool) {
		stops := []string{a, b}
		var pieces []string
		for n := int(cut)%7 + 1; len(text) > n; text = text[n:] {
			pieces = append(pieces, text[:n])
		}
		pieces = append(pieces, text)
		want, wantHit := oracle(strings.Join(pieces, ""), stops, visible)
		if got, hit := run(t, pieces, stops, visible); got != want || hit != wantHit {
			t.Fatalf("got %q stop %q, want %q stop %q", got, hit, want, wantHit)
		}
	})
}

// TestLongStopsAreCheap: strings come from clients, so that a byte of text must not cost more for a longer one.
func TestLongStopsAreCheap(t *testing.T) {
	long := strings.Repeat("a", 64<<10)
	stops := make([]string, 32)
	for i := range stops {
		stops[i] = long[:len(long)/32-i-1] + "b"
	}
	j := stopjail.New(stops, nil)
	var out []byte
	for range 10_000 { // every byte agrees with the beginning of all of them
		out, _ = j.Push(out[:0], []byte("aaaa"))
	}
	if allocs := testing.AllocsPerRun(100, func() { out, _ = j.Push(out[:0], []byte("aaaa")) }); allocs > 0 {
		t.Errorf("%v allocations for a piece of text", allocs)
	}
}
