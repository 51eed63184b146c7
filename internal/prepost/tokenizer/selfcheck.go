package tokenizer

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/portico-llm/portico/internal/native"
	"github.com/portico-llm/portico/internal/prepost"
)

// checkSeed makes the corpus the same at every start.
const checkSeed = 0x706f727469636f

// selfCheck compares the ids of both backends on a corpus and returns the first difference. The fast backend is exact by
// construction; this guards against a tokenizer.json that means something else than it seems to.
func selfCheck(ctx context.Context, json []byte, fast *native.Fast, reference *native.Tokenizer) error {
	enc, err := fast.NewEncoder()
	if err != nil {
		return err
	}
	defer enc.Close()
	added, err := addedTokens(json)
	if err != nil {
		return err
	}
	// With and without special tokens in turn: what is put around a text doesn't depend on the text.
	for i, text := range corpus(added) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := compare(enc, whole{reference}, text, i%2 == 0); err != nil {
			return err
		}
	}
	return nil
}

// encoder is what both backends have in common.
type encoder interface {
	Encode(text string, addSpecial bool) ([]prepost.TokenID, error)
}

// whole has the library encode without remembering words, a step that it would share with the fast backend.
type whole struct{ t *native.Tokenizer }

func (w whole) Encode(text string, addSpecial bool) ([]prepost.TokenID, error) {
	return w.t.EncodeWhole(text, addSpecial)
}

// compare encodes one text with both.
func compare(fast, reference encoder, text string, addSpecial bool) error {
	want, err := reference.Encode(text, addSpecial)
	if err != nil {
		return fmt.Errorf("reference: %w", err)
	}
	got, err := fast.Encode(text, addSpecial)
	if err != nil {
		return err
	}
	if i := firstDifference(want, got); i >= 0 {
		return fmt.Errorf("ids differ from the reference's at %d of %d for %.60q", i, len(want), text)
	}
	return nil
}

// firstDifference is the first index at which a and b differ, or -1.
func firstDifference(a, b []prepost.TokenID) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	if len(a) != len(b) {
		return min(len(a), len(b))
	}
	return -1
}

// samples are texts of every kind that split patterns tell apart.
var samples = [...]string{
	"The quick brown fox jumps over the lazy dog. It's what we'd call \"progress\"; they'll say WE'RE DONE, I've heard. ",
	"func (s *Server) Serve(ctx context.Context, l net.Listener) error {\n\tfor i := 0; i < 0x1F; i++ {\n\t\ts.mu.Lock() // why?\n\t}\r\n\treturn fmt.Errorf(\"%w: %d\", err, i)\n}\n\n",
	"#include <stdio.h>\nint main(void){printf(\"%s\\n\",__FILE__);return 0;}\n<div class=\"a-b\">&nbsp;</div> {\"k\": [1, 2.5e-3, null]} SELECT * FROM t WHERE id=42;\n",
	"敏捷的棕色狐狸跳过了懒狗。机器学习模型在二零二五年很受欢迎，“你好，世界！” すばやい茶色の狐はのろまな犬を飛び越える。カタカナ・ﾊﾝｶｸ 빠른 갈색 여우가 게으른 개를 뛰어넘는다. ",
	"😀😃 👨\u200d👩\u200d👧\u200d👦 🇩🇪🇯🇵 👍🏽 ❤️ ✅🎉… →∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, α ∧ ¬β → γ ⟺ ½ ² ㎡ ",
	"0 1 12 123 1234 12345 1234567890 3.14159 1,000,000.00 0xDEADBEEF 1e-10 ١٢٣٤ ४२ Ⅷ ①② 2024-02-29T23:59:60Z +49(0)30/123-456 ",
	"a  b   c    d\te\t\tf \t g\n\nh\r\n\r\ni\n \n  \n   j \u00a0k\u3000l\u2028m\u0085n \n",
	"Der Übermut wächst: «naïve» façade, coöperate, Ångström, İstanbul, ǅ, ſ'ſ, Ж'S don’t, cafe\u0301 vs café, \u1112\u1161\u11ab 한, नमस्ते दुनिया, สวัสดีชาวโลก, שלום עולם, مرحبا بالعالم, Xin chào thế giới ",
	"\x00\x01\x02 a\x00b \x7f \ufeff \ufffd \u200b\u200e <|not_a_token|> <| |> </s> [INST] <unk> ",
}

// corpus returns the texts of the self-check, about 250 KB in all.
func corpus(added []string) []string {
	r := rand.New(rand.NewPCG(checkSeed, checkSeed)) //nolint:gosec // a fixed corpus, not a secret
	texts := slices.Clone(samples[:])
	texts = append(texts, "", " ", "\n", strings.Repeat(" ", 200), strings.Repeat("ab", 300), strings.Repeat("好", 150))
	for _, token := range added {
		// Alone, next to itself and to text, and cut short by a byte.
		texts = append(texts, token, "a"+token+token+" "+token+"\n"+token[:len(token)-1])
	}
	for range 120 {
		texts = append(texts, mixed(r, added), randomBytes(r), randomRunes(r))
	}
	return append(texts, strings.Join(samples[:], ""))
}

// mixed cuts samples at any byte and puts the pieces together again, with added tokens in between.
func mixed(r *rand.Rand, added []string) string {
	var b strings.Builder
	for range 12 {
		s := samples[r.IntN(len(samples))]
		from := r.IntN(len(s))
		b.WriteString(s[from:min(len(s), from+r.IntN(80))])
		if len(added) > 0 && r.IntN(4) == 0 {
			b.WriteString(added[r.IntN(len(added))])
		}
	}
	return b.String()
}

// randomBytes are mostly invalid UTF-8.
func randomBytes(r *rand.Rand) string {
	b := make([]byte, 1+r.IntN(160))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return string(b)
}

// randomRunes come from the planes that have characters, half of them from the first blocks.
func randomRunes(r *rand.Rand) string {
	var b strings.Builder
	for range 1 + r.IntN(120) {
		limit := 0x32000 // the end of the assigned planes, but for tags and private use
		if r.IntN(2) == 0 {
			limit = 0x3100 // scripts and symbols, up to Kana
		}
		b.WriteRune(rune(r.IntN(limit)))
	}
	return b.String()
}

// maxCheckedTokens bounds the part of the corpus that added tokens are: some models reserve a thousand.
const maxCheckedTokens = 100

// addedTokens returns texts of added tokens, which stand before the vocabulary in a tokenizer.json.
func addedTokens(file []byte) ([]string, error) {
	d := jsontext.NewDecoder(bytes.NewBuffer(file), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if _, err := d.ReadToken(); err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	for d.PeekKind() == '"' {
		name, err := d.ReadToken()
		if err != nil {
			return nil, fmt.Errorf("tokenizer.json: %w", err)
		}
		if name.String() != "added_tokens" {
			if err := d.SkipValue(); err != nil {
				return nil, fmt.Errorf("tokenizer.json: %w", err)
			}
			continue
		}
		value, err := d.ReadValue()
		if err != nil {
			return nil, fmt.Errorf("tokenizer.json: %w", err)
		}
		return contents(value)
	}
	return nil, nil
}

// contents returns the texts in an added_tokens list.
func contents(list []byte) ([]string, error) {
	var tokens []struct {
		Content string `json:"content"`
	}
	if err := json.Unmarshal(list, &tokens); err != nil {
		return nil, fmt.Errorf("tokenizer.json: added_tokens: %w", err)
	}
	var texts []string
	for _, t := range tokens[:min(len(tokens), maxCheckedTokens)] {
		if t.Content != "" {
			texts = append(texts, t.Content)
		}
	}
	return texts, nil
}
