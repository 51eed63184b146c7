package e2e_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"
)

const (
	chatPath       = "/v1/chat/completions"
	completionPath = "/v1/completions"
)

// TestAPI runs the HTTP surface in every cell: what a client sees must not depend on how workers are reached.
func TestAPI(t *testing.T) {
	eachCell(t, func(t *testing.T, plane, backend string) {
		d, _ := deploy(t, plane, backend)
		for _, c := range []struct {
			name string
			run  func(*testing.T, *client)
		}{
			{"models", testModels}, {"chat", testChat}, {"chat stream", testChatStream},
			{"completions", testCompletion}, {"completions stream", testCompletionStream},
			{"batch", testBatch}, {"token ids", testTokenIDs}, {"n", testN}, {"stop strings", testStop},
			{"refusals", testRefusals}, {"health", testHealth},
			{"responses", testResponses}, {"messages", testMessages},
		} {
			t.Run(c.name, func(t *testing.T) { c.run(t, d.client) })
		}
	})
}

func testModels(t *testing.T, c *client) {
	status, b := c.get(t, "/v1/models")
	if status != http.StatusOK || !strings.Contains(string(b), `"`+model+`"`) {
		t.Errorf("list: %d %s", status, b)
	}
	status, b = c.get(t, "/v1/models/"+model)
	var one struct{ ID, Object string }
	if err := json.Unmarshal(b, &one); err != nil || status != http.StatusOK || one.ID != model || one.Object != "model" {
		t.Errorf("one: %d %s", status, b)
	}
	if status, b = c.get(t, "/v1/models/none"); status != http.StatusNotFound {
		t.Errorf("unknown: %d %s", status, b)
	}
}

func testChat(t *testing.T, c *client) {
	a := c.unary(t, chatPath, chat(model, "Say something.", 9))
	if a.Object != "chat.completion" || !strings.HasPrefix(a.ID, "chatcmpl-") || a.Model != model || len(a.Choices) != 1 {
		t.Fatalf("answer %+v", a)
	}
	one := a.Choices[0]
	if one.Message == nil || one.Message.Role != "assistant" || one.Message.Content == "" {
		t.Errorf("message %+v", one.Message)
	}
	if one.FinishReason == nil || *one.FinishReason != "length" {
		t.Errorf("finish reason %v", one.FinishReason)
	}
	checkUsage(t, a.Usage, 9)
}

func checkUsage(t *testing.T, u *usage, completion int) {
	t.Helper()
	if u == nil || u.Completion != completion || u.Prompt < 1 || u.Total != u.Prompt+u.Completion {
		t.Errorf("usage %+v, want %d completion tokens", u, completion)
	}
}

func testChatStream(t *testing.T, c *client) {
	s := c.stream(t, chatPath, chat(model, "Say something.", 9))
	if !s.done || s.trailing > 0 || s.cut != nil || len(s.errors) > 0 {
		t.Fatalf("stream %+v", s)
	}
	if s.text[0] == "" || s.finish[0] != "length" || s.roles != 1 {
		t.Errorf("text %q, finish %q, %d roles", s.text[0], s.finish[0], s.roles)
	}
	if s.usage != nil {
		t.Errorf("usage without being asked for: %+v", s.usage)
	}
	s = c.stream(t, chatPath, with(chat(model, "Say something.", 9), "stream_options", object{"include_usage": true}))
	checkUsage(t, s.usage, 9)
}

func testCompletion(t *testing.T, c *client) {
	a := c.unary(t, completionPath, object{"model": model, "prompt": "Once upon a time", "max_tokens": 9})
	if a.Object != "text_completion" || !strings.HasPrefix(a.ID, "cmpl-") || len(a.Choices) != 1 || a.Choices[0].Text == "" {
		t.Fatalf("answer %+v", a)
	}
	checkUsage(t, a.Usage, 9)
}

func testCompletionStream(t *testing.T, c *client) {
	s := c.stream(t, completionPath, object{"model": model, "prompt": "Once upon a time", "max_tokens": 9})
	if !s.done || s.trailing > 0 || len(s.errors) > 0 || s.text[0] == "" || s.finish[0] != "length" {
		t.Fatalf("stream %+v", s)
	}
}

