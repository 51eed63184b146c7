package openai_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/openai"
)

func TestAppendErrors(t *testing.T) {
	nested := &openai.Error{Message: "a \"b\"\n<é>", Type: "invalid_request_error", Param: "messages[0]", Code: "c"}
	bare := &openai.Error{Message: "m\xff", Type: "t"}
	flat := &openai.FlatError{Message: "no", Type: "Bad Request", Code: 400}
	detailed := &openai.FlatError{Message: "no", Type: "Bad Request", Code: 400, Details: json.RawMessage(`{"a":1}`)}
	for _, c := range []struct {
		name string
		got  []byte
		want string
	}{
		{"nested", openai.AppendError([]byte("x"), nested),
			`x{"error":{"message":"a \"b\"\n<é>","type":"invalid_request_error","param":"messages[0]","code":"c"}}`},
		{"nested without param", openai.AppendError(nil, bare),
			"{\"error\":{\"message\":\"m\uFFFD\",\"type\":\"t\",\"param\":null,\"code\":null}}"},
		{"flat", openai.AppendFlatError(nil, flat), `{"message":"no","type":"Bad Request","code":400}`},
		{"flat with details", openai.AppendFlatError(nil, detailed),
			`{"message":"no","type":"Bad Request","code":400,"details":{"a":1}}`},
		{"flat in a stream", openai.AppendFlatStreamError(nil, flat),
			`{"error":{"message":"no","type":"Bad Request","code":400}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, string(c.got)); diff != "" {
				t.Error(diff)
			}
		})
	}
}
