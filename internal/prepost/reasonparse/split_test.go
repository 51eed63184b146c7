package reasonparse_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/prepost/reasonparse"
)

// outcome is all that must not depend on how an answer is cut.
type outcome struct {
	reasoning, content string
	tokens             int
	thinking           bool
}

// feed takes an answer apart that arrives in the given pieces, a token per byte.
func feed(tb testing.TB, name string, opts reasonparse.Options, pieces ...string) outcome {
	p, err := reasonparse.New(name, opts)
	if err != nil {
		tb.Fatal(err)
	}
	var reasoning, content strings.Builder
	valid := true
	for _, piece := range pieces {
		valid = valid && utf8.ValidString(piece)
	}
	emit := func(piece prepost.Piece) {
		if piece.Text == "" {
			tb.Errorf("%s: empty piece", name)
		}
		if valid && !utf8.ValidString(piece.Text) {
			tb.Errorf("%s: broken character in piece %q of %q", name, piece.Text, pieces)
		}
		if piece.Kind == prepost.Reasoning {
			reasoning.WriteString(piece.Text)
		} else {
			content.WriteString(piece.Text)
		}
	}
	for _, piece := range pieces {
		p.PushTokens([]byte(piece), len(piece), emit)
	}
	p.Finish(false, emit)
	return outcome{reasoning.String(), content.String(), p.ReasoningTokens(), p.Thinking()}
}

// checkSplits compares the whole text with every cut in two, and with single bytes.
func checkSplits(tb testing.TB, name string, opts reasonparse.Options, text string) {
	whole := feed(tb, name, opts, text)
	for i := 1; i < len(text); i++ {
		if got := feed(tb, name, opts, text[:i], text[i:]); got != whole {
			tb.Fatalf("%s %+v: %q cut at %d:\n got   %+v\n whole %+v", name, opts, text, i, got, whole)
		}
	}
	if got := feed(tb, name, opts, strings.Split(text, "")...); got != whole {
		tb.Fatalf("%s %+v: %q by character:\n got   %+v\n whole %+v", name, opts, text, got, whole)
	}
	if got := feed(tb, name, opts, bytewise(text)...); got != whole {
		tb.Fatalf("%s %+v: %q by byte:\n got   %+v\n whole %+v", name, opts, text, got, whole)
	}
}

func bytewise(text string) []string {
	pieces := make([]string, len(text))
	for i := range pieces {
		pieces[i] = text[i : i+1]
	}
	return pieces
}

// TestRecordedSplits cuts every recorded answer everywhere, and as its tokens came.
func TestRecordedSplits(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range loadRecords(t) {
		key := fmt.Sprint(r.ReasoningParser, r.options(), r.Text)
		if seen[key] {
			continue
		}
		seen[key] = true
		checkSplits(t, r.ReasoningParser, r.options(), r.Text)
		var pieces []string
		whole := true
		for _, piece := range r.Pieces {
			if whole = whole && piece != nil; whole {
				pieces = append(pieces, *piece)
			}
		}
		if whole && len(pieces) > 0 && strings.Join(pieces, "") == r.Text {
			got, want := feed(t, r.ReasoningParser, r.options(), pieces...), feed(t, r.ReasoningParser, r.options(), r.Text)
			if got != want {
				t.Errorf("%s by token:\n got  %+v\n want %+v", r.Name, got, want)
			}
		}
	}
}

// toolParsers are those whose calls the parsers here recognise, and one that they don't.
var toolParsers = []string{
	"", "hermes", "nemotron_deci", "default", "jamba", "llama3_json", "mistral", "phi4", "qwen3_coder", "glm47",
	"minimax_m2", "minimax_m3", "gemma4", "deepseek_v3", "deepseek_v3_2", "deepseek_v4", "deepseek_v41", "kimi_k2",
	"kimi_k3", "harmony", "inkling", "muse_glimmer", "pythonic",
}

// randomCase makes up options and a text of markers, halves of markers and the like.
func randomCase(r *rand.Rand) (name string, opts reasonparse.Options, text string) {
	names := reasonparse.Names()
	name = names[r.IntN(len(names))]
	opts = reasonparse.Options{
		Prompt: reasonparse.Prompt(r.IntN(3)), Enabled: r.IntN(2) == 0, Guided: r.IntN(4) == 0, Forced: r.IntN(2) == 0,
		ToolParser: toolParsers[r.IntN(len(toolParsers))],
	}
	literals := reasonparse.Literals(name, opts.ToolParser)
	words := []string{
		" ", "\n", "a", "Plan.", "to=self", "assistant", " to=functions.f ", "analysis", "final", "commentary", "f",
		"thought\n", "{", "[", "}", "`", `"`, "'", "<", "<|", ":", ":0", "call:", "<invoke", "<function=f>", "<arg_key>",
		"é", "🙂", "\xff", "<|constrain|>json", strings.Repeat(" ", 70), strings.Repeat("x", 140),
	}
	var b strings.Builder
	for range 1 + r.IntN(12) {
		switch l := literals[r.IntN(len(literals))]; r.IntN(5) {
		case 0, 1:
			b.WriteString(l)
		case 2:
			b.WriteString(l[:r.IntN(len(l))])
		default:
			b.WriteString(words[r.IntN(len(words))])
		}
	}
	return name, opts, b.String()
}

