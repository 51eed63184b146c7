package msgparse_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/prepost/msgparse"
	"github.com/portico-llm/portico/internal/testkit"
)

// recordedTag is a line of tags.jsonl.
type recordedTag struct {
	Parser string
	Tags   *struct{ Scope, Schema string }
	Kind   string

	Request struct {
		Tools []struct {
			Function struct {
				Name       string
				Parameters json.RawMessage
				Strict     *bool
			}
		}
		Choice   json.RawMessage `json:"tool_choice"`
		Parallel *bool           `json:"parallel_tool_calls"`
		Format   json.RawMessage `json:"response_format"`
	}
	Tag any
}

// ask is the recorded request as the parsers see it.
func (r *recordedTag) ask() *prepost.AnswerRequest {
	q := &prepost.AnswerRequest{ToolParser: r.Parser, Special: special(), JSON: r.Request.Format != nil}
	if r.Tags != nil {
		q.Tags = prepost.CallTags{On: true, Always: r.Tags.Scope == "always", Strict: r.Tags.Schema == "strict"}
	}
	for _, t := range r.Request.Tools {
		f := t.Function
		q.Tools = append(q.Tools, prepost.Function{Name: f.Name, Parameters: f.Parameters,
			Strict: f.Strict != nil && *f.Strict, Loose: f.Strict != nil && !*f.Strict})
	}
	q.OneCall = r.Request.Parallel != nil && !*r.Request.Parallel
	switch choice := string(r.Request.Choice); {
	case choice == `"none"`:
		q.Choice = prepost.MustNotCall
	case choice == `"required"`:
		q.Choice, q.JSON = prepost.MustCall, true
	case strings.HasPrefix(choice, "{"):
		q.Choice, q.Function, q.JSON = prepost.MustCallFunction, r.Request.Tools[0].Function.Name, true
	}
	return q
}

// TestStructuralTags: workers are sent the recorded tags, but for schemas whose parts are put another way.
func TestStructuralTags(t *testing.T) {
	different := map[string]string{
		"schema anyof":        "each alternative is a schema of its own",
		"schema enum_untyped": "values that are listed need no type",
		"schema intenum":      "values that are listed need no type",
		"schema ref":          "definitions go along only where something refers to them",
		"schema quote":        "a name with markup in it is read as it stands, so that it is written as it stands",
		"schema enumlt":       "a value with markup in it is text; upstream sends no tag at all",
	}
	n := 0
	for r := range testkit.Records[recordedTag](t, "testdata/tags.jsonl.gz") {
		n++
		var got any
		if p := msgparse.Plan(r.ask()); p != nil && p.StructuralTag != nil {
			if err := json.Unmarshal(p.StructuralTag, &got); err != nil {
				t.Fatalf("%v in %s", err, p.StructuralTag)
			}
		}
		diff := cmp.Diff(r.Tag, got)
		if reason, listed := different[r.Kind]; (diff != "") != listed || got == nil && listed {
			t.Errorf("%s, %v, %s (%s): - recorded, + ours:\n%s", r.Parser, r.Tags, r.Kind, reason, diff)
		}
	}
	if n < 100 {
		t.Errorf("only %d recorded tags", n)
	}
}

// TestKimiK3Schemas: what has no recorded tag.
func TestKimiK3Schemas(t *testing.T) {
	for _, tt := range []struct{ name, schema, want string }{
		{"alternatives", `{"properties":{"a":{"anyOf":[{"type":"integer","minimum":1},{"type":"string"}]}},"required":["a"]}`,
			`{"type":"json_schema","json_schema":{"type":"integer","minimum":1},"style":"json"}`},
		{"values of no type", `{"properties":{"a":{"enum":["x",1,null]}}}`, `{"enum":[null]}`},
		{"a reference", `{"properties":{"a":{"$ref":"#/$defs/D"}},"$defs":{"D":{"type":"boolean"}}}`,
			`key=\"a\" type=\"boolean\"`},
		{"a reference to itself", `{"properties":{"a":{"$ref":"#/$defs/D"}},"$defs":{"D":{"$ref":"#/$defs/D"}}}`, `type=\"null\"`},
		{"a nested reference", `{"properties":{"a":{"type":"array","items":{"$ref":"#/$defs/D"}}},"$defs":{"D":{"type":"null"}}}`,
			`"$defs":{"D":{"type":"null"}}`},
		{"a name with markup", `{"properties":{"a\"b":{"type":"integer"}}}`, `"begin":"<|open|>argument "`},
		{"required twice", `{"properties":{"a":{"type":"null"}},"required":["a","a"]}`, `key=\"a\" type=\"null\"`},
		{"a value with markup", `{"properties":{"a":{"enum":["<|close|>"]}}}`, `"excludes":["<|close|>"]`},
		{"no schema", `"?"`, `"begin":"<|open|>argument "`},
	} {
		q := prepost.AnswerRequest{ToolParser: "kimi_k3", Choice: prepost.MustCall, JSON: true, Special: special(),
			Tools: []prepost.Function{{Name: "f", Parameters: json.RawMessage(tt.schema)}}}
		var tag strings.Builder
		enc := json.NewEncoder(&tag)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(msgparse.Plan(&q).StructuralTag); err != nil {
			t.Fatal(err)
		}
		if text := strings.NewReplacer(`\u003c`, "<", `\u003e`, ">").Replace(tag.String()); !strings.Contains(text, tt.want) {
			t.Errorf("%s: no %s in\n%s", tt.name, tt.want, text)
		}
	}
}

// TestNamedWithoutThought: a tag without room for a thought means that the template begins none.
func TestNamedWithoutThought(t *testing.T) {
	q := prepost.AnswerRequest{ToolParser: "kimi_k3", ReasoningParser: "kimi_k3", Tools: tools, JSON: true, Special: special(),
		Choice: prepost.MustCallFunction, Function: "f"}
	if p := msgparse.Plan(&q); !p.WithoutThought || p.RequireReasoning {
		t.Errorf("named: without thought %v, behind one %v", p.WithoutThought, p.RequireReasoning)
	}
	q.Choice = prepost.MustCall
	if p := msgparse.Plan(&q); p.WithoutThought || !p.RequireReasoning {
		t.Errorf("required: without thought %v, behind one %v", p.WithoutThought, p.RequireReasoning)
	}
}
