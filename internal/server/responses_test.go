package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/prepost/msgparse"
	"github.com/portico-llm/portico/internal/server"
	"github.com/portico-llm/portico/internal/testkit"
)

// spelled is a script that gives text byte by byte, and ends.
func spelled(text, finish string) testkit.Script {
	var s testkit.Script
	for i := range len(text) {
		s = append(s, json.RawMessage(fmt.Sprintf(`{"token_ids":[%d]}`, text[i])))
	}
	return append(s, json.RawMessage(fmt.Sprintf(`{"token_ids":[],"finish_reason":%q}`, finish)))
}

// parsing is a server whose model has both parsers, keeps responses, and answers with text.
func parsing(t *testing.T, text, finish string) (*stack, *testkit.Dispatcher) {
	t.Helper()
	d := testkit.Play(spelled(text, finish))
	return start(t, d, func(o *server.Options) {
		o.Pipeline = pipeline.New(pipeline.Options{Dispatcher: d, Log: o.Log, Answers: msgparse.Plan})
		set := testkit.ByteModel("m")
		set.ToolParser, set.ReasoningParser = "hermes", "qwen3"
		o.Catalog = testkit.Models{"m": set}
		o.Responses.MaxCount = 100
	}), d
}

// prompt is what the i-th worker got.
func prompt(t *testing.T, d *testkit.Dispatcher, i int) string {
	t.Helper()
	var q struct {
		TokenIDs []int `json:"token_ids"`
	}
	if err := json.Unmarshal(d.Calls()[i].Body, &q); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, id := range q.TokenIDs {
		b.WriteByte(byte(id))
	}
	return b.String()
}

// response is a response as far as these tests look at it.
type response struct {
	ID     string           `json:"id"`
	Status string           `json:"status"`
	Detail map[string]any   `json:"incomplete_details"`
	Output []map[string]any `json:"output"`
	Tools  []map[string]any `json:"tools"`
	Usage  map[string]any   `json:"usage"`
}

func parsed(t *testing.T, body string) response {
	t.Helper()
	var r response
	if err := json.Unmarshal([]byte(body), &r); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	return r
}

// brief writes an output in short: each item's type, status and text.
func brief(out []map[string]any) []string {
	var all []string
	for _, m := range out {
		text := m["arguments"]
		switch m["type"] {
		case "custom_tool_call":
			text = m["input"]
		case "message", "reasoning":
			parts, _ := m["content"].([]any)
			if m["content"] == nil {
				parts = m["summary"].([]any)
			}
			text = parts[0].(map[string]any)["text"]
		}
		name := ""
		for _, k := range []string{"namespace", "name"} {
			if m[k] != nil {
				name += "/" + m[k].(string)
			}
		}
		all = append(all, fmt.Sprintf("%s%s %s %q", m["type"], name, m["status"], text))
	}
	return all
}

// ids are what differs between two answers of the same text.
var ids = regexp.MustCompile(`(resp|msg|rs|fc|ctc|call)_[0-9a-f]{24,34}`)

const tools = `"tools":[{"type":"function","name":"look","parameters":{"type":"object"}},{"type":"custom","name":"patch"},` +
	`{"type":"namespace","name":"web","tools":[{"type":"function","name":"open"}]},{"type":"web_search"}]`

func called(name, arguments string) string {
	return fmt.Sprintf("<tool_call>\n{\"name\": %q, \"arguments\": %s}\n</tool_call>", name, arguments)
}

