package worker_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/worker"
)

// TestCallTags: the object goes before the older settings.
func TestCallTags(t *testing.T) {
	for text, want := range map[string]*worker.CallTags{
		`{}`: nil,
		`{"structural_tag":{"scope":"always","schema":"strict","x":1}}`: {Scope: "always", Schema: "strict"},
		`{"structural_tag":{}}`:                                                                       {},
		`{"structural_tag":false,"structural_tag_mode":"on"}`:                                         nil,
		`{"structural_tag":null,"structural_tag_mode":"on"}`:                                          nil,
		`{"structural_tag":"?"}`:                                                                      nil,
		`{"structural_tag_mode":"off","structural_tag_scope":"auto"}`:                                 nil,
		`{"structural_tag_mode":"on","structural_tag_scope":"always","structural_tag_schema":"auto"}`: {Scope: "always", Schema: "auto"},
	} {
		var r worker.RuntimeConfig
		if err := json.Unmarshal([]byte(text), &r); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, r.CallTags()); diff != "" {
			t.Errorf("%s: - want, + got:\n%s", text, diff)
		}
	}
}
