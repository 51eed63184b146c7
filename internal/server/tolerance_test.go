package server_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/portico-llm/portico/api"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/server"
	"github.com/portico-llm/portico/internal/testkit"
)

// bodies are requests that hold every kind of object their schema has; a path whose body isn't here fails the test.
var bodies = map[string]string{
	"/v1/chat/completions": `{"model":"m","messages":[
		{"role":"user","content":"a"},
		{"role":"assistant","content":"b","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},
		{"role":"tool","tool_call_id":"c","content":"d"}],
		"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],
		"response_format":{"type":"text"},"nvext":{"agent_hints":{}},"thinking":{"type":"enabled"}}`,
	"/v1/completions": `{"model":"m","prompt":"a","nvext":{"agent_hints":{}}}`,
	"/v1/responses": `{"model":"m","input":[{"role":"user","content":"a"}],"text":{"format":{"type":"text"}},
		"tools":[{"type":"function","name":"f","parameters":{"type":"object"}}],"reasoning":{"effort":"low"}}`,
	"/v1/embeddings":         `{"model":"embed","input":"a"}`,
	"/v1/rerank":             `{"model":"rank","query":"q","documents":["d"]}`,
	"/v1/score":              `{"model":"rank","text_1":"q","text_2":["d"]}`,
	"/v1/classify":           `{"model":"class","input":"a"}`,
	"/v1/pooling":            `{"model":"class","input":"a"}`,
	"/v1/images/generations": `{"model":"image","prompt":"a"}`,
	"/v1/images/edits":       `{"model":"image","prompt":"a","input_reference":"data:,"}`,
	"/v1/videos":             `{"model":"video","prompt":"a"}`,
	"/v1/videos/stream":      `{"model":"video","prompt":"a"}`,
	"/v1/audio/speech":       `{"model":"speech","input":"a","data_source":"url"}`,
	"/v1/messages": `{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"a"}],
		"tools":[{"name":"f","input_schema":{"type":"object"}}],"tool_choice":{"type":"auto"},"thinking":{"type":"enabled","budget_tokens":1024},
		"output_config":{},"metadata":{"user_id":"u"}}`,
	"/v1/messages/count_tokens":  `{"model":"m","messages":[{"role":"user","content":"a"}]}`,
	"/v1/responses/input_tokens": `{"model":"m","input":"a"}`,
	"/tokenize":                  `{"model":"m","prompt":"a"}`,
	"/v1/tokenize":               `{"model":"m","messages":[{"role":"user","content":"a"}]}`,
	"/detokenize":                `{"model":"m","tokens":[1]}`,
	"/v1/detokenize":             `{"model":"m","tokens":[1]}`,
	"/busy_threshold":            "",
}

// wrongTypes are values of every JSON type.
var wrongTypes = map[string]string{
	"boolean": `true`, "integer": `7`, "number": `0.5`, "string": `"text"`, "array": `[{"unexpected":[null]}]`, "object": `{"unexpected":[null]}`,
}

// TestTolerance sends every member of every documented request body absent, null and of every other type, through the
// whole server: what the document allows is never refused for its type, what it doesn't is a 400 that names the member.
func TestTolerance(t *testing.T) {
	raw, err := api.OpenAPI()
	if err != nil {
		t.Fatal(err)
	}
	w := &toleranceWalk{t: t, handler: tolerantServer(t)}
	if err := json.Unmarshal(raw, &w.doc); err != nil {
		t.Fatal(err)
	}
	paths, _ := w.doc["paths"].(map[string]any)
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		post, _ := paths[path].(map[string]any)["post"].(map[string]any)
		body, _ := post["requestBody"].(map[string]any)
		if body == nil {
			continue
		}
		base, known := bodies[path]
		if !known {
			t.Errorf("%s: no body to begin with", path)
		}
		if base == "" {
			continue
		}
		content := body["content"].(map[string]any)["application/json"].(map[string]any)
		w.path = path
		if err := json.Unmarshal([]byte(base), &w.base); err != nil {
			t.Fatal(err)
		}
		if res := w.send(w.base); res.Code != 200 {
			t.Errorf("%s: %d %s", path, res.Code, res.Body)
			continue
		}
		w.walk(w.resolve(content["schema"]), nil)
	}
	if w.sent < 1500 {
		t.Errorf("only %d requests", w.sent)
	}
}

