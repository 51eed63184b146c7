package openai_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/server/validate"
)

// FuzzDecodeChat checks that decoding and validating end without a panic, that a failure is a fault that names a field
// unless the body as a whole is at fault, and that what is accepted is whole JSON for those who read it later.
func FuzzDecodeChat(f *testing.F) {
	for _, seed := range []string{
		chatWith(""), chatWith(`"tools":[{"function":{"name":"f","parameters":{"a":[1]},"strict":true}}],"tool_choice":"required"`),
		conversation(`{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}`),
		conversation(`{"role":"assistant","tool_calls":[{"function":{"arguments":"{\"a\":1}"}}]}`),
		chatWith(`"nvext":{"token_data":[1,2],"agent_hints":{"osl":3}},"stop":["a"],"logit_bias":{"1":2}`),
		"{\"model\":\"\\ud800\",\"messages\":[{\"role\":\"user\",\"content\":\"\x01\xff\"}]}", `[`, `{"a":{"b":[{`, "",
	} {
		f.Add([]byte(seed), false)
	}
	f.Fuzz(func(t *testing.T, body []byte, strict bool) {
		before := bytes.Clone(body)
		req, err := openai.DecodeChat(body, openai.DecodeOptions{Strict: strict})
		if !bytes.Equal(before, body) {
			t.Fatal("the body has changed")
		}
		if err == nil {
			checkDecoded(t, req)
			err = validate.Chat(req, validate.Options{})
		}
		if err == nil {
			return
		}
		e, ok := errors.AsType[*fault.Error](err)
		if !ok {
			t.Fatalf("not a fault: %v", err)
		}
		if e.Message == "" || e.Kind != fault.BadRequest && e.Kind != fault.NotImplemented {
			t.Fatalf("%v: %q", e.Kind, e.Message)
		}
		if whole := e.Code == "invalid_json" || e.Code == ""; e.Param == "" && !whole {
			t.Fatalf("no param with %q (%s)", e.Message, e.Code)
		}
	})
}

func checkDecoded(t *testing.T, req *openai.ChatRequest) {
	t.Helper()
	for name, raw := range map[string]json.RawMessage{
		"messages": req.Messages, "tools": req.Tools, "documents": req.Documents, "forward": req.Forward(),
		"logit_bias": req.LogitBias, "args": req.ChatTemplateArgs,
	} {
		if raw != nil && !json.Valid(raw) {
			t.Fatalf("%s is not JSON: %q", name, raw)
		}
	}
}
