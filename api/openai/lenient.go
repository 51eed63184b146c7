package openai

import (
	"bytes"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/portico-llm/portico/internal/fault"
)

// CheckBody refuses a body that is empty or nests deeper than maxDepth arrays and objects; 0 stands for
// DefaultMaxDepth. Readers of other request forms call it before they decode, as DecodeChat does.
func CheckBody(body []byte, maxDepth int) error {
	opts := DecodeOptions{MaxDepth: maxDepth}.withDefaults()
	// An empty body would otherwise be reported as one that ends too early.
	if len(bytes.TrimLeft(body, " \t\r\n")) == 0 {
		return fault.Bad("", "The body is empty; a JSON object is expected")
	}
	if tooDeep(body, opts.MaxDepth) {
		return fault.Bad("", "The body nests deeper than %d levels", opts.MaxDepth)
	}
	return nil
}

// Mend returns body with what clients are known to get wrong inside strings made right, and whether anything was: raw
// control characters, invalid UTF-8, unpaired surrogates, a byte order mark in front.
func Mend(body []byte) ([]byte, bool) { return mend(body) }

// SyntaxFault turns what the JSON library reports about a body into a *fault.Error for the client.
func SyntaxFault(err error) error { return syntaxFault(err) }

// PointerPath writes a JSON pointer the way params are written: /messages/2/content becomes messages[2].content.
func PointerPath(p jsontext.Pointer) string { return pointerPath(p) }