// tolerantServer is a server whose workers answer every task.
func tolerantServer(t *testing.T) http.Handler {
	t.Helper()
	d := &testkit.Dispatcher{Script: func(_ *router.Call, body []byte) (testkit.Script, error) {
		var q map[string]json.RawMessage
		_ = json.Unmarshal(body, &q)
		switch {
		case q["token_ids"] != nil:
			return testkit.Items(`[{"token_ids":[72],"finish_reason":"stop"}]`), nil
		case q["query"] != nil:
			return testkit.Items(`[[{"score":0.5,"index":0}]]`), nil
		}
		return testkit.Items(`[{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.5],"b64_json":"AAAA"}],` +
			`"usage":{"prompt_tokens":1,"total_tokens":1}}]`), nil
	}}
	opts := server.Options{Pipeline: pipeline.New(pipeline.Options{Dispatcher: d}),
		Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()}
	taskModels(&opts)
	srv, err := server.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return testkit.LintHandler(t, srv.Handler())
}

// toleranceWalk goes through one body and its schema.
type toleranceWalk struct {
	t       *testing.T
	handler http.Handler
	doc     map[string]any
	path    string
	base    any
	sent    int
}

func (w *toleranceWalk) send(body any) *httptest.ResponseRecorder {
	w.t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		w.t.Fatal(err)
	}
	req := httptest.NewRequestWithContext(w.t.Context(), http.MethodPost, w.path, strings.NewReader(string(text)))
	req.Header.Set("Content-Type", "application/json")
	res := httptest.NewRecorder()
	w.handler.ServeHTTP(res, req)
	w.sent++
	return res
}

// resolve follows a reference.
func (w *toleranceWalk) resolve(s any) map[string]any {
	m, _ := s.(map[string]any)
	for {
		ref, ok := m["$ref"].(string)
		if !ok {
			return m
		}
		at := w.doc
		for part := range strings.SplitSeq(strings.TrimPrefix(ref, "#/"), "/") {
			at, _ = at[part].(map[string]any)
		}
		m = at
	}
}

// kinds are the JSON types that a schema takes; nil: any.
func (w *toleranceWalk) kinds(s map[string]any) []string {
	var out []string
	switch typ := s["type"].(type) {
	case string:
		return []string{typ}
	case []any:
		for _, one := range typ {
			out = append(out, one.(string))
		}
		return out
	}
	for _, choice := range []string{"anyOf", "oneOf"} {
		list, _ := s[choice].([]any)
		for _, one := range list {
			k := w.kinds(w.resolve(one))
			if k == nil {
				return nil
			}
			out = append(out, k...)
		}
	}
	if list, ok := s["enum"].([]any); ok && out == nil {
		for _, one := range list {
			out = append(out, map[bool]string{true: "null", false: "string"}[one == nil])
		}
	}
	if _, ok := s["const"].(string); ok && out == nil {
		out = []string{"string"}
	}
	return out
}

// at returns the value of the base body at a path of names and indices.
func at(body any, path []any) any {
	for _, p := range path {
		switch p := p.(type) {
		case string:
			m, _ := body.(map[string]any)
			body = m[p]
		case int:
			list, _ := body.([]any)
			if p >= len(list) {
				return nil
			}
			body = list[p]
		}
	}
	return body
}

// with is a copy of the base body with another value at a path; remove takes the member away.
func (w *toleranceWalk) with(path []any, value json.RawMessage, remove bool) any {
	text, _ := json.Marshal(w.base)
	var body any
	_ = json.Unmarshal(text, &body)
	last := path[len(path)-1].(string)
	m, _ := at(body, path[:len(path)-1]).(map[string]any)
	if remove {
		delete(m, last)
	} else {
		m[last] = value
	}
	return body
}