// TestResponsesItems compares the items of both modes with what the model wrote.
func TestResponsesItems(t *testing.T) {
	for name, tt := range map[string]struct {
		text, finish, request string
		status                string
		want                  []string
	}{
		"text": {"Hello", "stop", ``, "completed", []string{`message completed "Hello"`}},
		"thought and text": {"<think>Hm.</think>\n\nHello", "stop", ``, "completed",
			[]string{`reasoning completed "Hm."`, `message completed "\n\nHello"`}},
		"thought as its summary": {"<think>Hm.</think>Hello", "stop", `"reasoning":{"summary":"auto"},"include":["reasoning.encrypted_content"]`,
			"completed", []string{`reasoning completed "Hm."`, `message completed "Hello"`}},
		"everything in turn": {
			"<think>Hm.</think>\n\nFirst. " + called("look", `{"a": 1}`) + "\n" + called("look", `{}`) + "\nThen.", "stop", tools,
			"completed", []string{`reasoning completed "Hm."`, `message completed "\n\nFirst. "`,
				`function_call/look completed "{\"a\": 1}"`, `function_call/look completed "{}"`, `message completed "\nThen."`}},
		"no message of white space": {"<think>Hm.</think>\n\n" + called("look", `{}`), "stop", tools, "completed",
			[]string{`reasoning completed "Hm."`, `function_call/look completed "{}"`}},
		"three calls": {called("look", `{}`) + "\n" + called("web__open", `{"u": "x"}`) + "\n" + called("patch", `{"input": "a\nb \"c\""}`),
			"stop", tools, "completed", []string{`function_call/look completed "{}"`, `function_call/web/open completed "{\"u\": \"x\"}"`,
				`custom_tool_call/patch completed "a\nb \"c\""`}},
		"custom input that is no text": {called("patch", `{"x": 1}`), "stop", tools, "completed",
			[]string{`custom_tool_call/patch completed "{\"x\": 1}"`}},
		"cut in the text":    {"Hel", "length", ``, "incomplete", []string{`message incomplete "Hel"`}},
		"cut in the thought": {"<think>Hm", "length", ``, "incomplete", []string{`reasoning incomplete "Hm"`}},
		"filtered":           {"Hel", "content_filter", ``, "incomplete", []string{`message incomplete "Hel"`}},
		"nothing":            {"", "stop", ``, "completed", []string{`message completed ""`}},
		"white space":        {" \n", "stop", ``, "completed", []string{`message completed " \n"`}},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := parsing(t, tt.text, tt.finish)
			request := `{"model":"m","input":"hi"`
			if tt.request != "" {
				request += "," + tt.request
			}
			var unary, stream string
			var res *http.Response
			for range 10 { // both tell the second they were made in
				second := time.Now().Unix()
				_, unary = s.do(t, http.MethodPost, "/v1/responses", request+"}")
				if res, stream = s.do(t, http.MethodPost, "/v1/responses", request+`,"stream":true}`); time.Now().Unix() == second {
					break
				}
			}
			if res.StatusCode != http.StatusOK {
				t.Fatalf("%d %s", res.StatusCode, stream)
			}
			if err := testkit.LintResponses([]byte(stream)); err != nil {
				t.Errorf("%v\n%s", err, stream)
			}
			ev := events(t, stream)
			last := ev[len(ev)-2]
			var whole struct{ Response json.RawMessage }
			if err := json.Unmarshal([]byte(last.Data), &whole); err != nil {
				t.Fatal(err)
			}
			got := parsed(t, unary)
			if diff := cmp.Diff(tt.want, brief(got.Output)); diff != "" || got.Status != tt.status {
				t.Errorf("%s (-want +got):\n%s", got.Status, diff)
			}
			// The body is the stream, folded.
			if diff := cmp.Diff(ids.ReplaceAllString(unary, "$1"), ids.ReplaceAllString(string(whole.Response), "$1")); diff != "" {
				t.Errorf("-unary +streamed:\n%s", diff)
			}
		})
	}
}

