package replay_test

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// TestStopStringsAheadOfParsers cuts recorded answers at a random stop string: the message is that of the text in front
// of it, as if the model had stopped there by itself. Nothing behind it is parsed, and no half of it shows.
func TestStopStringsAheadOfParsers(t *testing.T) {
	tools := json.RawMessage(parserFile(t, "toolparse/testdata/tools_schema.json"))
	r := rand.New(rand.NewPCG(7, 7))
	cases := slices.Concat(
		readParsed(t, "../../../internal/prepost/toolparse/testdata/tools.jsonl.gz"),
		readParsed(t, "../../../internal/prepost/reasonparse/testdata/reasoning.jsonl.gz"))
	played := 0
	for _, c := range cases {
		text := []rune(c.Text)
		// Some of the cases do; in Harmony markers are single tokens, which stop strings don't see halves of.
		if r.IntN(5) > 0 || len(text) < 8 || c.ToolParser == "harmony" || c.ReasoningParser == "gpt_oss" {
			continue
		}
		played++
		at := r.IntN(len(text) - 3)
		stop := string(text[at : at+1+r.IntN(3)])
		cut := c
		cut.Text, _, _ = strings.Cut(c.Text, stop)
		cut.Pieces, cut.Finish = nil, "stop"
		want := cut.play(t, tools, c.prompt(), false)

		stopped := c
		stopped.Finish, stopped.Request = "length", map[string]any{"stop": []string{stop}}
		for k, v := range c.Request {
			stopped.Request[k] = v
		}
		for _, stream := range []bool{true, false} {
			if got := stopped.play(t, tools, c.prompt(), stream); !got.same(&want) {
				t.Errorf("%s, stream %v, stopped at %q of %q\n want %+v\n got  %+v", c.Name, stream, stop, c.Text, want, got)
			}
		}
	}
	if played < 200 {
		t.Errorf("only %d cases", played)
	}
}