// walk sends variants of every member of the object at path, and goes on into what is there.
func (w *toleranceWalk) walk(schema map[string]any, path []any) {
	here := at(w.base, path)
	if list, ok := here.([]any); ok {
		for i := range list {
			w.walk(w.resolve(w.choose(schema, "array")["items"]), append(slices.Clone(path), i))
		}
		return
	}
	object := w.choose(schema, "object")
	properties, _ := object["properties"].(map[string]any)
	required, _ := object["required"].([]any)
	if _, ok := here.(map[string]any); !ok {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		p := w.resolve(properties[name])
		member := append(slices.Clone(path), name)
		w.member(p, member, slices.Contains(required, any(name)))
		w.walk(p, member)
	}
}

// choose is the choice of a schema that is of a type.
func (w *toleranceWalk) choose(s map[string]any, typ string) map[string]any {
	if all, _ := s["allOf"].([]any); len(all) == 1 { // a schema, of which some members are held tighter
		whole := maps.Clone(w.resolve(all[0]))
		members := maps.Clone(whole["properties"].(map[string]any))
		maps.Copy(members, s["properties"].(map[string]any))
		whole["properties"], whole["required"] = members, slices.Concat(whole["required"].([]any), s["required"].([]any))
		return whole
	}
	if s["properties"] != nil || s["items"] != nil {
		return s
	}
	for _, choice := range []string{"anyOf", "oneOf"} {
		list, _ := s[choice].([]any)
		for _, one := range list {
			if r := w.resolve(one); slices.Contains(w.kinds(r), typ) {
				return r
			}
		}
	}
	return s
}

// member sends the variants of one member.
func (w *toleranceWalk) member(p map[string]any, path []any, required bool) {
	name := path[len(path)-1].(string)
	kinds := w.kinds(p)
	where := fmt.Sprint(w.path, " ", path)
	if !required && at(w.base, path) != nil {
		if res := w.send(w.with(path, nil, true)); res.Code != 200 && !excepted(where+" absent") {
			w.t.Errorf("%s absent: %d %s", where, res.Code, res.Body)
		}
	}
	nullable := kinds == nil || slices.Contains(kinds, "null")
	if res := w.send(w.with(path, json.RawMessage("null"), false)); nullable != (res.Code == 200) && !excepted(where+" null") {
		w.t.Errorf("%s null (allowed: %v): %d %s", where, nullable, res.Code, res.Body)
	}
	for typ, value := range wrongTypes {
		fits := kinds == nil || slices.Contains(kinds, typ) || typ == "integer" && slices.Contains(kinds, "number")
		res := w.send(w.with(path, json.RawMessage(value), false))
		if res.Code >= 500 && res.Code != 501 {
			w.t.Errorf("%s %s: %d %s", where, value, res.Code, res.Body)
		}
		if !fits && (res.Code != 400 && res.Code != 501 || !strings.Contains(res.Body.String(), name)) && !excepted(where+" "+typ) {
			w.t.Errorf("%s %s: %d %s, want a refusal that names it", where, value, res.Code, res.Body)
		}
	}
}

// excepted reports whether a variant needs something else in the request to be right: what stands behind each member.
func excepted(where string) bool {
	member, variant := where[:strings.LastIndex(where, " ")], where[strings.LastIndex(where, " ")+1:]
	return (variant == "absent" || variant == "null") && slices.Contains([]string{
		"/tokenize [model]", "/v1/tokenize [model]", "/detokenize [model]", "/v1/detokenize [model]", // one model alone
		"/tokenize [prompt]", "/v1/tokenize [messages]", // one of the two
		"/v1/completions [prompt]",                                                               // prompt_embeds
		"/v1/audio/speech [data_source]",                                                         // a worker that sends sound
		"/v1/chat/completions [messages 0 content]", "/v1/chat/completions [messages 2 content]", // calls
		"/v1/responses [input]", "/v1/responses/input_tokens [input]", // a response before
		"/v1/responses [input 0 content]", "/v1/responses [input 0 role]", // an item of another type
		"/v1/responses [tools 0 name]",             // a tool of another type
		"/v1/score [text_1]", "/v1/score [text_2]", // other names of the two
	}, member)
}
