package tokenizer

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/portico-llm/portico/internal/prepost"
)

// byteIDs is a tokenizer whose only token beside bytes is <x>, as 999.
func byteIDs(text string) (ids []prepost.TokenID) {
	for text != "" {
		if rest, ok := strings.CutPrefix(text, "<x>"); ok {
			ids, text = append(ids, 999), rest
			continue
		}
		ids, text = append(ids, prepost.TokenID(text[0])), text[1:]
	}
	return ids
}

// TestOneNativeCall: however much is known, the encoder is called once at most, and for no more than has to be.
func TestOneNativeCall(t *testing.T) {
	c, err := newCuts([]byte(`{"added_tokens":[{"id":999,"content":"<x>"}]}`))
	if err != nil || c == nil {
		t.Fatal(c, err)
	}
	k := NewCaches(CacheOptions{Block: 4}).newCache(c, "m")
	var asked []string
	ask := func(text string) {
		t.Helper()
		asked = nil
		ids, err := k.encode(t.Context(), text, func(_ context.Context, part string, _ bool) ([]prepost.TokenID, error) {
			asked = append(asked, part)
			return byteIDs(part), nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := ids, byteIDs(text); len(got) != len(want) {
			t.Fatalf("%v, want %v", got, want)
		} else {
			for i := range got {
				if got[i] != want[i] {
					t.Fatalf("%v, want %v", got, want)
				}
			}
		}
	}
	for _, tt := range []struct{ text, asked string }{
		{"<x>a<x>b<x>c<x>d", "<x>a<x>b<x>c<x>d"},
		{"<x>a<x>b<x>c<x>d", ""},
		{"<x>a<x>b<x>e<x>f", "<x>e<x>f"},
		{"<x>g<x>b<x>e<x>f", "<x>g"}, // blocks are known wherever they stand
		{"<x>h<x>b<x>c<x>i", "<x>h<x>b<x>c<x>i"},
		{"<x>g<x>b<x>c<x>d<x>k", "<x>k"},
		{"short<x>", "short<x>"},
		{"no token in all of the text", "no token in all of the text"},
		{"ahead<x>a<x>b", "ahead"},
	} {
		ask(tt.text)
		if got := strings.Join(asked, "|"); got != tt.asked {
			t.Errorf("%q: asked for %q, want %q", tt.text, got, tt.asked)
		}
	}
	// A vocabulary that gives other text the token's id is encoded as it is, each time.
	text := "<x>zz<x>zz<x>yy"
	for range 2 {
		asked = nil
		_, err := k.encode(t.Context(), text, func(_ context.Context, part string, _ bool) ([]prepost.TokenID, error) {
			asked = append(asked, part)
			ids := byteIDs(part)
			for i, id := range ids {
				if id == 'z' {
					ids[i] = 999
				}
			}
			return ids, nil
		})
		if err != nil || len(asked) != 1 || asked[0] != text {
			t.Errorf("%v, asked for %q", err, asked)
		}
	}
	k.drop()
	ask("<x>a<x>b<x>c<x>d")
	ask("<x>a<x>b<x>c<x>d")
	if len(asked) != 1 {
		t.Error("a dropped cache remembers")
	}
}

// TestStrips: who asks for more of the same text gets the same memory, and nobody's ids change.
func TestStrips(t *testing.T) {
	c, err := newCuts([]byte(`{"added_tokens":[{"id":999,"content":"<x>"}]}`))
	if err != nil || c == nil {
		t.Fatal(c, err)
	}
	const room = 24
	k := NewCaches(CacheOptions{Block: 4, Strip: 8, Bytes: 1 << 20}).newCache(c, "m")
	ask := func(text string) []prepost.TokenID {
		t.Helper()
		ids, err := k.encode(t.Context(), text, func(_ context.Context, part string, _ bool) ([]prepost.TokenID, error) {
			return slices.Grow(byteIDs(part), room), nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if cap(ids) != len(ids) {
			t.Errorf("%q: room of %d is left to the caller", text, cap(ids)-len(ids))
		}
		return ids
	}
	given := map[string][]prepost.TokenID{}
	const base = "<x>aaaa<x>bbbb<x>cccc"
	for _, tt := range []struct {
		text, as string // the earlier text whose memory it has; empty: its own
	}{
		{base + "<x>?", ""},
		{base + "<x>?", base + "<x>?"},
		{base + "<x>?dddd", base + "<x>?"}, // a new end goes behind the old
		{base + "<x>?dddd<x>eeee<x>!", base + "<x>?"},
		{base + "<x>?dddd", base + "<x>?"}, // as it was
		{base + "<x>", base + "<x>?"},      // the ids of less text than there is
		{base + "<x>#", ""},                // another end
		{base + "<x>?dddd<x>eeee<x>!!", base + "<x>?"},
		{base + "<x>?dddd<x>eeee<x>%", ""},
		{base + "<x>?dddd<x>eeee<x>!!" + strings.Repeat("<x>more", 10), ""}, // no room
		{"<x>zzzz<x>bbbb<x>cccc<x>?", ""},                                   // known blocks of another text
		{"<x>short<x>", ""},
	} {
		got := ask(tt.text)
		if first := given[tt.as]; tt.as != "" && &first[0] != &got[0] {
			t.Errorf("%q has memory of its own", tt.text)
		}
		for text, ids := range given {
			if tt.as == "" && &ids[0] == &got[0] {
				t.Errorf("%q has the memory of %q", tt.text, text)
			}
			if !slices.Equal(ids, byteIDs(text)) {
				t.Fatalf("after %q, %q has %v", tt.text, text, ids)
			}
		}
		if !slices.Equal(got, byteIDs(tt.text)) {
			t.Fatalf("%q: %v", tt.text, got)
		}
		if given[tt.text] == nil {
			given[tt.text] = got
		}
		if err := k.check(); err != nil {
			t.Fatal(tt.text, err)
		}
	}
	k.drop()
	if err := k.check(); err != nil || k.strips.bytes+k.texts.bytes != 0 {
		t.Error(err, k.strips.bytes, k.texts.bytes)
	}
	if ids := ask(base + "<x>?"); &ids[0] == &given[base+"<x>?"][0] {
		t.Error("a dropped cache has strips")
	}
}

func TestCuts(t *testing.T) {
	for name, tt := range map[string]struct{ file, want string }{
		"none":         {`{}`, ""},
		"specials":     {`{"added_tokens":[{"id":1,"content":"<a>"},{"id":2,"content":"<b>"},{"id":3,"content":"[c]"}]}`, "1@0 2@3"},
		"flags":        {`{"added_tokens":[{"id":1,"content":"<a>","lstrip":true},{"id":2,"content":"<b>"},{"id":4,"content":"<d>","rstrip":true}]}`, "2@3"},
		"words":        {`{"added_tokens":[{"id":1,"content":"<a>","single_word":true},{"id":2,"content":"<b>"}]}`, ""},
		"normalized":   {`{"normalizer":{"type":"NFC"},"added_tokens":[{"id":1,"content":"<a>","normalized":true},{"id":2,"content":"<b>"}]}`, "2@3"},
		"nothing done": {`{"normalizer":{"type":"Sequence","normalizers":[]},"added_tokens":[{"id":1,"content":"<a>","normalized":true}]}`, "1@0"},
		"prefix":       {`{"added_tokens":[{"id":1,"content":"<a>"},{"id":2,"content":"<a><"}]}`, ""},
		"longer":       {`{"added_tokens":[{"id":1,"content":"<a>"},{"id":2,"content":"<a><b>"}]}`, "2@0"},
		"inside":       {`{"added_tokens":[{"id":1,"content":"<a>"},{"id":2,"content":"x<a>"}]}`, ""},
		"overlap":      {`{"added_tokens":[{"id":1,"content":"<a>"},{"id":2,"content":"x<a"}]}`, ""},
		"overlap 1":    {`{"added_tokens":[{"id":1,"content":"<a>"},{"id":2,"content":"<b>"},{"id":3,"content":"xyz<"}]}`, ""},
		"truncation":   {`{"truncation":{},"added_tokens":[{"id":1,"content":"<a>"}]}`, ""},
		"padding":      {`{"padding":{},"added_tokens":[{"id":1,"content":"<a>"}]}`, ""},
		"dropout":      {`{"model":{"dropout":0.1},"added_tokens":[{"id":1,"content":"<a>"}]}`, ""},
		"other order":  {`{"added_tokens":[{"id":1,"content":"<a>"}],"model":{"type":"Unigram"},"truncation":{}}`, ""},
		"usual order": {`{"truncation":null,"padding":null,"added_tokens":[{"id":1,"content":"<a>"}],"normalizer":null,
			"model":{"type":"BPE","dropout":null,"vocab":{}}}`, "1@0"},
		"white": {`{"added_tokens":[{"id":1,"content":"<a> "},{"id":2,"content":"\n\n\n"}]}`, ""},
	} {
		c, err := newCuts([]byte(tt.file))
		if err != nil {
			t.Fatal(name, err)
		}
		var got []string
		if c != nil {
			for _, p := range c.find("<a><b>[c]<d><<a") {
				got = append(got, string('0'+byte(p.id))+"@"+string('0'+byte(p.at)))
			}
		}
		if s := strings.Join(got, " "); s != tt.want {
			t.Errorf("%s: %q, want %q", name, s, tt.want)
		}
	}
	if _, err := newCuts([]byte("[")); err == nil {
		t.Error("no error for what is no tokenizer.json")
	}
}

// TestSeriesEnd: the series of a model end with the last of its tokenizers, and no other's do.
func TestSeriesEnd(t *testing.T) {
	c, err := newCuts([]byte(`{"added_tokens":[{"id":999,"content":"<x>"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	all := NewCaches(CacheOptions{})
	one, again, other := all.newCache(c, "m"), all.newCache(c, "m"), all.newCache(c, "n")
	for _, tt := range []struct {
		drop *cache
		want int
	}{{one, 2}, {again, 1}, {other, 0}} {
		tt.drop.drop()
		for _, v := range []*prometheus.CounterVec{all.known, all.fresh} {
			if got := testutil.CollectAndCount(v); got != tt.want {
				t.Errorf("%d series, want %d", got, tt.want)
			}
		}
	}
}