// TestRandomSplits: whatever the text, its cut doesn't matter.
func TestRandomSplits(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 500 {
		name, opts, text := randomCase(r)
		if len(text) > 400 {
			text = text[:400]
		}
		checkSplits(t, name, opts, text)
	}
}

// TestNoMarkers: outside of quotes and without calls, the reader sees no opening marker and no end of a thought that is
// one.
func TestNoMarkers(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 1500 {
		name, opts, text := randomCase(r)
		text = strings.NewReplacer("`", "", `"`, "", "'", "").Replace(text)
		open, closes := reasonparse.Delimiters(name)
		if opts.Guided || name == "minimax_append_think" || strings.HasPrefix(name, "granite") || len(closes) == 0 {
			continue
		}
		opts.ToolParser = ""
		got := feed(t, name, opts, text)
		for _, m := range open {
			if strings.Contains(got.reasoning+"\x00"+got.content, m) && !joined(text, m) {
				t.Fatalf("%s %+v: %q shows %q: %+v", name, opts, text, m, got)
			}
		}
		for _, m := range closes {
			if strings.Contains(got.reasoning, m) && !joined(text, m) {
				t.Fatalf("%s %+v: %q shows %q in the thought: %+v", name, opts, text, m, got)
			}
		}
	}
}

// joined tells whether a marker could come about by taking another one out of the middle of it: then it is the
// model's text, not its markup.
func joined(text, marker string) bool {
	for i := 1; i < len(marker); i++ {
		for rest := text; ; {
			at := strings.Index(rest, marker[:i])
			if at < 0 {
				break
			}
			rest = rest[at+i:]
			if strings.HasPrefix(rest, marker[i:]) {
				continue
			}
			if strings.HasPrefix(rest, "<") || strings.HasPrefix(rest, "[") || strings.HasPrefix(rest, "◁") {
				return true
			}
		}
	}
	return false
}

// FuzzSplit cuts arbitrary texts at two places.
func FuzzSplit(f *testing.F) {
	f.Add("qwen3", "hermes", uint8(1), "a</think>b", 3, 5)
	f.Add("gpt_oss", "harmony", uint8(0), "<|channel|>analysis<|message|>A<|end|>B", 4, 9)
	f.Add("inkling", "inkling", uint8(2), "f<|content_invoke_tool_json|>{}<|end_message|>", 2, 7)
	f.Add("gemma4", "gemma4", uint8(4), "<|channel>thought\nx<channel|>y", 11, 12)
	f.Fuzz(func(t *testing.T, name, tool string, bits uint8, text string, i, j int) {
		if name == "" || len(text) > 1000 {
			t.Skip()
		}
		opts := reasonparse.Options{
			Prompt: reasonparse.Prompt(bits % 3), Enabled: bits&4 != 0, Guided: bits&8 != 0, Forced: bits&16 != 0, ToolParser: tool,
		}
		n := len(text) + 1
		i, j = (i%n+n)%n, (j%n+n)%n
		i, j = min(i, j), max(i, j)
		whole := feed(t, name, opts, text)
		if got := feed(t, name, opts, text[:i], text[i:j], text[j:]); got != whole {
			t.Fatalf("%s %+v: %q cut at %d and %d:\n got   %+v\n whole %+v", name, opts, text, i, j, got, whole)
		}
	})
}

// BenchmarkPush is the cost of a token's text.
func BenchmarkPush(b *testing.B) {
	emit := func(prepost.Piece) {}
	for _, name := range []string{"qwen3", "gpt_oss"} {
		b.Run(name, func(b *testing.B) {
			p, err := reasonparse.New(name, reasonparse.Options{Prompt: reasonparse.Opens, ToolParser: "hermes"})
			if err != nil {
				b.Fatal(err)
			}
			text := []byte(" words")
			p.PushTokens(text, 1, emit)
			b.ReportAllocs()
			for b.Loop() {
				p.PushTokens(text, 1, emit)
			}
		})
	}
	b.Run("New", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := reasonparse.New("qwen3", reasonparse.Options{ToolParser: "hermes"}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