func testBatch(t *testing.T, c *client) {
	request := object{"model": model, "prompt": []string{"One", "Two and", "Three and four"}, "max_tokens": 5}
	a := c.unary(t, completionPath, request)
	seen := map[int]bool{}
	for _, one := range a.Choices {
		seen[one.Index] = one.Text != ""
	}
	if len(seen) != 3 || !seen[0] || !seen[1] || !seen[2] {
		t.Errorf("choices %+v", a.Choices)
	}
	checkUsage(t, a.Usage, 15)
	s := c.stream(t, completionPath, request)
	if len(s.text) != 3 || len(s.finish) != 3 || !s.done {
		t.Errorf("stream %+v", s)
	}
}

func testTokenIDs(t *testing.T, c *client) {
	a := c.unary(t, completionPath, object{"model": model, "prompt": []int{504, 3575, 282, 4649}, "max_tokens": 5})
	if a.Usage == nil || a.Usage.Prompt != 4 {
		t.Errorf("usage %+v, want 4 prompt tokens", a.Usage)
	}
}

// testN asks for several choices. The mocker ignores n, as engines may: a frontend must not invent the missing ones.
func testN(t *testing.T, c *client) {
	a := c.unary(t, chatPath, with(with(chat(model, "Say something.", 5), "n", 2), "temperature", 0.7))
	if len(a.Choices) < 1 || len(a.Choices) > 2 {
		t.Fatalf("choices %+v", a.Choices)
	}
	for i, one := range a.Choices {
		if one.Index != i || one.Message == nil || one.Message.Content == "" {
			t.Errorf("choice %d: %+v", i, one)
		}
	}
}

// testStop uses a stop string that random text can't avoid for long.
func testStop(t *testing.T, c *client) {
	request := with(chat(model, "Say something.", 200), "stop", []string{"e"})
	check := func(text, finish string) {
		t.Helper()
		if finish != "stop" {
			t.Errorf("finish reason %q after %q", finish, text)
		}
		if strings.Contains(text, "e") {
			t.Errorf("%q holds the stop string", text)
		}
	}
	a := c.unary(t, chatPath, request)
	if a.Choices[0].Message == nil || a.Choices[0].FinishReason == nil {
		t.Fatalf("answer %+v", a)
	}
	check(a.Choices[0].Message.Content, *a.Choices[0].FinishReason)
	start := time.Now()
	s := c.stream(t, chatPath, request)
	check(s.text[0], s.finish[0])
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("the stop string ended the stream after %s only", took)
	}
}

func testRefusals(t *testing.T, c *client) {
	for _, r := range []struct {
		name, path string
		body       any
		status     int
	}{
		{"unknown model", chatPath, chat("none", "Hi", 4), http.StatusNotFound},
		{"unknown model, completions", completionPath, object{"model": "none", "prompt": "Hi", "max_tokens": 4}, http.StatusNotFound},
		{"no messages", chatPath, object{"model": model, "messages": []object{}, "max_tokens": 4}, http.StatusBadRequest},
		{"hot", chatPath, with(chat(model, "Hi", 4), "temperature", 5), http.StatusBadRequest},
		{"wrong type", chatPath, with(chat(model, "Hi", 4), "max_tokens", "many"), http.StatusBadRequest},
		{"top_p", chatPath, with(chat(model, "Hi", 4), "top_p", 1.5), http.StatusBadRequest},
	} {
		t.Run(r.name, func(t *testing.T) {
			status, b := c.post(t, r.path, r.body)
			if status != r.status {
				t.Errorf("status %d, want %d: %s", status, r.status, b)
			}
		})
	}
	t.Run("error object", func(t *testing.T) {
		dynamoDiffers(t, "its errors are flat")
		_, b := c.post(t, chatPath, with(chat(model, "Hi", 4), "temperature", 5))
		var e struct {
			Error struct {
				Message, Type, Param string
			}
		}
		if err := json.Unmarshal(b, &e); err != nil || e.Error.Message == "" || e.Error.Type != "invalid_request_error" || e.Error.Param != "temperature" {
			t.Errorf("%s", b)
		}
	})
}

func testHealth(t *testing.T, c *client) {
	for _, path := range []string{"/health", "/live", "/metrics"} {
		if status, b := c.get(t, path); status != http.StatusOK {
			t.Errorf("%s: %d %s", path, status, b)
		}
	}
}