// TestResponsesOneLine: what is repeated of a request doesn't end an event's line, however the client wrote it.
func TestResponsesOneLine(t *testing.T) {
	s, _ := parsing(t, "Hello", "stop")
	_, body := s.do(t, http.MethodPost, "/v1/responses", "{\"model\":\"m\",\"input\":\"hi\",\"stream\":true,\"instructions\":\"a\u2028b\",\n"+
		"\"metadata\":{\n\"k\":\r\n\"v\u0085\"},\"reasoning\":{\n},\"tool_choice\":{\n\"type\":\"function\",\"name\":\"f\"},"+
		"\"text\":{\"format\":{\n\"type\":\"text\"}},\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":{\n\"type\":\"object\"}}]}")
	if err := testkit.LintResponses([]byte(body)); err != nil {
		t.Errorf("%v\n%s", err, body)
	}
	if strings.ContainsAny(body, "\u0085\u2028\u2029\r") || !strings.Contains(body, `"metadata":{"k":"v\u0085"}`) ||
		!strings.Contains(body, `"instructions":"a\u2028b"`) {
		t.Errorf("%q", body)
	}
}

// TestResponsesCutCall: a call that a limit cut has no end that looks like one.
func TestResponsesCutCall(t *testing.T) {
	s, _ := parsing(t, `<tool_call>{"name": "look", "arguments": {"a": "b`, "length")
	_, body := s.do(t, http.MethodPost, "/v1/responses", `{"model":"m","input":"hi",`+tools+`,"stream":true}`)
	if err := testkit.LintResponses([]byte(body)); err != nil {
		t.Error(err)
	}
	ev := events(t, body)
	if last := ev[len(ev)-2]; last.Name != "response.incomplete" || !strings.Contains(last.Data, `"reason":"max_output_tokens"`) ||
		strings.Contains(body, `"completed"`) {
		t.Errorf("%s", body)
	}
}

// TestResponsesRefuse: what can't be done is refused by name, and reaches no worker.
func TestResponsesRefuse(t *testing.T) {
	s, d := parsing(t, "x", "stop")
	for _, tt := range []struct {
		members string
		status  int
		param   string
	}{
		{`"input":"a","background":true`, 501, "background"},
		{`"input":"a","prompt":{"id":"p"}`, 501, "prompt"},
		{`"input":"a","conversation":"c"`, 501, "conversation"},
		{`"input":"a","n":2`, 400, "n"},
		{`"input":[]`, 400, "input"},
		{`"tools":[]`, 400, "input"},
		{`"input":7`, 400, "input"},
		{`"input":[{"role":"robot","content":"a"}]`, 400, "input[0].role"},
		{`"input":[{"role":"user"}]`, 400, "input[0].content"},
		{`"input":[{"role":"user","content":[{"type":"input_file","file_id":"f"}]}]`, 400, "input[0].content[0].type"},
		{`"input":[{"role":"user","content":[{"type":"input_image","file_id":"f"}]}]`, 400, "input[0].content[0].image_url"},
		{`"input":[{"role":"user","content":[{"type":"input_text"}]}]`, 400, "input[0].content[0].text"},
		{`"input":[{"type":"function_call","call_id":"c"}]`, 400, "input[0].name"},
		{`"input":[{"type":"function_call_output","output":"x"}]`, 400, "input[0].call_id"},
		{`"input":[{"type":"function_call_output","call_id":"c"}]`, 400, "input[0].output"},
		{`"input":[{"content":"a"}]`, 400, "input[0].type"},
		{`"input":[{"type":"web_search_call"}]`, 400, "input"},
		{`"input":"a","max_output_tokens":0`, 400, "max_output_tokens"},
		{`"input":"a","max_tokens":0`, 400, "max_tokens"},
		{`"input":"a","top_logprobs":21`, 400, "top_logprobs"},
		{`"input":"a","temperature":3`, 400, "temperature"},
		{`"input":"a","truncation":"some"`, 400, "truncation"},
		{`"input":"a","reasoning":{"effort":"much"}`, 400, "reasoning.effort"},
		{`"input":"a","text":{"format":{"type":"xml"}}`, 400, "text.format.type"},
		{`"input":"a","text":{"format":{"type":"json_schema","schema":{}}}`, 400, "text.format.name"},
		{`"input":"a","text":{"format":{"type":"json_schema","name":"n"}}`, 400, "text.format.schema"},
		{`"input":"a","tools":[{"type":"function"}]`, 400, "tools[0].name"},
		{`"input":"a","tools":[{"name":"f"}]`, 400, "tools[0].type"},
		{`"input":"a","tools":[{"type":"function","name":"f","strict":true,"parameters":{"type":"object"}}]`, 400, "tools[0].parameters"},
		{`"input":"a","tool_choice":"required"`, 400, "tools"},
		{`"input":"a","tool_choice":{"type":"function","name":"g"},` + tools, 400, "tool_choice.name"},
		{`"input":"a","tool_choice":{"type":"web_search"},` + tools, 400, "tool_choice.type"},
		{`"input":"a","tool_choice":{"type":"shell"},` + tools, 400, "tool_choice.name"},
		{`"input":"a","tool_choice":{"type":"shell"},"tools":[{"type":"shell","environment":{"type":"container_auto"}}]`, 400, "tool_choice.name"},
		{`"input":"a","tool_choice":{"type":"allowed_tools","tools":[]},` + tools, 400, "tool_choice.tools"},
		{`"input":"a","previous_response_id":""`, 400, "previous_response_id"},
		{`"input":"a","previous_response_id":"resp_1"`, 400, "previous_response_id"},
		{`"input":[{"type":"item_reference","id":"msg_1"}]`, 404, "input"},
	} {
		res, body := s.do(t, http.MethodPost, "/v1/responses", `{"model":"m",`+tt.members+"}")
		var e struct {
			Error struct{ Message, Param string }
		}
		if err := json.Unmarshal([]byte(body), &e); err != nil {
			t.Fatal(err)
		}
		if res.StatusCode != tt.status || e.Error.Param != tt.param || e.Error.Message == "" {
			t.Errorf("%s: %d %s, want %d %s", tt.members, res.StatusCode, body, tt.status, tt.param)
		}
	}
	if n := len(d.Calls()); n != 0 {
		t.Errorf("%d requests reached a worker", n)
	}
	res, body := s.do(t, http.MethodPost, "/v1/responses", `{"model":"nope","input":"a"}`)
	if res.StatusCode != http.StatusNotFound || !strings.Contains(body, "model_not_found") {
		t.Errorf("%d %s", res.StatusCode, body)
	}
}

// TestResponsesOwnToolChoice: OpenAI's own tools that clients run can be asked for, and be the only ones there are.
func TestResponsesOwnToolChoice(t *testing.T) {
	s, _ := parsing(t, "Yes.", "stop")
	for _, members := range []string{
		`"input":"a","tool_choice":{"type":"shell"},"tools":[{"type":"shell","environment":{"type":"local"}}]`,
		`"input":"a","tool_choice":{"type":"apply_patch"},"tools":[{"type":"apply_patch"}]`,
		`"input":"a","tool_choice":"required","tools":[{"type":"local_shell"}]`,
		`"input":"a","tool_choice":{"type":"allowed_tools","tools":[{"type":"apply_patch"}]},"tools":[{"type":"shell"},{"type":"apply_patch"}]`,
	} {
		if res, body := s.do(t, http.MethodPost, "/v1/responses", `{"model":"m",`+members+"}"); res.StatusCode != http.StatusOK {
			t.Errorf("%s: %d %s", members, res.StatusCode, body)
		}
	}
}

// TestResponsesGoOn follows a conversation from response to response.
func TestResponsesGoOn(t *testing.T) {
	s, d := parsing(t, "<think>Hm.</think>Yes.", "stop")
	post := func(members string, headers ...string) (int, response) {
		res, body := s.do(t, http.MethodPost, "/v1/responses", `{"model":"m",`+members+`}`, headers...)
		return res.StatusCode, parsed(t, body)
	}
	_, first := post(`"instructions":"Be brief.","input":"One?"`)
	_, second := post(`"instructions":"Be long.","input":"Two?","previous_response_id":"` + first.ID + `"`)
	if got, want := prompt(t, d, 1), "system: Be long.\nuser: One?\nassistant: Yes.\nuser: Two?\n"; got != want {
		t.Errorf("prompt %q, want %q", got, want)
	}
	// An item of an answer stands for itself.
	reference := second.Output[1]["id"].(string)
	post(`"input":[{"type":"item_reference","id":"` + reference + `"},{"role":"user","content":"Three?"}],"store":false`)
	if got, want := prompt(t, d, 2), "assistant: Yes.\nuser: Three?\n"; got != want {
		t.Errorf("prompt %q, want %q", got, want)
	}
	// What a stream told is kept by the time it ends.
	_, stream := s.do(t, http.MethodPost, "/v1/responses", `{"model":"m","stream":true,"input":"Four?","previous_response_id":"`+second.ID+`"}`)
	fourth := regexp.MustCompile(`resp_[0-9a-f]{32}`).FindString(stream)
	res, kept := s.do(t, http.MethodGet, "/v1/responses/"+fourth, "")
	if res.StatusCode != http.StatusOK || !strings.Contains(stream, kept) {
		t.Errorf("%d %s isn't in %s", res.StatusCode, kept, stream)
	}
	_, list := s.do(t, http.MethodGet, "/v1/responses/"+fourth+"/input_items?order=asc&limit=3", "")
	var page struct {
		Data    []map[string]any
		HasMore bool   `json:"has_more"`
		LastID  string `json:"last_id"`
	}
	if err := json.Unmarshal([]byte(list), &page); err != nil {
		t.Fatal(err)
	}
	if got := brief(page.Data); !page.HasMore || !slices.Equal(got, []string{`message completed "One?"`,
		`reasoning completed "Hm."`, `message completed "Yes."`}) || page.Data[2]["id"] != page.LastID {
		t.Errorf("%s", list)
	}
	_, list = s.do(t, http.MethodGet, "/v1/responses/"+fourth+"/input_items?order=asc&after="+page.LastID, "")
	if !strings.Contains(list, "Two?") || strings.Contains(list, "One?") || !strings.Contains(list, `"has_more":false`) {
		t.Errorf("%s", list)
	}
	// Nobody else's, and not for ever.
	if status, _ := post(`"input":"a","previous_response_id":"`+second.ID+`"`, "X-Tenant-Id", "other"); status != 400 {
		t.Errorf("another tenant goes on: %d", status)
	}
	if res, _ := s.do(t, http.MethodGet, "/v1/responses/"+second.ID, "", "X-Tenant-Id", "other"); res.StatusCode != 404 {
		t.Errorf("another tenant reads: %d", res.StatusCode)
	}
	if res, body := s.do(t, http.MethodDelete, "/v1/responses/"+second.ID, ""); res.StatusCode != 200 ||
		body != `{"id":"`+second.ID+`","object":"response","deleted":true}` {
		t.Errorf("%d %s", res.StatusCode, body)
	}
	for _, method := range []string{http.MethodGet, http.MethodDelete} {
		if res, _ := s.do(t, method, "/v1/responses/"+second.ID, ""); res.StatusCode != 404 {
			t.Errorf("%s after deletion: %d", method, res.StatusCode)
		}
	}
	if status, _ := post(`"input":"Five?","previous_response_id":"` + fourth + `"`); status != 200 {
		t.Errorf("what goes on from a deleted response can't go on: %d", status)
	}
	if got := prompt(t, d, 4); !strings.HasPrefix(got, "user: One?\nassistant: Yes.\nuser: Two?\n") {
		t.Errorf("it has lost its beginning: %q", got)
	}
}

// TestResponsesKeepNothing: neither a client nor an operator who doesn't want it has anything kept.
func TestResponsesKeepNothing(t *testing.T) {
	for name, tt := range map[string]struct {
		count   int
		members string
	}{"the client": {10, `,"store":false`}, "the operator": {0, `,"store":true`}} {
		t.Run(name, func(t *testing.T) {
			s := start(t, testkit.Play(hello), func(o *server.Options) { o.Responses.MaxCount = tt.count })
			_, body := s.do(t, http.MethodPost, "/v1/responses", `{"model":"m","input":"a"`+tt.members+`}`)
			if !strings.Contains(body, `"store":false`) {
				t.Errorf("%s", body)
			}
			if res, _ := s.do(t, http.MethodGet, "/v1/responses/"+parsed(t, body).ID, ""); res.StatusCode != 404 {
				t.Errorf("kept all the same: %d", res.StatusCode)
			}
			if v := s.metric(t, "dynamo_frontend_stored_responses"); v != "0" {
				t.Errorf("%s responses are kept", v)
			}
		})
	}
}

// TestResponsesInputTokens counts what the worker would get, and asks none.
func TestResponsesInputTokens(t *testing.T) {
	s, d := parsing(t, "x", "stop")
	_, body := s.do(t, http.MethodPost, "/v1/responses/input_tokens", `{"model":"m","input":"hi","instructions":"Be brief."}`)
	if want := fmt.Sprintf(`{"object":"response.input_tokens","input_tokens":%d}`, len("system: Be brief.\nuser: hi\n")); body != want {
		t.Errorf("%s, want %s", body, want)
	}
	if n := len(d.Calls()); n != 0 {
		t.Errorf("%d requests reached a worker", n)
	}
	text := start(t, testkit.Play(nil), nil)
	if res, body := text.do(t, http.MethodPost, "/v1/responses/input_tokens", `{"model":"text","input":"hi"}`); res.StatusCode != 501 {
		t.Errorf("%d %s", res.StatusCode, body)
	}
}

// TestResponsesTextWorker takes the answer of a worker that speaks chat's format apart.
func TestResponsesTextWorker(t *testing.T) {
	script := testkit.Items(`[
		{"choices":[{"index":0,"delta":{"role":"assistant","reasoning_content":"Hm."}}]},
		{"choices":[{"index":0,"delta":{"content":"He"}}]},{"choices":[{"index":0,"delta":{"content":"y"}}]},
		{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"look","arguments":""}}]}}]},
		{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]},"finish_reason":"tool_calls"}]},
		{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12}}]`)
	d := testkit.Play(script)
	s := start(t, d, nil)
	want := []string{`reasoning completed "Hm."`, `message completed "Hey"`, `function_call/look completed "{}"`}
	_, body := s.do(t, http.MethodPost, "/v1/responses", `{"model":"text","input":"hi",`+tools+`}`)
	got := parsed(t, body)
	if diff := cmp.Diff(want, brief(got.Output)); diff != "" || got.Usage["total_tokens"] != 12.0 {
		t.Errorf("%s (-want +got):\n%s", body, diff)
	}
	if sent := string(d.Calls()[0].Body); !strings.Contains(sent, `"messages":[{"role":"user","content":"hi"}]`) ||
		!strings.Contains(sent, `"tools":[{"type":"function","function":{"name":"look","parameters":{"type":"object"}}}`) {
		t.Errorf("the worker got %s", sent)
	}
	_, stream := s.do(t, http.MethodPost, "/v1/responses", `{"model":"text","input":"hi","stream":true}`)
	if err := testkit.LintResponses([]byte(stream)); err != nil {
		t.Errorf("%v\n%s", err, stream)
	}
}

// TestResponsesCount: requests have a label of their own, and tools that no model is told of are counted.
func TestResponsesCount(t *testing.T) {
	s := start(t, testkit.Play(hello), nil)
	s.do(t, http.MethodPost, "/v1/responses", `{"model":"m","input":[{"role":"user","content":"a"},{"type":"web_search_call"}],`+tools+`}`)
	for series, want := range map[string]string{
		`dynamo_frontend_requests_total{endpoint="responses",error_type="",model="m",request_type="unary",status="success"}`: "1",
		`dynamo_frontend_responses_ignored_total{kind="tool"}`:                                                               "1",
		`dynamo_frontend_responses_ignored_total{kind="item"}`:                                                               "1",
	} {
		if got := s.metric(t, series); got != want {
			t.Errorf("%s = %q, want %s", series, got, want)
		}
	}
}

// TestResponsesCancel: the worker is told when the client leaves a stream.
func TestResponsesCancel(t *testing.T) {
	d := testkit.Play(testkit.Items(`[{"token_ids":[65]},{"_wait":true}]`))
	s := start(t, d, nil)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/v1/responses",
		strings.NewReader(`{"model":"m","input":"a","stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := s.Client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 64)
	if _, err := res.Body.Read(buf); err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	eventually(t, "the worker is told", func() bool { return d.Calls()[0].Stops.Load() == 1 })
}

// TestResponsesLogprobs: probabilities come with the text that they are of.
func TestResponsesLogprobs(t *testing.T) {
	d := testkit.Play(testkit.Items(`[{"token_ids":[72],"log_probs":[-0.5],"top_logprobs":[[{"token_id":72,"logprob":-0.5},{"token_id":73,"logprob":-1}]]},
		{"token_ids":[105],"log_probs":[-0.25],"finish_reason":"stop"}]`))
	s := start(t, d, nil)
	_, stream := s.do(t, http.MethodPost, "/v1/responses",
		`{"model":"m","input":"a","stream":true,"top_logprobs":2,"include":["message.output_text.logprobs"]}`)
	if err := testkit.LintResponses([]byte(stream)); err != nil {
		t.Error(err)
	}
	var deltas, whole []any
	for _, e := range events(t, stream) {
		var v struct {
			Type     string
			Logprobs []any
		}
		if e.Data == "[DONE]" {
			continue
		}
		if err := json.Unmarshal([]byte(e.Data), &v); err != nil {
			t.Fatal(err)
		}
		switch v.Type {
		case "response.output_text.delta":
			deltas = append(deltas, v.Logprobs...)
		case "response.output_text.done":
			whole = v.Logprobs
		}
	}
	if diff := cmp.Diff(deltas, whole); diff != "" || len(whole) != 2 || whole[0].(map[string]any)["logprob"] != -0.5 {
		t.Errorf("%s\n%s", diff, stream)
	}
}
