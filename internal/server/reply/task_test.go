package reply_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/server/reply"
)

// The vector 1, -0.5, 1e-7 as workers pack it.
const packed = "AACAPwAAAL+Vv9Yz"

func TestEmbeddings(t *testing.T) {
	numbers, text := `[1.0,-0.5,1e-07]`, `"`+packed+`"`
	list := func(vectors ...string) string {
		var items []string
		for i, v := range vectors {
			items = append(items, `{"object":"embedding","index":`+string(rune('0'+i))+`,"embedding":`+v+`}`)
		}
		return `{"object":"list","data":[` + strings.Join(items, ",") + `],"model":"m","usage":`
	}
	for _, c := range []struct {
		name, worker string
		count        int
		base64       bool
		want         string
	}{
		{"packed to numbers", `{"data":[{"embedding":` + text + `,"index":0}],"model":"x","usage":{"prompt_tokens":3,"total_tokens":3,"more":1}}`,
			1, false, list(numbers) + `{"prompt_tokens":3,"total_tokens":3,"more":1}}`},
		{"packed stays", `{"data":[{"embedding":` + text + `,"index":0}],"usage":{"prompt_tokens":3,"total_tokens":3}}`,
			1, true, list(text) + `{"prompt_tokens":3,"total_tokens":3}}`},
		{"numbers stay", `{"data":[{"embedding":[1,-0.5,1e-7],"index":0}],"usage":{}}`, 1, false, list(numbers) + `{}}`},
		{"numbers to packed", `{"data":[{"embedding":[1,-0.5,1e-7],"index":0}],"usage":{}}`, 1, true, list(text) + `{}}`},
		{"other order", `{"data":[{"embedding":[2],"index":1},{"embedding":[1],"index":0}]}`, 2, false,
			list(`[1.0]`, `[2.0]`) + `{"prompt_tokens":0,"total_tokens":0}}`},
		{"no index", `{"data":[{"embedding":[1]},{"embedding":[2]}]}`, 2, false,
			list(`[1.0]`, `[2.0]`) + `{"prompt_tokens":0,"total_tokens":0}}`},
		{"of tokens", `{"embeddings":[` + text + `],"prompt_tokens":2,"total_tokens":2}`, 1, false,
			list(numbers) + `{"prompt_tokens":2,"total_tokens":2}}`},
		{"empty vector", `{"embeddings":[""],"prompt_tokens":0,"total_tokens":0}`, 1, false,
			list(`[]`) + `{"prompt_tokens":0,"total_tokens":0}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := reply.Embeddings{Model: "m", Count: c.count, Base64: c.base64}
			got, err := e.Append(nil, []byte(c.worker))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, string(got)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A worker's mistake is told as such, and not handed on as vectors of other texts.
func TestEmbeddingsRefusals(t *testing.T) {
	for _, worker := range []string{
		`nonsense`, `[]`, `{}`, `{"data":[]}`, `{"data":[{"embedding":[1]},{"embedding":[1]}]}`,
		`{"data":[{"embedding":[1],"index":1}]}`, `{"data":[{"embedding":[1],"index":-1}]}`, `{"data":[{"index":0}]}`,
		`{"data":[{"embedding":null}]}`, `{"embeddings":["AAAA"]}`, `{"embeddings":["no base64"]}`,
		`{"embeddings":["AADAfw=="]}`, `{"embeddings":["AACAfw=="]}`, `{"embeddings":[{}]}`, `{"embeddings":[["a"]]}`,
		`{"embeddings":[[1e60]]}`,
	} {
		e := reply.Embeddings{Model: "m", Count: 1}
		if out, err := e.Append(nil, []byte(worker)); fault.KindOf(err) != fault.BadGateway {
			t.Errorf("%s: %s, %v", worker, out, err)
		}
	}
}

func TestScores(t *testing.T) {
	s := reply.Scores{ID: "score-1", Model: "m", Created: 7}
	err := s.Add([]byte(`[{"score":0.25,"index":1,"meta_info":{"prompt_tokens":3}},{"score":-2.0,"index":0}]`), 2)
	got := s.Append(nil)
	want := `{"id":"score-1","object":"list","created":7,"model":"m","data":[{"index":0,"object":"score","score":-2},` +
		`{"index":1,"object":"score","score":0.25}],"usage":{"prompt_tokens":3,"total_tokens":3}}`
	if diff := cmp.Diff(want, string(got)); diff != "" || err != nil {
		t.Error(err, diff)
	}
	for _, worker := range []string{
		`{}`, `[]`, `[{"score":1,"index":0}]`, `[{"score":1,"index":0},{"score":1,"index":0}]`,
		`[{"score":1,"index":2},{"score":1,"index":0}]`, `[{"index":1},{"score":1,"index":0}]`,
	} {
		if err := s.Add([]byte(worker), 2); fault.KindOf(err) != fault.BadGateway {
			t.Errorf("%s: %v", worker, err)
		}
	}
}

func TestWholeKeepsTheLast(t *testing.T) {
	var w reply.Whole
	if _, err := w.Value(); fault.KindOf(err) != fault.BadGateway {
		t.Errorf("empty: %v", err)
	}
	raw := []byte(`{"progress":50}`)
	for _, d := range []pipeline.Delta{{Raw: raw}, {Event: "note"}, {Raw: []byte(`{"progress":100}`)}} {
		if err := w.Delta(&d); err != nil {
			t.Fatal(err)
		}
		copy(raw, "XXXXXXXXXXXXXXX") // an item's memory is only lent
	}
	got, err := w.Value()
	if err != nil || string(got) != `{"progress":100}` {
		t.Errorf("%s, %v", got, err)
	}
}
