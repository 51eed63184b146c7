package validate_test

import (
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestHopelessRegex: what takes a backtracking matcher exponential time, or an automaton too much memory, is refused;
// what people write for real isn't.
func TestHopelessRegex(t *testing.T) {
	for _, c := range []struct {
		pattern string
		refused bool
	}{
		{`(a+)+$`, true}, {`(?:a+)+$`, true}, {`((a+)+)+$`, true}, {`(a*)*b`, true}, {`(a|a)*b`, true}, {`(?:a|a)*b`, true},
		{`(a|aa)+$`, true}, {`(a|b|ab)*c`, true}, {`(\w+\s?)*$`, true}, {`(.*a)*`, true}, {`([a-zA-Z]+)*`, true}, {`(x+x+)+y`, true},
		{`(\d{2,4})+`, true}, {`(a?b?)*c`, true}, {`(?i)(a|A)*b`, true}, {`^(([a-z])+.)+[A-Z]([a-z])+$`, true},
		{`(a{1,100}){1,100}`, true}, {`((a{50}){50}){50}`, true}, {`((ab)+|(ba)+|a|b)*`, true}, {`(0|[0-9])+`, true},
		{`a{1,3001}b{1,3000}c{1,1000}d{1,1000}e{1,1000}`, true}, {`[`, true}, {``, true}, {`(a`, true},
		{`(a)\1`, true}, {`(a)[]b]\1`, true}, {`(?P<x>a)(?P=x)`, true}, {`(?<x>a)\k<x>`, true}, {`(?<=a)b`, true}, {`a(?<!b)`, true},
		{`(a)?(?(1)b|c)`, true},

		{`a+`, false}, {`.*`, false}, {`(ab)*`, false}, {`(a|b)*c`, false}, {`a{1,5000}`, false}, {`(\d{2})+`, false}, {`(\d{1,3}\.){3}\d{1,3}`, false},
		{`(\w+\s)*\w+`, false}, {`([a-z]+,)*[a-z]+`, false}, {`\+?[0-9]{1,3}(-[0-9]{2,4})*`, false}, {`[\w.+-]+@[\w-]+(\.[\w-]+)+`, false},
		{`(https?|ftp)://[^\s/$.?#].[^\s]*`, false}, {`(?:yes|no|maybe)`, false}, {`\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:\d{2})`, false},
		{`(?=a)(a+)+`, false}, {`a(?!b)c`, false}, {`(?P<x>a)(?<y>b)`, false}, {`[(?<=a)\1(?P=x)]`, false}, {`\\1\0(a\(?<=)`, false},
		{`"([^"\\]|\\.)*"`, false}, {`[]a)(]\([^]x]`, false}, {`(a|[b(])+\[`, false},
		{`\(a+\)+`, false}, {`[(a+)+|]*`, false}, {`.{0,1000}x.{0,1000}`, false}, {`a{1,}`, false}, {`\{1,2000\}`, false}, {`.*.*.*=.*`, false},
	} {
		err := chat(`"guided_regex":` + strconv.Quote(c.pattern))
		if (err != nil) != c.refused {
			t.Errorf("%s: %v, want refused %v", c.pattern, err, c.refused)
		}
	}
}

// TestRegexesAreJudgedFast: an expression made to keep the judge busy doesn't.
func TestRegexesAreJudgedFast(t *testing.T) {
	words := make([]string, 400)
	for i := range words {
		words[i] = "w" + strconv.Itoa(i) + strings.Repeat("x", i%7)
	}
	for name, pattern := range map[string]string{
		"words":     "(" + strings.Join(words, "|") + ")*",
		"optional":  "(" + strings.Repeat("[a-z]?", 600) + ")*",
		"any":       "(" + strings.Repeat("(a.|.b)", 300) + ")*",
		"nested":    strings.Repeat("(", 900) + "a" + strings.Repeat(")*", 900),
		"branches":  "(" + strings.Repeat("a|", 60_000) + "a)*",
		"exploding": strings.Repeat("(a{2}", 30) + strings.Repeat("){2}", 30),
	} {
		began := time.Now()
		_ = chat(`"guided_regex":` + strconv.Quote(pattern)) // either answer will do
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("%s: %v", name, took)
		} else {
			t.Logf("%s: %v", name, took)
		}
	}
}

// TestHopelessSchemas: a reference elsewhere or a hopeless pattern counts where it means something, and only there.
func TestHopelessSchemas(t *testing.T) {
	for _, c := range []struct {
		schema  string
		refused bool
	}{
		{`{"$ref":"https://example.com/s.json"}`, true}, {`{"$ref":"s.json"}`, true}, {`{"properties":{"a":{"$ref":"file:///etc/passwd"}}}`, true},
		{`{"anyOf":[{"type":"null"},{"items":{"$ref":"//h/s#/$defs/A"}}]}`, true}, {`{"properties":{"a":{"pattern":"(a+)+"}}}`, true},
		{`{"patternProperties":{"x":{"type":"string","pattern":"(a*)*"}}}`, true}, {`{"not":{"pattern":"["}}`, true},

		{`{"$ref":"#/$defs/A","$defs":{"A":{"type":"string","pattern":"^a+$"}}}`, false}, {`{"$ref":"#"}`, false},
		{`{"properties":{"$ref":{"type":"string"},"pattern":{"type":"string"}}}`, false}, {`{"enum":["(a+)+",{"$ref":"x"}]}`, false},
		{`{"default":{"$ref":"x"},"const":{"pattern":"(a+)+"},"examples":[{"$ref":"x"}]}`, false}, {`{"pattern":""}`, false},
		{`{"$id":"https://example.com/s","items":{"$ref":"https://example.com/s#/$defs/A"},"$defs":{"A":{}}}`, false},
		{`{"items":{"$ref":"item"},"$defs":{"A":{"$id":"item"}}}`, false}, {`{"$schema":"https://json-schema.org/draft/2020-12/schema"}`, false},
	} {
		for field, members := range map[string]string{
			"guided_json":                        `"guided_json":` + c.schema,
			"response_format.json_schema.schema": `"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":` + c.schema + `}}`,
			"tools[0].function.parameters":       `"tools":[{"function":{"name":"f","parameters":` + c.schema + `}}],"tool_choice":"required"`,
		} {
			want := ""
			if c.refused {
				want = field
			}
			t.Run(c.schema, func(t *testing.T) { check(t, chat(members), want) })
		}
	}
}
