package templates_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/internal/native"
	"github.com/portico-llm/portico/tests/golden/templates"
)

const noneIsEmpty = "the reference can't loop over None (TypeError); here None holds nothing. Requests don't get " +
	"there: null members of messages are dropped before a template sees them"
const fromJSON = "the reference has no from_json filter; the template's own engine has it, so it is offered here"

// lenient lists the renders that fail in the reference and not here: in each the reference is stricter than needed.
var lenient = map[string]string{
	"axolotl-qwen3_5/tool_call_content_none":                        noneIsEmpty,
	"trl-qwen2_5_vl/tool_call_content_none":                         noneIsEmpty,
	"trl-qwen3_vl/tool_call_content_none":                           noneIsEmpty,
	"trl-qwen3_vl_training/tool_call_content_none":                  noneIsEmpty,
	"lcpp-deepseek-ai-DeepSeek-V3.2/tool_call_string_args":          fromJSON,
	"lcpp-deepseek-ai-DeepSeek-V4/tool_call_string_args":            fromJSON,
	"lcpp-deepseek-ai-DeepSeek-V4-Flash-0731/tool_call_string_args": fromJSON,
}

func TestGoldens(t *testing.T) {
	set, err := templates.Load()
	if err != nil {
		t.Fatal(err)
	}
	if len(set.Templates) != 61 || len(set.Conversations) != 28 {
		t.Fatalf("%d templates and %d conversations, want 61 and 28", len(set.Templates), len(set.Conversations))
	}
	seen := map[string]bool{}
	for _, golden := range set.Templates {
		t.Run(golden.Name, func(t *testing.T) {
			sum := sha256.Sum256([]byte(strings.TrimSpace(golden.Source)))
			if got := hex.EncodeToString(sum[:]); got != golden.SHA256 {
				t.Errorf("source has SHA-256 %s, want %s", got, golden.SHA256)
			}
			template, err := native.NewTemplate(golden.Source)
			if err != nil {
				t.Fatal(err)
			}
			defer template.Close()
			for _, name := range slices.Sorted(maps.Keys(set.Conversations)) {
				args, err := set.Arguments(&golden, name)
				if err != nil {
					t.Fatal(err)
				}
				got, err := template.Render(args, templates.Now(), 0)
				key := golden.Name + "/" + name
				want := golden.Expected[name]
				if _, ok := lenient[key]; ok && want.Error != nil && err == nil {
					seen[key] = true
					continue
				}
				compare(t, name, want, got, err)
			}
		})
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(lenient)), slices.Sorted(maps.Keys(seen))); diff != "" {
		t.Errorf("listed differences (-listed +found):\n%s", diff)
	}
}

// compare fails unless the render is the reference's, to the byte. Of errors only the message of raise_exception is
// part of the contract.
func compare(t *testing.T, name string, want templates.Result, got string, err error) {
	t.Helper()
	failed, _ := errors.AsType[*native.TemplateError](err)
	switch {
	case want.Output != nil && err != nil:
		t.Errorf("%s: %v, want %q", name, err, *want.Output)
	case want.Output != nil:
		if diff := cmp.Diff(*want.Output, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	case want.Error == nil:
		t.Errorf("%s: the golden has no result", name)
	case err == nil:
		t.Errorf("%s: %q, want an error: %s", name, got, want.Error.Message)
	case want.Error.Type == "TemplateError" && (failed.Failure != native.TemplateRaised || failed.Message != want.Error.Message):
		t.Errorf("%s: %v (%v), want %q raised", name, err, failed.Failure, want.Error.Message)
	}
}

const (
	looseCompare = "here values of different kinds have an order; in Python comparing them fails"
	noPercent    = "% formats no strings here"
	longFloat    = "floats from 1e16 up or below 1e-4 lose their exponent in ~ and join"
	noFilter     = "a filter of Jinja2 that no template is known to use"
	boolNumbers  = "no arithmetic with booleans"
	notVariables = "names that Jinja2 itself puts into a template"
)

// different lists the small templates whose result isn't the reference's: corners that no known chat template uses.
var different = map[string]string{
	`{% for a in n %}x{% endfor %}`: noneIsEmpty,
	`{{ 1 < "a" }}`:                 looseCompare,
	`{{ "%s is %d and %.2f" % ("x", 3, 1.5) }}|{{ "%s"|format("y") }}|{{ "{} {}".format("a", 1) }}|{{ "{a}".format(a=2) }}`: noPercent,
	`{{ "%s" % big }}{{ "%s" % l }}`:                                     noPercent,
	`{{ big ~ "" }}{{ small ~ "" }}`:                                     longFloat,
	`{{ x ~ "" }}{{ whole ~ "" }}{{ [big] ~ "" }}{{ [x] ~ "" }}`:         longFloat,
	`{{ [x, big]|join(" ") }}`:                                           longFloat,
	`{{ "a b"|wordcount }}`:                                              noFilter,
	`{{ "é"|urlencode }}`:                                                noFilter,
	`{{ "<p>x</p>"|striptags }}{{ "abcdefgh"|truncate(5) }}`:             noFilter,
	`{{ "hello"|center(9) }}|{{ 12345678|filesizeformat }}`:              noFilter,
	`{{ {"a":[1,{"b":none}]}|pprint }}`:                                  "pprint has a layout of its own",
	`{{ d|attr("b") }}|{{ messages[0]|attr("role") }}`:                   "attr finds the members of objects too",
	`{{ t + 1 }}{{ t|int }}{{ -t }}`:                                     boolNumbers,
	`{{ self }}`:                                                         notVariables,
	`{{ loop is defined }}{{ self is defined }}{{ varargs is defined }}`: notVariables,
	`{{ "a" not in "abc" }}{{ not "a" in "abc" }}{{ -i }}{{ +i }}{{ i ** 2 }}{{ 2 ** -1 }}{{ 7.0 // 2 }}{{ 7.5 % 2 }}`:                                                       "no unary plus",
	`{{ "a" ~ ("b" if t else "c") ~ "d" }}{{ ("%02d" % 5) }}{{ "%5.1f|" % 2.25 }}{{ "%r" % "x" }}{{ "%-5s|" % "a" }}{{ "%%" % () }}{{ "%x" % 255 }}{{ "%(a)s" % {"a": 1} }}`: noPercent,
	`{{ "{:>5}".format("a") }}{{ "{:.2f}".format(1.234) }}{{ "{0}{1}{0}".format("a","b") }}{{ "{:,}".format(1234567) }}{{ "{!r}".format("a") }}`:                             "str.format without conversions",
}

func TestSemantics(t *testing.T) {
	all, err := templates.LoadSemantics()
	if err != nil {
		t.Fatal(err)
	}
	listed := maps.Clone(different)
	for _, c := range all.Cases {
		got, err := render(c.Template, all.Arguments)
		if _, ok := listed[c.Template]; ok {
			delete(listed, c.Template)
			if c.Output != nil && err == nil && got == *c.Output {
				t.Errorf("%s: listed as different, but isn't", c.Template)
			}
			continue
		}
		compare(t, c.Template, c.Result, got, err)
	}
	for template := range listed {
		t.Errorf("%s: listed as different, but no case", template)
	}
}

func render(src string, args []byte) (string, error) {
	template, err := native.NewTemplate(src)
	if err != nil {
		return "", err
	}
	defer template.Close()
	return template.Render(args, templates.Now(), 0)
}
