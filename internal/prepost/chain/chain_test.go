package chain_test

import (
	"strings"
	"testing"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/prepost/chain"
	"github.com/portico-llm/portico/internal/prepost/detok"
)

// The vocabulary of these tests: letters a–z are ids 0–25, 26 and 27 are the two halves of é, 28 is a special end.
func vocab(t *testing.T) *detok.Model {
	t.Helper()
	var b strings.Builder
	b.WriteString(`{"decoder":{"type":"ByteLevel"},"added_tokens":[{"id":28,"content":"<end>","special":true}],"model":{"vocab":{`)
	for i := range 26 {
		b.WriteString(`"` + string(rune('a'+i)) + `":` + itoa(i) + `,`)
	}
	b.WriteString(`"Ã":26,"©":27}}}`)
	m, err := detok.NewModel([]byte(b.String()), nil)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// itoa writes a number below 100.
func itoa(i int) string { return string([]byte{byte('0' + i/10), byte('0' + i%10)})[boolInt(i < 10):] }

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// ids spells tokens: letters, 1 and 2 for the halves of é, $ for the special end.
func ids(s string) (out []prepost.TokenID) {
	for _, r := range s {
		switch r {
		case '1':
			out = append(out, 26)
		case '2':
			out = append(out, 27)
		case '$':
			out = append(out, 28)
		default:
			out = append(out, prepost.TokenID(r-'a'))
		}
	}
	return out
}

// TestStep feeds groups of tokens as outputs and sums up what comes out of them.
func TestStep(t *testing.T) {
	end := []uint32{28}
	none := worker.StopReason{}
	str := func(s string) worker.StopReason { return worker.StopReason{Kind: worker.StopString, Text: s} }
	tok := func(id uint32) worker.StopReason { return worker.StopReason{Kind: worker.StopToken, ID: id} }
	for _, c := range []struct {
		name    string
		items   string // groups of ids; a ! after a group is the engine's own "length"
		stop    worker.StopConditions
		include bool   // include_stop_str_in_output
		noTrim  bool   // no_stop_trim
		text    string // all that was released
		tokens  int    // all that were consumed, the stopping one included
		finish  worker.FinishReason
		reason  worker.StopReason
		stopped bool // the end was ours, not the engine's
	}{
		{name: "plain", items: "ab cd!", text: "abcd", tokens: 4, finish: worker.FinishLength},
		{name: "split character", items: "a1 2b!", text: "aéb", tokens: 4, finish: worker.FinishLength},
		{name: "cut character", items: "a1!", text: "a\uFFFD", tokens: 2, finish: worker.FinishLength},
		{name: "hidden id", items: "ab$ cd", stop: worker.StopConditions{StopTokenIDsHidden: end}, text: "ab", tokens: 3, finish: worker.FinishStop, reason: none, stopped: true},
		{name: "user id is told", items: "abc de", stop: worker.StopConditions{StopTokenIDs: []uint32{2}}, text: "ab", tokens: 3, finish: worker.FinishStop, reason: tok(2), stopped: true},
		{name: "visible id", items: "abc de", stop: worker.StopConditions{StopTokenIDsVisible: []uint32{2}}, text: "abc", tokens: 3, finish: worker.FinishStop, reason: tok(2), stopped: true},
		{name: "untrimmed id", items: "abc de", noTrim: true, stop: worker.StopConditions{StopTokenIDs: []uint32{2}}, text: "abc", tokens: 3, finish: worker.FinishStop, reason: tok(2), stopped: true},
		{name: "cut character at stop id", items: "a1$", stop: worker.StopConditions{StopTokenIDsHidden: end}, text: "a\uFFFD", tokens: 3, finish: worker.FinishStop, stopped: true},
		{name: "stop string", items: "ab cd ef", stop: worker.StopConditions{Stop: []string{"de"}}, text: "abc", tokens: 5, finish: worker.FinishStop, reason: str("de"), stopped: true},
		{name: "stop string kept", items: "ab cd ef", include: true, stop: worker.StopConditions{Stop: []string{"de"}}, text: "abcde", tokens: 5, finish: worker.FinishStop, reason: str("de"), stopped: true},
		{name: "held text at the engine's end", items: "ab c!", stop: worker.StopConditions{Stop: []string{"cd"}}, text: "abc", tokens: 3, finish: worker.FinishLength},
		{name: "held text at a stop id", items: "abc$", stop: worker.StopConditions{Stop: []string{"cd"}, StopTokenIDsHidden: end}, text: "abc", tokens: 4, finish: worker.FinishStop, stopped: true},
		{name: "min tokens", items: "ab$ cd$", stop: worker.StopConditions{Stop: []string{"a"}, StopTokenIDsHidden: end, MinTokens: new(uint32(3))}, text: "abcd", tokens: 6, finish: worker.FinishStop, stopped: true},
		{name: "after the end nothing counts", items: "ab$ cd ef", stop: worker.StopConditions{StopTokenIDsHidden: end}, text: "ab", tokens: 3, finish: worker.FinishStop, stopped: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			ch := chain.New(chain.Options{Decoder: vocab(t).NewDecoder(nil, true), Stop: &c.stop, IncludeStop: c.include, NoStopTrim: c.noTrim})
			var text []byte
			var last chain.Result
			tokens := 0
			for group := range strings.FieldsSeq(c.items) {
				out := &worker.Output{TokenIDs: ids(strings.TrimSuffix(group, "!"))}
				if strings.HasSuffix(group, "!") {
					out.FinishReason = worker.FinishLength
				}
				r, err := ch.Step(text, out)
				if err != nil {
					t.Fatal(err)
				}
				text, tokens = r.Text, tokens+r.Tokens
				if r.Finish != worker.FinishNone {
					last = r
				}
			}
			if string(text) != c.text || tokens != c.tokens || last.Finish != c.finish || last.StopReason != c.reason || last.Stopped != c.stopped {
				t.Errorf("got %q, %d tokens, finish %q, reason %+v, stopped %v\nwant %q, %d tokens, finish %q, reason %+v, stopped %v",
					text, tokens, last.Finish, last.StopReason, last.Stopped, c.text, c.tokens, c.finish, c.reason, c.stopped)
			}
		})
	}
}

