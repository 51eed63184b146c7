package toolparse_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/prepost/toolparse"
)

// sample is an answer in a dialect.
type sample struct {
	parser string
	text   string
	o      toolparse.Options
}

// samples returns the recorded answers of every dialect, without repetitions.
func samples(t testing.TB, tools []toolparse.Tool) []sample {
	var all []sample
	seen := make(map[string]bool)
	for _, r := range lines[recorded](t, "tools.jsonl.gz") {
		key := fmt.Sprint(r.Parser, r.Text, string(r.Request.Choice), r.Request.Parallel != nil, len(r.Request.Tools))
		if !seen[key] {
			seen[key] = true
			all = append(all, sample{parser: r.Parser, text: r.Text, o: r.Request.options(tools)})
		}
	}
	return all
}

// cutAt cuts text at the given places.
func cutAt(text string, at ...int) []string {
	var pieces []string
	from := 0
	for _, i := range at {
		pieces = append(pieces, text[from:i])
		from = i
	}
	return append(pieces, text[from:])
}

// bytewise cuts text into bytes.
func bytewise(text string) []string {
	pieces := make([]string, len(text))
	for i := range pieces {
		pieces[i] = text[i : i+1]
	}
	return pieces
}

// randomly cuts text at random places.
func randomly(r *rand.Rand, text string) []string {
	var pieces []string
	for len(text) > 0 {
		n := min(len(text), 1+r.IntN(12))
		pieces = append(pieces, text[:n])
		text = text[n:]
	}
	return pieces
}

// checkSplits parses a text whole, byte by byte, cut at every place and at random ones.
func checkSplits(t *testing.T, r *rand.Rand, s sample, truncated bool) {
	t.Helper()
	want := parse(t, s.parser, s.o, truncated, s.text)
	try := func(pieces []string) bool {
		got := parse(t, s.parser, s.o, truncated, pieces...)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (choice %d): %q cut as %q:\n%s", s.parser, s.o.Choice, s.text, pieces, diff)
			return false
		}
		return true
	}
	if !try(bytewise(s.text)) {
		return
	}
	for i := 1; i < len(s.text); i++ {
		if !try(cutAt(s.text, i)) {
			return
		}
	}
	for range 4 {
		if !try(randomly(r, s.text)) {
			return
		}
	}
}

// TestSplits: what comes out doesn't depend on how the text was cut.
func TestSplits(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for _, s := range samples(t, declaredTools(t)) {
		checkSplits(t, r, s, r.IntN(2) == 0)
	}
}

// TestOddSplits: texts where a decision is easily taken too early.
func TestOddSplits(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 6))
	name := strings.Repeat("n", 510)
	for _, s := range []sample{
		{parser: "mistral", text: "[TOOL_CALLS]00 {"},
		{parser: "mistral", text: "[TOOL_CALLS]" + name + "[CALL_ID]" + name + "[ARGS]{}"},
		{parser: "muse", text: "a<|start|>assist<|message|>b"},
		{parser: "muse", text: "assistant to=f <|message|>b"},
		{parser: "harmony", text: "<|channel|>commentary to=functions. f <|message|>{}<|call|>"},
		{parser: "harmony", text: "a<|channel|>" + name + " x y<|message|>b"},
		{parser: "kimi_k2", text: "<|tool_call_begin|>" + name + "xyz<|tool_call_argument_begin|>{}"},
		{parser: "kimi_k2", text: "<|tool_call_begin|>functions.<|tool_call_argument_begin|>{}"},
		{parser: "jamba", text: "<tool_calls>[{\"name\": \"f\", \"arguments\": {\"n\":\f2}}]</tool_calls>"},
		{parser: "jamba", text: `<tool_calls>[{"` + name + `": 1, "name": "` + name + `"}, {"name": "` + name + `n"}]`},
		{parser: "gemma4", text: "<|tool_call>call:f{" + name + "nnn:1}<tool_call|>"},
		{parser: "qwen3_coder", text: "<function=" + name + "nnn>\n</function>"},
		{parser: "glm47", text: "<tool_call>" + name + "nnn</tool_call>"},
		{parser: "minimax_m2", text: "<invoke name=\"f\"><parameter name=\"a\">x</parameter>\n</i>\n</invoke>\n</minimax:tool_call>" +
			"y</parameter>\n</i>"},
		{parser: "minimax_m2", text: `<invoke name="` + name + `"></invoke>`},
		{parser: "kimi_k3", text: `<|open|>call tool="` + strings.Repeat("n", 504) + `"<|sep|><|close|>call<|sep|>`},
		{parser: "deepseek_v3", text: "<｜tool▁call▁begin｜>function<｜tool▁sep｜>" + name + "nnn\n{}"},
		{parser: "pythonic", text: "[f(" + name + "nnn=1)]"},
	} {
		checkSplits(t, r, s, false)
		checkSplits(t, r, s, true)
	}
}

