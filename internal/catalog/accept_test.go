package catalog_test

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/catalog"
)

// TestNamespaces starts one model in each of five namespaces, named like it, and looks which of them are served.
func TestNamespaces(t *testing.T) {
	for _, tc := range []struct {
		name string
		opts catalog.Options
		want string // of those served, by id
	}{
		{"all", catalog.Options{}, "a a-0123abcd a-legacy ab dynamo"},
		{"dynamo is all", catalog.Options{Namespace: "dynamo"}, "a a-0123abcd a-legacy ab dynamo"},
		{"exact", catalog.Options{Namespace: "a"}, "a"},
		{"prefix", catalog.Options{NamespacePrefix: "a"}, "a a-0123abcd a-legacy ab"},
		{"strict", catalog.Options{NamespacePrefix: "a", PrefixStrict: true}, "a a-0123abcd a-legacy"},
		{"dynamo as prefix", catalog.Options{NamespacePrefix: "dynamo"}, "a a-0123abcd a-legacy ab dynamo"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := start(t, tc.opts)
				for i, ns := range []string{"a", "ab", "a-legacy", "a-0123abcd", "dynamo"} {
					s.up(ns, uint64(i), card(ns, nil))
				}
				var got []string
				for _, m := range s.Models() {
					got = append(got, m.ID)
				}
				if strings.Join(got, " ") != tc.want {
					t.Errorf("got %v, want %s", got, tc.want)
				}
			})
		})
	}
}

// TestReadiness puts workers of one model into namespaces and asks whether it can be served. where is
// namespace/endpoint; dead workers have a card in discovery, but no instance.
func TestReadiness(t *testing.T) {
	typed := func(kind string, needs ...[]string) func(*worker.Card) {
		return func(c *worker.Card) {
			c.WorkerType, c.Needs = kind, needs
			if kind == "prefill" {
				c.ModelType = "Prefill"
			}
		}
	}
	legacy := func(c *worker.Card) { c.WorkerType = "" }
	type node struct { // one worker
		where string
		f     func(*worker.Card)
		dead  bool // no instance
	}
	for _, tc := range []struct {
		name  string
		nodes []node
		want  string
	}{
		{"aggregated", []node{{"a", typed("aggregated"), false}}, ok},
		{"dead", []node{{"a", typed("aggregated"), true}}, notReady},
		{"decode alone, needs prefill", []node{{"a", typed("decode", []string{"prefill"}), false}}, notReady},
		{"decode and prefill", []node{{"a/d", typed("decode", []string{"prefill"}), false}, {"a/p", typed("prefill"), false}}, ok},
		{"prefill elsewhere", []node{{"a/d", typed("decode", []string{"prefill"}), false}, {"b/p", typed("prefill"), false}}, notReady},
		{"prefill dead", []node{{"a/d", typed("decode"), false}, {"a/p", typed("prefill"), true}}, notReady},
		// There is no encode worker, which the first alternative asks for.
		{"one alternative is enough", []node{{"a/d", typed("decode", []string{"encode", "prefill"}, []string{"prefill"}), false}, {"a/p", typed("prefill"), false}}, ok},
		{"prefill needs decode", []node{{"a/p", typed("prefill", []string{"decode"}), false}}, notReady},
		// Which of two endpoints a prefill worker is to work for nobody knows; aggregated ones need no such help.
		{"two decode sets", []node{{"a/d", typed("decode"), false}, {"a/e", typed("decode"), false}}, notReady},
		{"two decode sets, one dead", []node{{"a/d", typed("decode"), false}, {"a/e", typed("decode"), true}}, ok},
		{"two aggregated sets", []node{{"a/d", typed("aggregated"), false}, {"a/e", typed("aggregated"), false}}, ok},
		// Workers that declare no type can't tell what they need.
		{"legacy relaxes", []node{{"a/d", legacy, false}, {"a/p", typed("prefill"), true}}, ok},
		{"legacy dead", []node{{"a/d", legacy, true}}, notReady},
		{"only prefill", []node{{"a/p", typed("prefill"), false}}, notReady},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := start(t, catalog.Options{})
				for i, n := range tc.nodes {
					s.source.Put(s.record(n.where, uint64(i), "", card("m", n.f)))
					if !n.dead {
						s.source.Put(s.instance(n.where, uint64(i)))
					}
				}
				synctest.Wait()
				s.want("m", tc.want)
				listed := slices.ContainsFunc(s.Models(), func(m catalog.ModelInfo) bool { return m.Ready == (tc.want == ok) })
				if listed == (tc.name == "only prefill" || tc.name == "prefill needs decode") {
					t.Errorf("models: %+v", s.Models())
				}
				if tc.want == ok && strings.HasSuffix(s.mustLookup("m").Endpoint.Name, "p") {
					t.Error("requests go to the prefill worker")
				}
			})
		})
	}
}

// TestCardsAcceptedAndRefused publishes three workers with the same card: it is loaded once at most, and a refusal is
// told once.
func TestCardsAcceptedAndRefused(t *testing.T) {
	shape := func(modelType, input, kind string) func(*worker.Card) {
		return func(c *worker.Card) { c.ModelType, c.ModelInput, c.WorkerType = modelType, input, kind }
	}
	for _, tc := range []struct {
		name  string
		f     func(*worker.Card)
		loads int // of template and tokenizer: only where this process makes the tokens
		want  string
	}{
		{"tokens chat", shape("Chat", "Tokens", ""), 1, ok},
		{"tokens embedding", shape("Embedding", "Tokens", ""), 1, ok},
		{"text chat", shape("Chat", "Text", ""), 0, ok},
		{"text images", shape("Images", "Text", "aggregated"), 0, ok},
		{"tensor", shape("TensorBased", "Tensor", ""), 0, ok},
		// From here on the parts don't go together.
		{"tokens images", shape("Images", "Tokens", ""), 0, missing},
		{"tensor chat", shape("Chat", "Tensor", ""), 0, missing},
		{"text prefill", shape("Prefill", "Text", ""), 0, missing},
		{"text encode", shape("", "Text", "encode"), 0, missing},
		// A good worker, but none that clients can ask.
		{"tokens prefill", shape("Prefill", "Tokens", ""), 0, notReady},
		{"nothing offered", shape("", "Tokens", "aggregated"), 0, missing},
		{"unknown input", shape("Chat", "Smoke", ""), 0, missing},
		{"unknown worker type", shape("Chat", "Tokens", "router"), 0, missing},
		{"adapter without suffix", func(c *worker.Card) { c.LoRA = &worker.LoRA{Name: "l"} }, 0, missing},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log strings.Builder
				s := start(t, catalog.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
				for id := range uint64(3) {
					s.up("a", id, card("m", tc.f))
				}
				s.want("m", tc.want)
				if n := s.count("m"); n != tc.loads {
					t.Errorf("%d loads", n)
				}
				if n := strings.Count(log.String(), "model refused"); n != 0 && tc.want != missing || n != 1 && tc.want == missing {
					t.Errorf("refused %d times in the log:\n%s", n, log.String())
				}
			})
		})
	}
}
