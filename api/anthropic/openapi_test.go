package anthropic_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api"
	"github.com/portico-llm/portico/api/anthropic"
)

// TestOpenAPI holds the served document against the Go types, field by field.
func TestOpenAPI(t *testing.T) {
	raw, err := api.OpenAPI()
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Components struct {
			Schemas map[string]struct {
				Properties map[string]any
			}
		}
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	for name, typ := range map[string]reflect.Type{
		"MessageRequest": reflect.TypeFor[anthropic.Request](), "MessageTurn": reflect.TypeFor[anthropic.Message](),
		"MessageTool": reflect.TypeFor[anthropic.Tool](), "MessageFormat": reflect.TypeFor[anthropic.Format](),
	} {
		var documented, fields []string
		for p := range doc.Components.Schemas[name].Properties {
			documented = append(documented, p)
		}
		for f := range typ.Fields() {
			tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			fields = append(fields, tag)
		}
		slices.Sort(documented)
		slices.Sort(fields)
		if diff := cmp.Diff(fields, documented); diff != "" {
			t.Errorf("%s (-Go +document):\n%s", name, diff)
		}
	}
}
