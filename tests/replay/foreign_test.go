package replay_test

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// foreign is a special token of every model that no parser knows.
const foreign = "<|foreign_special|>"

// TestForeignSpecialTokens puts special tokens that are no markup between the tokens of the recorded answers: for a client
// that doesn't ask for special tokens they aren't there, streamed and in one body, whatever parsers read the answer.
func TestForeignSpecialTokens(t *testing.T) {
	tools := json.RawMessage(parserFile(t, "toolparse/testdata/tools_schema.json"))
	r := rand.New(rand.NewPCG(11, 11))
	cases := slices.Concat(
		readParsed(t, "../../../internal/prepost/toolparse/testdata/tools.jsonl.gz"),
		readParsed(t, "../../../internal/prepost/reasonparse/testdata/reasoning.jsonl.gz"))
	played, shown := 0, 0
	for _, c := range cases {
		// More of those whose markers are special tokens.
		special := c.ToolParser == "harmony" || c.ReasoningParser == "gpt_oss" || strings.HasPrefix(c.Name, "sr.")
		if one := r.IntN(12); special && one > 3 || !special && one > 0 {
			continue
		}
		played++
		want := c.play(t, tools, c.prompt(), false)
		mixed := c
		mixed.foreign = r
		for _, stream := range []bool{true, false} {
			if got := mixed.play(t, tools, c.prompt(), stream); !got.same(&want) {
				t.Errorf("%s, stream %v, %q\n want %+v\n got  %+v", c.Name, stream, c.Text, want, got)
			}
		}
		// Who asks for them sees them.
		mixed.Request = map[string]any{"skip_special_tokens": false}
		for k, v := range c.Request {
			mixed.Request[k] = v
		}
		if got := mixed.play(t, tools, c.prompt(), true); strings.Contains(got.Content+got.Reasoning, foreign) {
			shown++
		}
	}
	t.Logf("%d cases, special tokens shown in %d", played, shown)
	if played < 150 || shown < played/3 {
		t.Errorf("%d cases, special tokens shown in %d", played, shown)
	}
}
