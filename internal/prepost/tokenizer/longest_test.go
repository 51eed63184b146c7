package tokenizer_test

import (
	"strings"
	"testing"

	"github.com/portico-llm/portico/internal/prepost/tokenizer"
)

// TestLongestToken: no text of a byte-level vocabulary makes fewer tokens than its longest token allows.
func TestLongestToken(t *testing.T) {
	tok := load(t, smallJSON(t), tokenizer.Auto)
	longest := tok.LongestToken()
	if longest < 1 || longest != tok.LongestToken() {
		t.Fatalf("longest token of %d bytes", longest)
	}
	for _, text := range []string{strings.Repeat(" ", 4096), strings.Repeat("e", 4096), strings.Repeat("the ", 1024)} {
		if n := len(encode(t, tok, text, false)); n*longest < len(text) {
			t.Errorf("%d tokens of at most %d bytes make %d", n, longest, len(text))
		}
	}
}