// TestLongSplits: where much has to be held back, it is looked at in steps, which must not show either.
func TestLongSplits(t *testing.T) {
	long := strings.Repeat("if (a[0] < b) { print('x'); } // </i> ", 400)
	r := rand.New(rand.NewPCG(1, 5))
	for _, s := range []sample{
		{parser: "hermes", text: `<tool_call>{"arguments": {"s": "` + long + `"}, "name": "f"}</tool_call> end`},
		{parser: "hermes", text: `<tool_call>{"name": "f", "arguments": {"s": "</tool_call>` + long + `"}}</tool_call> end`},
		{parser: "hermes", text: `<tool_call>{"name": "f", "arguments": {"s": "</tool_call>` + long},
		{parser: "hermes", text: `{"arguments": {"s": "` + long + `"}, "name": "f"} end`},
		{parser: "qwen3_coder", text: "<function=f>\n<parameter=s>\n</function>\n</tool_call>\n" + long + "\n</parameter>\n</function> end"},
		{parser: "qwen3_coder", text: "<function=f>\n<parameter=s>\n</function>\n</tool_call>\n" + long},
		{parser: "pythonic", text: `[f(s="` + strings.ReplaceAll(long, `"`, "") + `")] end`,
			o: toolparse.Options{Tools: []toolparse.Tool{{Name: "g"}}}},
		{parser: "minimax_m3", text: strings.ReplaceAll("@<invoke name=\"f\">@<o>@<k>"+long+"@</k>@</o>@</invoke>", "@", "]<]minimax[>[")},
	} {
		want := parse(t, s.parser, s.o, false, s.text)
		for _, pieces := range [][]string{bytewise(s.text), randomly(r, s.text)} {
			if diff := cmp.Diff(want, parse(t, s.parser, s.o, false, pieces...)); diff != "" {
				t.Errorf("%s: %.80q:\n%s", s.parser, s.text, diff)
			}
		}
	}
}

// broken returns the text with something done to it.
func broken(r *rand.Rand, text string, markers []string) string {
	if text == "" {
		return text
	}
	at := r.IntN(len(text))
	switch end := min(len(text), at+1+r.IntN(20)); r.IntN(6) {
	case 0: // cut off
		return text[:at]
	case 1: // a hole
		return text[:at] + text[end:]
	case 2: // a repetition
		return text[:end] + text[at:]
	case 3: // a marker that doesn't belong
		return text[:at] + markers[r.IntN(len(markers))] + text[at:]
	case 4: // another byte
		return text[:at] + string("{}[]<>\"'\\,:= \n|x"[r.IntN(16)]) + text[at+1:]
	}
	return text[:at] + strings.TrimPrefix(text[at:], markers[r.IntN(len(markers))]) + text
}

// TestBrokenSplits does the same to answers that were broken at random, and looks for markers in content.
func TestBrokenSplits(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 2))
	all := samples(t, declaredTools(t))
	rounds := 3000
	if testing.Short() {
		rounds = 500
	}
	for range rounds {
		s := all[r.IntN(len(all))]
		d, _ := toolparse.Lookup(s.parser)
		breaks := 1 + r.IntN(3)
		for range breaks {
			s.text = broken(r, s.text, d.Markers)
		}
		truncated := r.IntN(2) == 0
		want := parse(t, s.parser, s.o, truncated, s.text)
		for _, pieces := range [][]string{bytewise(s.text), randomly(r, s.text), randomly(r, s.text)} {
			if diff := cmp.Diff(want, parse(t, s.parser, s.o, truncated, pieces...)); diff != "" {
				t.Fatalf("%s (choice %d): %q cut as %q:\n%s", s.parser, s.o.Choice, s.text, pieces, diff)
			}
		}
		if breaks == 1 { // markers cut apart by markers that are cut apart are beyond what is promised
			noMarkup(t, s, d, want.Segments)
		}
	}
}

// noMarkup fails if content has one of the dialect's markers that are never part of a text: whole ones, where no text
// was passed on as it was.
func noMarkup(t *testing.T, s sample, d toolparse.Dialect, content string) {
	t.Helper()
	for _, m := range d.Markers {
		whole := strings.HasSuffix(m, ">") || strings.HasSuffix(m, "]")
		if whole && s.o.Choice == toolparse.Auto && strings.Contains(content, m) {
			t.Errorf("%s: %q gives the content %q with %s", s.parser, s.text, content, m)
		}
	}
}

// FuzzSplit: no text makes a parser panic or depend on the cuts.
func FuzzSplit(f *testing.F) {
	names := toolparse.Names()
	index := make(map[string]byte)
	for i, name := range names {
		index[name] = byte(i)
	}
	for _, s := range samples(f, nil) {
		f.Add(index[s.parser], s.text, uint64(7), byte(0))
	}
	f.Fuzz(func(t *testing.T, parser byte, text string, seed uint64, mode byte) {
		name := names[int(parser)%len(names)]
		o := toolparse.Options{
			Choice:   toolparse.Choice(mode % 4),
			Function: "get_weather",
			Single:   mode&4 != 0,
		}
		if mode&8 != 0 {
			o.Tools = []toolparse.Tool{{Name: "get_weather"}, {Name: "search"}}
		}
		want := parse(t, name, o, mode&16 != 0, text)
		r := rand.New(rand.NewPCG(seed, 3))
		for _, pieces := range [][]string{bytewise(text), randomly(r, text)} {
			if diff := cmp.Diff(want, parse(t, name, o, mode&16 != 0, pieces...)); diff != "" {
				t.Errorf("%s, %+v: %q cut as %q:\n%s", name, o, text, pieces, diff)
			}
		}
	})
}

// BenchmarkPush is the hot path: small pieces without a marker near.
func BenchmarkPush(b *testing.B) {
	for _, name := range []string{"hermes", "qwen3_coder", "deepseek_v3_2", "harmony", "pythonic", ""} {
		b.Run("parser="+name, func(b *testing.B) {
			p, err := toolparse.New(name, toolparse.Options{})
			if err != nil {
				b.Fatal(err)
			}
			size := 0
			emit := func(p prepost.Piece) { size += len(p.Text) }
			p.Push([]byte("Once upon"), emit)
			piece := []byte(" a time")
			b.ReportAllocs()
			for b.Loop() {
				p.Push(piece, emit)
			}
		})
	}
}
