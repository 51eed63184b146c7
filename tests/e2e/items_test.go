package e2e_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

const (
	responsesPath = "/v1/responses"
	messagesPath  = "/v1/messages"
)

// response is what the tests look at of a response.
type response struct {
	ID, Object, Status string
	Output             []struct {
		Type    string
		Content []struct{ Type, Text string }
	}
	Detail *struct{ Reason string } `json:"incomplete_details"`
	Usage  *struct {
		Input  int `json:"input_tokens"`
		Output int `json:"output_tokens"`
		Total  int `json:"total_tokens"`
	}
}

// text joins the texts of its messages.
func (r *response) text() (text string) {
	for _, item := range r.Output {
		for _, part := range item.Content {
			text += part.Text
		}
	}
	return text
}

// message is what the tests look at of an answer in Anthropic's form.
type message struct {
	ID, Type, Role string
	Content        []struct{ Type, Text string }
	StopReason     string `json:"stop_reason"`
	Usage          struct {
		Input  int `json:"input_tokens"`
		Output int `json:"output_tokens"`
	}
}

// decoded sends a request that must succeed, and reads the answer into v.
func (c *client) decoded(t *testing.T, path string, body, v any) {
	t.Helper()
	status, b := c.post(t, path, body)
	if status != http.StatusOK {
		t.Fatalf("%s: status %d: %s", path, status, b)
	}
	if err := json.Unmarshal(b, v); err != nil {
		t.Fatalf("%s: %v in %s", path, err, b)
	}
}

// typed reads a stream of typed events to its end. What they are, and in which order, the linter has an eye on.
func (c *client) typed(t *testing.T, path string, body object) (text string, all []event) {
	t.Helper()
	res := c.start(t, t.Context(), path, with(body, "stream", true))
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(res.Body)
		t.Fatalf("%s: status %d: %s", path, res.StatusCode, b)
	}
	if err := events(res.Body, func(e event) bool { all = append(all, e); return true }); err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		switch e.name {
		case "response.output_text.delta":
			var d struct{ Delta string }
			_ = json.Unmarshal([]byte(e.data), &d)
			text += d.Delta
		case "content_block_delta":
			var d struct{ Delta struct{ Text string } }
			_ = json.Unmarshal([]byte(e.data), &d)
			text += d.Delta.Text
		}
	}
	return text, all
}

// final is the response at the end of a stream.
func final(t *testing.T, all []event) *response {
	t.Helper()
	var last struct{ Response response }
	if len(all) < 2 || all[len(all)-1].data != "[DONE]" {
		t.Fatalf("%d events have no end: %v", len(all), all)
	}
	if err := json.Unmarshal([]byte(all[len(all)-2].data), &last); err != nil {
		t.Fatal(err)
	}
	return &last.Response
}

// testResponses has a conversation over /v1/responses, in both modes, and reads back what is kept.
func testResponses(t *testing.T, c *client) {
	dynamoDiffers(t, "the interface is off by default")
	request := object{"model": model, "input": "Say something.", "max_output_tokens": 9}
	var r response
	c.decoded(t, responsesPath, request, &r)
	if r.Object != "response" || r.Status != "incomplete" || r.Detail == nil || r.Detail.Reason != "max_output_tokens" || r.text() == "" {
		t.Fatalf("response %+v", r)
	}
	if u := r.Usage; u == nil || u.Output != 9 || u.Input < 1 || u.Total != u.Input+u.Output {
		t.Errorf("usage %+v", u)
	}
	text, all := c.typed(t, responsesPath, with(object{"model": model, "input": "And more?", "max_output_tokens": 9}, "previous_response_id", r.ID))
	streamed := final(t, all)
	if text == "" || streamed.text() != text || streamed.Usage == nil || streamed.Usage.Input <= r.Usage.Input {
		t.Errorf("streamed %q, %+v", text, streamed)
	}
	// What was streamed comes again, from wherever it is wanted.
	path := c.base + responsesPath + "/" + streamed.ID
	for _, after := range []int{-1, 4, len(all) - 2} {
		query := "?stream=true"
		if after >= 0 {
			query += fmt.Sprint("&starting_after=", after)
		}
		res, err := c.http.Get(path + query)
		if err != nil {
			t.Fatal(err)
		}
		var again []event
		if err := events(res.Body, func(e event) bool { again = append(again, e); return true }); err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if want := all[after+1:]; fmt.Sprint(again) != fmt.Sprint(want) {
			t.Errorf("after %d there are\n%v, want\n%v", after, again, want)
		}
	}
	if status, b := c.get(t, responsesPath+"/"+streamed.ID); status != http.StatusOK || !strings.Contains(all[len(all)-2].data, string(b)) {
		t.Errorf("%d %s", status, b)
	}
	if status, b := c.post(t, responsesPath, with(request, "previous_response_id", "resp_1")); status != http.StatusBadRequest {
		t.Errorf("unknown response: %d %s", status, b)
	}
	if status, b := c.post(t, responsesPath, with(request, "model", "none")); status != http.StatusNotFound {
		t.Errorf("unknown model: %d %s", status, b)
	}
}

