package toolparse_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/prepost/toolparse"
)

// BenchmarkLongArguments reads calls with 64 KiB of arguments in pieces of four bytes.
func BenchmarkLongArguments(b *testing.B) {
	code := strings.Repeat("if (a[0] < b) { print(\\\"x\\\"); } // </i>\\n", 1600)
	raw := strings.Repeat("if (a[0] < b) { print(\"x\"); } // </i>\n", 1600)
	list := "[" + strings.Repeat(`{"k": "v < w"}, `, 4000) + "1]"
	tools := []toolparse.Tool{{Name: "f", Parameters: json.RawMessage(`{"properties":{"s":{"type":"string"},
		"o":{"type":"array"}}}`)}}
	for _, test := range []struct{ name, parser, text string }{
		{"json", "hermes", `<tool_call>{"name": "f", "arguments": {"s": "` + code + `"}}</tool_call>`},
		{"jsonMarkerInString", "hermes", `<tool_call>{"name": "f", "arguments": {"s": "</tool_call>` + strings.ReplaceAll(code, `\"`, "") + `"}}</tool_call>`},
		{"jsonArgumentsFirst", "hermes", `<tool_call>{"arguments": {"s": "` + code + `"}, "name": "f"}</tool_call>`},
		{"tagString", "qwen3_coder", "<function=f>\n<parameter=s>\n" + raw + "\n</parameter>\n</function>"},
		{"tagMarkerInString", "qwen3_coder", "<function=f>\n<parameter=s>\n</function>\n</tool_call>\n" + raw + "\n</parameter>\n</function>"},
		{"tagArray", "qwen3_coder", "<function=f>\n<parameter=o>\n" + list + "\n</parameter>\n</function>"},
		{"python", "pythonic", `[f(s="` + code + `")]`},
		{"pythonUndeclared", "pythonic", `[g(s="` + code + `")]`},
	} {
		b.Run(test.name, func(b *testing.B) {
			b.SetBytes(int64(len(test.text)))
			for b.Loop() {
				p, err := toolparse.New(test.parser, toolparse.Options{Tools: tools})
				if err != nil {
					b.Fatal(err)
				}
				for i := 0; i < len(test.text); i += 4 {
					p.Push([]byte(test.text[i:min(i+4, len(test.text))]), func(prepost.Piece) {})
				}
				p.Finish(false, func(prepost.Piece) {})
			}
		})
	}
}