func TestEngineText(t *testing.T) {
	ch := chain.New(chain.Options{Decoder: vocab(t).NewDecoder(nil, true), Stop: &worker.StopConditions{Stop: []string{"b"}}})
	r, err := ch.Step(nil, &worker.Output{HasText: true, Text: "abc", TokenIDs: ids("abc"), FinishReason: worker.FinishStop})
	if err != nil || string(r.Text) != "abc" || r.Tokens != 3 || r.Finish != worker.FinishStop || r.Stopped {
		t.Errorf("got %+v, %v: the engine's own text is passed on as it is", r, err)
	}
}

func TestEngineErrorIsKept(t *testing.T) {
	ch := chain.New(chain.Options{Decoder: vocab(t).NewDecoder(nil, true), Stop: &worker.StopConditions{StopTokenIDsHidden: []uint32{28}}})
	r, err := ch.Step(nil, &worker.Output{TokenIDs: ids("ab$"), FinishReason: worker.FinishError, FinishError: "boom"})
	if err != nil || r.Finish != worker.FinishError || string(r.Text) != "ab" {
		t.Errorf("got %+v, %v; want the engine's error and ab", r, err)
	}
}

// TestEndReleasesHeldText: bc might become the stop string, and the last token is half a character, when the stream
// ends.
func TestEndReleasesHeldText(t *testing.T) {
	ch := chain.New(chain.Options{Decoder: vocab(t).NewDecoder(nil, true), Stop: &worker.StopConditions{Stop: []string{"bcd"}}})
	r, err := ch.Step(nil, &worker.Output{TokenIDs: ids("abc1")})
	if err != nil || string(r.Text) != "a" {
		t.Fatalf("got %q, %v; want a", r.Text, err)
	}
	if text, err := ch.End(r.Text); err != nil || string(text) != "abc\uFFFD" {
		t.Errorf("got %q, %v; want everything that was held", text, err)
	}
}

func BenchmarkStep(b *testing.B) {
	m, err := detok.NewModel([]byte(`{"decoder":{"type":"ByteLevel"},"model":{"vocab":{"a":0,"Ġb":1}}}`), nil)
	if err != nil {
		b.Fatal(err)
	}
	out := &worker.Output{TokenIDs: []uint32{1}}
	ch := chain.New(chain.Options{Decoder: m.NewDecoder(nil, true), Stop: &worker.StopConditions{StopTokenIDsHidden: []uint32{7, 8}}})
	buf := make([]byte, 0, 64)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ch.Step(buf, out); err != nil {
			b.Fatal(err)
		}
	}
}