// testMessages asks over /v1/messages, in both modes, and counts.
func testMessages(t *testing.T, c *client) {
	dynamoDiffers(t, "the interface is off by default")
	request := object{"model": model, "max_tokens": 9, "system": "Be brief.", "messages": []object{{"role": "user", "content": "Say something."}}}
	var m message
	c.decoded(t, messagesPath, request, &m)
	if m.Type != "message" || m.Role != "assistant" || m.StopReason != "max_tokens" || len(m.Content) != 1 || m.Content[0].Text == "" || m.Usage.Output != 9 {
		t.Fatalf("message %+v", m)
	}
	text, all := c.typed(t, messagesPath, request)
	var last struct {
		Delta struct {
			StopReason string `json:"stop_reason"`
		}
		Usage struct {
			Output int `json:"output_tokens"`
		}
	}
	if len(all) < 5 {
		t.Fatalf("events %v", all)
	}
	if err := json.Unmarshal([]byte(all[len(all)-2].data), &last); err != nil || last.Delta.StopReason != "max_tokens" || last.Usage.Output != 9 || text == "" {
		t.Errorf("%v, streamed %q, at last %+v", err, text, last)
	}
	var counted struct {
		Input int `json:"input_tokens"`
	}
	c.decoded(t, messagesPath+"/count_tokens", object{"model": model, "system": request["system"], "messages": request["messages"]}, &counted)
	if counted.Input != m.Usage.Input {
		t.Errorf("%d tokens are counted, %d used", counted.Input, m.Usage.Input)
	}
	status, b := c.post(t, messagesPath, with(request, "model", "none"))
	if status != http.StatusNotFound || !strings.Contains(string(b), "not_found_error") {
		t.Errorf("unknown model: %d %s", status, b)
	}
}

// responsesTurns has the conversation of TestTurns over /v1/responses: whole answers are sent back as items, streamed
// ones stand behind the id of their response.
func responsesTurns(t *testing.T, c *client) (m modes) {
	t.Helper()
	request := object{"model": "smollm2", "instructions": turnSystem, "temperature": 0, "max_output_tokens": turnTokens}
	var items []object
	var last any
	for _, q := range turnQuestions {
		var r response
		items = append(items, object{"role": "user", "content": q})
		c.decoded(t, responsesPath, with(request, "input", items), &r)
		m.Whole = append(m.Whole, r.text())
		items = append(items, object{"role": "assistant", "content": r.text()})

		text, all := c.typed(t, responsesPath, with(with(request, "input", q), "previous_response_id", last))
		m.Streamed = append(m.Streamed, text)
		last = final(t, all).ID
	}
	return m
}

// messagesTurns has it over /v1/messages.
func messagesTurns(t *testing.T, c *client) (m modes) {
	t.Helper()
	request := object{"model": "smollm2", "system": turnSystem, "temperature": 0, "max_tokens": turnTokens}
	var messages []object
	for _, q := range turnQuestions {
		messages = append(messages, object{"role": "user", "content": q})
		var whole message
		c.decoded(t, messagesPath, with(request, "messages", messages), &whole)
		text, _ := c.typed(t, messagesPath, with(request, "messages", messages))
		m.Whole, m.Streamed = append(m.Whole, whole.Content[0].Text), append(m.Streamed, text)
		messages = append(messages, object{"role": "assistant", "content": []object{{"type": "text", "text": whole.Content[0].Text}}})
	}
	return m
}
